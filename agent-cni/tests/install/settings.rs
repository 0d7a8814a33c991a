//! An installer that follows the controller's `nodes.json`, projected as the kubelet does it.

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use serde_json::{Value, json};

use crate::host::{COMPAT, Host};

const RANGE: &str = "169.254.3.0/24";
const OTHER_RANGE: &str = "169.254.4.0/24";

/// A node whose installer is told by a file.
struct Told {
    host: Host,
    projections: u32,
}

impl Told {
    fn new() -> Self {
        let mut told = Self {
            host: Host::new(),
            projections: 0,
        };
        fs::create_dir(told.volume()).unwrap();
        let file = told.volume().join("nodes.json");
        told.host
            .flags
            .push(format!("--node-settings={}", file.display()));
        told
    }

    fn volume(&self) -> PathBuf {
        self.host.node.files().join("projected")
    }

    /// Projects a content: a new directory, and the link that leads there is replaced.
    fn project(&mut self, text: &str) {
        self.projections += 1;
        let volume = self.volume();
        let name = format!("..{}", self.projections);
        fs::create_dir(volume.join(&name)).unwrap();
        fs::write(volume.join(&name).join("nodes.json"), text).unwrap();
        symlink(&name, volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        let _ = symlink("..data/nodes.json", volume.join("nodes.json"));
    }

    /// Projects a class for this node, with some of its fields.
    fn class(&mut self, range: &str, fields: &Value) {
        let mut class = json!({"serviceCIDRs": ["10.97.0.0/16"], "proxyPort": 18080, "dnsPort": 18053,
            "failMode": "Closed", "defaultConnectivity": "Zero", "mode": "auto"});
        for (key, value) in fields.as_object().unwrap() {
            class[key] = value.clone();
        }
        let file = json!({"schemaVersion": 1, "classes": {"gold": class},
            "nodes": {"worker-1": {"class": "gold", "fakeIPCIDR": range}}});
        self.project(&file.to_string());
    }

    fn conf(&self) -> Value {
        let bytes = fs::read(self.host.conf()).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    fn state(&self, name: &str) -> Value {
        let bytes = fs::read(self.host.node.state().join(name)).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    fn notes(&self) -> String {
        self.host.status()["notes"].to_string()
    }
}

#[test]
fn a_fresh_node_waits_for_its_class_and_is_taken_over_by_it() {
    let mut told = Told::new();
    let installer = told.host.start(crate::support::PLUGIN);
    told.host.until("it says what it waits for", || {
        installer.log().contains("isn't taken over before")
    });
    told.project(r#"{"schemaVersion":1,"classes":{},"nodes":{}}"#);
    told.host.until("it says that no class is for it", || {
        installer.log().contains("no class is for node worker-1")
    });
    assert!(!told.host.ready() && !told.host.conf().exists());
    let traces = told.host.traces_of_us();
    let claim = told.host.claim().display().to_string();
    assert_eq!(traces.trim(), claim, "nothing else was touched");
    told.class(RANGE, &json!({}));
    told.host.until("the node is ready", || told.host.ready());
    assert_eq!(told.conf()["fakeIPCIDR"], RANGE);
    assert_eq!(told.conf()["serviceCIDRs"], json!(["10.97.0.0/16"]));
    assert_eq!(told.state("settings")["class"], "gold");
    drop(installer);
    told.host.rollback();
}

#[test]
fn what_the_class_changes_takes_effect_with_the_pods_that_run() {
    let mut told = Told::new();
    told.class(RANGE, &json!({}));
    let installer = told.host.keep();
    told.host.node.pod("c1");
    let result = told.host.node.add("c1").ok();
    let repairs = told.host.status()["repairs"].clone();
    told.class(
        RANGE,
        &json!({"serviceCIDRs": ["10.98.0.0/16"], "mode": COMPAT}),
    );
    told.host.until("the node is what the class says", || {
        told.state("node.json")["mode"] == COMPAT
            && told.state("node.json")["serviceCidrs"] == json!(["10.98.0.0/16"])
            && told.conf()["mode"] == COMPAT
            && told.host.ready()
    });
    told.host.adopt_conf();
    assert_eq!(told.host.node.check("c1", &result).exit, 0);
    assert_eq!(told.host.status()["repairs"], repairs, "no repair");
    assert!(installer.log().contains("settings are others now"));
}

#[test]
fn another_range_waits_for_the_pods_and_then_comes() {
    let mut told = Told::new();
    told.class(RANGE, &json!({}));
    let _installer = told.host.keep();
    told.host.node.pod("c1");
    let result = told.host.node.add("c1").ok();
    told.class(OTHER_RANGE, &json!({"serviceCIDRs": ["10.98.0.0/16"]}));
    told.host
        .until("the range is staged, and the rest is not", || {
            told.state("settings")["stagedBehind"] == RANGE
                && told.conf()["serviceCIDRs"] == json!(["10.98.0.0/16"])
                && told.notes().contains("drain the node")
                && told.host.ready()
        });
    assert_eq!(told.conf()["fakeIPCIDR"], RANGE);
    assert_eq!(told.state("node.json")["fakeIpCidr"], RANGE);
    told.host.adopt_conf();
    assert_eq!(told.host.node.check("c1", &result).exit, 0);
    told.host.node.del("c1").ok();
    told.host.until("the range has come", || {
        told.state("node.json")["fakeIpCidr"] == OTHER_RANGE
            && told.conf()["fakeIPCIDR"] == OTHER_RANGE
            && told.state("settings")["stagedBehind"].is_null()
            && told.host.ready()
    });
    told.host.adopt_conf();
    let address = told.host.node.added("c2");
    assert!(address.starts_with("169.254.4."), "{address}");
}

#[test]
fn a_class_that_cannot_be_followed_closes_what_was_open() {
    let mut told = Told::new();
    let open = json!({"failMode": "Open", "defaultConnectivity": "Passthrough"});
    told.class(RANGE, &open);
    let installer = told.host.keep();
    assert_eq!(told.conf()["failMode"], "Open");
    assert_eq!(
        told.state("settings")["settings"]["defaultConnectivity"],
        "Passthrough"
    );
    // closed, and at the same time with what this installer has no labels for
    let selector = json!({"workloadSelector": {"matchLabels": {"app": "agent"}}});
    told.class(OTHER_RANGE, &selector);
    let closed = |told: &Told| {
        let settings = told.state("settings");
        told.conf()["failMode"].is_null()
            && settings["settings"]["failMode"] == "Closed"
            && settings["settings"]["defaultConnectivity"] == "Zero"
            && settings["keptBecause"]
                .to_string()
                .contains("--workloads-file")
            && told.host.ready()
    };
    told.host.until("it is closed, and why", || closed(&told));
    assert_eq!(told.conf()["fakeIPCIDR"], RANGE);
    // also for an installer that has seen nothing else, which mends the node as ever
    assert_eq!(installer.terminate(), Some(0));
    told.host.node.sh("ip link del agentcni0");
    let _installer = told.host.keep();
    told.host.until("it is closed still", || closed(&told));
    told.host.node.sh("ip link show agentcni0");
}

#[test]
fn without_a_class_nothing_is_left_of_what_it_said() {
    let mut told = Told::new();
    told.class(RANGE, &json!({"defaultConnectivity": "Passthrough"}));
    let installer = told.host.keep();
    assert_eq!(told.state("settings")["class"], "gold");
    assert_eq!(installer.terminate(), Some(0));
    // from now on it goes by flags
    told.host.flags.clear();
    told.host.complete();
    assert!(!told.host.node.state().join("settings").exists());
}

#[test]
fn garbage_and_an_empty_volume_leave_the_node_as_it_is_but_open_nothing() {
    let mut told = Told::new();
    told.class(RANGE, &json!({"failMode": "Open"}));
    let installer = told.host.keep();
    assert_eq!(told.conf()["failMode"], "Open");
    told.project("{");
    told.host
        .until("what opens is closed, and the rest stays", || {
            told.conf()["failMode"].is_null()
                && told.state("settings")["keptBecause"].is_string()
                && told.host.ready()
        });
    assert_eq!(told.conf()["fakeIPCIDR"], RANGE);
    assert!(told.notes().contains("keeps the last settings"));
    // also for the next installer, when the ConfigMap is gone
    assert_eq!(installer.terminate(), Some(0));
    fs::remove_file(told.volume().join("nodes.json")).unwrap();
    told.host.complete();
    assert_eq!(told.conf()["fakeIPCIDR"], RANGE);
    assert!(told.notes().contains("can't be used"), "{}", told.notes());
}
