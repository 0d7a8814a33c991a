//! A bridge with a pod's port, frames that are sent into it, and what comes of them.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use agent_datapath::{compat::Compat, load::DatapathConfig, maps::CounterRow};
use agent_ebpf_common::{
    Reason,
    classify::{Verdict, classify},
    packet::parse,
    testing::*,
};

use crate::support::{index_of, packet_socket, patience, pod, run_ip, send};

/// How long a frame may take on a busy machine.
pub(crate) fn limit() -> Duration {
    patience(Duration::from_secs(10))
}

pub(crate) const POD_PORT: &str = "agt000000000001";

/// A bridge with a pod's port, whose other end is `eth0`, here too.
pub(crate) struct Bridge {
    pub(crate) compat: Compat,
    pub(crate) ifindex: u32,
    pub(crate) socket: std::os::fd::OwnedFd,
}

impl Bridge {
    pub(crate) fn new(config: &DatapathConfig) -> Self {
        let bridge = Self::without_pod(config);
        bridge
            .compat
            .attach_pod(POD_PORT, bridge.ifindex, &pod())
            .unwrap();
        bridge
    }

    pub(crate) fn without_pod(config: &DatapathConfig) -> Self {
        run_ip("link add agentcni0 type bridge");
        run_ip("link set agentcni0 address 02:00:00:00:00:01 up");
        let compat = Compat::ensure(config).unwrap();
        let ifindex = port(POD_PORT, "eth0");
        let socket = packet_socket();
        let bridge = Self {
            compat,
            ifindex,
            socket,
        };
        // what the kernel says by itself, to both ends, is over
        thread::sleep(Duration::from_millis(50));
        bridge
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        send(&self.socket, "eth0", frame);
    }

    pub(crate) fn rows(&self) -> Vec<CounterRow> {
        self.compat.counters().unwrap()
    }

    /// Sends a frame, and checks that it was counted once, for the reason that `classify` gives, and dropped or passed
    /// as that says.
    pub(crate) fn check(&self, frame: &[u8]) -> Verdict {
        let verdict = expected(frame);
        let before = self.rows();
        let passed = passed();
        self.send(frame);
        let deadline = Instant::now() + limit();
        let rows = loop {
            let rows = self.rows();
            if rows != before || Instant::now() > deadline {
                break rows;
            }
            thread::yield_now();
        };
        let mut wanted = before;
        let reason = verdict.reason();
        match wanted
            .iter_mut()
            .find(|row| (row.ifindex, row.reason) == (self.ifindex, reason))
        {
            Some(row) => {
                row.packets += 1;
                row.bytes += frame.len() as u64;
            }
            None => wanted.push(CounterRow {
                ifindex: self.ifindex,
                reason,
                packets: 1,
                bytes: frame.len() as u64,
            }),
        }
        wanted.sort_by_key(|row| (row.ifindex, row.reason));
        // a tag that was taken off is not counted
        if reason == Reason::Vlan {
            let packets = |rows: &[CounterRow]| -> Vec<_> {
                rows.iter()
                    .map(|row| (row.ifindex, row.reason, row.packets))
                    .collect()
            };
            assert_eq!(packets(&rows), packets(&wanted), "{frame:02x?}");
        } else {
            assert_eq!(rows, wanted, "{frame:02x?}");
        }
        let mut wanted = passed;
        match verdict {
            Verdict::Pass { mark, .. } => wanted[mark as usize] += 1,
            Verdict::Drop(_) => {}
        }
        let deadline = Instant::now() + limit();
        while self::passed() != wanted && Instant::now() < deadline {
            thread::yield_now();
        }
        assert_eq!(self::passed(), wanted, "{frame:02x?}");
        verdict
    }

    pub(crate) fn check_alive(&self) {
        self.send(&udp(WORLD_IP, 443));
        wait_until("a drop", || {
            self.rows().iter().any(|row| row.reason == Reason::Udp)
        });
    }
}

pub(crate) fn expected(frame: &[u8]) -> Verdict {
    classify(
        &parse(&Slice(frame)),
        Some(&endpoint()),
        Some(&config()),
        &TestCidrs,
    )
}

/// A port of the bridge with its peer, and the port's index. Neither end says anything by itself.
pub(crate) fn port(name: &str, peer: &str) -> u32 {
    run_ip(&format!("link add {name} type veth peer name {peer}"));
    for end in [name, peer] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1").unwrap();
        run_ip(&format!("link set {end} arp off"));
    }
    run_ip(&format!("link set {name} master agentcni0"));
    run_ip(&format!(
        "link set {name} type bridge_slave isolated on group_fwd_mask 0xfffd"
    ));
    run_ip(&format!("link set {name} up"));
    run_ip(&format!("link set {peer} up"));
    // the kernel tells the bridge of the carrier when it comes to it; frames before that are lost
    wait_until("the port forwards", || {
        let mut show = Command::new("bridge");
        let shown = show.args(["link", "show", "dev", name]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).contains("state forwarding")
    });
    index_of(name)
}

/// Frames that a table behind ours has seen: without a mark of ours, with the proxy's, with the one of services.
pub(crate) fn passed() -> [u64; 3] {
    let listing = nft("list table bridge behind");
    let counted: Vec<u64> = listing
        .split("packets ")
        .skip(1)
        .filter_map(|rest| rest.split(' ').next()?.parse().ok())
        .collect();
    counted.try_into().unwrap()
}

pub(crate) fn watch_what_passes() {
    nft("add table bridge behind");
    nft("add chain bridge behind c { type filter hook prerouting priority -200; }");
    for mark in ["0", "0x0a000000", "0x77"] {
        nft(&format!(
            "add rule bridge behind c iifname {POD_PORT} meta mark {mark} counter"
        ));
    }
}

pub(crate) fn nft(arguments: &str) -> String {
    let output = Command::new("nft").arg(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit();
    while !done() {
        assert!(
            Instant::now() < deadline,
            "not within {:?}: {what}",
            limit()
        );
        thread::sleep(Duration::from_millis(2));
    }
}
