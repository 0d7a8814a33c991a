//! Doing the steps of `plan`, and taking them back when one fails.

use agent_core::{attachment::Attachment, node::NodeState};
use agent_datapath::{
    bridge,
    link::{self, PodLink, PodSide},
    netns::Netns,
    rtnl::Rtnl,
};

use crate::{
    command::Target,
    error::CniError,
    netconf::NetConf,
    node::{Node, datapath_error, endpoint},
    plan::{self, Step, Undo},
    state::StateDir,
    teardown::{self, Remains},
};

/// An ADD at work.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    /// The connection to the node's namespace.
    pub(crate) rtnl: &'a Rtnl,
    /// The configuration.
    pub(crate) conf: &'a NetConf,
    /// The state directory.
    pub(crate) dir: &'a StateDir,
    /// The node, ready.
    pub(crate) node: &'a Node,
    /// The pod's namespace.
    pub(crate) netns: &'a Netns,
    /// Bytes of IP a frame may carry.
    pub(crate) mtu: u32,
    /// What is being made; its ifindex is known once the link is there.
    pub(crate) attachment: Attachment,
}

impl Work<'_> {
    /// Does every step. When one fails, everything is taken back; what then cannot be taken back is logged.
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) async fn run(mut self) -> Result<Attachment, CniError> {
        for step in plan::STEPS {
            if let Err(error) = self.step(step).await {
                for undo in plan::undo_after(step) {
                    if let Err(failure) = self.undo(undo).await {
                        tracing::error!(?undo, error = %failure, "a failed ADD leaves something");
                    }
                }
                return Err(error);
            }
        }
        Ok(self.attachment)
    }

    async fn step(&mut self, step: Step) -> Result<(), CniError> {
        let host_veth = self.attachment.host_veth.clone();
        match step {
            Step::ClearRemains => {
                let remains = Remains {
                    host_veth,
                    ifindex: None,
                    address: Some(self.attachment.fake_ip),
                };
                teardown::remove(self.rtnl, self.conf, &remains).await?;
            }
            Step::CreateLink => {
                let pair = PodLink {
                    host_name: &host_veth,
                    pod_name: &self.attachment.ifname,
                    pod_mac: self.attachment.mac.octets(),
                    mtu: self.mtu,
                    netns: self.netns,
                };
                self.attachment.ifindex = link::create_pod_link(self.rtnl, &pair).await?;
            }
            Step::AttachProgram => {
                let endpoint = endpoint(&self.attachment);
                self.node
                    .plane
                    .attach_pod(&host_veth, self.attachment.ifindex, &endpoint)
                    .map_err(|error| {
                        datapath_error(&format!("attach the data path to {host_veth}"), &error)
                    })?;
            }
            Step::JoinBridge => {
                bridge::add_port(
                    self.rtnl,
                    self.node.bridge,
                    self.attachment.ifindex,
                    &host_veth,
                )
                .await?;
            }
            Step::Announce => {
                bridge::announce(
                    self.rtnl,
                    self.node.bridge,
                    self.attachment.ifindex,
                    self.attachment.fake_ip,
                    self.attachment.mac.octets(),
                )
                .await?;
            }
            Step::ConfigurePod => {
                let side = pod_side(&self.attachment, &self.node.state, self.mtu);
                self.netns
                    .run_async(|| async move { link::configure_pod_side(&side).await })?;
            }
            Step::SaveState => self.dir.save_attachment(&self.attachment)?,
            Step::OpenLink => {
                link::set_up(self.rtnl, self.attachment.ifindex, &host_veth).await?;
            }
        }
        Ok(())
    }

    async fn undo(&self, undo: Undo) -> Result<(), CniError> {
        let attachment = &self.attachment;
        match undo {
            Undo::DeleteLink => link::delete_link(self.rtnl, &attachment.host_veth).await?,
            Undo::DetachProgram => self
                .node
                .plane
                .detach_pod(attachment.ifindex, &attachment.host_veth)
                .map_err(|error| datapath_error("detach the data path", &error))?,
            Undo::Forget => {
                bridge::forget(self.rtnl, self.node.bridge, attachment.fake_ip).await?;
            }
            Undo::RemoveState => self.dir.remove_attachment(&Target {
                container_id: attachment.container_id.clone(),
                ifname: attachment.ifname.clone(),
            })?,
        }
        Ok(())
    }
}

/// How the pod's end of an attachment must look.
pub(crate) fn pod_side(attachment: &Attachment, state: &NodeState, mtu: u32) -> PodSide {
    PodSide {
        ifname: attachment.ifname.clone(),
        mac: attachment.mac.octets(),
        address: attachment.fake_ip,
        gateway: state.gateway,
        gateway_mac: state.gateway_mac.octets(),
        mtu,
    }
}
