//! The classifier as a filter on a clsact qdisc, for kernels before 6.6.
//!
//! Ours is the one with our priority, our handle and our program's name; no other filter is touched, and the qdisc
//! stays when the filter goes, because it may be somebody else's.

use std::io;

use agent_ebpf_common::names::POD_INGRESS;
use aya::programs::{
    ProgramError, SchedClassifier, TcAttachType,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact},
};
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAttribute, TcFilterBpfOption, TcHandle as NetlinkHandle, TcHeader, TcMessage, TcOption,
    },
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Before every other filter.
const PRIORITY: u16 = 1;
/// Not the small numbers that others pick, or are given, at the same priority.
const HANDLE: (u16, u16) = (0x0a6e, 0x0001);

/// Parent of ingress filters: `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`.
const CLSACT_INGRESS: u32 = 0xffff_fff2;

fn handle() -> TcHandle {
    TcHandle::new(HANDLE.0, HANDLE.1)
}

/// Attaches the program, or puts it in the place of an older one of ours.
pub(crate) fn attach(
    program: &mut SchedClassifier,
    ifname: &str,
    ifindex: u32,
) -> Result<(), ProgramError> {
    if attached(ifindex)?.is_some() {
        return replace(program, ifname);
    }
    match qdisc_add_clsact(ifname) {
        Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => {}
        Err(TcError::AlreadyAttached) => {}
        other => other?,
    }
    let options = TcAttachOptions::Netlink(NlOptions {
        priority: PRIORITY,
        handle: handle(),
        classid: None,
    });
    let link = program.attach_with_options(ifname, TcAttachType::Ingress, options)?;
    // the filter outlives us: aya would remove it with the link
    std::mem::forget(program.take_link(link)?);
    Ok(())
}

/// Puts the program in the place of an older one of ours, in one step.
pub(crate) fn replace(program: &mut SchedClassifier, ifname: &str) -> Result<(), ProgramError> {
    let link = program.attach_to_link(link(ifname)?)?;
    std::mem::forget(program.take_link(link)?);
    Ok(())
}

/// Removes our filter; fine when there is none.
pub(crate) fn detach(ifname: &str, ifindex: u32) -> Result<(), ProgramError> {
    if attached(ifindex)?.is_some() {
        aya::programs::Link::detach(link(ifname)?)?;
    }
    Ok(())
}

fn link(ifname: &str) -> io::Result<SchedClassifierLink> {
    SchedClassifierLink::attached(ifname, TcAttachType::Ingress, PRIORITY, handle(), None)
}

/// The ID of the program in our filter on the interface, if there is one.
pub(crate) fn attached(ifindex: u32) -> io::Result<Option<u32>> {
    Ok(filters(ifindex)?.iter().find_map(our_program))
}

/// A program in a filter of others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ForeignFilter {
    /// The program's ID.
    pub(crate) program: u32,
    /// Its name.
    pub(crate) name: String,
    /// The filter, as `tc filter del` names it.
    pub(crate) place: String,
}

/// The programs in filters of others at the interface's ingress. Filters that run no program are let
/// go by: they are behind ours, which goes first.
pub(crate) fn foreign(ifindex: u32) -> io::Result<Vec<ForeignFilter>> {
    let filters = filters(ifindex)?;
    let others = filters
        .iter()
        .filter(|filter| our_program(filter).is_none());
    let programs = others.filter_map(|filter| {
        let (program, name) = program_of(filter)?;
        Some(ForeignFilter {
            program,
            name,
            place: place_of(&filter.header),
        })
    });
    Ok(programs.collect())
}

fn place_of(header: &TcHeader) -> String {
    /// `ETH_P_ALL`.
    const ALL: u16 = 3;
    // TC_H_MAKE: the preference above, the protocol below in network order
    let [pref, protocol] = [header.info >> 16, header.info & 0xffff];
    let protocol = match u16::from_be(protocol as u16) {
        ALL => "all".to_owned(),
        other => format!("{other:#06x}"),
    };
    format!(
        "protocol {protocol} pref {pref} handle {:#x}",
        u32::from(header.handle)
    )
}

/// The ID and the name of a filter's program.
fn program_of(filter: &TcMessage) -> Option<(u32, String)> {
    let mut name = String::new();
    let mut id = None;
    for attribute in &filter.attributes {
        let TcAttribute::Options(options) = attribute else {
            continue;
        };
        for option in options {
            match option {
                TcOption::Bpf(TcFilterBpfOption::ProgName(found)) => name.clone_from(found),
                TcOption::Bpf(TcFilterBpfOption::ProgId(found)) => id = Some(*found),
                _ => {}
            }
        }
    }
    id.map(|id| (id, name))
}

fn our_program(filter: &TcMessage) -> Option<u32> {
    let (major, minor) = HANDLE;
    if (filter.header.info >> 16) != u32::from(PRIORITY)
        || u32::from(filter.header.handle) != u32::from(TcHandle::new(major, minor))
    {
        return None;
    }
    let options = filter
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            TcAttribute::Options(options) => Some(options),
            _ => None,
        })?;
    let mut named = false;
    let mut id = None;
    for option in options {
        match option {
            TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => named = name == POD_INGRESS,
            TcOption::Bpf(TcFilterBpfOption::ProgId(program)) => id = Some(*program),
            _ => {}
        }
    }
    id.filter(|_| named)
}

/// Lists the ingress filters of an interface; none when it has no clsact qdisc.
fn filters(ifindex: u32) -> io::Result<Vec<TcMessage>> {
    let index = i32::try_from(ifindex).map_err(io::Error::other)?;
    let parent = NetlinkHandle::from(CLSACT_INGRESS);
    let request = TcMessage::from_parts(
        TcHeader {
            index,
            parent,
            ..TcHeader::default()
        },
        vec![],
    );
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = NetlinkMessage::new(
        header,
        RouteNetlinkMessage::GetTrafficFilter(request).into(),
    );
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);

    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let mut filters = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = datagram.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(io::Error::other)?;
            let len = (message.header.length as usize).next_multiple_of(4);
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(filters),
                NetlinkPayload::Error(error) => {
                    return error.code.map_or(Ok(filters), |_| Err(error.to_io()));
                }
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewTrafficFilter(filter)) => {
                    filters.push(filter);
                }
                _ => {}
            }
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests;
