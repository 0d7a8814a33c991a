//! The node's own part of the network, in one place: bridge with its filter, settings, nftables table, and what the mode
//! needs besides: the policy route of ebpf, the iptables rules of iptables-compat.
//!
//! Set up as a whole, compared as a whole, taken down as a whole. A pod's part is in `link` and `bridge`; what controls
//! pods' packets is [`crate::plane`]'s.

use std::path::PathBuf;

use agent_core::{
    attachment::Mode,
    node::{DROP_RULE_PREFERENCE, POOL_ROUTE_TABLE, POOL_RULE_PREFERENCE},
};
use ipnet::Ipv4Net;

use crate::{
    bridge::{self, Bridge},
    bridge_filter,
    error::NetError,
    iptables, link,
    nft::{
        self,
        ruleset::{self, Parts},
        value::Family,
    },
    routing::{self, DropRules, Flow, OwnRules, PolicyRoute, PoolRoute, RuleBefore},
    rtnl::Rtnl,
    sysctl,
};

/// The flow that the pods' table is for; see [`NodeNetwork::flows`].
pub const FOR_PODS: &str = "what is for pods";

/// A mark that occupies some bits of a packet's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskedMark {
    /// The bits set.
    pub value: u32,
    /// The bits that are ours.
    pub mask: u32,
}

/// Where the proxy listens on the gateway's address, for the iptables-compat mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyPorts {
    /// TCP, for everything but DNS.
    pub proxy: u16,
    /// UDP and TCP, for DNS.
    pub dns: u16,
}

impl Default for ProxyPorts {
    fn default() -> Self {
        Self {
            proxy: 18_080,
            dns: 18_053,
        }
    }
}

/// What becomes of pods' traffic while no proxy listens.
///
/// What is let out then gets the Service's mark: it goes the way past the proxy that is there, with what is closed on it
/// (sensitive ranges, the node itself, other pods).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WithoutProxy {
    /// It is dropped.
    #[default]
    Dropped,
    /// It goes out. In the ebpf mode the kernel asks for each packet whether the dispatch program has a listener for it; in
    /// the iptables-compat mode, where nothing in the kernel knows, `away` is what was seen last.
    Out {
        /// Whether nobody listens on the proxy's port.
        away: bool,
    },
}

/// All that the node's network needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNetwork {
    /// How pods' traffic is redirected.
    pub mode: Mode,
    /// Whether the node is on its way from the other mode, whose parts pods may still need.
    pub leaving_other: bool,
    /// The bridge with its MAC and the gateway address; its network is the pool of Fake IPs.
    pub bridge: Bridge,
    /// The mark of packets for the proxy.
    pub proxy: MaskedMark,
    /// The mark of packets for a Service CIDR.
    pub service: MaskedMark,
    /// The Service CIDRs that bypass the proxy.
    pub service_cidrs: Vec<Ipv4Net>,
    /// Where the proxy listens.
    pub ports: ProxyPorts,
    /// What becomes of pods' traffic while no proxy listens.
    pub without_proxy: WithoutProxy,
    /// Ranges that stay closed to pods, besides the built-in ones.
    pub sensitive: Vec<Ipv4Net>,
    /// The routing table that makes the proxy's packets local.
    pub route_table: u32,
    /// The preference of the rule that leads there.
    pub rule_pref: u32,
    /// Where the sysctl values from before are kept.
    pub sysctl_record: PathBuf,
}

impl NodeNetwork {
    /// The route of marked packets to the proxy.
    #[must_use]
    pub fn policy_route(&self) -> PolicyRoute {
        PolicyRoute {
            iif: self.bridge.name.clone(),
            mark: self.proxy.value,
            mask: self.proxy.mask,
            table: self.route_table,
            pref: self.rule_pref,
        }
    }

    /// The rules that end what may not be routed out.
    #[must_use]
    pub fn drop_rules(&self) -> DropRules {
        DropRules {
            iif: self.bridge.name.clone(),
            pref: DROP_RULE_PREFERENCE,
            mark: self.proxy,
            services: self.service_cidrs.clone(),
        }
    }

    /// What a policy rule of others may not take before ours does.
    #[must_use]
    pub fn flows(&self) -> Vec<Flow> {
        let pool = self.bridge.address.trunc();
        let of_pods = |what, to, mark, pref| Flow {
            what,
            iif: Some(self.bridge.name.clone()),
            from: Some(pool),
            to,
            mark,
            pref,
        };
        let mark = self.proxy.value;
        let mut flows = vec![
            Flow {
                what: FOR_PODS,
                iif: None,
                from: None,
                to: Some(pool),
                mark: 0,
                pref: POOL_RULE_PREFERENCE,
            },
            match self.mode {
                Mode::Ebpf => of_pods("what pods send to the proxy", None, mark, self.rule_pref),
                Mode::IptablesCompat => of_pods(
                    "what pods send and nothing has redirected",
                    None,
                    mark,
                    DROP_RULE_PREFERENCE,
                ),
            },
        ];
        flows.extend(self.service_cidrs.iter().map(|services| {
            of_pods(
                "what nobody has translated for a Service",
                Some(services.trunc()),
                self.service.value,
                DROP_RULE_PREFERENCE,
            )
        }));
        flows
    }

    /// Policy rules of others that take what ours are for.
    ///
    /// # Errors
    /// `Refused` when the kernel cannot be asked.
    pub async fn rules_before(&self, rtnl: &Rtnl) -> Result<Vec<RuleBefore>, NetError> {
        let own = OwnRules {
            bridge: self.bridge.name.clone(),
            drop_pref: DROP_RULE_PREFERENCE,
            tables: [self.route_table, POOL_ROUTE_TABLE],
        };
        routing::rules_before(rtnl, &self.flows(), &own).await
    }

    /// The way to the pods.
    #[must_use]
    pub fn pool_route(&self) -> PoolRoute {
        PoolRoute {
            gateway: self.bridge.address,
            table: POOL_ROUTE_TABLE,
            pref: POOL_RULE_PREFERENCE,
        }
    }

    /// The mark of an answer to the node: another value of the proxy's bits. The table sets it, because where br_netfilter
    /// is, an answer whose source the node had translated goes to its real address before it meets the bridge's filter.
    #[must_use]
    pub fn answer(&self) -> MaskedMark {
        let mask = self.proxy.mask;
        MaskedMark {
            value: self.proxy.value ^ (mask & mask.wrapping_neg()),
            mask,
        }
    }
}

/// Sets the node's network up in the calling thread's network namespace and answers the bridge's ifindex. What is
/// right already is left alone; what is not is mended, the bridge's address included. Parts of the other mode stay:
/// [`leave_mode`] removes them.
///
/// Rules and filter come before the bridge is up: at no instant can a pod's packet meet a node without them.
///
/// # Errors
/// The first step that failed. What was done stays: it is the same on the next try, and closed without the rest.
pub async fn ensure_node(node: &NodeNetwork) -> Result<u32, NetError> {
    set_up(node, report).await
}

/// As [`ensure_node`], of a node that is thrown away again: nobody has to know which rules were written there.
///
/// # Errors
/// As [`ensure_node`].
pub(crate) async fn try_node(node: &NodeNetwork) -> Result<u32, NetError> {
    set_up(node, |_| {}).await
}

async fn set_up(
    node: &NodeNetwork,
    told: impl FnOnce(&iptables::Ensured),
) -> Result<u32, NetError> {
    let rtnl = Rtnl::connect()?;
    nft::ensure(&ruleset::table(node, parts(node)?))?;
    if node.mode == Mode::IptablesCompat {
        told(&iptables::ensure(node)?);
    }
    let index = bridge::ensure(&rtnl, &node.bridge).await?;
    bridge_filter::ensure(&rtnl, node, index).await?;
    sysctl::ensure(
        &sysctl::node_settings(&node.bridge.name),
        Some(&node.sysctl_record),
    )?;
    // a local route on a loopback that is down leads nowhere
    link::ensure_up(&rtnl, "lo").await?;
    if node.mode == Mode::Ebpf {
        node.policy_route().ensure(&rtnl).await?;
    }
    node.drop_rules().ensure(&rtnl).await?;
    let way_back = node.pool_route();
    way_back.close(&rtnl).await?;
    bridge::up(&rtnl, &node.bridge, index).await?;
    way_back.ensure(&rtnl, index).await?;
    Ok(index)
}

/// Compares the node's network with what [`ensure_node`] makes, and answers the bridge's ifindex.
///
/// # Errors
/// The first difference.
pub async fn check_node(node: &NodeNetwork) -> Result<u32, NetError> {
    let rtnl = Rtnl::connect()?;
    let index = bridge::check(&rtnl, &node.bridge).await?;
    bridge_filter::check(&rtnl, node, index).await?;
    sysctl::check(&sysctl::node_settings(&node.bridge.name))?;
    if node.mode == Mode::Ebpf {
        node.policy_route().check(&rtnl).await?;
    }
    node.drop_rules().check(&rtnl).await?;
    node.pool_route().check(&rtnl, index).await?;
    check_rules(node)?;
    Ok(index)
}

/// As [`check_node`], of the rules alone: the nftables table, and in the iptables-compat mode those of iptables.
///
/// # Errors
/// Every difference.
pub fn check_rules(node: &NodeNetwork) -> Result<(), NetError> {
    let mut errors = Vec::new();
    if node.mode == Mode::IptablesCompat {
        errors.extend(iptables::check(node).err());
    }
    errors.extend(check_table(node).err());
    NetError::of_all(errors)
}

/// Compares the table `ip agent_network` with what [`ensure_node`] makes.
///
/// # Errors
/// `Differs`, naming the chain, or `Refused` when the kernel cannot be asked.
pub fn check_table(node: &NodeNetwork) -> Result<(), NetError> {
    nft::check(&ruleset::table(node, parts(node)?))
}

/// Removes what only the other mode needs, once no pod does any more. Fine when it is gone already.
///
/// # Errors
/// `Several`, with all that did not work.
pub async fn leave_mode(node: &NodeNetwork) -> Result<(), NetError> {
    let alone = NodeNetwork {
        leaving_other: false,
        ..node.clone()
    };
    let mut errors = Vec::new();
    // the table first: from then on packets go only the way that stays
    let table = parts(&alone).map(|parts| ruleset::table(&alone, parts));
    errors.extend(table.and_then(|table| nft::ensure(&table)).err());
    match node.mode {
        Mode::Ebpf => errors.extend(iptables::remove().err()),
        Mode::IptablesCompat => {
            let rtnl = Rtnl::connect()?;
            errors.extend(node.policy_route().remove(&rtnl).await.err());
        }
    }
    NetError::of_all(errors)
}

/// Takes everything down that [`ensure_node`] made, in either mode; what is gone already is fine. Goes on after errors.
///
/// # Errors
/// `Several`, with all that did not work.
pub async fn remove_node(node: &NodeNetwork) -> Result<(), NetError> {
    let rtnl = Rtnl::connect()?;
    // the bridge first: without it no pod's packet arrives, so the rules can go
    let mut errors = Vec::new();
    errors.extend(link::delete_link(&rtnl, &node.bridge.name).await.err());
    errors.extend(node.policy_route().remove(&rtnl).await.err());
    errors.extend(node.drop_rules().remove(&rtnl).await.err());
    errors.extend(node.pool_route().remove(&rtnl).await.err());
    errors.extend(iptables::remove().err());
    errors.extend(nft::remove(Family::Ip, ruleset::TABLE).err());
    let settings = sysctl::node_settings(&node.bridge.name);
    errors.extend(sysctl::restore(&settings, &node.sysctl_record).err());
    NetError::of_all(errors)
}

/// What the table `ip agent_network` must have now.
fn parts(node: &NodeNetwork) -> Result<Parts, NetError> {
    let has = |mode| node.mode == mode || node.leaving_other;
    let compat = has(Mode::IptablesCompat);
    Ok(Parts {
        ebpf: has(Mode::Ebpf),
        compat,
        early: compat && nft::others_translate(ruleset::TABLE)?,
    })
}

fn report(ensured: &iptables::Ensured) {
    if ensured.choice.both_in_use {
        tracing::debug!(
            backend = ensured.choice.backend.name(),
            "both iptables-nft and iptables-legacy are in use on this node"
        );
    }
    if !ensured.mended.is_empty() {
        tracing::info!(
            backend = ensured.choice.backend.name(),
            why = ?ensured.choice.why,
            changes = ensured.mended.join(", "),
            "iptables rules written"
        );
    }
}
