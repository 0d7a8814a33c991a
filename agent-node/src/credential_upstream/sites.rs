//! What each name serves, and what it wants. A request in, an answer out: no I/O but reading credentials.

use agent_core::policy::{CredentialFormat, CredentialRef};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, request::Parts};
use serde::Deserialize;
use serde_json::{Value, json};
use subtle::ConstantTimeEq;

use super::git::Repository;
use super::observed::{Brought, Observed};
use super::vectors::Index;
use crate::credential::CredentialStore;

/// What the upstream saw of a credential, in each answer.
const SAW: HeaderName = HeaderName::from_static("x-upstream-saw");
const CALLER: HeaderName = HeaderName::from_static("x-agent-caller");

/// A repository without a token, one with; a vector database; an agent.
const PUBLIC_GIT: &str = "git.example.com";
const PRIVATE_GIT: &str = "git.internal.example.com";
const VECTOR_DB: &str = "vector-db.internal.example.com";
const API: &str = "api.example.com";
const AGENT: &str = "agent-server";

/// A request, as far as sites look at it.
pub(super) struct Asked<'a> {
    head: &'a Parts,
    body: &'a [u8],
    host: String,
}

impl<'a> Asked<'a> {
    pub(super) fn new(head: &'a Parts, body: &'a [u8]) -> Asked<'a> {
        let host = head.headers.get(HOST).and_then(|h| h.to_str().ok());
        let name = host
            .unwrap_or_default()
            .split(':')
            .next()
            .unwrap_or_default();
        Asked {
            head,
            body,
            host: name.to_ascii_lowercase(),
        }
    }

    fn path(&self) -> &str {
        self.head.uri.path()
    }
}

/// A credential that a site wants.
struct Wanted {
    header: HeaderName,
    how: CredentialRef,
}

impl Wanted {
    fn new(header: HeaderName, file: &str, prefix: &str, username: Option<&str>) -> Wanted {
        let format = match username {
            Some(_) => CredentialFormat::Basic,
            None => CredentialFormat::Raw,
        };
        Wanted {
            how: CredentialRef {
                header: header.as_str().to_owned(),
                file: file.to_owned(),
                prefix: prefix.to_owned(),
                format,
                username: username.map(str::to_owned),
                strip_from_response: false,
                allow_cleartext: true,
            },
            header,
        }
    }
}

/// All sites.
pub(super) struct Sites {
    credentials: CredentialStore,
    observed: Observed,
    public: Repository,
    private: Repository,
    vectors: Index,
    private_git: Wanted,
    vector_db: Wanted,
    api: Wanted,
}

#[derive(Deserialize)]
struct Query {
    query: String,
    #[serde(default = "Query::top")]
    top: usize,
}

impl Query {
    fn top() -> usize {
        3
    }
}

impl Sites {
    /// The sites, with tokens from `credentials`.
    ///
    /// # Errors
    /// When a repository can't be made.
    pub(super) fn new(credentials: CredentialStore) -> std::io::Result<Sites> {
        Ok(Sites {
            credentials,
            observed: Observed::default(),
            public: Repository::new("this is public\n")?,
            private: Repository::new("this is private\n")?,
            vectors: Index::new(),
            private_git: Wanted::new(
                http::header::AUTHORIZATION,
                "REPO_TOKEN",
                "",
                Some("x-access-token"),
            ),
            vector_db: Wanted::new(HeaderName::from_static("x-api-key"), "RAG_TOKEN", "", None),
            api: Wanted::new(http::header::AUTHORIZATION, "REPO_TOKEN", "Bearer ", None),
        })
    }

    /// Answers a request.
    pub(super) fn answer(&self, asked: &Asked<'_>) -> Response<Bytes> {
        if let Some(host) = asked.path().strip_prefix("/observed/") {
            return json_of(StatusCode::OK, &json!(self.observed.of(host)));
        }
        let wanted = match asked.host.as_str() {
            PRIVATE_GIT => Some(&self.private_git),
            VECTOR_DB => Some(&self.vector_db),
            API => Some(&self.api),
            _ => None,
        };
        let brought = match wanted {
            Some(wanted) => self.brought(wanted, asked),
            None if asked.head.headers.contains_key(http::header::AUTHORIZATION) => Brought::Wrong,
            None => Brought::Nothing,
        };
        self.observed.record(&asked.host, brought);
        let mut answer = match wanted {
            Some(_) if brought != Brought::Right => refused(brought),
            _ => self.site(asked),
        };
        let saw = HeaderValue::from_static(brought.name());
        answer.headers_mut().insert(SAW, saw);
        answer
    }

    fn site(&self, asked: &Asked<'_>) -> Response<Bytes> {
        match asked.host.as_str() {
            PUBLIC_GIT => repository(&self.public, "/public.git/", asked.path()),
            PRIVATE_GIT => repository(&self.private, "/private.git/", asked.path()),
            VECTOR_DB => self.search(asked),
            AGENT => agent(asked),
            host => json_of(
                StatusCode::OK,
                &json!({"host": host, "method": asked.head.method.as_str(), "path": asked.path()}),
            ),
        }
    }

    fn search(&self, asked: &Asked<'_>) -> Response<Bytes> {
        if (asked.head.method != Method::POST) || asked.path() != "/query" {
            return problem(StatusCode::NOT_FOUND, "ask by POST /query");
        }
        match serde_json::from_slice::<Query>(asked.body) {
            Ok(Query { query, top }) => json_of(
                StatusCode::OK,
                &json!({"matches": self.vectors.search(&query, top)}),
            ),
            Err(_) => problem(
                StatusCode::BAD_REQUEST,
                r#"write {"query": "words", "top": 3}"#,
            ),
        }
    }

    fn brought(&self, wanted: &Wanted, asked: &Asked<'_>) -> Brought {
        let mut values = asked.head.headers.get_all(&wanted.header).iter();
        let Some(value) = values.next() else {
            return Brought::Nothing;
        };
        // A token that can't be read is nobody's.
        let Ok(secret) = self.credentials.get(&wanted.how) else {
            return Brought::Wrong;
        };
        let is_right = secret.header_value().as_bytes().ct_eq(value.as_bytes());
        match bool::from(is_right) && values.next().is_none() {
            true => Brought::Right,
            false => Brought::Wrong,
        }
    }
}

/// An agent that others call: it says who called, as the proxy verified it.
fn agent(asked: &Asked<'_>) -> Response<Bytes> {
    let caller = asked.head.headers.get(CALLER).and_then(|c| c.to_str().ok());
    match caller {
        Some(caller) => json_of(
            StatusCode::OK,
            &json!({"agent": AGENT, "caller": caller, "task": asked.path()}),
        ),
        None => problem(StatusCode::FORBIDDEN, "nobody says who calls"),
    }
}

fn repository(repository: &Repository, root: &str, path: &str) -> Response<Bytes> {
    match path
        .strip_prefix(root)
        .and_then(|file| repository.file(file))
    {
        Some(file) => with_type("text/plain", Bytes::copy_from_slice(file)),
        None => problem(StatusCode::NOT_FOUND, "there is no such file"),
    }
}

fn refused(brought: Brought) -> Response<Bytes> {
    let mut answer = problem(
        StatusCode::UNAUTHORIZED,
        match brought {
            Brought::Nothing => "a token is wanted, and there is none",
            _ => "a token is wanted, and this is another",
        },
    );
    let challenge = HeaderValue::from_static("Basic realm=\"tests\"");
    answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    answer
}

fn problem(status: StatusCode, error: &str) -> Response<Bytes> {
    json_of(status, &json!({"error": error}))
}

fn json_of(status: StatusCode, body: &Value) -> Response<Bytes> {
    let mut answer = with_type("application/json", format!("{body}\n").into());
    *answer.status_mut() = status;
    answer
}

fn with_type(kind: &'static str, body: Bytes) -> Response<Bytes> {
    let mut answer = Response::new(body);
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
mod tests {
    use std::fs;

    use http::Request;

    use super::*;

    fn sites() -> (tempfile::TempDir, Sites) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("REPO_TOKEN"), "repo-s3cret\n").unwrap();
        fs::write(dir.path().join("RAG_TOKEN"), "rag-s3cret").unwrap();
        let sites = Sites::new(CredentialStore::start(dir.path()).unwrap()).unwrap();
        (dir, sites)
    }

    fn ask(
        sites: &Sites,
        line: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String, String) {
        let (method, url) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        if let Some(host) = head.uri.host() {
            let host = HeaderValue::from_str(&format!("{host}:80")).unwrap();
            head.headers.insert(HOST, host);
        }
        let answer = sites.answer(&Asked::new(&head, body.as_bytes()));
        let saw = answer
            .headers()
            .get(SAW)
            .map(|s| s.to_str().unwrap().to_owned());
        let body = String::from_utf8_lossy(answer.body()).into_owned();
        (answer.status().as_u16(), saw.unwrap_or_default(), body)
    }

    #[test]
    fn a_site_that_wants_a_token_takes_the_right_one_once_and_nothing_else() {
        let (_dir, sites) = sites();
        let line = "POST http://vector-db.internal.example.com/query";
        let query = r#"{"query": "who holds the credential", "top": 1}"#;
        let right = ("x-api-key", "rag-s3cret");
        let (status, saw, body) = ask(&sites, line, &[right], query);
        assert_eq!((status, saw.as_str()), (200, "right"));
        assert!(body.contains(r#""id":"credential""#), "{body}");
        assert_eq!(ask(&sites, line, &[], query).0, 401);
        let wrong: [&[_]; 2] = [&[("x-api-key", "another")], &[right, right]];
        for headers in wrong {
            let (status, saw, body) = ask(&sites, line, headers, query);
            assert_eq!((status, saw.as_str()), (401, "wrong"), "{body}");
            assert!(!body.contains("s3cret"));
        }
        assert_eq!(ask(&sites, line, &[right], "{}").0, 400);
        assert_eq!(
            ask(
                &sites,
                "GET http://vector-db.internal.example.com/",
                &[right],
                ""
            )
            .0,
            404
        );
        let (_, _, seen) = ask(
            &sites,
            "GET http://docs.example.com/observed/vector-db.internal.example.com",
            &[],
            "",
        );
        assert_eq!(
            seen.trim(),
            r#"{"none":1,"requests":6,"right":3,"wrong":2}"#
        );
    }

    #[test]
    fn the_private_repository_wants_git_s_own_way_of_a_token() {
        let (dir, sites) = sites();
        let url = "GET http://git.internal.example.com/private.git/HEAD";
        // printf x-access-token:repo-s3cret | base64
        let basic = (
            "authorization",
            "Basic eC1hY2Nlc3MtdG9rZW46cmVwby1zM2NyZXQ=",
        );
        assert_eq!(
            ask(&sites, url, &[basic], ""),
            (200, "right".into(), "ref: refs/heads/main\n".into())
        );
        assert_eq!(
            ask(&sites, url, &[("authorization", "Bearer repo-s3cret")], "").0,
            401
        );
        let outside = "GET http://git.internal.example.com/private.git/../x";
        assert_eq!(ask(&sites, outside, &[basic], "").0, 404);
        let api = "GET http://api.example.com/v1/models";
        assert_eq!(
            ask(&sites, api, &[("authorization", "Bearer repo-s3cret")], "").0,
            200
        );
        // no token in the Secret: nobody has the right one
        let bare = Sites::new(CredentialStore::start(&dir.path().join("none")).unwrap()).unwrap();
        assert_eq!(ask(&bare, url, &[basic], "").0, 401);
    }

    #[test]
    fn sites_without_a_token_say_when_one_came_all_the_same() {
        let (_dir, sites) = sites();
        let public = "GET http://git.example.com/public.git/info/refs?service=git-upload-pack";
        let (status, saw, body) = ask(&sites, public, &[], "");
        assert_eq!((status, saw.as_str()), (200, "none"));
        assert!(body.ends_with("\trefs/heads/main\n"), "{body}");
        let (status, saw, _) = ask(
            &sites,
            "GET http://docs.example.com/x",
            &[("authorization", "Bearer a")],
            "",
        );
        assert_eq!((status, saw.as_str()), (200, "wrong"));
        let agent = "GET http://agent-server/task";
        assert_eq!(ask(&sites, agent, &[], "").0, 403);
        let (_, _, body) = ask(&sites, agent, &[("x-agent-caller", "sa:a:b")], "");
        assert!(body.contains(r#""caller":"sa:a:b""#), "{body}");
        let never = ask(
            &sites,
            "GET http://docs.example.com/observed/evil.example.com",
            &[],
            "",
        );
        assert!(never.2.contains(r#""requests":0"#), "{}", never.2);
    }
}
