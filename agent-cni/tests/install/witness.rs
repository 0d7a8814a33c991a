//! Whether a pod ever reaches what only an uncontrolled pod reaches.

use std::process::{Child, Stdio};

use crate::host::Host;

/// A pod that tries all the time, and counters where its packets must never arrive.
pub(crate) struct Witness {
    /// Lists the counters.
    look: Box<dyn Fn() -> String>,
    child: Child,
}

/// What is counted: the port that no rule of ours lets anybody reach.
const PORT: u16 = 9999;

impl Witness {
    /// Starts on a host with an uplink. The pod sends UDP and opening SYNs to the outside, the node and its own gateway.
    pub(crate) fn start(host: &Host, pod: &str) -> Self {
        // After our own drops: what is counted here has passed them. What has the proxy's mark is on its way to the proxy.
        let unmarked = "meta mark and 0x0f000000 != 0x0a000000";
        let seen = |hook: &str, priority: i32| {
            format!(
                "add chain ip seen {hook} {{ type filter hook {hook} priority {priority}; }}; \
                 add rule ip seen {hook} {unmarked} udp dport {PORT} counter; \
                 add rule ip seen {hook} {unmarked} tcp dport {PORT} counter"
            )
        };
        host.node.sh(&format!(
            "nft 'add table ip seen; {}'; nsenter --net=/run/netns/outside nft 'add table ip seen; {}'",
            seen("input", 500),
            seen("prerouting", -400)
        ));
        let program = format!(
            "import socket,time\n\
             to=('192.0.2.1','192.0.2.2','169.254.9.1')\n\
             while True:\n\
             \x20for a in to:\n\
             \x20\x20try:\n\
             \x20\x20\x20u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.sendto(b'x',(a,{PORT})); u.close()\n\
             \x20\x20\x20t=socket.socket(); t.setblocking(False); t.connect_ex((a,{PORT})); t.close()\n\
             \x20\x20except OSError: pass\n\
             \x20time.sleep(0.002)"
        );
        let child = host
            .node
            .command("nsenter")
            .args([
                &format!("--net=/run/netns/{pod}"),
                "python3",
                "-c",
                &program,
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let look = host.node.shell(
            "nft list table ip seen && nsenter --net=/run/netns/outside nft list table ip seen",
        );
        Self { look, child }
    }

    /// That nothing of it ever arrived, and that it does try.
    #[track_caller]
    pub(crate) fn assert_controlled(&mut self, when: &str) {
        assert!(self.child.try_wait().unwrap().is_none(), "{when}: it ended");
        let seen = (self.look)();
        assert_eq!(
            seen.matches("counter packets 0 bytes 0").count(),
            4,
            "{when}: {seen}"
        );
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
