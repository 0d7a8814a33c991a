//! The iptables-compat mode, and a node that goes from one mode to the other with its pods.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    support::{Node, PLUGIN},
    traffic::{Server, node_with_uplink, serve},
};

/// What the proxy does in iptables-compat mode: listens on the gateway's address, and asks where a connection was to go.
const LISTENER: &str = r#"
import socket, struct, threading, time
def told(c):
    try:
        _, port, a = struct.unpack("!HH4s8x", c.getsockopt(0, 80, 16))
        return "%s:%d" % (socket.inet_ntoa(a), port)
    except OSError: return "nowhere"
def tcp(port):
    s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(("169.254.9.1", port)); s.listen(64)
    def serve(c, peer):
        print("tcp", port, told(c), peer[0], flush=True)
        try:
            while True:
                d = c.recv(100)
                if not d: break
                c.sendall(d)
                while d == b"go on":
                    c.sendall(b"."); time.sleep(0.1)
        except OSError as e: print("over", port, flush=True)
    def run():
        while True:
            c, peer = s.accept()
            threading.Thread(target=serve, args=(c, peer), daemon=True).start()
    threading.Thread(target=run, daemon=True).start()
tcp(18080); tcp(18053)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("169.254.9.1", 18053))
print("ready", flush=True)
while True:
    d, peer = u.recvfrom(100)
    print("udp", 18053, d.decode(), peer[0], flush=True)
    u.sendto(b"answer", peer)
"#;

/// A python program on the node or in a pod, line by line.
struct Program {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(node: &Node, pod: Option<&str>, text: &str) -> Self {
        let mut command = node.command("nsenter");
        if let Some(pod) = pod {
            command.arg(format!("--net=/run/netns/{pod}"));
        }
        command.args(["--", "python3", "-c", text]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    #[track_caller]
    fn line(&mut self) -> String {
        self.lines.next().expect("a line").unwrap()
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes the node ready in a mode, as the installer does.
#[track_caller]
fn set_up(node: &mut Node, mode: &str) {
    node.conf["mode"] = json!(mode);
    let file = node.files().join("agent-cni.conf");
    std::fs::write(&file, node.conf.to_string()).unwrap();
    node.sh(&format!("{PLUGIN} setup --config {}", file.display()));
    assert_eq!(found(node), mode);
}

/// The modes that the node has anything of.
fn found(node: &Node) -> String {
    let pins = node.files().join("bpf/agent-network/v1");
    node.sh(&format!(
        "e=$(ls -d {} 2>/dev/null; ip rule | grep 18080; nft list table ip agent_network | grep notrack || true)
         c=$(iptables-nft-save | grep AGENT-CNI; iptables-legacy-save 2>/dev/null | grep AGENT-CNI
             nft list table bridge agent_network 2>/dev/null; nft list table ip agent_network | grep redirection || true)
         echo ${{e:+ebpf}}${{c:+iptables-compat}}",
        pins.display()
    ))
    .trim()
    .to_owned()
}

/// Sends from a pod, and answers what came back.
fn ask(node: &Node, pod: &str, kind: &str, to: &str, port: u16) -> String {
    node.sh(&format!(
        "nsenter --net=/run/netns/{pod} python3 -c \"import socket
s=socket.socket(socket.AF_INET,socket.SOCK_{kind}); s.settimeout(5)
s.connect(('{to}',{port})); s.send(b'hello'); print(s.recv(100).decode())\""
    ))
}

fn compat_node() -> Node {
    let mut node = node_with_uplink();
    node.conf["mode"] = json!("iptables-compat");
    node
}

#[test]
fn in_compat_mode_connections_arrive_at_the_proxy_which_learns_where_they_were_to_go() {
    let node = compat_node();
    let address = node.added("c1");
    let other = node.added("c2");
    assert_eq!(found(&node), "iptables-compat");
    let mut proxy = Program::start(&node, None, LISTENER);
    assert_eq!(proxy.line(), "ready");
    // whoever comes after us: kube-proxy in nftables mode, which translates the cluster's DNS server and a node port
    let translate = || {
        node.sh("nft 'add table ip kube; add chain ip kube pre { type nat hook prerouting priority dstnat; }; \
                 add rule ip kube pre ip daddr 10.96.0.10 udp dport 53 dnat to 192.0.2.1:53; \
                 add rule ip kube pre ip daddr 10.96.0.10 tcp dport 53 dnat to 192.0.2.1:53; \
                 add rule ip kube pre ip daddr 192.0.2.2 tcp dport 30080 dnat to 192.0.2.1:8080'");
    };
    for kube_proxy_first in [false, true] {
        if kube_proxy_first {
            translate();
            // what the installer's loop or the next ADD does
            node.added("c3");
        }
        for (to, port) in [
            ("203.0.113.9", 80),
            ("192.0.2.2", 30080),
            (&*other, 8080),
            ("169.254.9.1", 22),
        ] {
            assert_eq!(ask(&node, "c1", "STREAM", to, port).trim(), "hello");
            assert_eq!(proxy.line(), format!("tcp 18080 {to}:{port} {address}"));
        }
        // no translation, so nothing to tell: the local address of the socket says it
        assert_eq!(
            ask(&node, "c1", "STREAM", "169.254.9.1", 18080).trim(),
            "hello"
        );
        assert!(proxy.line().starts_with("tcp 18080 169.254.9.1:18080 "));
        for server in ["10.96.0.10", "8.8.8.8"] {
            assert_eq!(ask(&node, "c1", "STREAM", server, 53).trim(), "hello");
            assert_eq!(proxy.line(), format!("tcp 18053 {server}:53 {address}"));
            assert_eq!(ask(&node, "c1", "DGRAM", server, 53).trim(), "answer");
            assert_eq!(proxy.line(), format!("udp 18053 hello {address}"));
        }
    }
    let seen = node.sh("nsenter --net=/run/netns/outside nft list table ip seen");
    assert_eq!(seen.matches("packets 0 bytes 0").count(), 2, "{seen}");
}

#[test]
fn in_compat_mode_check_finds_and_add_mends_what_somebody_broke() {
    let node = compat_node();
    node.pod("c1");
    let result = node.add("c1").ok();
    node.check("c1", &result).ok();
    for breakage in [
        "iptables -w -t nat -F",
        "iptables -w -t nat -I PREROUTING -j ACCEPT",
        "nft flush ruleset",
        "nft delete table bridge agent_network",
        "nft flush set bridge agent_network gateway",
        "nft flush chain bridge agent_network $(nft list chains bridge | grep -o 'pod_agt[0-9a-f]*_whole')",
    ] {
        node.sh(breakage);
        let (code, message) = node.check("c1", &result).error();
        assert_eq!(code, 104, "{breakage}: {message}");
        assert_eq!(node.add("c1").ok(), result, "{breakage}");
        node.check("c1", &result).ok();
    }
    node.del("c1").ok();
    assert_eq!(node.traces(), "");
}

#[test]
fn in_compat_mode_nothing_of_a_pod_gets_past_when_the_rules_are_gone() {
    let node = compat_node();
    node.added("c1");
    let mut server = Program::start(
        &node,
        None,
        "import socket
u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind(('0.0.0.0',7777)); print('bound',flush=True); print(u.recvfrom(99)[0].decode(),flush=True)",
    );
    assert_eq!(server.line(), "bound");
    let _web = Server::start(&node, None, 8080);
    for breakage in [
        "nft delete table bridge agent_network",
        "iptables -w -t nat -F; iptables -w -t mangle -F; iptables -w -F",
    ] {
        node.sh(breakage);
        node.sh("nsenter --net=/run/netns/c1 python3 -c \"import socket
for a in ('169.254.9.1','192.0.2.2','192.0.2.1','10.96.0.1'):
    u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.sendto(b'from the pod',(a,7777))\"");
        for target in ["169.254.9.1:8080", "192.0.2.2:8080"] {
            let curl = format!("nsenter --net=/run/netns/c1 curl -s -m 1 http://{target}/");
            assert!(!node.succeeds(&curl), "{breakage}: {target} answered");
        }
        let seen = node.sh("nsenter --net=/run/netns/outside nft list table ip seen");
        assert_eq!(seen.matches("packets 0 bytes 0").count(), 2, "{seen}");
        node.added(&format!("mended{}", breakage.len()));
    }
    node.sh("python3 -c \"import socket; socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(b'from the node',('127.0.0.1',7777))\"");
    assert_eq!(server.line(), "from the node");
}

/// Sends everything that must not get out, as fast as it can, until it is killed.
const FLOOD: &str = r#"
import socket, struct, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0)); mac = s.getsockname()[4]
gw = bytes.fromhex(sys.argv[1].replace(":", "")); ip = sys.argv[2]
def total(d):
    n = sum(struct.unpack("!%dH" % (len(d) // 2), d)); n = (n >> 16) + (n & 65535)
    return ~(n + (n >> 16)) & 65535
def frame(src, proto, body, dst="192.0.2.1"):
    h = struct.pack("!BBHHHBBH4s4s", 69, 0, 20 + len(body), 1, 0, 64, proto, 0, socket.inet_aton(src), socket.inet_aton(dst))
    return gw + mac + b"\x08\0" + h[:10] + struct.pack("!H", total(h)) + h[12:] + body
udp = struct.pack("!HHHH", 4000, 7777, 12, 0) + b"leak"
syn = struct.pack("!HHIIBBHHH", 4001, 7777, 1, 0, 80, 2, 65535, 0, 0)
ack = struct.pack("!HHIIBBHHH", 4002, 7777, 1, 1, 80, 16, 65535, 0, 0)
ping = struct.pack("!BBHHH", 8, 0, 0xf7ff, 0, 0)
kinds = ((17, udp), (6, syn), (6, ack), (1, ping))
frames = [frame(src, p, b) for src in (ip, "198.51.100.7", "192.0.2.2") for p, b in kinds]
frames.append(gw + mac + b"\x86\xdd" + b"\x60" + bytes(60))
print("flooding", flush=True)
n = 0
while True:
    for f in frames: s.send(f)
    n += 1
    if n % 20 == 0: print(n * len(frames), flush=True)
"#;

/// Says something every few milliseconds and wants to hear it back, until it is told to stop.
const TALK: &str = r#"
import socket, sys, threading, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5); s.settimeout(10)
print("open", flush=True)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
n = 0
while not stop.is_set():
    s.sendall(b"x")
    if s.recv(1) != b"x": print("closed", flush=True); sys.exit()
    n += 1; time.sleep(0.005)
print("talked", n, flush=True)
"#;

const ECHO: &str = r#"
import socket, threading
s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(("0.0.0.0", 8080)); s.listen(8)
print("ready", flush=True)
def echo(c):
    while True:
        d = c.recv(100)
        if not d: break
        c.sendall(d)
while True:
    c, _ = s.accept(); threading.Thread(target=echo, args=(c,), daemon=True).start()
"#;

fn with_arguments(text: &str, arguments: &[&str]) -> String {
    let quoted: Vec<String> = arguments.iter().map(|one| format!("{one:?}")).collect();
    format!("import sys; sys.argv = ['', {}]\n{text}", quoted.join(", "))
}

#[test]
fn a_node_changes_its_mode_with_pods_and_nothing_of_them_ever_gets_out() {
    let mut node = node_with_uplink();
    set_up(&mut node, "ebpf");
    let address = node.added("c1");
    let other = node.added("c2");
    // whatever the pod sends, as it would arrive out there
    node.sh(
        "nsenter --net=/run/netns/outside nft 'add table ip uplink; \
             add chain ip uplink in { type filter hook prerouting priority -401; }; \
             add rule ip uplink in iifname eth0 udp dport 7777 counter; \
             add rule ip uplink in iifname eth0 tcp dport 7777 counter; \
             add rule ip uplink in iifname eth0 icmp type echo-request counter'",
    );
    let mut backend = Program::start(&node, Some("outside"), ECHO);
    assert_eq!(backend.line(), "ready");
    let mut probed = Program::start(&node, Some("c2"), ECHO);
    assert_eq!(probed.line(), "ready");
    serve(&node, "10.96.0.10", "192.0.2.1:8080");
    let mut service = Program::start(
        &node,
        Some("c2"),
        &with_arguments(TALK, &["10.96.0.10", "80"]),
    );
    assert_eq!(service.line(), "open");
    let mut probe = Program::start(&node, None, &with_arguments(TALK, &[&other, "8080"]));
    assert_eq!(probe.line(), "open");
    let gateway_mac = node.sh("ip -br link show agentcni0 | awk '{print $3}'");
    let mut flood = Program::start(
        &node,
        Some("c1"),
        &with_arguments(FLOOD, &[gateway_mac.trim(), &address]),
    );
    assert_eq!(flood.line(), "flooding");
    let began = Instant::now();
    for round in 0..20 {
        let mode = ["iptables-compat", "ebpf"][round % 2];
        set_up(&mut node, mode);
    }
    let took = began.elapsed();
    let sent = {
        let _ = flood.child.kill();
        let mut last = String::new();
        while let Some(Ok(line)) = flood.lines.next() {
            last = line;
        }
        last.parse::<u64>().unwrap_or_default()
    };
    assert!(sent > 1_000, "only {sent} frames");
    eprintln!("20 changes in {took:?}, {sent} frames");
    // what was open to a Service, and from the node to a pod, still is
    for program in [&mut service, &mut probe] {
        program.tell("stop");
        let last = program.line();
        assert!(last.starts_with("talked "), "{last}");
    }
    let seen = || node.sh("nsenter --net=/run/netns/outside nft list table ip uplink");
    assert_eq!(seen().matches("packets 0 bytes 0").count(), 3, "{}", seen());
    // and it would have been seen
    node.sh("python3 -c \"import socket; socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(b'control',('192.0.2.1',7777))\"");
    assert!(
        seen().contains("udp dport 7777 counter packets 1 "),
        "{}",
        seen()
    );
}

#[test]
fn a_full_node_changes_its_mode() {
    const PODS: usize = 250;
    let mut node = Node::in_ebpf();
    set_up(&mut node, "ebpf");
    node.sh(&format!(
        "for n in $(seq {PODS}); do ip netns add p$n; done"
    ));
    let results: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = (1..=PODS)
            .map(|n| {
                let node = &node;
                scope.spawn(move || node.add(&format!("p{n}")).ok())
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let chains = "nft list chains bridge 2>/dev/null | grep -c 'chain pod_agt[0-9a-f]* ' || true";
    for (mode, wanted) in [
        ("iptables-compat", PODS),
        ("ebpf", 0),
        ("iptables-compat", PODS),
    ] {
        set_up(&mut node, mode);
        assert_eq!(node.sh(chains).trim(), wanted.to_string(), "{mode}");
        for n in [1, PODS / 2, PODS] {
            node.check(&format!("p{n}"), &results[n - 1]).ok();
        }
    }
}

#[test]
fn the_proxy_learns_that_its_connections_are_over_with_the_mode() {
    let mut node = node_with_uplink();
    set_up(&mut node, "iptables-compat");
    let address = node.added("c1");
    let mut proxy = Program::start(&node, None, LISTENER);
    assert_eq!(proxy.line(), "ready");
    let mut client = Program::start(
        &node,
        Some("c1"),
        "import socket
s = socket.create_connection(('203.0.113.9', 80), 5)
s.sendall(b'go on'); s.recv(1); print('open', flush=True)
while True: s.recv(1)",
    );
    assert_eq!(client.line(), "open");
    assert_eq!(proxy.line(), format!("tcp 18080 203.0.113.9:80 {address}"));
    set_up(&mut node, "ebpf");
    assert_eq!(proxy.line(), "over 18080");
    let tracked = node.sh("conntrack -L 2>/dev/null || true");
    assert!(!tracked.contains("203.0.113.9"), "{tracked}");
}

#[test]
fn a_change_of_mode_that_died_is_completed_by_the_next_run() {
    for (from, to) in [("ebpf", "iptables-compat"), ("iptables-compat", "ebpf")] {
        let mut node = node_with_uplink();
        set_up(&mut node, from);
        node.pod("c1");
        let result = node.add("c1").ok();
        node.conf["mode"] = json!(to);
        let file = node.files().join("agent-cni.conf");
        std::fs::write(&file, node.conf.to_string()).unwrap();
        // as long as a change takes, in steps of some milliseconds
        for delay in (0..400).step_by(20) {
            let mut child = node
                .command(PLUGIN)
                .args(["setup", "--config"])
                .arg(&file)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            thread::sleep(Duration::from_millis(delay));
            let _ = child.kill();
            let _ = child.wait();
            if delay % 100 == 0 {
                set_up(&mut node, from);
                node.check("c1", &result).ok();
                node.conf["mode"] = json!(to);
                std::fs::write(&file, node.conf.to_string()).unwrap();
            }
        }
        set_up(&mut node, to);
        node.check("c1", &result).ok();
        node.del("c1").ok();
        assert_eq!(node.traces(), "");
    }
}
