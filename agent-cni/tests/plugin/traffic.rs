//! What the kernel lets through for a pod that the plugin attached, with no proxy anywhere.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::Node;

/// A node with an uplink: `outside` is a namespace at 192.0.2.1, and the default route leads there.
pub(crate) fn node_with_uplink() -> Node {
    let node = Node::new();
    node.sh(
        "ip netns add outside; ip link add up0 type veth peer name eth0 netns outside; \
         ip addr add 192.0.2.2/24 dev up0; ip link set up0 up; ip route add default via 192.0.2.1; \
         ip -n outside addr add 192.0.2.1/24 dev eth0; ip -n outside link set eth0 up; \
         ip -n outside link set lo up",
    );
    // what arrives there from a pod's address, or for a service's
    node.sh("nsenter --net=/run/netns/outside nft 'add table ip seen; \
         add chain ip seen in { type filter hook prerouting priority -400; }; \
         add rule ip seen in ip saddr 169.254.0.0/16 counter; \
         add rule ip seen in ip daddr 10.96.0.0/12 counter'");
    node
}

/// A web server in a namespace of the node, which answers with the address that it was asked from.
pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn start(node: &Node, netns: Option<&str>, port: u16) -> Self {
        let program = format!(
            "import http.server as h\n\
             class H(h.BaseHTTPRequestHandler):\n\
             \x20def do_GET(self):\n\
             \x20\x20b=self.client_address[0].encode(); self.send_response(200)\n\
             \x20\x20self.send_header('Content-Length',str(len(b))); self.end_headers(); self.wfile.write(b)\n\
             h.ThreadingHTTPServer(('0.0.0.0',{port}),H).serve_forever()"
        );
        let mut command = match netns {
            Some(name) => {
                let mut command = node.command("nsenter");
                command.args([
                    &format!("--net=/run/netns/{name}"),
                    "python3",
                    "-c",
                    &program,
                ]);
                command
            }
            None => {
                let mut command = node.command("python3");
                command.args(["-c", &program]);
                command
            }
        };
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let inside = netns.map_or(String::new(), |name| {
            format!("nsenter --net=/run/netns/{name} ")
        });
        let ready = format!("{inside}curl -s -m1 -o /dev/null http://127.0.0.1:{port}/");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !node.succeeds(&ready) {
            assert!(Instant::now() < deadline, "the server does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// kube-proxy's part: a service address that leads to a backend.
pub(crate) fn serve(node: &Node, service: &str, backend: &str) {
    node.sh(&format!(
        "nft 'add table ip kube; add chain ip kube pre {{ type nat hook prerouting priority dstnat; }}; \
         add rule ip kube pre ip daddr {service} tcp dport 80 dnat to {backend}'"
    ));
}

fn curl(pod: &str, url: &str) -> String {
    format!("nsenter --net=/run/netns/{pod} curl -s -m 2 http://{url}/")
}

/// A rule of ours as nft lists it, with its counter.
fn rule(node: &Node, chain: &str, has: &str) -> String {
    let rules = node.sh(&format!("nft list chain ip agent_network {chain}"));
    let found = rules.lines().find(|line| line.contains(has));
    found.unwrap_or_else(|| panic!("{has}: {rules}")).to_owned()
}

/// A line that makes the node track a connection that an address began.
fn orphan(address: &str) -> String {
    format!(
        "conntrack -I -s {address} -d 10.96.0.10 -p tcp --sport 9 --dport 80 --state ESTABLISHED -t 100"
    )
}

#[test]
fn the_node_reaches_a_pod_as_the_kubelet_does() {
    let node = Node::new();
    let address = node.added("c1");
    let _server = Server::start(&node, Some("c1"), 8080);
    assert_eq!(
        node.sh(&format!("curl -s -m 3 http://{address}:8080/")),
        "169.254.9.1"
    );
}

#[test]
fn a_pod_reaches_neither_node_nor_pod_nor_outside_by_itself() {
    let node = node_with_uplink();
    node.added("c1");
    let other = node.added("c2");
    let _node_server = Server::start(&node, None, 8080);
    let _pod_server = Server::start(&node, Some("c2"), 8080);
    let _outside_server = Server::start(&node, Some("outside"), 8080);
    for target in [
        "169.254.9.1:8080",
        "192.0.2.2:8080",
        &format!("{other}:8080"),
        "192.0.2.1:8080",
    ] {
        assert!(!node.succeeds(&curl("c1", target)), "{target} answered");
    }
    assert!(!node.succeeds("nsenter --net=/run/netns/c1 ping -c1 -W1 169.254.9.1"));
    let seen = node.sh("nsenter --net=/run/netns/outside nft list table ip seen");
    assert_eq!(seen.matches("packets 0 bytes 0").count(), 2, "{seen}");
}

#[test]
fn a_pod_reaches_no_server_of_the_node_by_broadcast() {
    let node = node_with_uplink();
    node.added("c1");
    // The kernel hands a broadcast to every socket of its port without asking the dispatch program.
    let mut server = node
        .command("python3")
        .args([
            "-c",
            "import socket; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('0.0.0.0',53)); \
             print('bound',flush=True); print(s.recvfrom(99)[0].decode(),flush=True)",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "bound");
    node.sh("nsenter --net=/run/netns/c1 python3 -c \"import socket
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET,socket.SO_BROADCAST,1)
for a in ('169.254.9.255','192.0.2.255','255.255.255.255'): s.sendto(b'from the pod',(a,53))\"");
    let rules = node.sh("nft list chain ip agent_network raw_prerouting");
    assert!(
        rules.contains("type broadcast counter packets 2 "),
        "{rules}"
    );
    // the node's own datagram is the first that the server sees
    node.sh("python3 -c \"import socket; socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(b'from the node',('127.0.0.1',53))\"");
    assert_eq!(lines.next().unwrap().unwrap(), "from the node");
    server.wait().unwrap();
}

#[test]
fn a_service_is_reached_with_the_nodes_address() {
    let node = node_with_uplink();
    node.added("c1");
    let _server = Server::start(&node, Some("outside"), 8080);
    serve(&node, "10.96.0.10", "192.0.2.1:8080");
    assert_eq!(node.sh(&curl("c1", "10.96.0.10")), "192.0.2.2");
    let seen = node.sh("nsenter --net=/run/netns/outside nft list table ip seen");
    assert_eq!(seen.matches("packets 0 bytes 0").count(), 2, "{seen}");
}

#[test]
fn a_services_connections_end_with_their_pod() {
    let mut node = node_with_uplink();
    node.conf["fakeIPCIDR"] = json!("169.254.9.0/30");
    node.conf["coolDownSeconds"] = json!(0);
    let address = node.added("c1");
    let _server = Server::start(&node, Some("outside"), 8080);
    serve(&node, "10.96.0.10", "192.0.2.1:8080");
    // one that is closed and one that its pod leaves open
    node.sh(&curl("c1", "10.96.0.10"));
    let mut open = node
        .command("nsenter")
        .args([
            "--net=/run/netns/c1",
            "python3",
            "-c",
            "import socket,time; s=socket.create_connection(('10.96.0.10',80),3); print('open',flush=True); time.sleep(60)",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(open.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "open");
    let tracked = || node.sh(&format!("conntrack -L --src {address}"));
    assert_eq!(tracked().matches("src=192.0.2.1 dst=192.0.2.2").count(), 2);
    node.sh("conntrack -I -s 169.254.9.3 -d 10.96.0.10 -p udp --sport 9 --dport 53 -t 100");
    node.del("c1").ok();
    assert_eq!(tracked(), "");
    let left = node.sh("conntrack -L");
    assert!(left.contains("src=169.254.9.3 "), "{left}");
    // the same address, and nothing that was tracked meanwhile
    node.sh(&orphan(&address));
    assert_eq!(node.added("c2"), address);
    assert_eq!(tracked(), "");
    let _ = open.kill();
    let _ = open.wait();
}

#[test]
fn gc_and_the_repair_of_a_dead_add_end_connections_too() {
    let node = Node::new();
    let address = node.added("c1");
    let other = node.added("c2");
    let tracked = |address: &str| node.sh(&format!("conntrack -L --src {address}"));
    node.sh(&format!("{}; {}", orphan(&address), orphan(&other)));
    let gc = |valid| node.call("GC", "", &node.with("cni.dev/valid-attachments", valid));
    gc(json!([{"containerID": "c2", "ifname": "eth0"}])).ok();
    assert_eq!(tracked(&address), "");
    assert_eq!(tracked(&other).lines().count(), 1);
    // a pod that died with its state: only its neighbour is left
    node.sh("ip neigh add 169.254.9.99 lladdr 0a:58:a9:fe:09:63 nud permanent dev agentcni0");
    node.sh(&orphan("169.254.9.99"));
    // an ADD that died before it wrote its attachment
    node.sh(&orphan("169.254.9.98"));
    std::fs::write(
        node.state().join("pending/dead_eth0"),
        json!({"containerId": "dead", "ifname": "eth0", "fakeIp": "169.254.9.98", "hostVeth": "agtdead"})
            .to_string(),
    )
    .unwrap();
    gc(json!([{"containerID": "c2", "ifname": "eth0"}])).ok();
    assert_eq!(tracked("169.254.9.99"), "");
    assert_eq!(tracked("169.254.9.98"), "");
    assert_eq!(tracked(&other).lines().count(), 1);
}

#[test]
fn nobody_outside_has_a_pods_address() {
    let node = node_with_uplink();
    let address = node.added("c1");
    // with a route back, so that no check of the reverse path hides what comes
    node.sh(&format!(
        "ip route add {address}/32 via 192.0.2.1 dev up0; \
         ip -n outside addr add {address}/32 dev lo; nsenter --net=/run/netns/outside ping -c1 -W2 192.0.2.2"
    ));
    let send = |source: &str| {
        node.sh(&format!(
            "nsenter --net=/run/netns/outside python3 -c \"import socket
u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind(('{source}',0))
u.sendto(b'from {source}',('192.0.2.2',53))
t=socket.socket(); t.bind(('{source}',0)); t.setblocking(False); t.connect_ex(('192.0.2.2',443))\""
        ));
    };
    send(&address);
    send("192.0.2.1");
    let refused = rule(
        &node,
        "raw_prerouting",
        "nobody but a pod has a pod's address",
    );
    assert!(refused.contains("counter packets 2 "), "{refused}");
}

#[test]
fn a_service_is_no_way_to_a_sensitive_range() {
    let node = node_with_uplink();
    node.added("c1");
    node.sh("nsenter --net=/run/netns/outside nft 'add rule ip seen in ip daddr { 100.64.0.1, 169.254.169.254 } counter'; \
             ip -n outside addr add 100.64.0.1/32 dev lo; ip -n outside addr add 169.254.169.254/32 dev lo");
    let _server = Server::start(&node, Some("outside"), 8080);
    serve(&node, "10.96.0.10", "100.64.0.1:8080");
    serve(&node, "10.96.0.11", "169.254.169.254:8080");
    for (service, range) in [
        ("10.96.0.10", "ip daddr 100.64.0.0/10"),
        ("10.96.0.11", "ip daddr 169.254.169.254"),
    ] {
        assert!(!node.succeeds(&curl("c1", service)), "{service} answered");
        let refused = rule(&node, "forward", range);
        assert!(!refused.contains("counter packets 0 "), "{refused}");
    }
    let seen = node.sh("nsenter --net=/run/netns/outside nft list table ip seen");
    assert_eq!(seen.matches("packets 0 bytes 0").count(), 3, "{seen}");
    // the node itself may go there
    node.sh("curl -s -m 3 http://100.64.0.1:8080/");
}

#[test]
fn a_service_address_that_nobody_serves_is_no_way_out() {
    let node = node_with_uplink();
    node.added("c1");
    let nothing_got_out = || {
        assert!(!node.succeeds(&curl("c1", "10.96.0.99")));
        let seen = node.sh("nsenter --net=/run/netns/outside nft list table ip seen");
        assert_eq!(seen.matches("packets 0 bytes 0").count(), 2, "{seen}");
    };
    // the routes' lock, then the table's behind it
    nothing_got_out();
    node.sh("while ip rule del pref 101; do :; done 2>/dev/null; ! ip rule | grep -q ^101:");
    nothing_got_out();
    let refused = rule(&node, "forward", "nothing else from a pod");
    assert!(!refused.contains("packets 0 "), "{refused}");
}

#[test]
fn a_service_is_no_way_to_the_node_or_to_another_pod() {
    let node = node_with_uplink();
    node.added("c1");
    let other = node.added("c2");
    let _node_server = Server::start(&node, None, 8080);
    let _pod_server = Server::start(&node, Some("c2"), 8080);
    serve(&node, "10.96.0.10", "192.0.2.2:8080");
    serve(&node, "10.96.0.11", &format!("{other}:8080"));
    assert!(!node.succeeds(&curl("c1", "10.96.0.10")));
    assert!(!node.succeeds(&curl("c1", "10.96.0.11")));
}

#[test]
fn nobody_reaches_a_pod_through_the_node() {
    let node = node_with_uplink();
    let address = node.added("c1");
    let _server = Server::start(&node, Some("c1"), 8080);
    node.sh(&format!("ip -n outside route add {address} via 192.0.2.2"));
    assert!(!node.succeeds(&curl("outside", &format!("{address}:8080"))));
}
