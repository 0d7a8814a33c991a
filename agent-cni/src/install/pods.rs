//! Mending what is broken of attached pods, without a moment in which one of them is uncontrolled.
//!
//! Why each state that is found is closed until it is mended:
//!
//! - Program or entry gone: the nftables table drops whatever the bridge brings without the proxy's or a Service's mark,
//!   and no pod can set a mark. An entry without a program is nothing, a program without an entry drops everything.
//! - In the iptables-compat mode, a pod's chains gone: the shared table drops what a port without chains sends; the shared
//!   table gone: iptables redirects to the proxy, and the table `ip agent_network` drops the rest.
//! - All tables gone, or program and table: the filter at the bridge's ingress drops what has no mark. So a pod gets its
//!   program or chain back after the tables.
//! - Table gone: the programs drop, or mark and so lead to the proxy; policy rules drop what goes to Services that nobody
//!   translates.
//! - Bridge gone: frames are for the bridge's MAC, which the pod's link does not have, so the node's stack drops them; the
//!   policy rule asks for the bridge's name.
//! - Port not isolated: the program of each port lets only frames for the gateway pass.
//!
//! So a link joins the bridge with its program right, or while it is down, and goes up when its program is right. A pod whose link is gone
//! cannot be mended: only its runtime can make it anew.

use agent_core::attachment::Attachment;
use agent_datapath::{
    bridge,
    compat::HostPod,
    link,
    ports::{PortFault, Ports},
    rtnl::Rtnl,
};

use super::report::{Found, Kind};
use crate::{
    clock,
    command::Target,
    error::CniError,
    node::{Node, datapath_error, endpoint},
    state::{Pending, StateDir},
};

/// What a look at all pods came to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What was mended.
    pub(crate) found: Vec<Found>,
    /// Pods that cannot be mended.
    pub(crate) notes: Vec<String>,
    /// The last error, when a pod could not be mended that could be.
    pub(crate) error: Option<CniError>,
}

/// How a pod's attachment is broken.
#[derive(Debug)]
struct Broken {
    port: Vec<PortFault>,
    program: Option<String>,
}

impl Broken {
    fn has(&self, fault: PortFault) -> bool {
        self.port.contains(&fault)
    }
}

/// A pod that is broken, which no verb works on until this is gone.
struct Held {
    attachment: Attachment,
    broken: Broken,
}

/// Looks at every attached pod, and mends what differs from what an ADD makes: all of them together, because what breaks
/// a node breaks all of its pods.
///
/// # Errors
/// The pods cannot be looked at.
pub(crate) async fn mend(node: &Node, dir: &StateDir, rtnl: &Rtnl) -> Result<Outcome, CniError> {
    let ports = Ports::look(rtnl, node.bridge).await?;
    let boot = clock::boot_id();
    let mut outcome = Outcome::default();
    let mut locked = Vec::new();
    for attachment in dir.attachments()? {
        // links of another boot are gone, and with them their pods
        if attachment.boot_id != boot {
            continue;
        }
        let Some(broken) = look(node, &ports, &attachment) else {
            continue;
        };
        if broken.has(PortFault::Gone) || broken.has(PortFault::Other) {
            outcome.notes.push(format!(
                "pod {}/{} has lost its link {}: recreate it",
                attachment.pod.namespace, attachment.pod.name, attachment.host_veth
            ));
            continue;
        }
        let target = Target {
            container_id: attachment.container_id.clone(),
            ifname: attachment.ifname.clone(),
        };
        match dir.try_lock_attachment(&target) {
            Ok(Some(pending)) => locked.push((pending, target, attachment)),
            // a verb is at work on it
            Ok(None) => {}
            Err(error) => outcome.error = Some(error.into()),
        }
    }
    if locked.is_empty() {
        return Ok(outcome);
    }
    let done = mend_locked(node, dir, rtnl, &locked, &mut outcome).await;
    for (pending, ..) in locked {
        pending.done()?;
    }
    done?;
    Ok(outcome)
}

/// Mends pods that no verb is at work on; some of them were mended or deleted since they were looked at.
async fn mend_locked(
    node: &Node,
    dir: &StateDir,
    rtnl: &Rtnl,
    locked: &[(Pending, Target, Attachment)],
    outcome: &mut Outcome,
) -> Result<(), CniError> {
    let ports = Ports::look(rtnl, node.bridge).await?;
    let mut held = Vec::new();
    for (_, target, attachment) in locked {
        if dir.attachment(target)?.as_ref() == Some(attachment)
            && let Some(broken) = look(node, &ports, attachment)
        {
            held.push(Held {
                attachment: attachment.clone(),
                broken,
            });
        }
    }
    // a link joins the bridge only while it is down, or with its program right
    for pod in &held {
        if pod.broken.has(PortFault::NotAPort) && pod.broken.program.is_some() {
            let attachment = &pod.attachment;
            link::set_down(rtnl, attachment.ifindex, &attachment.host_veth).await?;
        }
    }
    let programs: Vec<HostPod> = held
        .iter()
        .filter(|pod| pod.broken.program.is_some())
        .map(|pod| HostPod {
            ifname: pod.attachment.host_veth.clone(),
            ifindex: pod.attachment.ifindex,
            endpoint: endpoint(&pod.attachment),
        })
        .collect();
    if let Err(error) = node.plane.attach_pods(&programs) {
        // one that cannot be mended keeps no other from it: each gets its own again below
        tracing::debug!(%error, "not all pods at once");
    }
    for pod in &held {
        match restore(node, rtnl, pod).await {
            Ok(found) => outcome.found.push(found),
            Err(error) => outcome.error = Some(error),
        }
    }
    Ok(())
}

fn look(node: &Node, ports: &Ports, attachment: &Attachment) -> Option<Broken> {
    let broken = Broken {
        port: ports.faults(
            &attachment.host_veth,
            attachment.ifindex,
            attachment.fake_ip,
            attachment.mac.octets(),
        ),
        program: node
            .plane
            .check_pod(
                &attachment.host_veth,
                attachment.ifindex,
                &endpoint(attachment),
            )
            .err()
            .map(|error| error.to_string()),
    };
    (!broken.port.is_empty() || broken.program.is_some()).then_some(broken)
}

async fn restore(node: &Node, rtnl: &Rtnl, pod: &Held) -> Result<Found, CniError> {
    let Held { attachment, broken } = pod;
    let (index, veth) = (attachment.ifindex, attachment.host_veth.as_str());
    // at once: taking the link down first would take as long
    if broken.program.is_some()
        && let Err(error) = node.plane.attach_pod(veth, index, &endpoint(attachment))
    {
        link::set_down(rtnl, index, veth).await?;
        return Err(datapath_error(
            &format!("attach the program to {veth} again; the link is down until then"),
            &error,
        ));
    }
    if broken.has(PortFault::NotAPort) || broken.has(PortFault::Flags) {
        bridge::add_port(rtnl, node.bridge, index, veth).await?;
    }
    if !broken.port.is_empty() {
        let mac = attachment.mac.octets();
        bridge::announce(rtnl, node.bridge, index, attachment.fake_ip, mac).await?;
        link::set_up(rtnl, index, veth).await?;
    }
    let causes: Vec<String> = broken
        .port
        .iter()
        .map(ToString::to_string)
        .chain(broken.program.clone())
        .collect();
    Ok(Found::new(
        Kind::Pod,
        format!(
            "pod {}/{} on {veth}: {}",
            attachment.pod.namespace,
            attachment.pod.name,
            causes.join("; ")
        ),
    ))
}
