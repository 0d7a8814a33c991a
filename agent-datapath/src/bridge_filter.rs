//! A third lock behind what controls the pods, in both modes: a filter at the bridge's ingress that drops what has no mark
//! from a pod's program or chain.
//!
//! It is a classic BPF program in a filter of traffic control (`cls_bpf`), so it needs neither nftables nor iptables nor
//! bpf(2): `nft flush ruleset` leaves it, and so does whatever takes a program off a pod's interface. It belongs to the
//! bridge and goes with it. Filters of others stay; ours goes first.

use futures_util::{StreamExt, TryStreamExt};
use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcHeader, TcMessage,
        TcOption,
    },
};

use crate::{
    error::NetError,
    link,
    network::NodeNetwork,
    rtnl::{Doing, Rtnl},
};

mod program;

/// Before every other filter.
const PREFERENCE: u16 = 1;
/// Not the small numbers that others pick, or are given, at the same preference.
const HANDLE: u32 = 0x0a6e_0002;
/// Every frame meets it: `ETH_P_ALL`.
const ALL_PROTOCOLS: u16 = 0x0003;
/// The handle of a clsact qdisc: `ffff:`.
const CLSACT_HANDLE: TcHandle = TcHandle {
    major: 0xffff,
    minor: 0,
};
const INGRESS: TcHandle = TcHandle {
    major: 0xffff,
    minor: TcHandle::MIN_INGRESS,
};
const TCA_BPF_OPS_LEN: u16 = 4;
const TCA_BPF_OPS: u16 = 5;

/// Sets the filter on the bridge; does nothing when it is right. Whatever differs is replaced in one step, apart from its
/// place: with a filter of others before it, ours is removed and added again.
///
/// # Errors
/// `Refused` when the kernel says no; the action names what it needs.
pub async fn ensure(rtnl: &Rtnl, node: &NodeNetwork, bridge: u32) -> Result<(), NetError> {
    let name = &node.bridge.name;
    let present = filters(rtnl, bridge, name).await?;
    match look(&present, node) {
        Found::Right => return Ok(()),
        Found::NotFirst => {
            let message = message(bridge, Vec::new())?;
            request(rtnl, RouteNetlinkMessage::DelTrafficFilter(message), 0)
                .await
                .doing_unless(libc::ENOENT, || format!("move the filter of {name}"))?;
        }
        Found::Other(_) => {}
    }
    let needs = "the kernel needs CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF, as modules sch_ingress and cls_bpf";
    let mut clsact = message(bridge, vec![TcAttribute::Kind("clsact".into())])?;
    clsact.header = TcHeader {
        index: clsact.header.index,
        handle: CLSACT_HANDLE,
        parent: TcHandle::CLSACT,
        ..TcHeader::default()
    };
    // somebody else's will do
    request(
        rtnl,
        RouteNetlinkMessage::NewQueueDiscipline(clsact),
        NLM_F_CREATE | NLM_F_EXCL,
    )
    .await
    .doing_unless(libc::EEXIST, || {
        format!("add a clsact qdisc to {name} ({needs})")
    })?;
    let attributes = vec![
        TcAttribute::Kind(TcFilterBpf::KIND.into()),
        TcAttribute::Options(options(node)),
    ];
    let filter = RouteNetlinkMessage::NewTrafficFilter(message(bridge, attributes)?);
    request(rtnl, filter, NLM_F_CREATE).await.doing(|| {
        let taken = present.iter().find(|filter| {
            preference(filter) == PREFERENCE
                && (kind(filter) != TcFilterBpf::KIND || protocol(filter) != ALL_PROTOCOLS)
        });
        match taken {
            Some(other) => format!(
                "set the filter at the ingress of {name}: preference {PREFERENCE} has a filter of another kind ({}); \
                 remove it: tc filter del dev {name} ingress pref {PREFERENCE}",
                kind(other)
            ),
            None => format!("set the filter at the ingress of {name} ({needs})"),
        }
    })
}

/// Compares the bridge's filter with what [`ensure`] sets.
///
/// # Errors
/// `Differs`, or `Refused` when the kernel cannot be asked.
pub async fn check(rtnl: &Rtnl, node: &NodeNetwork, bridge: u32) -> Result<(), NetError> {
    let name = &node.bridge.name;
    let found = match look(&filters(rtnl, bridge, name).await?, node) {
        Found::Right => return Ok(()),
        Found::NotFirst => "behind another filter",
        Found::Other(found) => found,
    };
    Err(NetError::differs(
        format!("the filter at the ingress of {name}"),
        found,
        "first, and dropping what has no mark",
    ))
}

/// As [`check`], for whoever looks at everything and does not have the bridge's index. Without a bridge there is nothing to
/// filter, and the bridge is what is missing.
///
/// # Errors
/// As [`check`].
pub async fn check_by_name(rtnl: &Rtnl, node: &NodeNetwork) -> Result<(), NetError> {
    match link::index_of(rtnl, &node.bridge.name).await? {
        Some(bridge) => check(rtnl, node, bridge).await,
        None => Ok(()),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    Right,
    NotFirst,
    Other(&'static str),
}

fn look(filters: &[TcMessage], node: &NodeNetwork) -> Found {
    let Some(at) = filters.iter().position(is_ours) else {
        return Found::Other("missing");
    };
    let ours = &filters[at];
    let has = ours.attributes.iter().any(|attribute| match attribute {
        TcAttribute::Options(found) => {
            // the kernel tells more than it was told
            options(node).iter().all(|wanted| found.contains(wanted))
        }
        _ => false,
    });
    if !has || kind(ours) != TcFilterBpf::KIND || protocol(ours) != ALL_PROTOCOLS {
        Found::Other("another")
    } else if at > 0 {
        Found::NotFirst
    } else {
        Found::Right
    }
}

fn is_ours(filter: &TcMessage) -> bool {
    preference(filter) == PREFERENCE && u32::from(filter.header.handle) == HANDLE
}

fn preference(filter: &TcMessage) -> u16 {
    TcHandle::from(filter.header.info).major
}

fn protocol(filter: &TcMessage) -> u16 {
    u16::from_be(TcHandle::from(filter.header.info).minor)
}

fn kind(filter: &TcMessage) -> &str {
    filter
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Kind(kind) => Some(kind.as_str()),
            _ => None,
        })
        .unwrap_or_default()
}

fn options(node: &NodeNetwork) -> Vec<TcOption> {
    let program = program::program(&program::Passes {
        marks: [node.proxy, node.answer(), node.service],
        gateway: node.bridge.address.addr(),
    });
    let length = u16::try_from(program.len()).unwrap_or(u16::MAX);
    let length = DefaultNla::new(TCA_BPF_OPS_LEN, length.to_ne_bytes().to_vec());
    let instructions = DefaultNla::new(TCA_BPF_OPS, program::bytes(&program));
    [
        TcFilterBpfOption::Other(length),
        TcFilterBpfOption::Other(instructions),
        TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
    ]
    .map(TcOption::Bpf)
    .into()
}

fn message(bridge: u32, attributes: Vec<TcAttribute>) -> Result<TcMessage, NetError> {
    let info = TcHandle {
        major: PREFERENCE,
        minor: ALL_PROTOCOLS.to_be(),
    };
    let header = TcHeader {
        index: index(bridge)?,
        handle: HANDLE.into(),
        parent: INGRESS,
        info: info.into(),
        ..TcHeader::default()
    };
    Ok(TcMessage::from_parts(header, attributes))
}

fn index(bridge: u32) -> Result<i32, NetError> {
    i32::try_from(bridge).map_err(|error| {
        NetError::refused(
            format!("use the interface index {bridge}"),
            std::io::Error::other(error),
        )
    })
}

/// The filters at the bridge's ingress in the order in which they are asked; none when it has no clsact qdisc.
async fn filters(rtnl: &Rtnl, bridge: u32, name: &str) -> Result<Vec<TcMessage>, NetError> {
    let mut stream = std::pin::pin!(
        rtnl.handle()
            .traffic_filter(index(bridge)?)
            .get()
            .ingress()
            .execute()
    );
    let mut filters = Vec::new();
    while let Some(filter) = stream
        .try_next()
        .await
        .doing(|| format!("list the filters of {name}"))?
    {
        // each kind at each preference is listed once for itself, with the handle 0; other chains have to be jumped to
        let elsewhere = |attribute: &TcAttribute| matches!(attribute, TcAttribute::Chain(1..));
        if u32::from(filter.header.handle) != 0 && !filter.attributes.iter().any(elsewhere) {
            filters.push(filter);
        }
    }
    Ok(filters)
}

/// Asks for a change, and waits until it is made.
async fn request(
    rtnl: &Rtnl,
    message: RouteNetlinkMessage,
    flags: u16,
) -> Result<(), rtnetlink::Error> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    let mut answers = rtnl.handle().clone().request(message)?;
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::Error(error) = answer.payload
            && error.code.is_some()
        {
            return Err(rtnetlink::Error::NetlinkError(error));
        }
    }
    Ok(())
}
