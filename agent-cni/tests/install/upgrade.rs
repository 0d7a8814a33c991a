//! A newer plugin takes the node over while pods run: their connections go on, and what an older layout pinned goes.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use serde_json::Value;

use crate::{
    host::{COMPAT, Host, text},
    support::PLUGIN,
    witness::Witness,
};

/// A pod's connection to a Service, over which lines go and come back.
pub(crate) struct Connection {
    server: Child,
    client: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Connection {
    /// Opens it from a pod, through a Service of `10.96.0.10:80`, to an echo server outside.
    pub(crate) fn open(host: &Host, pod: &str) -> Self {
        host.node.sh(
            "nft 'add table ip kube; add chain ip kube pre { type nat hook prerouting priority dstnat; }; \
             add rule ip kube pre ip daddr 10.96.0.10 tcp dport 80 dnat to 192.0.2.1:8080'",
        );
        let run = |netns: &str, program: &str| {
            host.node
                .command("nsenter")
                .args([
                    &format!("--net=/run/netns/{netns}"),
                    "python3",
                    "-c",
                    program,
                ])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut server = run(
            "outside",
            "import socket\n\
             s=socket.create_server(('0.0.0.0',8080)); print('up',flush=True)\n\
             while True:\n\
             \x20c,_=s.accept()\n\
             \x20while True:\n\
             \x20\x20d=c.recv(99)\n\
             \x20\x20if not d: break\n\
             \x20\x20c.sendall(d)",
        );
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let mut client = run(
            pod,
            "import socket,sys\n\
             s=socket.create_connection(('10.96.0.10',80),5); f=s.makefile('rw')\n\
             for l in sys.stdin:\n\
             \x20f.write(l); f.flush(); print(f.readline(),end='',flush=True)",
        );
        let to = client.stdin.take().unwrap();
        let from = BufReader::new(client.stdout.take().unwrap());
        let mut connection = Self {
            server,
            client,
            to,
            from,
        };
        connection.assert_alive("at first");
        connection
    }

    #[track_caller]
    pub(crate) fn assert_alive(&mut self, when: &str) {
        self.to.write_all(format!("{when}\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), when);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for child in [&mut self.client, &mut self.server] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The plugin as another version would be: the same code, another file.
pub(crate) fn another_version(host: &Host, name: &str) -> String {
    let path = host.node.files().join(name);
    let mut bytes = std::fs::read(PLUGIN).unwrap();
    // behind the end of the program: nobody loads it
    bytes.extend(name.as_bytes());
    std::fs::write(&path, bytes).unwrap();
    host.node.sh(&format!("chmod +x {}", path.display()));
    path.display().to_string()
}

/// Makes what is pinned another build's, and the files another version's.
pub(crate) fn age(host: &Host) {
    host.node.sh(&format!(
        "bpftool map update pinned {pins}/v1/BUILD key 0 0 0 0 value $(seq -s' ' 1 32); \
         echo '{{\"version\": \"0.2.0\"}}' > {state}/version; \
         sed -i 's/\"agentVersion\": \".*\"/\"agentVersion\": \"0.2.0\"/' {conf}",
        pins = host.pins().display(),
        state = host.node.state().display(),
        conf = host.conf().display(),
    ));
}

/// The ID of a layout's pinned classifier.
fn program(host: &Host, layout: &str) -> String {
    let pin = host.pins().join(layout).join("programs/pod_ingress");
    let shown = host
        .node
        .sh(&format!("bpftool prog show pinned {}", pin.display()));
    shown.split(':').next().unwrap().to_owned()
}

/// A host with a pod that is watched.
struct Running {
    host: Host,
    witness: Witness,
    /// Of the pod's ADD.
    result: Value,
}

impl Running {
    fn start() -> Self {
        let mut host = Host::with_uplink();
        host.once();
        host.node.pod("c1");
        let result = host.node.add("c1").ok();
        let witness = Witness::start(&host, "c1");
        Self {
            host,
            witness,
            result,
        }
    }

    #[track_caller]
    fn assert_well(&mut self, when: &str) {
        self.host.assert_installed();
        self.witness.assert_controlled(when);
        self.host.node.check("c1", &self.result).ok();
    }
}

#[test]
fn pods_keep_their_connections_and_are_controlled_throughout() {
    let mut running = Running::start();
    let mut connection = Connection::open(&running.host, "c1");
    for round in ["new-1", "new-2", "new-3"] {
        let host = &running.host;
        age(host);
        let before = program(host, "v1");
        let newer = another_version(host, round);
        let output = host.install_by(&newer).arg("--once").output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert!(
            text(&output).contains("of another build"),
            "{}",
            text(&output)
        );
        assert_ne!(program(host, "v1"), before, "the program is replaced");
        assert_eq!(
            std::fs::read(host.binary()).unwrap(),
            std::fs::read(&newer).unwrap()
        );
        connection.assert_alive(round);
        running.assert_well(round);
    }
}

#[test]
fn a_plugin_that_runs_meanwhile_is_replaced_all_the_same() {
    let mut host = Host::new();
    host.once();
    // an ADD that waits for its stdin: the file is busy
    let mut busy = host
        .node
        .command(&host.binary().display().to_string())
        .env("CNI_COMMAND", "STATUS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let newer = another_version(&host, "newer");
    let output = host.install_by(&newer).arg("--once").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(
        std::fs::read(host.binary()).unwrap(),
        std::fs::read(&newer).unwrap()
    );
    busy.stdin
        .take()
        .unwrap()
        .write_all(host.node.conf.to_string().as_bytes())
        .unwrap();
    assert!(
        busy.wait().unwrap().success(),
        "the old one goes on to its end"
    );
}

#[test]
fn pins_of_an_older_layout_go_once_pods_are_in_the_new_one() {
    let mut running = Running::start();
    let host = &running.host;
    // as an older layout would be: everything of this one under another name, attached to the pod
    let pins = host.pins().display().to_string();
    let veth = host
        .node
        .sh("ip -o link | grep -o 'agt[0-9a-f]*' | head -1");
    let veth = veth.trim();
    let old = program(host, "v1");
    host.node.sh(&format!(
        "mv {pins}/v1 {pins}/v0 && test -e {pins}/v0/links/{veth}"
    ));
    let output = host.try_once();
    assert!(output.status.success(), "{}", text(&output));
    assert!(
        text(&output).contains("v0 is of another version"),
        "{}",
        text(&output)
    );
    assert_eq!(host.node.sh(&format!("ls {pins}")).trim(), "v1");
    assert_ne!(program(host, "v1"), old);
    let gone = format!("! bpftool prog show id {old}");
    host.until("the old program is nowhere any more", || {
        host.node.succeeds(&gone)
    });
    running.assert_well("after the layout changed");
}

#[test]
fn another_mode_is_gone_to_with_the_pods_that_run() {
    let mut running = Running::start();
    let mut connection = Connection::open(&running.host, "c1");
    for mode in [COMPAT, "ebpf"] {
        running.host.mode = mode;
        running.host.once();
        connection.assert_alive(mode);
        running.assert_well(mode);
    }
}

#[test]
fn a_state_of_a_newer_version_is_left_alone() {
    let mut host = Host::new();
    host.once();
    let node = host.node.state().join("node.json");
    let newer = std::fs::read_to_string(&node)
        .unwrap()
        .replace("\"schemaVersion\": 1", "\"schemaVersion\": 2");
    std::fs::write(&node, &newer).unwrap();
    std::fs::remove_file(host.node.state().join("version")).unwrap();
    let output = host.try_once();
    assert!(!output.status.success());
    assert!(
        text(&output).contains("written by a newer version"),
        "{}",
        text(&output)
    );
    assert_eq!(std::fs::read_to_string(&node).unwrap(), newer);
}
