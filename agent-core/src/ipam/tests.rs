use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

fn ip(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

const GATEWAY: &str = "169.254.9.1";

fn pick(
    used: &[Ipv4Addr],
    released: &[(Ipv4Addr, u64)],
    now: u64,
) -> Result<Ipv4Addr, PoolExhausted> {
    allocate(net("169.254.9.0/24"), ip(GATEWAY), used, released, now, 60)
}

fn all_but(missing: &[u8]) -> Vec<Ipv4Addr> {
    (2..=254)
        .filter(|d| !missing.contains(d))
        .map(|d| Ipv4Addr::new(169, 254, 9, d))
        .collect()
}

#[test]
fn the_first_pod_gets_the_address_after_the_gateway() {
    assert_eq!(pick(&[], &[], 0), Ok(ip("169.254.9.2")));
}

#[test]
fn an_untouched_address_comes_before_any_released_one() {
    let released = [(ip("169.254.9.2"), 0)];
    assert_eq!(
        pick(&[ip("169.254.9.3")], &released, 1_000_000),
        Ok(ip("169.254.9.4"))
    );
}

#[test]
fn a_slash_24_holds_253_pods_and_then_says_what_to_do() {
    let mut used = Vec::new();
    for _ in 0..253 {
        used.push(pick(&used, &[], 0).unwrap());
    }
    assert_eq!(used.iter().collect::<BTreeSet<_>>().len(), 253);
    assert_eq!(capacity(net("169.254.9.0/24")), 253);
    let error = pick(&used, &[], 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no free address in 169.254.9.0/24: 253 in use, 0 resting after a deletion; delete pods on this node, or set agentCNI.fakeIPCIDR to a larger range"
    );
}

#[test]
fn an_address_rests_for_the_cool_down_and_the_longest_released_comes_first() {
    let used = all_but(&[7, 8]);
    let released = [(ip("169.254.9.7"), 100), (ip("169.254.9.8"), 90)];
    let error = pick(&used, &released, 120).unwrap_err();
    assert_eq!(
        (error.in_use, error.resting, error.retry_in_secs),
        (251, 2, Some(30))
    );
    assert!(
        error.to_string().ends_with("the next is free in 30 s"),
        "{error}"
    );
    assert_eq!(pick(&used, &released, 150), Ok(ip("169.254.9.8")));
    assert_eq!(pick(&used, &released, 1000), Ok(ip("169.254.9.8")));
}

#[test]
fn the_latest_of_several_releases_counts() {
    let used = all_but(&[7]);
    let released = [
        (ip("169.254.9.7"), 10),
        (ip("169.254.9.7"), 500),
        (ip("169.254.9.7"), 20),
    ];
    assert_eq!(
        pick(&used, &released, 520).unwrap_err().retry_in_secs,
        Some(40)
    );
}

#[test]
fn an_address_both_used_and_released_is_used() {
    let used = all_but(&[]);
    assert!(pick(&used, &[(ip("169.254.9.9"), 0)], 1000).is_err());
}

#[test]
fn a_clock_set_back_delays_an_address_but_never_loses_it() {
    let used = all_but(&[7, 8]);
    let released = [(ip("169.254.9.7"), 1_000_000), (ip("169.254.9.8"), 0)];
    assert_eq!(pick(&used, &released, 100), Ok(ip("169.254.9.8")));
    let used = all_but(&[7]);
    assert_eq!(pick(&used, &released, 100), Ok(ip("169.254.9.7")));
}

#[test]
fn addresses_of_another_range_are_ignored() {
    assert_eq!(
        pick(&[ip("10.0.0.2")], &[(ip("10.0.0.3"), 0)], 0),
        Ok(ip("169.254.9.2"))
    );
}

#[test]
fn ranges_without_room_are_exhausted_from_the_start() {
    for cidr in [
        "169.254.9.0/30",
        "169.254.9.0/31",
        "169.254.9.0/32",
        "255.255.255.255/32",
        "0.0.0.0/32",
    ] {
        let cidr = net(cidr);
        let gateway = crate::node::gateway_of(cidr);
        let got = allocate(cidr, gateway, &[], &[], 0, 60);
        assert_eq!(got.is_ok(), capacity(cidr) > 0, "{cidr}");
    }
}

#[test]
fn a_slash_8_costs_what_its_pods_cost() {
    let cidr = net("10.0.0.0/8");
    let used: Vec<_> = (2..2002)
        .map(|i| Ipv4Addr::from(0x0a00_0000u32 + i))
        .collect();
    assert_eq!(capacity(cidr), (1 << 24) - 3);
    let started = std::time::Instant::now();
    for _ in 0..100 {
        assert_eq!(
            allocate(cidr, ip("10.0.0.1"), &used, &[], 0, 60),
            Ok(ip("10.0.7.210"))
        );
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(2));
}

proptest! {
    #[test]
    fn a_given_address_is_free_rested_and_inside(
        used in proptest::collection::vec(0u8..32, 0..32),
        released in proptest::collection::vec((0u8..32, 0u64..200), 0..40),
        now in 0u64..300,
    ) {
        let cidr = net("192.0.2.0/27");
        let at = |d: u8| Ipv4Addr::new(192, 0, 2, d);
        let used: Vec<_> = used.into_iter().map(at).collect();
        let released: Vec<_> = released.into_iter().map(|(d, t)| (at(d), t)).collect();
        match allocate(cidr, at(1), &used, &released, now, 60) {
            Ok(got) => {
                prop_assert!(cidr.contains(&got) && got != at(0) && got != at(1) && got != at(31));
                prop_assert!(!used.contains(&got));
                let latest = released.iter().filter(|(a, _)| *a == got).map(|(_, t)| *t).max();
                prop_assert!(latest.is_none_or(|t| t + 60 <= now || t > now + 60));
            }
            Err(error) => {
                for d in 2..31 {
                    let taken = used.contains(&at(d))
                        || released.iter().any(|(a, t)| *a == at(d) && t + 60 > now);
                    prop_assert!(taken, "{} is free, yet: {error}", at(d));
                }
            }
        }
    }
}
