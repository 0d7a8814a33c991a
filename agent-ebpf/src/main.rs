//! The eBPF programs: what a pod's packet and a pod's connection come through in the kernel.
//!
//! The decisions are `agent-ebpf-common`'s; here are the hooks, the maps, and the reading of packets. Any
//! failure to read or look up ends in a drop. Programs use no helper newer than Linux 5.10 and no loop.
#![no_std]
#![no_main]

mod count;
mod event;
mod maps;
mod skb;

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    macros::{classifier, sk_lookup},
    programs::{SkLookupContext, TcContext},
};

use agent_ebpf_common::{
    abi::{CONFIG_FAIL_OPEN, Ipv4Bytes},
    classify::{Verdict, classify},
    dispatch::{SocketClass, worker_of},
    packet::parse,
};

use crate::{maps::Prefixes, skb::Skb};

/// Checks the source of every packet that comes from a pod, and drops it or marks it for what comes next.
///
/// Attached at TC ingress of the host side of the pod's veth. Passing is "not mine" (`TC_ACT_UNSPEC`), so that
/// programs and filters behind this one still run.
#[classifier]
pub fn pod_ingress(ctx: TcContext) -> i32 {
    let skb = Skb::new(&ctx);
    let ifindex = skb.ifindex();
    let headers = parse(&skb);
    let config = maps::config();
    let verdict = classify(&headers, maps::endpoint(ifindex), config, &Prefixes);
    count::packet(ifindex, verdict.reason(), &skb);
    match (verdict, config) {
        (Verdict::Pass { mark, .. }, Some(config)) => {
            ctx.set_mark(mark.over(skb.mark(), config));
            TC_ACT_UNSPEC
        }
        (verdict, config) => {
            event::dropped(&ctx, ifindex, verdict.reason(), &headers, &skb, config);
            TC_ACT_SHOT
        }
    }
}

const SK_DROP: u32 = 0;
const SK_PASS: u32 = 1;
const AF_INET: u32 = 2;
/// Takes exactly the socket of the map, not another of its SO_REUSEPORT group.
const BPF_SK_LOOKUP_F_NO_REUSEPORT: u64 = 2;

/// Gives connections and datagrams of pods to the proxy's listeners.
///
/// Attached to the node's network namespace. Everything that does not come from a Fake IP passes untouched.
#[sk_lookup]
pub fn dispatch(ctx: SkLookupContext) -> u32 {
    let lookup = ctx.lookup;
    // `ingress_ifindex` is not read: kernels before 5.17 have none.
    // SAFETY: the kernel passes a valid context; the verifier checks each access.
    let family = unsafe { (*lookup).family };
    if family != AF_INET {
        return SK_PASS;
    }
    // SAFETY: as above; both addresses of an IPv4 lookup are in network byte order.
    let remote: Ipv4Bytes = unsafe { (*lookup).remote_ip4 }.to_ne_bytes();
    if !maps::is_fake(remote) {
        return SK_PASS;
    }
    // SAFETY: as above.
    let protocol = unsafe { (*lookup).protocol };
    // SAFETY: as above; the local port is in host byte order.
    let local_port = unsafe { (*lookup).local_port };
    // SAFETY: as above; the remote port is in network byte order.
    let remote_port = u16::from_be(unsafe { (*lookup).remote_port });
    if let Some(class) = SocketClass::of(protocol, local_port) {
        let worker = worker_of(remote, remote_port, maps::workers());
        if redirect(&ctx, class, worker) || (worker != 0 && redirect(&ctx, class, 0)) {
            return SK_PASS;
        }
    }
    match maps::config() {
        Some(config) if config.flags & CONFIG_FAIL_OPEN != 0 => SK_PASS,
        _ => SK_DROP,
    }
}

/// Whether the connection now belongs to the listener of that class and worker.
#[inline(always)]
fn redirect(ctx: &SkLookupContext, class: SocketClass, worker: u32) -> bool {
    let Some(slot) = class.slot(worker) else {
        return false;
    };
    maps::SOCKETS
        .redirect_sk_lookup(ctx, slot, BPF_SK_LOOKUP_F_NO_REUSEPORT)
        .is_ok()
}

/// Never reached: no code path of the programs panics, or they would not link.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The kernel lets only GPL-compatible programs call some of the helpers.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
