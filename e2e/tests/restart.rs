//! The proxy comes and goes; pods stay, and what can be kept is kept.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::{Duration, Instant};

use e2e::PodSpec;
use e2e::patience::slowdown;
use e2e::policy::Policy;
use nix::sys::signal::Signal;

mod support;
use support::{node_and_pod, status};

#[test]
fn pods_work_again_after_the_proxy_was_killed_and_started_anew() {
    let Some((mut node, pod)) = node_and_pod("restart") else {
        return;
    };
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        assert_eq!(
            status(&pod.curl(&["http://docs.example.com/"]).unwrap()),
            200
        );
        node.stop_proxy(signal).unwrap();
        let done = pod
            .curl(&[
                "-m",
                "2",
                "--resolve",
                "docs.example.com:80:203.0.113.10",
                "http://docs.example.com/",
            ])
            .unwrap();
        assert!(
            !done.ok() && !done.stdout.contains("hello"),
            "without a proxy: {done}"
        );
        node.start_proxy().unwrap();
    }
    assert_eq!(
        status(&pod.curl(&["http://docs.example.com/"]).unwrap()),
        200
    );
    assert_eq!(
        status(&pod.curl(&["http://api.example.com/"]).unwrap()),
        200
    );
    // a pod that was added while there was no proxy
    node.stop_proxy(Signal::SIGTERM).unwrap();
    let late = node.add_pod(&PodSpec::named("late")).unwrap();
    node.start_proxy().unwrap();
    assert_eq!(
        status(&late.curl(&["http://docs.example.com/"]).unwrap()),
        200
    );
}

#[test]
fn a_request_under_way_is_finished_after_sigterm() {
    let Some((mut node, pod)) = node_and_pod("restart") else {
        return;
    };
    let slow = "curl -sS -m 20 --limit-rate 600k -o /dev/null -w '%{http_code} %{size_download}' http://bulk.example.com/megabyte";
    let done = std::thread::scope(|s| {
        let client = s.spawn(|| pod.sh(slow).unwrap());
        std::thread::sleep(Duration::from_millis(700));
        node.stop_proxy(Signal::SIGTERM).unwrap();
        client.join().unwrap()
    });
    assert_eq!(done.stdout.trim(), "200 1048576", "{done}");
}

#[test]
fn a_new_proxy_takes_over_without_a_refused_connection() {
    let Some((mut node, pod)) = node_and_pod("restart-takeover") else {
        return;
    };
    // until it is told to end: however long the replacements take, they are under load
    let load = r#"
import signal, socket, sys
ended = False
def end(*_):
    global ended
    ended = True
signal.signal(signal.SIGTERM, end)
print('ready', flush=True)
bad, good = [], 0
while not ended:
    try:
        s = socket.create_connection(('203.0.113.10', 80), int(sys.argv[1]))
        s.sendall(b'GET /x HTTP/1.1\r\nHost: docs.example.com\r\nConnection: close\r\n\r\n')
        data = b''
        while True:
            more = s.recv(4096)
            if not more: break
            data += more
        good += b' 200 ' in data
        if b' 200 ' not in data: bad.append(repr(data[:80]))
    except OSError as e:
        bad.append(repr(e))
print(good, bad[:5])
"#;
    let patient = (3 * slowdown()).to_string();
    let mut client = pod
        .place()
        .spawn("load", &["/usr/bin/python3", "-c", load, &patient], &[])
        .unwrap();
    client
        .wait_for_output("ready", Duration::from_secs(10))
        .unwrap();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1200));
        // the new one starts beside the old one, as in a rolling update
        let old = node.replace_proxy().unwrap();
        old.stop(Signal::SIGTERM, Duration::from_secs(30)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(1200));
    let log = client.log_path().to_owned();
    client
        .stop(Signal::SIGTERM, Duration::from_secs(10))
        .unwrap();
    let said = std::fs::read_to_string(log).unwrap();
    let last = said.trim().lines().next_back().unwrap();
    let (good, bad) = last.split_once(' ').unwrap();
    assert!(
        bad == "[]" && good.parse::<u32>().unwrap() > 100 / slowdown(),
        "{said}"
    );
}

#[test]
fn a_policy_that_revokes_a_rule_ends_what_it_allowed() {
    let Some((node, pod)) = node_and_pod("restart") else {
        return;
    };
    let keepalive = r#"
import requests, time
s = requests.Session()
print(s.get('http://docs.example.com/', timeout=5).status_code, flush=True)
end = time.time() + 15
while time.time() < end:
    code = s.get('http://docs.example.com/', timeout=5).status_code
    if code != 200: break
    time.sleep(0.05)
print(code, flush=True)
"#;
    let tunnel = r#"
import socket
s = socket.create_connection(('203.0.113.30', 2525), 3)
s.sendall(b'hi\n')
s.settimeout(20)
try:
    while True:
        data = s.recv(1000)
        if not data: break
        print(data, flush=True)
except ConnectionResetError:
    print('reset')
"#;
    let done = std::thread::scope(|s| {
        let client = s.spawn(|| {
            pod.place()
                .run(&["/usr/bin/python3", "-c", keepalive])
                .unwrap()
        });
        let tunnel = s.spawn(|| {
            let done = pod
                .place()
                .run(&["/usr/bin/python3", "-c", tunnel])
                .unwrap();
            (done, Instant::now())
        });
        std::thread::sleep(Duration::from_secs(2));
        node.apply_policy(&Policy::new().document()).unwrap();
        let revoked = Instant::now();
        let session = client.join().unwrap();
        assert!(
            revoked.elapsed() < Duration::from_secs(3),
            "a keep-alive connection kept its rule"
        );
        let (tunnel, ended) = tunnel.join().unwrap();
        assert!(tunnel.stdout.contains("220 banner ready"), "{tunnel}");
        assert!(
            ended > revoked,
            "the tunnel ended before its rule: {tunnel}"
        );
        assert!(
            ended.duration_since(revoked) < Duration::from_secs(7),
            "a tunnel outlived recheckSeconds: {tunnel}"
        );
        session
    });
    assert_eq!(
        done.stdout.split_whitespace().collect::<Vec<_>>(),
        ["200", "403"],
        "{done}"
    );
}
