//! The real binary without a data path: it lives, says what is missing, and answers for its policy.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TOKEN: &str = "reload-t0ken";

struct Proxy {
    dir: tempfile::TempDir,
    address: SocketAddr,
    child: Child,
}

struct Answer {
    status: u16,
    body: String,
}

impl Proxy {
    fn start() -> Proxy {
        let dir = tempfile::tempdir().unwrap();
        let address = free_address();
        write_files(dir.path(), address);
        let child = spawn(dir.path());
        let proxy = Proxy {
            dir,
            address,
            child,
        };
        until("the endpoints answer", || {
            proxy.try_get("/healthz").is_some()
        });
        proxy
    }

    fn get(&self, path: &str) -> Answer {
        self.try_get(path).unwrap()
    }

    fn try_get(&self, path: &str) -> Option<Answer> {
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
        ))
    }

    fn post(&self, path: &str, token: &str, body: &str) -> Answer {
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .unwrap()
    }

    fn send(&self, request: &str) -> Option<Answer> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let status = text.get(9..12)?.parse().ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        Some(Answer {
            status,
            body: body.to_owned(),
        })
    }

    fn write_policy(&self, host: &str) {
        let text = format!(
            r#"{{"schemaVersion":1,"policies":[{{"namespace":"demo","name":"p","subjects":{{"namespaces":["demo"]}}}}],
            "rules":[{{"policy":0,"name":"r","kind":"allow","host":"{host}"}}]}}"#
        );
        let temp = self.dir.path().join("policy.tmp");
        std::fs::write(&temp, text).unwrap();
        std::fs::rename(temp, self.dir.path().join("policy.json")).unwrap();
    }

    fn active_version(&self) -> String {
        let answer: serde_json::Value =
            serde_json::from_str(&self.get("/policy/version").body).unwrap();
        answer["version"].as_str().unwrap().to_owned()
    }

    fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

fn write_files(dir: &Path, address: SocketAddr) {
    let at = |name: &str| dir.join(name).display().to_string();
    let config = serde_json::json!({
        "stateDir": at("state"),
        "pinDir": at("pins"),
        "policyFile": at("policy.json"),
        "workloadsFile": at("workloads.json"),
        "credentialsDir": at("credentials"),
        "listen": address.to_string(),
        "reloadTokenFile": at("token"),
        "dns": {"upstreams": ["127.0.0.1:1"]},
        "workers": 2,
        "drainSeconds": 2,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    std::fs::write(dir.join("workloads.json"), "{}").unwrap();
    std::fs::write(dir.join("token"), format!("{TOKEN}\n")).unwrap();
}

fn spawn(dir: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_agent-node"))
        .arg("zeroproxy")
        .arg("--config")
        .arg(dir.join("config.json"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(dir.join("log")).unwrap())
        .spawn()
        .unwrap()
}

fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn without_a_data_path_it_is_live_and_says_what_is_missing() {
    let proxy = Proxy::start();
    assert_eq!(proxy.get("/healthz").status, 200);
    let ready = proxy.get("/readyz");
    assert_eq!(ready.status, 503);
    for missing in [
        "policy.json",
        "node.json",
        "pins/v1",
        "everything is denied",
    ] {
        let log = std::fs::read_to_string(proxy.dir.path().join("log")).unwrap();
        assert!(
            ready.body.contains(missing) || (missing == "policy.json" && log.contains(missing)),
            "{missing}: {}",
            ready.body
        );
    }
    let metrics = proxy.get("/metrics");
    assert_eq!(metrics.status, 200);
    assert!(
        metrics.body.contains("agent_network_ready 0"),
        "{}",
        metrics.body
    );
    assert!(metrics.body.ends_with("# EOF\n"));
    assert_eq!(proxy.get("/nowhere").status, 404);
    assert_eq!(proxy.post("/healthz", TOKEN, "").status, 405);
}

#[test]
fn reload_answers_409_until_the_file_has_the_version() {
    let proxy = Proxy::start();
    proxy.write_policy("one.example.com");
    until("the first version is active", || {
        !proxy.active_version().is_empty()
    });
    let first = proxy.active_version();
    let body = |version: &str| format!(r#"{{"version":"{version}"}}"#);
    assert_eq!(proxy.post("/reload", "wrong", &body(&first)).status, 401);
    assert_eq!(proxy.post("/reload", TOKEN, "{}").status, 400);
    assert_eq!(proxy.post("/reload", TOKEN, &body(&first)).status, 200);

    let not_yet = proxy.post("/reload", TOKEN, &body("sha256:later"));
    assert_eq!(not_yet.status, 409);
    assert!(
        not_yet.body.contains("policy version not yet projected"),
        "{}",
        not_yet.body
    );

    proxy.write_policy("two.example.com");
    until("the second version is active", || {
        proxy.active_version() != first
    });
    let second = proxy.active_version();
    let answer = proxy.post("/reload", TOKEN, &body(&second));
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains(&second));
}

#[test]
fn explain_names_the_rule() {
    let proxy = Proxy::start();
    proxy.write_policy("one.example.com");
    until("the version is active", || {
        !proxy.active_version().is_empty()
    });
    let ask = |host: &str| {
        format!(
            r#"{{"workload":{{"namespace":"demo","name":"a","fakeIp":"169.254.9.2"}},"host":"{host}","port":443}}"#
        )
    };
    assert_eq!(
        proxy
            .post("/policy/explain", "wrong", &ask("one.example.com"))
            .status,
        401
    );
    let allowed = proxy.post("/policy/explain", TOKEN, &ask("one.example.com"));
    assert_eq!(allowed.status, 200);
    assert!(
        allowed.body.contains(r#""decision":"allow""#),
        "{}",
        allowed.body
    );
    assert!(allowed.body.contains(r#""rule":"r""#), "{}", allowed.body);
    let denied = proxy.post("/policy/explain", TOKEN, &ask("two.example.com"));
    assert!(
        denied.body.contains(r#""decision":"deny""#),
        "{}",
        denied.body
    );
}

#[test]
fn a_second_process_takes_the_endpoints_over_while_the_first_drains() {
    let mut first = Proxy::start();
    let mut second = spawn(first.dir.path());
    let lines = |name: &str| {
        let log = std::fs::read_to_string(first.dir.path().join(name)).unwrap_or_default();
        log.contains("zeroproxy is up")
    };
    until("the second process is up", || lines("log"));
    first.terminate();
    let ended = first.child.wait().unwrap();
    assert_eq!(ended.code(), Some(0));
    for _ in 0..20 {
        assert_eq!(first.get("/healthz").status, 200);
    }
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn sigterm_ends_it_with_success_and_within_the_drain_time() {
    let mut proxy = Proxy::start();
    let begun = Instant::now();
    proxy.terminate();
    let status = proxy.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_configuration_that_makes_no_sense_is_told_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    std::fs::write(
        &file,
        r#"{"policyFile":"policy.json","workloadsFile":"/w","credentialsDir":"/c"}"#,
    )
    .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_agent-node"))
        .args(["zeroproxy", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("error: policyFile: `policy.json` is not an absolute path; write"),
        "{text}"
    );
}
