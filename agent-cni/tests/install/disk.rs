//! A disk that is full, with the state, the plugins and the configurations on it: what can be repaired without it is, and the
//! rest as soon as there is room.

use std::path::PathBuf;

use crate::{
    host::{COMPAT, Host, Installer},
    support::PLUGIN,
    witness::Witness,
};

/// A host that is taken over, whose directories are on a small disk of their own. They are seen inside the node only.
struct SmallDisk {
    host: Host,
    installer: Installer,
    disk: PathBuf,
}

impl SmallDisk {
    fn new(mut host: Host) -> Self {
        let (state, bin, conf) = (host.node.state(), host.bin_dir(), host.conf_dir());
        let size = std::fs::metadata(PLUGIN).unwrap().len() * 5 / 2;
        let disk = host.node.files().join("disk");
        host.node.sh(&format!(
            "mkdir -p {disk} {state}; mount -t tmpfs -o size={size} tmpfs {disk}; \
             mkdir {disk}/state {disk}/bin {disk}/conf; mount --bind {disk}/state {state}; \
             mount --bind {disk}/bin {bin}; mount --bind {disk}/conf {conf}",
            disk = disk.display(),
            state = state.display(),
            bin = bin.display(),
            conf = conf.display(),
        ));
        let installer = host.start(PLUGIN);
        host.until("the node is ready", || host.ready());
        let text = host
            .node
            .sh(&format!("cat {}/00-agent-cni.conf", conf.display()));
        host.node.conf = serde_json::from_str(&text).unwrap();
        host.node.pod("c1");
        Self {
            host,
            installer,
            disk,
        }
    }

    /// Writes until nothing more can be written.
    fn fill(&self) {
        self.host.node.sh(&format!(
            "cat /dev/zero >> {disk}/fill 2>/dev/null || true; ! echo x >> {disk}/fill 2>/dev/null",
            disk = self.disk.display()
        ));
    }

    fn free(&self) {
        self.host
            .node
            .sh(&format!("rm {}/fill", self.disk.display()));
    }
}

#[test]
fn a_disk_that_is_full_and_then_free_again() {
    let small = SmallDisk::new(Host::with_uplink());
    let host = &small.host;
    let result = host.node.add("c1").ok();
    let mut witness = Witness::start(host, "c1");
    let (bin, conf) = (host.bin_dir(), host.conf_dir());
    let inside = |line: &str| host.node.succeeds(line);
    small.fill();
    host.node.sh(&format!(
        "rm {}/agent-cni {}/00-agent-cni.conf",
        bin.display(),
        conf.display()
    ));
    small.fill();
    host.node.sh("ip link del agentcni0");
    host.until("it says what is wrong", || {
        small.installer.log().contains("No space left on device")
    });
    assert!(!inside(&format!("test -s {}/agent-cni", bin.display())));
    witness.assert_controlled("the disk is full");
    small.free();
    host.until("plugin and configuration are back", || {
        inside(&format!(
            "{}/agent-cni --version && grep -q agentVersion {}/00-agent-cni.conf",
            bin.display(),
            conf.display()
        ))
    });
    host.until("the pod is right", || {
        host.node.check("c1", &result).exit == 0
    });
    host.until("the node is ready", || host.ready());
    witness.assert_controlled("the disk is free again");
}

/// What a node is in is written down with the reason; a disk that has no room for the words keeps no node broken.
#[test]
fn the_bridge_comes_back_while_the_disk_is_full_also_in_a_mode_that_was_asked_for() {
    for mode in ["auto", "ebpf", COMPAT] {
        let small = SmallDisk::new(Host::with_uplink().in_mode(mode));
        let host = &small.host;
        let result = host.node.add("c1").ok();
        let mut witness = Witness::start(host, "c1");
        small.fill();
        host.node.sh("ip link del agentcni0");
        host.until(&format!("{mode}: the bridge is back"), || {
            host.node
                .succeeds("ip -br addr show up dev agentcni0 | grep -q 169.254.9.1/24")
        });
        // CHECK needs no room either
        host.until(&format!("{mode}: the pod is right"), || {
            host.node.check("c1", &result).exit == 0
        });
        let full = format!("! echo x >> {}/fill 2>/dev/null", small.disk.display());
        assert!(host.node.succeeds(&full), "{mode}: the disk is full still");
        witness.assert_controlled(mode);
        small.free();
        host.until(&format!("{mode}: ready"), || host.ready());
        witness.assert_controlled(mode);
    }
}
