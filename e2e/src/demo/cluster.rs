//! What goes past the proxy: connections to the cluster's own Services.

use anyhow::Result;

use super::egress::status;
use super::{Stage, ensure};
use crate::addresses::{NODE, SERVICE_IP};
use crate::service::marked_packets;

pub(super) fn service(stage: &mut Stage) -> Result<()> {
    let Stage {
        node, planner, say, ..
    } = stage;
    let (in_before, out_before) = marked_packets(&node.place())?;
    let done = planner.curl(&["http://web.default.svc.cluster.local/"])?;
    say.ran("pod", &done);
    ensure(status(&done) == Some(200), "the Service didn't answer")?;
    ensure(
        done.stdout
            .contains(&format!("hello from the service to {NODE}")),
        "the backend didn't see the node's address",
    )?;
    let (marked_in, marked_out) = marked_packets(&node.place())?;
    let (marked_in, marked_out) = (marked_in - in_before, marked_out - out_before);
    say.saw(
        "node",
        &format!(
            "{marked_in} packets with mark 0x77 from the bridge, {marked_out} left by the uplink"
        ),
    );
    ensure(
        marked_in >= 4 && marked_out >= 4,
        "the connection wasn't marked 0x77 all the way",
    )?;
    let flows = node
        .place()
        .sh(&format!("conntrack -L -d {SERVICE_IP} 2>/dev/null"))?;
    say.saw("conntrack", &flows.stdout);
    ensure(
        flows.stdout.contains(&format!("src={}", planner.ip)),
        "conntrack has no entry for the pod",
    )?;
    let proxied = node
        .audit()?
        .iter()
        .any(|l| l["destination"]["ip"] == SERVICE_IP.to_string() && l["direction"] == "egress");
    ensure(!proxied, "the proxy had the connection")?;
    say.saw("proxy", "nothing: kube-proxy's rules translated it");
    Ok(())
}
