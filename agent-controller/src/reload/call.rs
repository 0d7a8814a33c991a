//! One call to one proxy: `POST /reload`, or `GET /policy/version` when there is no token.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use agent_core::node_settings::TakenSettings;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A node in the same cluster answers at once, or is not there.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A proxy that reads and compiles a document of 100,000 rules takes seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// An answer has a version and some names in it.
const MAX_ANSWER: usize = 256 * 1024;

/// What a proxy said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The version that it enforces; empty for none.
    pub(crate) version: String,
    /// What is wrong with the file that it sees.
    pub(crate) problem: Option<String>,
    /// Credentials that it can't read, with the reason; `None` when it didn't say.
    pub(crate) unresolved: Option<BTreeMap<String, String>>,
    /// What its node has taken over of its class, when it said so.
    pub(crate) settings: Option<TakenSettings>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    version: String,
    problem: Option<String>,
    #[serde(default)]
    unavailable_credentials: Vec<Unavailable>,
    /// Of whatever version the proxy is.
    node_settings: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Unavailable {
    file: String,
    reason: String,
}

#[derive(Deserialize)]
struct NotYet {
    active: String,
    problem: Option<String>,
}

#[derive(Deserialize)]
struct Problem {
    error: String,
}

/// Asks for `wanted`. Cancel safe: the connection is closed.
///
/// # Errors
/// A sentence for people: why there is no answer, or what to do about a refusal.
pub(crate) async fn ask(
    address: SocketAddr,
    token_file: Option<&Path>,
    wanted: &str,
) -> Result<Answer, String> {
    let request = request(address, token_file, wanted).await?;
    let connecting = timeout(CONNECT_WITHIN, TcpStream::connect(address)).await;
    let stream = connecting
        .map_err(|_| format!("{address} doesn't answer"))?
        .map_err(|error| format!("{address} can't be reached: {error}"))?;
    let (status, body) = timeout(ANSWER_WITHIN, exchange(stream, request))
        .await
        .map_err(|_| format!("{address} took the request and doesn't answer"))?
        .map_err(|error| format!("{address}: {error}"))?;
    read(status, &body).map_err(|problem| format!("{address} {problem}"))
}

async fn request(
    address: SocketAddr,
    token_file: Option<&Path>,
    wanted: &str,
) -> Result<Request<Full<Bytes>>, String> {
    let builder = Request::builder().header(header::HOST, address.to_string());
    let built = match token_file {
        None => builder.uri("/policy/version").body(Full::default()),
        Some(file) => {
            // read each time: a projected Secret changes
            let token = tokio::fs::read_to_string(file)
                .await
                .map_err(|error| format!("the token {} can't be read: {error}", file.display()))?;
            let body = serde_json::json!({"version": wanted}).to_string();
            builder
                .method("POST")
                .uri("/reload")
                .header(header::AUTHORIZATION, format!("Bearer {}", token.trim()))
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::from(body))
        }
    };
    built.map_err(|_| {
        "the token holds what no header can; write one line of letters and digits".to_owned()
    })
}

async fn exchange(
    stream: TcpStream,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answered = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await?;
        Ok((status, body.to_bytes()))
    };
    tokio::pin!(connection, answered);
    tokio::select! {
        answer = &mut answered => answer,
        ended = &mut connection => {
            ended?;
            answered.await
        }
    }
}

fn read(status: StatusCode, body: &[u8]) -> Result<Answer, String> {
    let unclear = |_| format!("answered {status} with what is no answer of a proxy");
    match status {
        StatusCode::OK => {
            let said: Version = serde_json::from_slice(body).map_err(unclear)?;
            let unresolved = said.unavailable_credentials.into_iter();
            Ok(Answer {
                version: said.version,
                problem: said.problem,
                settings: said
                    .node_settings
                    .and_then(|settings| serde_json::from_value(settings).ok()),
                unresolved: Some(unresolved.map(|u| (u.file, u.reason)).collect()),
            })
        }
        StatusCode::CONFLICT => {
            let said: NotYet = serde_json::from_slice(body).map_err(unclear)?;
            Ok(Answer {
                version: said.active,
                problem: said.problem,
                unresolved: None,
                settings: None,
            })
        }
        StatusCode::UNAUTHORIZED => {
            Err("has another reload token; give both the same Secret".to_owned())
        }
        _ => {
            let said: Problem = serde_json::from_slice(body).map_err(unclear)?;
            Err(format!("answered {status}: {}", said.error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_proxy_says_is_understood() {
        let body = br#"{"version":"v2","generation":4,"rules":1,"unavailableCredentials":[{"file":"a/B","reason":"missing"}]}"#;
        let answer = read(StatusCode::OK, body).unwrap();
        assert_eq!(answer.version, "v2");
        assert_eq!(answer.unresolved.unwrap()["a/B"], "missing");
        assert_eq!(answer.settings, None);
        let taken = r#"{"schemaVersion":1,"node":"n1","class":"c","fakeIPCIDR":"169.254.3.0/24","stagedBehind":"169.254.9.0/24",
            "settings":{"proxyPort":18080,"dnsPort":18053,"failMode":"Open","defaultConnectivity":"Zero","mode":"auto"}}"#;
        for (settings, known) in [(taken, true), (r#"{"schemaVersion":9}"#, false)] {
            let body = format!(r#"{{"version":"v2","nodeSettings":{settings}}}"#);
            let answer = read(StatusCode::OK, body.as_bytes()).unwrap();
            assert_eq!(answer.settings.is_some(), known, "{settings}");
        }
        let body = br#"{"error":"policy version not yet projected","wanted":"v3","active":"v2"}"#;
        let answer = read(StatusCode::CONFLICT, body).unwrap();
        assert_eq!((answer.version.as_str(), answer.unresolved), ("v2", None));
        for (status, body, says) in [
            (401, "{}", "same Secret"),
            (403, r#"{"error":"this endpoint is off"}"#, "is off"),
            (200, "<html>", "no answer of a proxy"),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let error = read(status, body.as_bytes()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
