use proptest::prelude::*;

use super::*;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 1);
const PROXY: u32 = 0x0a00_0000;
const ANSWER: u32 = 0x0b00_0000;
const OPENING: u8 = 0x02;
const ACK: u8 = 0x10;

fn passes() -> Passes {
    let mark = |value, mask| MaskedMark { value, mask };
    Passes {
        marks: [
            mark(PROXY, 0x0f00_0000),
            mark(ANSWER, 0x0f00_0000),
            mark(0x77, 0xff),
        ],
        gateway: GATEWAY,
    }
}

/// What the kernel knows of a packet, and its bytes from the Ethernet header on.
#[derive(Debug, Clone)]
struct Packet {
    tagged: bool,
    protocol: u16,
    mark: u32,
    bytes: Vec<u8>,
}

/// The machine, as Documentation/networking/filter.rst describes it.
fn run(program: &[Instruction], packet: &Packet) -> u32 {
    let load = |at: u32, size: usize| -> Option<u32> {
        match at {
            AT_PROTOCOL => return Some(packet.protocol.into()),
            AT_MARK => return Some(packet.mark),
            AT_VLAN_TAG_PRESENT => return Some(packet.tagged.into()),
            _ => {}
        }
        let bytes = packet.bytes.get(at as usize..at as usize + size)?;
        Some(
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
        )
    };
    let length = u32::try_from(packet.bytes.len()).unwrap();
    let (mut a, mut x, mut at) = (0u32, 0u32, 0usize);
    loop {
        let one = program[at];
        let jump = |holds: bool| usize::from(if holds { one.if_true } else { one.if_false });
        let loaded = match one.code {
            LOAD_WORD => load(one.k, 4),
            LOAD_HALF => load(one.k, 2),
            LOAD_BYTE => load(one.k, 1),
            LOAD_BYTE_AT_X => load(x + one.k, 1),
            LOAD_X_HEADER_LENGTH => load(one.k, 1).map(|byte| 4 * (byte & 15)),
            _ => Some(0),
        };
        // a load past the end ends the program
        let Some(loaded) = loaded else { return 0 };
        match one.code {
            LOAD_WORD | LOAD_HALF | LOAD_BYTE | LOAD_BYTE_AT_X => a = loaded,
            LOAD_X_HEADER_LENGTH => x = loaded,
            LOAD_LENGTH => a = length,
            AND => a &= one.k,
            ADD => a = a.wrapping_add(one.k),
            X_TO_A => a = x,
            A_TO_X => x = a,
            IF_EQUAL => at += jump(a == one.k),
            IF_AT_LEAST => at += jump(a >= one.k),
            IF_AT_LEAST_X => at += jump(a >= x),
            IF_ANY_BIT => at += jump(a & one.k != 0),
            RETURN => return one.k,
            code => panic!("instruction {at} has the unknown code {code:#x}"),
        }
        at += 1;
    }
}

fn ipv4(protocol: u8, to: Ipv4Addr, fragment: u16, options: usize, transport: &[u8]) -> Packet {
    let mut bytes = vec![0; 14];
    bytes.extend([0x45 + u8::try_from(options).unwrap(), 0, 0, 0, 0, 0]);
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([64, protocol, 0, 0, 169, 254, 9, 2]);
    bytes.extend(to.octets());
    bytes.extend(std::iter::repeat_n(1, options * 4));
    bytes.extend(transport);
    Packet {
        tagged: false,
        protocol: 0x0800,
        mark: 0,
        bytes,
    }
}

fn tcp(to: Ipv4Addr, flags: u8) -> Packet {
    let mut header = [0; 20];
    header[13] = flags;
    ipv4(6, to, 0, 0, &header)
}

#[track_caller]
fn assert_verdict(packet: &Packet, verdict: u32, what: &str) {
    assert_eq!(
        run(&program(&passes()), packet),
        verdict,
        "{what}: {packet:?}"
    );
}

#[test]
fn marked_packets_pass_and_others_do_not() {
    let world = Ipv4Addr::new(203, 0, 113, 9);
    for (mark, verdict) in [
        (0, DROP),
        (PROXY, PASS),
        (ANSWER, PASS),
        (0x77, PASS),
        (PROXY | 0x4000, PASS),
        (0xffff_ff77, PASS),
        (0x0c00_0000, DROP),
        (0x76, DROP),
        (0x4000, DROP),
        (0x0f00_0000, DROP),
    ] {
        for packet in [
            tcp(world, OPENING),
            tcp(world, ACK),
            ipv4(17, world, 0, 0, &[0; 8]),
        ] {
            assert_verdict(&Packet { mark, ..packet }, verdict, &format!("{mark:#x}"));
        }
    }
}

#[test]
fn arp_passes_and_what_is_not_ipv4_does_not_whatever_its_mark() {
    let frame = |protocol, tagged, mark| Packet {
        tagged,
        protocol,
        mark,
        bytes: vec![0; 60],
    };
    assert_verdict(&frame(0x0806, false, 0), PASS, "ARP");
    for mark in [0, PROXY, 0x77] {
        assert_verdict(&frame(0x0806, true, mark), DROP, "ARP with a VLAN tag");
        assert_verdict(&frame(0x0800, true, mark), DROP, "IPv4 with a VLAN tag");
        for protocol in [0x86dd, 0x8100, 0x88a8, 0x8847, 0x0004, 0x88cc] {
            assert_verdict(&frame(protocol, false, mark), DROP, "another EtherType");
        }
    }
}

#[test]
fn without_a_mark_only_answers_to_the_node_pass() {
    for flags in [ACK, OPENING | ACK, 0x11, 0x04, 0x14, 0x18, 0] {
        assert_verdict(&tcp(GATEWAY, flags), PASS, "an answer");
    }
    for flags in [OPENING, OPENING | 0x08, OPENING | 0x20, OPENING | 0xc0] {
        assert_verdict(&tcp(GATEWAY, flags), DROP, "a connection is opened");
    }
    let mut header = [0; 20];
    header[13] = ACK;
    for options in 0..=10 {
        assert_verdict(&ipv4(6, GATEWAY, 0, options, &header), PASS, "with options");
        let mut opening = header;
        opening[13] = OPENING;
        assert_verdict(
            &ipv4(6, GATEWAY, 0, options, &opening),
            DROP,
            "opening, with options",
        );
    }
    for fragment in [0x2000, 0x0001, 0x1fff] {
        assert_verdict(&ipv4(6, GATEWAY, fragment, 0, &header), DROP, "a fragment");
    }
    assert_verdict(
        &ipv4(6, GATEWAY, 0x4000, 0, &header),
        PASS,
        "DF is no fragment",
    );
    for protocol in [1, 17, 132, 47] {
        assert_verdict(&ipv4(protocol, GATEWAY, 0, 0, &header), DROP, "not TCP");
    }
    for other in [Ipv4Addr::new(169, 254, 9, 3), Ipv4Addr::new(192, 0, 2, 1)] {
        assert_verdict(&tcp(other, ACK), DROP, "not to the gateway");
    }
}

#[test]
fn a_packet_that_is_cut_short_is_dropped() {
    let whole = tcp(GATEWAY, ACK);
    for length in 0..whole.bytes.len() {
        let cut = Packet {
            bytes: whole.bytes[..length].to_vec(),
            ..whole.clone()
        };
        // the flags are the last that is looked at
        let verdict = if length >= 14 + 20 + 14 { PASS } else { DROP };
        assert_verdict(&cut, verdict, "cut short");
    }
}

#[test]
fn jumps_stay_in_the_program() {
    let program = program(&passes());
    for (at, one) in program.iter().enumerate() {
        for over in [one.if_true, one.if_false] {
            assert!(at + usize::from(over) < program.len(), "{at}: {one:?}");
        }
    }
    assert_eq!(bytes(&program).len(), program.len() * 8);
}

proptest! {
    /// No bytes make it end without a verdict of its own, which would be to accept.
    #[test]
    fn every_packet_has_a_verdict(
        tagged: bool,
        protocol in prop_oneof![Just(0x0800), Just(0x0806), any::<u16>()],
        mark in prop_oneof![Just(0), any::<u32>()],
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
        answer: bool,
    ) {
        if answer && bytes.len() >= 34 {
            bytes[23] = 6;
            bytes[30..34].copy_from_slice(&GATEWAY.octets());
        }
        let packet = Packet { tagged, protocol, mark, bytes };
        let verdict = run(&program(&passes()), &packet);
        prop_assert!(verdict == PASS || verdict == DROP, "{}", verdict);
    }
}
