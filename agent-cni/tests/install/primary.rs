//! Where only some pods are ours, the others are the primary network's: it may come later than we do, change, and go.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    host::{Host, Installer},
    support::{Cnitool, PLUGIN, address, bridge_plugin, link_plugins, programs},
};

/// A host without a primary network, whose installer is told a selector.
struct Shared {
    host: Host,
    programs: PathBuf,
}

impl Shared {
    fn new(cni_version: &'static str) -> Self {
        let mut host = Host::new();
        let programs = programs();
        std::fs::remove_file(host.conf_dir().join("10-primary.conflist")).unwrap();
        link_plugins(&programs, &host.bin_dir());
        let workloads = host.node.files().join("workloads.json");
        let labels = json!({"agents/agent": {"labels": {"agent": "yes"}}, "agents/*": {}, "agents/plain": {}});
        std::fs::write(&workloads, labels.to_string()).unwrap();
        host.cni_version = cni_version;
        host.flags = vec![
            r#"--workload-selector={"matchLabels": {"agent": "yes"}}"#.to_owned(),
            format!("--workloads-file={}", workloads.display()),
        ];
        Self { host, programs }
    }

    /// Writes a primary network, in one step as a careful installer does.
    fn primary(&self, file: &str, network: &str, subnet: &str, more: &[Value]) {
        let name = format!("br-{network}-{}", &subnet[3..5]);
        let bridge = bridge_plugin(&name, &self.host.node.files().join("ipam"), subnet);
        let plugins = [&[bridge], more].concat();
        let list = json!({"cniVersion": "1.0.0", "name": network, "plugins": plugins});
        let staged = self.host.conf_dir().join("primary.new");
        std::fs::write(&staged, list.to_string()).unwrap();
        std::fs::rename(staged, self.host.conf_dir().join(file)).unwrap();
    }

    fn remove(&self, file: &str) {
        std::fs::remove_file(self.host.conf_dir().join(file)).unwrap();
    }

    /// A verb by libcni, which passes on what our configuration declares.
    fn cnitool(&self, verb: &str, pod: &str) -> Result<Value, String> {
        let libcni = Cnitool {
            program: self.programs.join("cnitool"),
            network: "agent-network",
            conf_dir: self.host.conf_dir(),
            bin_dir: self.host.bin_dir(),
        };
        let mut command = libcni.command(&self.host.node, verb, pod);
        let output = command.output().unwrap();
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        match output.status.success() {
            true => Ok(serde_json::from_slice(&output.stdout).unwrap_or_default()),
            false => Err(said),
        }
    }

    #[track_caller]
    fn added(&self, pod: &str) -> String {
        self.host.node.pod(pod);
        address(&self.cnitool("add", pod).unwrap())
    }

    #[track_caller]
    fn deleted(&self, pod: &str) {
        self.cnitool("del", pod).unwrap();
        self.host.node.sh(&format!("ip netns del {pod}"));
    }

    fn problem(&self) -> String {
        let status = self.host.status();
        status["problems"].to_string()
    }

    /// The capabilities that the runtime reads in our configuration.
    fn capabilities(&self) -> Value {
        let conf: Value = std::fs::read(self.host.conf())
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        conf["capabilities"].clone()
    }

    fn mapped(&self) -> bool {
        self.host
            .node
            .succeeds("(iptables -t nat -S; nft list ruleset) 2>/dev/null | grep -q 8088")
    }

    /// Starts an installer, and waits until it has said that there is no primary network.
    #[track_caller]
    fn waits(&self) -> Installer {
        let installer = self.host.start(PLUGIN);
        self.host.until("it says what it waits for", || {
            self.problem().contains("there is no primary network")
        });
        assert!(!self.host.ready());
        installer
    }
}

fn portmap() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}})
}

#[test]
fn our_configuration_waits_for_the_primary_network_and_everything_else_does_not() {
    let shared = Shared::new("1.0.0");
    let installer = shared.waits();
    // far longer than it takes to install
    std::thread::sleep(Duration::from_secs(3));
    assert!(!shared.host.conf().exists() && !shared.host.ready());
    assert!(
        shared.host.binary().exists(),
        "only the configuration waits"
    );
    assert!(
        !shared.host.node.state().join("version").exists(),
        "a restart of the installer would take the node for installed"
    );
    let begun = Instant::now();
    // a file that is half written is no primary network either
    std::fs::write(shared.host.conf_dir().join("10-primary.conflist"), "{").unwrap();
    shared.host.until("it says that the file is broken", || {
        shared
            .problem()
            .contains("10-primary.conflist cannot be used")
    });
    assert!(!shared.host.conf().exists());
    shared.primary(
        "10-primary.conflist",
        "primary",
        "10.77.0.0/24",
        &[portmap()],
    );
    shared
        .host
        .until("the node is ready", || shared.host.ready());
    eprintln!("ready {:?} after the first byte", begun.elapsed());
    shared.host.assert_installed();
    assert_eq!(shared.host.repairs("conf"), 0);
    assert!(shared.added("agent").starts_with("169.254.9."));
    assert!(shared.added("plain").starts_with("10.77.0."));
    assert!(shared.mapped());
    shared.deleted("plain");
    shared.deleted("agent");
    assert!(!shared.mapped());
    let log = installer.log();
    assert!(log.contains("10-primary.conflist"), "{log}");
}

#[test]
fn where_status_is_spoken_the_runtime_is_told_and_no_pod_can_slip_by() {
    let shared = Shared::new("1.1.0");
    let _installer = shared.waits();
    assert!(shared.host.conf().exists());
    let said = shared.cnitool("status", "any").unwrap_err();
    assert!(said.contains("there is no primary network"), "{said}");
    assert!(shared.added("agent").starts_with("169.254.9."));
    shared.primary("10-primary.conflist", "primary", "10.77.0.0/24", &[]);
    shared
        .host
        .until("the node is ready", || shared.host.ready());
    shared.cnitool("status", "any").unwrap();
    assert!(shared.added("plain").starts_with("10.77.0."));
}

#[test]
fn a_primary_network_that_is_changed_replaced_or_removed_is_followed() {
    let shared = Shared::new("1.0.0");
    shared.primary("10-primary.conflist", "primary", "10.77.0.0/24", &[]);
    let installer = shared.host.start(PLUGIN);
    shared
        .host
        .until("the node is ready", || shared.host.ready());
    assert_eq!(shared.capabilities(), Value::Null);
    assert!(shared.added("first").starts_with("10.77.0."));
    assert!(!shared.mapped(), "nobody declares port mappings");

    // the same file with another content: what it wants from the runtime, we want
    shared.primary(
        "10-primary.conflist",
        "primary",
        "10.78.0.0/24",
        &[portmap()],
    );
    shared.host.until("the capability is copied", || {
        shared.capabilities() == json!({"portMappings": true})
    });
    assert!(shared.added("second").starts_with("10.78.0."));
    assert!(
        shared.mapped(),
        "the runtime's port mapping was not passed on"
    );

    // another file with another name before it
    let aliases =
        json!({"type": "portmap", "capabilities": {"portMappings": true, "aliases": true}});
    shared.primary("05-other.conflist", "other", "10.79.0.0/24", &[aliases]);
    shared.remove("10-primary.conflist");
    shared.host.until("the other file's are copied", || {
        shared.capabilities() == json!({"aliases": true, "portMappings": true})
    });
    shared
        .host
        .until("the node is ready", || shared.host.ready());
    assert!(shared.added("third").starts_with("10.79.0."));
    assert!(installer.log().contains("05-other.conflist"));
    assert_eq!(
        shared.host.repairs("conf"),
        0,
        "following is no repair: {}",
        installer.log()
    );

    // none at all
    shared.remove("05-other.conflist");
    shared.host.until("the node is not ready", || {
        !shared.host.ready() && shared.problem().contains("there is no primary network")
    });
    shared.host.assert_installed();
    shared.host.node.pod("fourth");
    let said = shared.cnitool("add", "fourth").unwrap_err();
    assert!(
        said.contains("there is no primary network") && said.contains("install the cluster's CNI"),
        "{said}"
    );
    assert!(shared.added("agent").starts_with("169.254.9."));
    for pod in ["first", "second", "third"] {
        shared.deleted(pod);
    }
    assert!(!shared.mapped());
    let leases = shared.host.node.sh(&format!(
        "ls {}/ipam/* | grep '^10[.]7' || true",
        shared.host.node.files().display()
    ));
    assert_eq!(leases, "");
    assert_eq!(
        shared
            .host
            .node
            .sh("ip -o link | grep -c ' master br-' || true")
            .trim(),
        "0"
    );
}

#[test]
fn multus_before_us_is_told_and_after_us_it_is_the_primary_network() {
    let shared = Shared::new("1.0.0");
    let multus = json!({
        "cniVersion": "1.0.0", "name": "multus-cni-network", "type": "multus", "capabilities": {"portMappings": true},
        "delegates": [{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "bridge"}]}],
    });
    let write = |name: &str, conf: &Value| {
        std::fs::write(shared.host.conf_dir().join(name), conf.to_string()).unwrap();
    };
    write("00-a-multus.conf", &multus);
    let installer = shared.host.start(PLUGIN);
    shared.host.until("it says who comes first", || {
        installer
            .log()
            .contains("00-a-multus.conf comes before 00-agent-cni.conf")
    });
    shared.remove("00-a-multus.conf");
    // what Multus makes of a directory in which we are the first file
    let mut ours = multus.clone();
    ours["delegates"] =
        json!([{"cniVersion": "1.0.0", "name": "agent-network", "type": "agent-cni"}]);
    write("00-multus.conf", &ours);
    shared.host.until("it says that Multus leads back", || {
        let problem = shared.problem();
        problem.contains("00-multus.conf") && problem.contains("leads back to agent-cni")
    });
    assert!(!shared.host.conf().exists());
    write("00-multus.conf", &multus);
    shared
        .host
        .until("the node is ready", || shared.host.ready());
    assert_eq!(shared.capabilities(), json!({"portMappings": true}));
    let log = installer.log();
    assert!(
        log.contains("00-multus.conf") && log.contains("[\"multus\"]"),
        "{log}"
    );
}

#[test]
fn without_a_selector_no_primary_network_is_waited_for_and_a_rollback_leaves_the_one_that_came() {
    let mut host = Host::new();
    let primary = host.conf_dir().join("10-primary.conflist");
    let text = std::fs::read(&primary).unwrap();
    std::fs::remove_file(&primary).unwrap();
    let installer = host.keep();
    host.node.added("c1");
    let note = |host: &Host| host.status()["notes"].to_string();
    assert!(note(&host).contains("after a rollback the node has none"));
    std::fs::write(&primary, &text).unwrap();
    host.until("the note is gone", || {
        !note(&host).contains("after a rollback")
    });
    assert_eq!(installer.terminate(), Some(0));
    host.rollback();
    assert_eq!(std::fs::read(&primary).unwrap(), text);
    let names = std::fs::read_dir(host.conf_dir()).unwrap().count();
    assert_eq!(names, 1, "the runtime finds the primary network alone");
}
