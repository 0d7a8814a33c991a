//! The classifier on crafted packets, by the kernel's own test run: action, mark and counters.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use agent_datapath::load::{Datapath, DatapathConfig};
use agent_datapath::pins::Pins;
use agent_ebpf_common::{
    Reason,
    classify::{Verdict, classify},
    names,
    packet::parse,
    testing::*,
};
use aya::programs::{ProgramInfo, SchedClassifier, TestRun, TestRunOptions};
use proptest::{prelude::*, test_runner::TestRunner};
use support::{PinDir, in_new_netns, pod, settings};

/// Packets of a test run come in on the loopback interface.
const LOOPBACK: u32 = 1;
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;
/// `__sk_buff.mark`.
const MARK_OFFSET: usize = 8;
const SK_BUFF_LEN: usize = 192;
/// A mark with bits of ours, of kube-proxy's and of others.
const OLD_MARK: u32 = 0x3a00_4055;

/// The loaded classifier, with the pod of the test packets behind the loopback interface.
struct Classifier {
    program: SchedClassifier,
    datapath: Datapath,
}

impl Classifier {
    fn new(pins: &Pins, config: &DatapathConfig) -> Self {
        let datapath = Datapath::ensure(pins, config).expect("load");
        datapath.attach_pod("lo", LOOPBACK, &pod()).expect("attach");
        let program = SchedClassifier::from_pin(pins.program(names::POD_INGRESS)).expect("open");
        Self { program, datapath }
    }

    /// Runs the program on a packet that has [`OLD_MARK`]; returns its action and the mark after it.
    fn run(&self, packet: &[u8]) -> (u32, u32) {
        let mut ctx = [0; SK_BUFF_LEN];
        ctx[MARK_OFFSET..MARK_OFFSET + 4].copy_from_slice(&OLD_MARK.to_ne_bytes());
        let mut ctx_out = [0; SK_BUFF_LEN];
        let mut data_out = vec![0; packet.len() + 64];
        let result = self
            .program
            .test_run(TestRunOptions {
                data_in: Some(packet),
                data_out: Some(&mut data_out),
                ctx_in: Some(&ctx),
                ctx_out: Some(&mut ctx_out),
                ..TestRunOptions::default()
            })
            .expect("test run");
        assert_eq!(
            &data_out[..result.data_size_out as usize],
            packet,
            "bytes are never rewritten"
        );
        let mark = ctx_out[MARK_OFFSET..MARK_OFFSET + 4].try_into().unwrap();
        (result.return_value, u32::from_ne_bytes(mark))
    }

    fn count(&self, reason: Reason) -> (u64, u64) {
        let rows = self.datapath.counters().expect("counters");
        let row = rows
            .iter()
            .find(|row| (row.ifindex, row.reason) == (LOOPBACK, reason));
        row.map_or((0, 0), |row| (row.packets, row.bytes))
    }

    /// Runs the program, and checks that it did what the same code says on the host, and counted it.
    fn check(&self, packet: &[u8]) -> Verdict {
        let config = config();
        let verdict = classify(
            &parse(&Slice(packet)),
            Some(&endpoint()),
            Some(&config),
            &TestCidrs,
        );
        let (packets, bytes) = self.count(verdict.reason());
        let (action, mark) = self.run(packet);
        match verdict {
            Verdict::Pass { mark: ours, .. } => {
                let counters = self.datapath.counters();
                assert_eq!(action, TC_ACT_UNSPEC, "{packet:02x?} {counters:?}");
                assert_eq!(mark, ours.over(OLD_MARK, &config), "{packet:02x?}");
            }
            Verdict::Drop(_) => assert_eq!(action, TC_ACT_SHOT, "{packet:02x?}"),
        }
        let counted = self.count(verdict.reason());
        assert_eq!(
            counted,
            (packets + 1, bytes + packet.len() as u64),
            "{verdict:?}"
        );
        verdict
    }
}

fn changed(mut packet: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    packet[at] = value;
    packet
}

#[test]
fn every_verdict_has_its_action_mark_and_counter() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let classifier = Classifier::new(&dir.pins(), &settings());
        let table = [
            (tcp(WORLD_IP, 443, SYN), Reason::Proxied),
            (
                ipv4(WORLD_IP, 6, 40, &tcp_header(443, SYN)),
                Reason::Proxied,
            ),
            (tcp(OTHER_POD_IP, 80, SYN), Reason::Proxied),
            (tcp(GATEWAY_IP, 18_080, SYN), Reason::Proxied),
            (udp(WORLD_IP, 53), Reason::Dns),
            (udp(SERVICE_IP, 53), Reason::Dns),
            (tcp(SERVICE_IP, 53, SYN), Reason::Dns),
            (tcp(SERVICE_IP, 80, SYN), Reason::Service),
            (udp(SERVICE_IP, 8125), Reason::Service),
            (ipv4(SERVICE_IP, 132, 0, &[0; 12]), Reason::Service),
            (tcp(GATEWAY_IP, 40_000, SYN | ACK), Reason::HostReply),
            (arp(GATEWAY_IP), Reason::Arp),
            (changed(tcp(WORLD_IP, 443, SYN), 11, 9), Reason::SpoofedMac),
            (
                changed(tcp(WORLD_IP, 443, SYN), IP + 15, 9),
                Reason::SpoofedIp,
            ),
            (
                changed(tcp(WORLD_IP, 443, SYN), 5, 9),
                Reason::WrongGatewayMac,
            ),
            (frame(0x88cc, &[0; 46]), Reason::NotIpv4),
            (frame(0x86dd, &[0x60; 60]), Reason::Ipv6),
            (frame(0x8100, &[0; 46]), Reason::Vlan),
            (frame(0x88a8, &[0; 46]), Reason::Vlan),
            (arp(OTHER_POD_IP), Reason::ArpNotForGateway),
            (
                changed(arp(GATEWAY_IP), IP + 7, 2),
                Reason::ArpNotForGateway,
            ),
            (changed(arp(GATEWAY_IP), IP + 17, 9), Reason::SpoofedIp),
            (
                changed(tcp(WORLD_IP, 443, SYN), IP, 0x44),
                Reason::Malformed,
            ),
            (changed(udp(WORLD_IP, 53), IP + 6, 0x20), Reason::Fragment),
            (changed(udp(WORLD_IP, 53), IP + 7, 1), Reason::Fragment),
            (ipv4(WORLD_IP, 47, 0, &[0; 8]), Reason::Protocol),
            (udp(WORLD_IP, 443), Reason::Udp),
            (ipv4(WORLD_IP, 1, 0, &[8; 8]), Reason::Icmp),
            (udp(OTHER_POD_IP, 443), Reason::FakeCidr),
            (udp([255; 4], 53), Reason::BadDestination),
        ];
        for (packet, reason) in table {
            assert_eq!(classifier.check(&packet).reason(), reason);
        }
    });
}

#[test]
fn packets_cut_anywhere_are_dropped() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let classifier = Classifier::new(&dir.pins(), &settings());
        // the kernel's test run takes no frame without payload, and no IPv4 without a whole header
        for (packet, shortest) in [
            (tcp(WORLD_IP, 443, SYN), L4),
            (udp(WORLD_IP, 53), L4),
            (arp(GATEWAY_IP), IP + 1),
        ] {
            for len in shortest..packet.len() {
                assert_eq!(
                    classifier.check(&packet[..len]),
                    Verdict::Drop(Reason::Malformed)
                );
            }
        }
    });
}

#[test]
fn kernel_and_host_agree_on_random_packets() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let classifier = Classifier::new(&dir.pins(), &settings());
        let packets = (
            prop_oneof![
                (any::<[u8; 4]>(), any::<u16>(), any::<u8>()).prop_map(|(d, p, f)| tcp(d, p, f)),
                (any::<u8>(), any::<u16>(), any::<u8>()).prop_map(|(d, p, f)| tcp(
                    [169, 254, 100, d],
                    p,
                    f
                )),
                (any::<[u8; 4]>(), any::<u16>()).prop_map(|(d, p)| udp(d, p)),
                (any::<u8>(), any::<u16>()).prop_map(|(d, p)| udp([10, 96, 0, d], p)),
                (any::<u8>(), 0..11usize).prop_map(|(p, o)| ipv4(
                    WORLD_IP,
                    p,
                    o * 4,
                    &tcp_header(443, SYN)
                )),
                any::<[u8; 4]>().prop_map(arp),
                prop::collection::vec(any::<u8>(), 15..120),
            ],
            prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        );
        let packets = packets.prop_map(|(mut packet, changes)| {
            for (index, value) in changes {
                let at = index.index(packet.len());
                packet[at] = value;
            }
            packet
        });
        let mut runner = TestRunner::new(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(5_000)
        });
        let checked = runner.run(&packets, |packet| {
            classifier.check(&packet);
            Ok(())
        });
        checked.expect("kernel and host agree");
    });
}

#[test]
fn nothing_passes_on_an_interface_without_endpoint() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let classifier = Classifier::new(&dir.pins(), &settings());
        classifier
            .datapath
            .detach_pod(LOOPBACK, "lo")
            .expect("detach");
        for packet in [tcp(WORLD_IP, 443, SYN), udp(WORLD_IP, 53), arp(GATEWAY_IP)] {
            assert_eq!(classifier.run(&packet).0, TC_ACT_SHOT);
        }
        assert_eq!(classifier.count(Reason::NoEndpoint).0, 3);
    });
}

#[test]
fn without_service_cidrs_services_go_to_the_proxy() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let config = DatapathConfig {
            service_cidrs: vec![],
            ..settings()
        };
        let classifier = Classifier::new(&dir.pins(), &config);
        let (action, mark) = classifier.run(&tcp(SERVICE_IP, 80, SYN));
        assert_eq!((action, mark & PROXY.1), (TC_ACT_UNSPEC, PROXY.0));
        assert_eq!(classifier.run(&udp(SERVICE_IP, 8125)).0, TC_ACT_SHOT);
    });
}

/// The specification's bound, on instructions executed. Neither program loops or calls itself, so no path is longer
/// than the program; the verifier counts what it walked over all paths together, with an upper bound of its own.
#[test]
fn programs_are_shorter_than_a_thousand_instructions() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        Datapath::ensure(&pins, &settings()).expect("load");
        for name in [names::POD_INGRESS, names::DISPATCH] {
            let info = ProgramInfo::from_pin(pins.program(name)).expect("open");
            let instructions = info.size_translated().expect("size") / 8;
            let verified = info.verified_instruction_count();
            println!("{name}: {instructions} instructions, verifier walked {verified:?}");
            assert!(
                instructions < 1_000,
                "{name} has {instructions} instructions"
            );
        }
    });
}
