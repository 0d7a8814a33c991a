//! What kube-proxy puts on a node for a few Services, and a witness that counts marked packets.
//!
//! The rules are kube-proxy's own in iptables mode for a cluster whose pod CIDR it doesn't know (no
//! `KUBE-MARK-MASQ` for foreign sources): whatever leaves with the node's address got it from the agent's rules.

use anyhow::{Context, Result};

use crate::addresses::{CLUSTER_DNS, DNS_SERVER, SERVICE_BACKEND, SERVICE_IP};
use crate::place::Place;

pub mod ipvs;

/// The UDP port of the Service.
pub const UDP_PORT: u16 = 9999;

/// Installs the rules and the witness on the node.
///
/// # Errors
/// When iptables or nft refuses them.
pub fn install(node: &Place) -> Result<()> {
    let rules = kube_proxy_rules();
    node.run_with(
        &["iptables-restore", "-w", "--noflush"],
        &[],
        rules.as_bytes(),
        30,
    )?
    .success()?;
    node.run_with(&["nft", "-f", "-"], &[], WITNESS.as_bytes(), 30)?
        .success()?;
    Ok(())
}

/// Packets of the service mark that came from the bridge so far, and those that left by the uplink.
///
/// # Errors
/// When the witness is gone.
pub fn marked_packets(node: &Place) -> Result<(u64, u64)> {
    let list = node
        .run(&["nft", "list", "table", "ip", "e2e_witness"])?
        .success()?
        .stdout;
    let counter = |name: &str| -> Result<u64> {
        let rest = list
            .split(&format!("counter {name} {{"))
            .nth(1)
            .context("no such counter")?;
        let number = rest.split_whitespace().nth(1).context("no value")?;
        Ok(number.parse()?)
    };
    Ok((counter("from_pods")?, counter("to_uplink")?))
}

const WITNESS: &str = r#"
table ip e2e_witness {
  counter from_pods { }
  counter to_uplink { }
  chain in { type filter hook prerouting priority -310; iifname "agentcni0" meta mark & 0xff == 0x77 counter name from_pods; }
  chain out { type filter hook postrouting priority 200; oifname "eth0" meta mark & 0xff == 0x77 counter name to_uplink; }
}
"#;

fn kube_proxy_rules() -> String {
    let services = [
        (
            "WEB",
            SERVICE_IP.to_string(),
            "tcp",
            80,
            format!("{SERVICE_BACKEND}:8080"),
        ),
        (
            "ECHO",
            SERVICE_IP.to_string(),
            "udp",
            UDP_PORT,
            format!("{SERVICE_BACKEND}:{UDP_PORT}"),
        ),
        (
            "DNS",
            CLUSTER_DNS.to_string(),
            "udp",
            53,
            format!("{DNS_SERVER}:53"),
        ),
        (
            "DNSTCP",
            CLUSTER_DNS.to_string(),
            "tcp",
            53,
            format!("{DNS_SERVER}:53"),
        ),
    ];
    let mut chains =
        String::from("*nat\n:KUBE-SERVICES -\n:KUBE-POSTROUTING -\n:KUBE-MARK-MASQ -\n");
    let mut rules = String::from(
        "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n\
         -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
         -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000\n\
         -A KUBE-POSTROUTING -j MASQUERADE --random-fully\n\
         -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n",
    );
    for (name, ip, protocol, port, backend) in services {
        let host = backend.split(':').next().unwrap_or_default();
        chains += &format!(":KUBE-SVC-{name} -\n:KUBE-SEP-{name} -\n");
        rules += &format!(
            "-A KUBE-SERVICES -d {ip}/32 -p {protocol} -m {protocol} --dport {port} -j KUBE-SVC-{name}\n\
             -A KUBE-SVC-{name} -j KUBE-SEP-{name}\n\
             -A KUBE-SEP-{name} -s {host}/32 -j KUBE-MARK-MASQ\n\
             -A KUBE-SEP-{name} -p {protocol} -m {protocol} -j DNAT --to-destination {backend}\n"
        );
    }
    format!("{chains}{rules}COMMIT\n")
}
