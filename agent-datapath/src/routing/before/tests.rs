use netlink_packet_route::route::{RouteAddress, RouteAttribute};

use super::*;
use crate::routing::{RuleParts, new_rule};

const POOL: &str = "169.254.9.0/24";
const BRIDGE: &str = "agentcni0";
const MARK: u32 = 0x0a00_0000;
const MASK: u32 = 0x0f00_0000;

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

fn own() -> OwnRules {
    OwnRules {
        bridge: BRIDGE.into(),
        drop_pref: 101,
        tables: [18_080, 18_081],
    }
}

fn flows() -> [Flow; 2] {
    let to_pods = Flow {
        what: "what is for pods",
        iif: None,
        from: None,
        to: Some(net(POOL)),
        mark: 0,
        pref: 102,
    };
    let to_proxy = Flow {
        what: "what pods send to the proxy",
        iif: Some(BRIDGE.into()),
        from: Some(net(POOL)),
        to: None,
        mark: MARK,
        pref: 100,
    };
    [to_pods, to_proxy]
}

/// As the kernel tells it: with a length of prefixes to suppress that no prefix has.
fn to_table(pref: u32, table: u32) -> RuleMessage {
    suppressing(pref, table, u32::MAX)
}

fn suppressing(pref: u32, table: u32, length: u32) -> RuleMessage {
    new_rule(pref, RuleAction::ToTable)
        .with(RuleAttribute::Table(table))
        .with(RuleAttribute::SuppressPrefixLen(length))
}

fn by(rule: RuleMessage, iif: &str) -> RuleMessage {
    rule.with(RuleAttribute::Iifname(iif.into()))
}

fn marked(rule: RuleMessage, mark: u32, mask: u32) -> RuleMessage {
    rule.with(RuleAttribute::FwMark(mark))
        .with(RuleAttribute::FwMask(mask))
}

fn from(mut rule: RuleMessage, source: &str) -> RuleMessage {
    let source = net(source);
    rule.header.src_len = source.prefix_len();
    rule.with(RuleAttribute::Source(source.network().into()))
}

/// What every node has, and ours.
fn node() -> Vec<RuleMessage> {
    vec![
        to_table(0, LOCAL),
        marked(by(to_table(100, 18_080), BRIDGE), MARK, MASK),
        by(new_rule(101, RuleAction::Blackhole), BRIDGE).to(net("10.96.0.0/12")),
        to_table(102, 18_081).to(net(POOL)),
        to_table(32_766, 254),
        to_table(32_767, 253),
    ]
}

fn route(to: &str, number: u32, kind: RouteType) -> RouteMessage {
    let to = net(to);
    let mut route = RouteMessage::default();
    route.header.destination_prefix_length = to.prefix_len();
    route.header.kind = kind;
    route.attributes = vec![
        RouteAttribute::Table(number),
        RouteAttribute::Destination(RouteAddress::Inet(to.network())),
    ];
    route
}

fn table_with(routes: &[&str]) -> Vec<RouteMessage> {
    let mut all = vec![
        route("0.0.0.0/0", 254, RouteType::Unicast),
        route(POOL, 254, RouteType::Unicast),
    ];
    all.extend(routes.iter().map(|to| route(to, 77, RouteType::Unicast)));
    all
}

/// What is found when a rule is added where the kernel would put it: which flow, and whether for certain.
fn found(rule: RuleMessage, routes: &[RouteMessage]) -> Vec<(&'static str, bool)> {
    let mut rules = node();
    let place = rules
        .iter()
        .position(|one| preference(one) > preference(&rule))
        .unwrap_or(rules.len());
    rules.insert(place, rule);
    takers(&rules, Some(routes), &flows(), &own())
        .iter()
        .map(|one| (one.flow, one.certain))
        .collect()
}

const PODS: (&str, bool) = ("what is for pods", true);
const PERHAPS_PODS: (&str, bool) = ("what is for pods", false);
const PROXY: (&str, bool) = ("what pods send to the proxy", true);

#[test]
fn a_rule_before_ours_that_takes_what_ours_is_for_is_found() {
    let default = table_with(&["0.0.0.0/0"]);
    for (rule, wanted) in [
        (to_table(90, 77).to(net(POOL)), &[PODS, PROXY][..]),
        (to_table(90, 77), &[PODS, PROXY]),
        (to_table(90, 77).to(net("169.254.9.128/25")), &[PODS, PROXY]),
        (to_table(90, 77).to(net("169.254.0.0/16")), &[PODS, PROXY]),
        (by(to_table(90, 77), "lo"), &[PODS]),
        (by(to_table(90, 77), BRIDGE), &[PERHAPS_PODS, PROXY]),
        (by(to_table(90, 77), "eth1"), &[PERHAPS_PODS]),
        (to_table(90, 77).to(net("192.0.2.0/24")), &[PROXY]),
        (
            from(to_table(90, 77), "169.254.9.0/24"),
            &[PERHAPS_PODS, PROXY],
        ),
        (from(to_table(90, 77), "192.0.2.0/24"), &[PERHAPS_PODS]),
        // between ours
        (to_table(101, 77), &[PODS]),
        // of the same preference, and added later
        (to_table(102, 77), &[]),
        (to_table(103, 77), &[]),
        (
            new_rule(90, RuleAction::Blackhole).to(net(POOL)),
            &[PODS, PROXY],
        ),
        (new_rule(90, RuleAction::Prohibit), &[PODS, PROXY]),
        (
            new_rule(90, RuleAction::Goto).with(RuleAttribute::Goto(200)),
            &[PODS, PROXY],
        ),
        (
            new_rule(90, RuleAction::Goto).with(RuleAttribute::Goto(101)),
            &[PROXY],
        ),
        (new_rule(90, RuleAction::Nop), &[]),
        // Cilium's: marks that none of ours has, and the local table moved
        (marked(to_table(9, 77), 0x200, 0xf00), &[]),
        (to_table(90, LOCAL), &[]),
        (marked(to_table(90, 77), MARK, MASK), &[PROXY]),
        (marked(to_table(90, 77), 0, 0xf), &[PODS, PROXY]),
    ] {
        assert_eq!(
            found(rule.clone(), &default),
            wanted,
            "{}",
            described(&rule)
        );
    }
}

#[test]
fn a_table_without_a_way_takes_nothing_and_the_main_table_has_ours() {
    let rule = || to_table(90, 77);
    assert_eq!(found(rule(), &table_with(&[])), []);
    assert_eq!(found(rule(), &table_with(&["10.0.0.0/8"])), [PROXY]);
    assert_eq!(
        found(rule().to(net(POOL)), &table_with(&["10.0.0.0/8"])),
        []
    );
    let mut thrown = table_with(&[]);
    thrown.push(route("0.0.0.0/0", 77, RouteType::Throw));
    assert_eq!(found(rule(), &thrown), []);
    // as long as the bridge's own route is there
    let main = to_table(90, 254);
    assert_eq!(found(main.clone(), &table_with(&[])), [PERHAPS_PODS, PROXY]);
    let mut narrower = table_with(&[]);
    narrower.push(route("169.254.9.128/25", 254, RouteType::Unicast));
    assert_eq!(found(main, &narrower), [PODS, PROXY]);
    // WireGuard's: everything but the default
    let only_default = [route("0.0.0.0/0", 254, RouteType::Unicast)];
    assert_eq!(found(suppressing(90, 254, 0), &only_default), []);
}

#[test]
fn of_a_rule_that_is_the_opposite_nothing_is_certain() {
    let mut rule = to_table(90, 77).to(net(POOL));
    rule.header.flags |= RuleFlags::Invert;
    let found = found(rule, &table_with(&["0.0.0.0/0"]));
    assert!(found.len() == 2 && found.iter().all(|(_, certain)| !certain));
}

#[test]
fn without_ours_the_preference_decides_and_ours_are_never_others() {
    let mut rules = node();
    rules.retain(|rule| preference(rule) != 102);
    assert_eq!(takers(&rules, None, &flows(), &own()), []);
    rules.push(to_table(90, 77).to(net(POOL)));
    let found = takers(&rules, None, &flows()[..1], &own());
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].removal(),
        "ip rule del pref 90 to 169.254.9.0/24 lookup 77"
    );
    assert_eq!(
        found[0].what(),
        "a policy rule of others (pref 90 to 169.254.9.0/24 lookup 77) comes before ours (102) and takes what is for pods"
    );
}

#[test]
fn a_rule_is_described_as_it_is_removed() {
    let rule = from(marked(by(to_table(7, 300), "eth1"), 1, 3), "10.0.0.0/8");
    assert_eq!(
        described(&rule),
        "pref 7 iif eth1 from 10.0.0.0/8 fwmark 0x1/0x3 lookup 300"
    );
    let rule = new_rule(7, RuleAction::Prohibit).to(net("10.0.0.0/8"));
    assert_eq!(described(&rule), "pref 7 to 10.0.0.0/8 prohibit");
}
