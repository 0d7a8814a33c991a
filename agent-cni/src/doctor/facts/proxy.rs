//! What ZeroProxy answers on its local endpoints: plain HTTP to an address of the node, nothing else.

use std::{
    io::{Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use crate::doctor::check::Seen;

/// The proxy answers from memory: one that takes longer does not work.
const PATIENCE: Duration = Duration::from_secs(2);
/// Its answers are a few hundred bytes.
const ANSWER_LIMIT: u64 = 64 * 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// What was asked.
    pub(crate) url: String,
    /// Alive?
    pub(crate) health: Seen<Answer>,
    /// Ready for pods?
    pub(crate) ready: Seen<Answer>,
}

/// An HTTP answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Its status.
    pub(crate) status: u16,
    /// Its body.
    pub(crate) body: String,
}

impl Proxy {
    /// Asks both endpoints.
    pub(crate) fn ask(url: &str) -> Self {
        Self {
            health: get(url),
            ready: beside(url, "/readyz").and_then(|ready| get(&ready)),
            url: url.to_owned(),
        }
    }
}

/// Another path of the same server.
fn beside(url: &str, path: &str) -> Seen<String> {
    let (authority, _) = parts(url)?;
    Ok(format!("http://{authority}{path}"))
}

/// Authority and path.
fn parts(url: &str) -> Seen<(&str, &str)> {
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| format!("{url} does not begin with http://"))?;
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
    if authority.is_empty() || !plain(authority) || !plain(path) {
        return Err(format!(
            "{url} is no URL; write http://127.0.0.1:18080/healthz"
        ));
    }
    Ok((authority, if path.is_empty() { "/" } else { path }))
}

/// One GET.
pub(crate) fn get(url: &str) -> Seen<Answer> {
    let (authority, path) = parts(url)?;
    let with_port = if authority
        .rsplit(']')
        .next()
        .unwrap_or_default()
        .contains(':')
    {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    let why = |error: std::io::Error| format!("{url}: {error}");
    let address = with_port
        .to_socket_addrs()
        .map_err(why)?
        .next()
        .ok_or_else(|| format!("{url}: no such address"))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(why)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(why)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(why)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(why)?;
    let mut bytes = Vec::new();
    stream
        .take(ANSWER_LIMIT)
        .read_to_end(&mut bytes)
        .map_err(why)?;
    answer(&bytes).ok_or_else(|| format!("{url}: something answered that is not HTTP"))
}

fn answer(bytes: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut line = head.lines().next()?.split(' ');
    let is_http = line.next()?.starts_with("HTTP/1.");
    let status = line.next()?.parse().ok()?;
    is_http.then(|| Answer {
        status,
        body: body.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_an_authority_and_a_path() {
        assert_eq!(parts("http://a:1/healthz"), Ok(("a:1", "/healthz")));
        assert_eq!(parts("http://[::1]:1"), Ok(("[::1]:1", "/")));
        assert_eq!(
            beside("http://a:1/healthz?x=/y", "/readyz").unwrap(),
            "http://a:1/readyz"
        );
        for url in [
            "https://a/",
            "http://",
            "http:///x",
            "http://a/\r\nX: y",
            "a:1",
        ] {
            assert!(parts(url).is_err(), "{url}");
        }
    }

    #[test]
    fn an_answer_is_read_and_nothing_else_is() {
        let found = answer(b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n{}\n").unwrap();
        assert_eq!((found.status, found.body.as_str()), (503, "{}"));
        for bytes in [
            &b""[..],
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n",
        ] {
            assert_eq!(answer(bytes), None);
        }
    }

    #[test]
    fn nobody_there_is_an_error_that_names_the_url() {
        let error = get("http://127.0.0.1:1/healthz").unwrap_err();
        assert!(error.starts_with("http://127.0.0.1:1/healthz: "), "{error}");
    }
}
