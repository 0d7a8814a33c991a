//! Real parts: `dig` in a pod's namespace behind a veth pair, a real dnsmasq as the node's server.
//! dig itself checks that a reply comes from the address that it asked.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::node::{GATEWAY, Node, POD, allowing, own_namespace, run, until, which};

/// A namespace that lives as long as a process that sleeps in it, and a dnsmasq. Both die with the test.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct Pod {
    pid: String,
    _processes: Processes,
    _node: Node,
    _dir: tempfile::TempDir,
}

impl Pod {
    /// A pod behind `agentcni0`'s stand-in, whose port 53 traffic to any address is delivered locally.
    fn start(policy: &serde_json::Value) -> Pod {
        own_namespace();
        let sleeper = Command::new("unshare")
            .args(["-n", "sleep", "120"])
            .spawn()
            .unwrap();
        let pid = sleeper.id().to_string();
        let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
        until("the pod's namespace is there", || {
            fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|its| its != own)
        });
        let mut processes = Processes(vec![sleeper]);
        run(
            "ip",
            &[
                "link", "add", "vethn", "type", "veth", "peer", "name", "eth0", "netns", &pid,
            ],
        );
        run(
            "ip",
            &["addr", "add", &format!("{GATEWAY}/32"), "dev", "vethn"],
        );
        run("ip", &["link", "set", "vethn", "up"]);
        run(
            "ip",
            &["route", "add", &format!("{POD}/32"), "dev", "vethn"],
        );
        run(
            "ip",
            &[
                "rule", "add", "pref", "100", "iif", "vethn", "lookup", "18080",
            ],
        );
        run(
            "ip",
            &[
                "route",
                "add",
                "local",
                "0.0.0.0/0",
                "dev",
                "lo",
                "table",
                "18080",
            ],
        );
        let inside = |arguments: &[&str]| {
            run("nsenter", &[&["-t", &pid, "-n", "ip"], arguments].concat());
        };
        inside(&["link", "set", "lo", "up"]);
        inside(&["addr", "add", &format!("{POD}/32"), "dev", "eth0"]);
        inside(&["link", "set", "eth0", "up"]);
        inside(&[
            "route",
            "add",
            &GATEWAY.to_string(),
            "dev",
            "eth0",
            "scope",
            "link",
        ]);
        inside(&["route", "add", "default", "via", &GATEWAY.to_string()]);

        let dir = tempfile::tempdir().unwrap();
        let server = start_dnsmasq(dir.path(), &mut processes);
        let node = Node::start_here(policy, &[server], json!({}));
        Pod {
            pid,
            _processes: processes,
            _node: node,
            _dir: dir,
        }
    }

    /// What dig prints.
    fn dig(&self, arguments: &[&str]) -> String {
        let dig = which("dig");
        let base = [
            "-t",
            &self.pid,
            "-n",
            dig.to_str().unwrap(),
            "+tries=1",
            "+time=5",
        ];
        run("nsenter", &[&base[..], arguments].concat())
    }
}

/// dnsmasq on loopback of the node's namespace, authoritative for what the tests ask.
fn start_dnsmasq(dir: &std::path::Path, processes: &mut Processes) -> SocketAddr {
    let server: SocketAddr = "127.0.0.1:5300".parse().unwrap();
    let many: String = (1..=60)
        .map(|n| format!("host-record=many.example.com,192.0.2.{n}\n"))
        .collect();
    let config = format!(
        "no-daemon\nno-resolv\nno-hosts\nbind-interfaces\nlisten-address=127.0.0.1\nport=5300\n\
         user=root\nlocal=/example.com/\nlocal-ttl=120\n\
         host-record=api.example.com,192.0.2.7,2001:db8::7\ncname=www.example.com,api.example.com\n\
         host-record=meta.example.com,169.254.169.254\n\
         txt-record=text.example.com,hello\nmx-host=example.com,mail.example.com,10\n\
         srv-host=_https._tcp.example.com,api.example.com,443\n\
         dns-rr=odd.example.com,65399,010203\n{many}"
    );
    let file = dir.join("dnsmasq.conf");
    fs::write(&file, config).unwrap();
    let mut command = Command::new(which("dnsmasq"));
    command.arg(format!("--conf-file={}", file.display()));
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    processes.0.push(command.spawn().unwrap());
    until("dnsmasq answers", || {
        std::net::TcpStream::connect(server).is_ok()
    });
    server
}

#[test]
fn dig_gets_every_kind_of_answer_from_the_address_it_asked() {
    let pod = Pod::start(&allowing(&["*.example.com", "example.com"]));
    for server in ["@8.8.8.8", "@10.96.0.10", "@203.0.113.200"] {
        for transport in ["+notcp", "+tcp"] {
            let text = pod.dig(&[server, transport, "+short", "api.example.com"]);
            assert_eq!(text.trim(), "192.0.2.7", "{server} {transport}");
        }
    }
    let short = |arguments: &[&str]| pod.dig(&[&["@8.8.8.8", "+short"], arguments].concat());
    assert_eq!(short(&["AAAA", "api.example.com"]).trim(), "2001:db8::7");
    assert_eq!(
        short(&["www.example.com"]).trim(),
        "api.example.com.\n192.0.2.7"
    );
    assert_eq!(short(&["TXT", "text.example.com"]).trim(), "\"hello\"");
    assert_eq!(short(&["MX", "example.com"]).trim(), "10 mail.example.com.");
    assert_eq!(
        short(&["SRV", "_https._tcp.example.com"]).trim(),
        "0 0 443 api.example.com."
    );
    assert_eq!(
        short(&["TYPE65399", "odd.example.com"]).trim(),
        "\\# 3 010203"
    );
    assert_eq!(short(&["meta.example.com"]).trim(), "");
}

#[test]
fn dig_falls_back_to_tcp_for_many_addresses() {
    let pod = Pod::start(&allowing(&["*.example.com"]));
    let text = pod.dig(&["@8.8.8.8", "+noedns", "many.example.com"]);
    assert!(text.contains("Truncated, retrying in TCP mode"), "{text}");
    assert_eq!(
        text.lines()
            .filter(|line| line.contains("\tA\t192.0.2."))
            .count(),
        60,
        "{text}"
    );
    let cut = pod.dig(&["@8.8.8.8", "+noedns", "+ignore", "many.example.com"]);
    assert!(cut.contains("flags: qr tc rd ra"), "{cut}");
    let size: usize = cut
        .lines()
        .find_map(|line| line.strip_prefix(";; MSG SIZE  rcvd: "))
        .and_then(|size| size.trim().parse().ok())
        .unwrap();
    assert!(size <= 512, "{size}");
}

#[test]
fn dig_is_told_why_a_name_is_denied() {
    let pod = Pod::start(&allowing(&["api.example.com"]));
    let text = pod.dig(&["@8.8.8.8", "evil.example.com"]);
    assert!(text.contains("status: NXDOMAIN"), "{text}");
    assert!(
        text.contains("no egress rule of this pod names this host"),
        "{text}"
    );
    let text = pod.dig(&["@8.8.8.8", "+edns=1", "+noednsneg", "api.example.com"]);
    assert!(text.contains("status: BADVERS"), "{text}");
    let text = pod.dig(&["@8.8.8.8", "CH", "TXT", "version.bind"]);
    assert!(text.contains("status: REFUSED"), "{text}");
    let text = pod.dig(&["@8.8.8.8", "+dnssec", "aPi.ExAmPlE.cOm"]);
    assert!(text.contains("aPi.ExAmPlE.cOm.\t"), "{text}");
    assert!(text.contains("flags: do; udp: 1232"), "{text}");
}
