//! The plugin's binary and the configurations: does the runtime call us, and is all of it one version?

use std::{collections::BTreeSet, fmt::Display};

use agent_datapath::{footprint::CONF, probe::Requested};
use ipnet::Ipv4Net;

use crate::{
    doctor::{
        check::{Check, Finding},
        facts::{
            Facts,
            cni::{Binary, ConfFile, Content},
        },
    },
    netconf::NetConf,
};

/// The version that everything must be.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const INSTALL: &str =
    "run `agent-cni install`, or restart the agent-cni-installer pod on this node";

/// The binary that the runtime calls.
pub(super) fn binary(facts: &Facts) -> Finding {
    let mut check = Check::new("cni-binary");
    let path = facts.cni.binary.display();
    match check.see("the plugin", &facts.cni.installed) {
        Some(Binary::Missing) => {
            check.fail(format!("{path} is missing: no pod can start"), INSTALL);
        }
        Some(Binary::There {
            executable: false, ..
        }) => check.fail(
            format!("{path} cannot be executed"),
            format!("chmod 755 {path}"),
        ),
        Some(Binary::There { .. }) | None => {}
    }
    check.finish(format!("{path} is there"))
}

/// Our configuration: usable, and what the node runs with.
pub(super) fn conf(facts: &Facts) -> Finding {
    let mut check = Check::new("cni-conf");
    let mut fine = String::new();
    let Some(confs) = check.see("the configurations", &facts.cni.confs) else {
        return check.finish(fine);
    };
    let ours = confs.iter().filter_map(|file| match &file.content {
        Content::Ours(conf) => Some((file, conf)),
        _ => None,
    });
    let ours: Vec<_> = ours.collect();
    if facts.cni.conf_is_dir {
        let path = facts.cni.conf_dir.join(CONF);
        let path = path.display();
        check.fail(
            format!("{path} is a directory: no runtime reads it"),
            format!("look at what is in it, rm -r {path}, and {INSTALL}"),
        );
    } else if ours.is_empty() {
        check.fail(
            format!(
                "no configuration in {} is agent-cni's: new pods are not controlled",
                facts.cni.conf_dir.display()
            ),
            INSTALL,
        );
    }
    for (file, conf) in &ours {
        let name = &file.name;
        match conf.as_ref() {
            Err(why) => check.fail(format!("{name} cannot be used: {why}"), INSTALL),
            Ok(conf) => {
                for difference in differences(facts, conf) {
                    check.warn(
                        format!("{name} {difference}"),
                        "the next ADD takes the configuration over; `agent-cni setup` does it now",
                    );
                }
            }
        }
        fine = format!("{name} is what the node runs with");
    }
    if let [_, second, ..] = ours.as_slice() {
        check.warn(
            format!("{} is agent-cni's too, and not read", second.0.name),
            "remove the one that is not wanted",
        );
    }
    check.finish(fine)
}

/// What the configuration says and the node does not do. What it leaves to the node (`auto`, no fakeIPCIDR) is what the node
/// does.
fn differences(facts: &Facts, conf: &NetConf) -> Vec<String> {
    let Ok(node) = &facts.state.node else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut compare = |key: &str, wanted: &dyn Display, has: &dyn Display| {
        let (wanted, has) = (wanted.to_string(), has.to_string());
        if wanted != has {
            found.push(format!("says {key} {wanted}, the node runs with {has}"));
        }
    };
    if let Some(cidr) = conf.fake_ip_cidr {
        compare("fakeIPCIDR", &cidr, &node.fake_ip_cidr);
    }
    compare(
        "serviceCIDRs",
        &list(&conf.service_cidrs),
        &list(&node.service_cidrs),
    );
    if let Requested::This(mode) = conf.mode {
        compare("mode", &mode.as_str(), &node.mode.as_str());
    }
    compare("pinDir", &conf.pin_dir.display(), &node.pin_dir);
    found
}

fn list(cidrs: &[Ipv4Net]) -> String {
    let all: BTreeSet<_> = cidrs.iter().collect();
    let all: Vec<_> = all.into_iter().map(ToString::to_string).collect();
    match all.is_empty() {
        true => "none".to_owned(),
        false => all.join(", "),
    }
}

/// The runtime takes the first file: is it ours?
pub(super) fn first(facts: &Facts) -> Finding {
    let mut check = Check::new("cni-first");
    let mut fine = String::new();
    let Some(confs) = check.see("the configurations", &facts.cni.confs) else {
        return check.finish(fine);
    };
    match confs.first() {
        None => check.fail(
            format!("{} holds no configuration: no pod can start", facts.cni.conf_dir.display()),
            INSTALL,
        ),
        Some(ConfFile {
            name,
            content: Content::Ours(_),
            ..
        }) => fine = format!("{name} is the first in {}", facts.cni.conf_dir.display()),
        Some(ConfFile {
            name,
            content: Content::Broken(why),
            ..
        }) => check.fail(
            format!("{name} is read first and is broken ({why}): containerd starts no pod, CRI-O takes the next network"),
            format!("mend or remove {}", facts.cni.conf_dir.join(name).display()),
        ),
        Some(ConfFile {
            name,
            content: Content::Others(kinds, _),
            ..
        }) => check.fail(
            format!("{name} ({}) is read first: new pods are not controlled", kinds.join(", ")),
            format!("rename {} so that 00-agent-cni.conf comes first", facts.cni.conf_dir.join(name).display()),
        ),
    }
    let later = confs.iter().skip(1);
    for file in later {
        if let Content::Broken(why) = &file.content {
            check.warn(
                format!(
                    "{} is broken ({why}); nothing reads it while ours is first",
                    file.name
                ),
                format!(
                    "mend or remove {}",
                    facts.cni.conf_dir.join(&file.name).display()
                ),
            );
        }
    }
    check.finish(fine)
}

/// Labels and the primary network, where only some pods are ours.
pub(super) fn selective(facts: &Facts) -> Finding {
    let mut check = Check::new("selective");
    let Some(selective) = &facts.selective else {
        return check.finish("every pod is agent-cni's");
    };
    let mut fine = String::new();
    match &selective.entries {
        Ok(entries) => fine = format!("labels of {entries} pods"),
        Err(why) => check.warn(
            format!("no pod's labels are known, so every pod gets agent-cni's network: {why}"),
            format!(
                "write {}: docs/zeroproxy-config.md",
                selective.workloads_file.display()
            ),
        ),
    }
    match &selective.primary {
        Ok(path) => fine.push_str(&format!("; others go to {}", path.display())),
        Err(why) => check.fail(
            format!("pods that are not agent-cni's cannot start: {why}"),
            "install the cluster's CNI, or name its configuration as primary.file",
        ),
    }
    if !selective.undeclared.is_empty() {
        let names = selective.undeclared.join(", ");
        check.warn(
            format!("the primary network's plugins want {names}, which our configuration does not declare: the runtime passes nothing for it"),
            format!("{INSTALL}, which copies it; or add to our configuration: \"capabilities\": {{{}}}", declared(&selective.undeclared)),
        );
    }
    for kind in &selective.missing {
        check.fail(
            format!("the primary network's plugin {kind} is not installed"),
            "install the cluster's CNI plugins",
        );
    }
    check.finish(fine)
}

fn declared(names: &[String]) -> String {
    let pairs: Vec<_> = names
        .iter()
        .map(|name| format!("\"{name}\": true"))
        .collect();
    pairs.join(", ")
}

/// One version everywhere.
pub(super) fn versions(facts: &Facts) -> Finding {
    let mut check = Check::new("versions");
    let path = facts.cni.binary.display();
    let own = check.see("this program", &facts.cni.own);
    if let (Some(own), Ok(Binary::There { sha256, .. })) = (own, &facts.cni.installed)
        && own != sha256
    {
        check.fail(
            format!(
                "{path} is another build than this one (SHA-256 {}…, not {}…)",
                short(sha256),
                short(own)
            ),
            INSTALL,
        );
    }
    let recorded = check.see("the version record", &facts.state.version);
    if let Some(Some(recorded)) = recorded
        && recorded != VERSION
    {
        check.fail(
            format!("the node's record says version {recorded}, this is {VERSION}"),
            INSTALL,
        );
    }
    for file in facts.cni.confs.iter().flatten() {
        let written = file.version.as_deref();
        if let Some(written) = written.filter(|written| *written != VERSION) {
            check.fail(
                format!(
                    "{} was written by version {written}, this is {VERSION}",
                    file.name
                ),
                INSTALL,
            );
        }
    }
    // when they cannot be looked at, `programs` says so
    if facts.datapath.this_build == Ok(false) {
        check.fail("the loaded programs are another build's", super::SETUP);
    }
    check.finish(format!("{VERSION} everywhere"))
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}
