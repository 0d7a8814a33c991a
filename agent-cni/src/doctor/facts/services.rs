//! Who translates Services on this node, and what iptables works with.

use std::{fs, path::Path};

use agent_datapath::nft;

use super::{proxy, seen};
use crate::doctor::{check::Seen, options::Options};

/// Where kube-proxy says how it works.
const PROXY_MODE: &str = "http://127.0.0.1:10249/proxyMode";
/// What a Cilium agent runs with.
const CILIUM_CONFIG: &str = "/var/run/cilium/state/agent-runtime-config.json";

/// See the module.
#[derive(Debug)]
pub(crate) struct Services {
    /// kube-proxy's own word, when it runs and says something.
    pub(crate) told: Option<String>,
    /// Its nftables table.
    pub(crate) nftables: Seen<bool>,
    /// Its chains in iptables over nftables.
    pub(crate) iptables_nft: Seen<bool>,
    /// Virtual servers of IPVS.
    pub(crate) ipvs: bool,
    /// Cilium's setting that keeps its socket load balancing out of pods, where there is a Cilium agent's configuration.
    pub(crate) cilium_host_only: Option<bool>,
}

impl Services {
    /// Reads it.
    pub(crate) fn read(options: &Options) -> Self {
        let told = proxy::get(PROXY_MODE).ok();
        Self {
            told: told
                .filter(|answer| answer.status == 200)
                .map(|answer| answer.body.chars().take(40).collect()),
            nftables: seen(nft::exists("kube-proxy", None)),
            iptables_nft: seen(nft::exists("nat", Some("KUBE-SERVICES"))),
            ipvs: fs::read_to_string("/proc/thread-self/net/ip_vs")
                .is_ok_and(|text| has_virtual_servers(&text)),
            cilium_host_only: cilium(&options.on_host(Path::new(CILIUM_CONFIG))),
        }
    }
}

/// Headings, then `TCP  0A600001:0050 rr` per virtual server.
fn has_virtual_servers(text: &str) -> bool {
    text.lines().any(|line| {
        ["TCP ", "UDP ", "SCTP ", "FWM "]
            .iter()
            .any(|kind| line.starts_with(kind))
    })
}

fn cilium(path: &Path) -> Option<bool> {
    let text = fs::read_to_string(path).ok()?;
    let value: serde_json::Value = serde_json::from_str(&text).ok()?;
    value.get("BPFSocketLBHostnsOnly")?.as_bool()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_servers_are_told_from_headings() {
        let headings = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
        assert!(!has_virtual_servers(headings));
        assert!(has_virtual_servers(&format!(
            "{headings}TCP  0A600001:01BB rr\n"
        )));
    }
}
