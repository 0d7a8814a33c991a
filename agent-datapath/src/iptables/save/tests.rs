use super::*;
use crate::iptables::rules::rules;

/// The rules of a node, as a user sees them with `iptables-save`.
const SNAPSHOT: &str = "\
*mangle
:PREROUTING ACCEPT [0:0]
:AGENT-CNI-MANGLE - [0:0]
-A PREROUTING -i agentcni0 -j AGENT-CNI-MANGLE
-A AGENT-CNI-MANGLE -p udp -m udp --dport 53 -j RETURN
-A AGENT-CNI-MANGLE -p tcp -m tcp --dport 53 -j RETURN
-A AGENT-CNI-MANGLE -d 10.96.0.0/12 -j MARK --set-xmark 0x77/0xff
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:AGENT-CNI-FORWARD - [0:0]
:AGENT-CNI-INPUT - [0:0]
-A INPUT -i agentcni0 -j AGENT-CNI-INPUT
-A FORWARD -i agentcni0 -j AGENT-CNI-FORWARD
-A AGENT-CNI-FORWARD -m mark --mark 0x77/0xff -j RETURN
-A AGENT-CNI-FORWARD -j DROP
-A AGENT-CNI-INPUT -m mark --mark 0x77/0xff -j RETURN
-A AGENT-CNI-INPUT -p tcp -m conntrack --ctstate NEW --ctorigdst 169.254.9.1 -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j DROP
-A AGENT-CNI-INPUT -d 169.254.9.1/32 -p tcp -m tcp --dport 18080 -j RETURN
-A AGENT-CNI-INPUT -d 169.254.9.1/32 -p tcp -m tcp --dport 18053 -j RETURN
-A AGENT-CNI-INPUT -d 169.254.9.1/32 -p udp -m udp --dport 18053 -j RETURN
-A AGENT-CNI-INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
-A AGENT-CNI-INPUT -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:AGENT-CNI-PREROUTING - [0:0]
-A PREROUTING -i agentcni0 -j AGENT-CNI-PREROUTING
-A AGENT-CNI-PREROUTING -m mark --mark 0x77/0xff -j RETURN
-A AGENT-CNI-PREROUTING -p udp -m udp --dport 53 -j REDIRECT --to-ports 18053
-A AGENT-CNI-PREROUTING -p tcp -m tcp --dport 53 -j REDIRECT --to-ports 18053
-A AGENT-CNI-PREROUTING -p tcp -j REDIRECT --to-ports 18080
COMMIT
";

fn wanted() -> Vec<OurChain> {
    rules(&crate::nft::testing::node(), false)
}

#[test]
fn a_node_without_our_rules_gets_all_of_them() {
    let change = change(&wanted(), &Saved::default()).unwrap();
    assert_eq!(
        change.text,
        "\
*mangle
:AGENT-CNI-MANGLE - [0:0]
-A AGENT-CNI-MANGLE -p udp -m udp --dport 53 -j RETURN
-A AGENT-CNI-MANGLE -p tcp -m tcp --dport 53 -j RETURN
-A AGENT-CNI-MANGLE -d 10.96.0.0/12 -j MARK --set-xmark 0x77/0xff
-I PREROUTING 1 -i agentcni0 -j AGENT-CNI-MANGLE
COMMIT
*filter
:AGENT-CNI-INPUT - [0:0]
:AGENT-CNI-FORWARD - [0:0]
-A AGENT-CNI-INPUT -m mark --mark 0x77/0xff -j RETURN
-A AGENT-CNI-INPUT -p tcp -m conntrack --ctstate NEW --ctorigdst 169.254.9.1 -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j DROP
-A AGENT-CNI-INPUT -d 169.254.9.1/32 -p tcp -m tcp --dport 18080 -j RETURN
-A AGENT-CNI-INPUT -d 169.254.9.1/32 -p tcp -m tcp --dport 18053 -j RETURN
-A AGENT-CNI-INPUT -d 169.254.9.1/32 -p udp -m udp --dport 18053 -j RETURN
-A AGENT-CNI-INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN
-A AGENT-CNI-INPUT -j DROP
-I INPUT 1 -i agentcni0 -j AGENT-CNI-INPUT
-A AGENT-CNI-FORWARD -m mark --mark 0x77/0xff -j RETURN
-A AGENT-CNI-FORWARD -j DROP
-I FORWARD 1 -i agentcni0 -j AGENT-CNI-FORWARD
COMMIT
*nat
:AGENT-CNI-PREROUTING - [0:0]
-A AGENT-CNI-PREROUTING -m mark --mark 0x77/0xff -j RETURN
-A AGENT-CNI-PREROUTING -p udp -m udp --dport 53 -j REDIRECT --to-ports 18053
-A AGENT-CNI-PREROUTING -p tcp -m tcp --dport 53 -j REDIRECT --to-ports 18053
-A AGENT-CNI-PREROUTING -p tcp -j REDIRECT --to-ports 18080
-I PREROUTING 1 -i agentcni0 -j AGENT-CNI-PREROUTING
COMMIT
"
    );
}

#[test]
fn a_node_with_our_rules_is_left_alone_whatever_else_it_has() {
    let saved = Saved::parse(&SNAPSHOT.replace(
        "-A AGENT-CNI-PREROUTING -m",
        "-A PREROUTING -j KUBE-SERVICES\n-A AGENT-CNI-PREROUTING -m",
    ));
    assert_eq!(change(&wanted(), &saved), None);
}

#[test]
fn what_somebody_did_is_mended_in_its_table_only() {
    for (from, to, says, text) in [
        // kube-proxy puts its own rule first
        (
            "-A PREROUTING -i agentcni0 -j AGENT-CNI-PREROUTING",
            "-A PREROUTING -j KUBE-SERVICES\n-A PREROUTING -i agentcni0 -j AGENT-CNI-PREROUTING",
            "PREROUTING has a rule before that to AGENT-CNI-PREROUTING",
            "*nat\n-D PREROUTING -i agentcni0 -j AGENT-CNI-PREROUTING\n\
             -I PREROUTING 1 -i agentcni0 -j AGENT-CNI-PREROUTING\nCOMMIT\n",
        ),
        // twice, by two that were at work at the same time
        (
            "-A FORWARD -i agentcni0 -j AGENT-CNI-FORWARD",
            "-A FORWARD -i agentcni0 -j AGENT-CNI-FORWARD\n-A FORWARD -i agentcni0 -j AGENT-CNI-FORWARD",
            "FORWARD leads to AGENT-CNI-FORWARD otherwise",
            "*filter\n-D FORWARD -i agentcni0 -j AGENT-CNI-FORWARD\n-D FORWARD -i agentcni0 -j AGENT-CNI-FORWARD\n\
             -I FORWARD 1 -i agentcni0 -j AGENT-CNI-FORWARD\nCOMMIT\n",
        ),
        // somebody looks only at what comes from a network
        (
            "-A FORWARD -i agentcni0 -j AGENT-CNI-FORWARD",
            "-A FORWARD -s 10.0.0.0/8 -i agentcni0 -j AGENT-CNI-FORWARD",
            "FORWARD leads to AGENT-CNI-FORWARD otherwise",
            "*filter\n-D FORWARD -s 10.0.0.0/8 -i agentcni0 -j AGENT-CNI-FORWARD\n\
             -I FORWARD 1 -i agentcni0 -j AGENT-CNI-FORWARD\nCOMMIT\n",
        ),
        (
            "-A PREROUTING -i agentcni0 -j AGENT-CNI-MANGLE\n",
            "",
            "PREROUTING does not lead to AGENT-CNI-MANGLE",
            "*mangle\n-I PREROUTING 1 -i agentcni0 -j AGENT-CNI-MANGLE\nCOMMIT\n",
        ),
        (
            "-A AGENT-CNI-FORWARD -j DROP\n",
            "",
            "AGENT-CNI-FORWARD has other rules",
            "*filter\n:AGENT-CNI-FORWARD - [0:0]\n-A AGENT-CNI-FORWARD -m mark --mark 0x77/0xff -j RETURN\n\
             -A AGENT-CNI-FORWARD -j DROP\nCOMMIT\n",
        ),
    ] {
        let broken = SNAPSHOT.replacen(from, to, 1);
        assert_ne!(broken, SNAPSHOT);
        let change = change(&wanted(), &Saved::parse(&broken)).unwrap();
        assert_eq!(change.reasons, [says]);
        assert_eq!(change.text, text, "{says}");
    }
}

#[test]
fn other_service_cidrs_change_the_table_mangle_only() {
    let mut node = crate::nft::testing::node();
    node.service_cidrs.clear();
    let change = change(&rules(&node, false), &Saved::parse(SNAPSHOT)).unwrap();
    assert_eq!(
        change.text,
        "*mangle\n:AGENT-CNI-MANGLE - [0:0]\n-A AGENT-CNI-MANGLE -p udp -m udp --dport 53 -j RETURN\n\
         -A AGENT-CNI-MANGLE -p tcp -m tcp --dport 53 -j RETURN\nCOMMIT\n"
    );
}

#[test]
fn many_service_cidrs_are_one_rule() {
    let chains = rules(&crate::nft::testing::node(), true);
    let mangle = chains.iter().find(|chain| chain.table == "mangle").unwrap();
    assert_eq!(
        mangle.rules.last().unwrap(),
        "-m set --match-set agent-cni-services dst -j MARK --set-xmark 0x77/0xff"
    );
    assert_eq!(mangle.rules.len(), 3);
}

#[test]
fn a_removal_takes_ours_and_nothing_else() {
    let with_others = SNAPSHOT.replace(
        "-A INPUT -i agentcni0 -j AGENT-CNI-INPUT\n",
        "-A INPUT -i agentcni0 -j AGENT-CNI-INPUT\n-A INPUT -i eth0 -j ACCEPT\n",
    );
    let change = removal(&Saved::parse(&with_others)).unwrap();
    assert_eq!(
        change.text,
        "\
*filter
-D FORWARD -i agentcni0 -j AGENT-CNI-FORWARD
-D INPUT -i agentcni0 -j AGENT-CNI-INPUT
-F AGENT-CNI-FORWARD
-F AGENT-CNI-INPUT
-X AGENT-CNI-FORWARD
-X AGENT-CNI-INPUT
COMMIT
*mangle
-D PREROUTING -i agentcni0 -j AGENT-CNI-MANGLE
-F AGENT-CNI-MANGLE
-X AGENT-CNI-MANGLE
COMMIT
*nat
-D PREROUTING -i agentcni0 -j AGENT-CNI-PREROUTING
-F AGENT-CNI-PREROUTING
-X AGENT-CNI-PREROUTING
COMMIT
"
    );
    assert_eq!(
        removal(&Saved::parse("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n")),
        None
    );
}

#[test]
fn others_rules_are_counted_without_ours() {
    assert_eq!(Saved::parse(SNAPSHOT).foreign_rules(), 0);
    let saved = Saved::parse(
        "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -j RETURN\nCOMMIT\n*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n",
    );
    assert_eq!(saved.foreign_rules(), 1);
    assert!(saved.has_kube_proxy() && saved.has_kubelet_hint());
}

proptest::proptest! {
    #[test]
    fn reading_never_panics(text in ".{0,200}") {
        let _ = removal(&Saved::parse(&text));
    }
}
