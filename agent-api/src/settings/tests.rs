use agent_core::policy::selector::LabelSelector;
use proptest::prelude::*;

use super::*;

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

fn class(name: &str, pool: &str, length: u8) -> NamedClass {
    NamedClass {
        name: name.to_owned(),
        spec: ClassSpec {
            fake_ip_cidr: net(pool),
            node_prefix_length: length,
            ..ClassSpec::default()
        },
    }
}

fn labelled(mut class: NamedClass, key: &str) -> NamedClass {
    class.spec.node_selector = LabelSelector {
        match_labels: [(key.to_owned(), "yes".to_owned())].into(),
        ..LabelSelector::default()
    };
    class
}

fn node(name: &str) -> NodeFacts {
    NodeFacts {
        name: name.to_owned(),
        ..NodeFacts::default()
    }
}

fn nodes(count: usize) -> Vec<NodeFacts> {
    (0..count).map(|n| node(&format!("node-{n}"))).collect()
}

fn followed(outcomes: &BTreeMap<String, ClassOutcome>, class: &str) -> Followed {
    match &outcomes[class] {
        ClassOutcome::Valid(followed) => followed.clone(),
        ClassOutcome::Invalid(error) => panic!("{error}"),
    }
}

const NONE: &[Ipv4Net] = &[];

#[test]
fn the_default_pool_gives_what_a_node_derives_alone() {
    let (file, _) = derive(
        &[class("default", "169.254.0.0/16", 24)],
        &[node("worker-1")],
        &NodeSettingsFile::default(),
        NONE,
    );
    assert_eq!(
        Some(file.nodes["worker-1"].fake_ip_cidr),
        agent_core::node::derive_fake_cidr("worker-1", &[])
    );
}

#[test]
fn nodes_that_come_and_go_move_nobody() {
    let classes = [class("default", "10.250.0.0/20", 24)];
    let all = nodes(16);
    let (first, outcomes) = derive(&classes, &all[..8], &NodeSettingsFile::default(), NONE);
    assert_eq!(followed(&outcomes, "default").nodes.len(), 8);
    let (second, _) = derive(&classes, &all[3..], &first, NONE);
    for node in &all[3..8] {
        assert_eq!(first.nodes[&node.name], second.nodes[&node.name]);
    }
    assert!(!second.nodes.contains_key("node-0"));
    // whatever the order in which they are given
    let mut reversed = all[3..].to_vec();
    reversed.reverse();
    assert_eq!(
        derive(&classes, &reversed, &first, NONE).0.to_json(),
        second.to_json()
    );
    // and what was derived is derived again
    assert_eq!(derive(&classes, &all[3..], &second, NONE).0, second);
}

#[test]
fn a_pool_without_a_part_left_names_the_nodes() {
    let classes = [class("small", "10.250.0.0/23", 24)];
    let (file, outcomes) = derive(&classes, &nodes(3), &NodeSettingsFile::default(), NONE);
    assert_eq!(file.nodes.len(), 2);
    assert_eq!(followed(&outcomes, "small").without.len(), 1);
}

#[test]
fn another_pool_is_staged_until_the_node_is_let_go() {
    let (before, _) = derive(
        &[class("default", "10.250.0.0/16", 24)],
        &nodes(2),
        &NodeSettingsFile::default(),
        NONE,
    );
    let changed = [class("default", "10.251.0.0/16", 24)];
    let mut all = nodes(2);
    all[1].renumber = Some("10.251.0.0/16".to_owned());
    let (after, outcomes) = derive(&changed, &all, &before, NONE);
    assert_eq!(after.nodes["node-0"], before.nodes["node-0"]);
    assert!(net("10.251.0.0/16").contains(&after.nodes["node-1"].fake_ip_cidr));
    let followed = followed(&outcomes, "default");
    assert_eq!(followed.staged.keys().collect::<Vec<_>>(), ["node-0"]);
    assert_eq!(followed.nodes.len(), 2);
    // an annotation of another time moves nobody
    let back = [class("default", "10.252.0.0/16", 24)];
    let (later, _) = derive(&back, &all, &after, NONE);
    assert_eq!(later.nodes, after.nodes);
}

#[test]
fn ranges_in_use_make_a_class_invalid_and_its_nodes_keep_what_they_have() {
    let good = [class("default", "10.250.0.0/16", 24)];
    let (before, _) = derive(&good, &nodes(2), &NodeSettingsFile::default(), NONE);
    let mut bad = class("default", "10.244.0.0/16", 24);
    let mut all = nodes(2);
    all[0].in_use = vec![net("10.244.3.0/24"), net("192.0.2.7/32")];
    let (after, outcomes) = derive(&[bad.clone()], &all, &before, NONE);
    let ClassOutcome::Invalid(error) = &outcomes["default"] else {
        panic!("{outcomes:?}");
    };
    assert!(
        error
            .to_string()
            .contains("10.244.3.0/24, which node node-0 uses"),
        "{error}"
    );
    assert_eq!(after, before);
    bad.spec.fake_ip_cidr = net("10.96.0.0/16");
    let services = [net("10.96.0.0/12")];
    let (_, outcomes) = derive(&[bad.clone()], &nodes(1), &before, &services);
    assert!(matches!(
        &outcomes["default"],
        ClassOutcome::Invalid(ClassError::Services { .. })
    ));
    // a class's own Service CIDRs are those that count
    bad.spec.service_cidrs = vec![net("10.200.0.0/16")];
    let (_, outcomes) = derive(&[bad], &nodes(1), &before, &services);
    assert!(matches!(&outcomes["default"], ClassOutcome::Valid(_)));
}

#[test]
fn the_class_that_names_a_node_more_closely_has_it() {
    let classes = [
        class("everything", "10.250.0.0/16", 24),
        labelled(class("gpu", "10.251.0.0/16", 26), "gpu"),
    ];
    let mut all = nodes(2);
    all[1].labels.insert("gpu".to_owned(), "yes".to_owned());
    let (file, outcomes) = derive(&classes, &all, &NodeSettingsFile::default(), NONE);
    assert_eq!(file.nodes["node-0"].class, "everything");
    assert_eq!(file.nodes["node-1"].class, "gpu");
    assert_eq!(file.nodes["node-1"].fake_ip_cidr.prefix_len(), 26);
    assert_eq!(followed(&outcomes, "everything").elsewhere["node-1"], "gpu");
    // a node that leaves every class keeps what it has, as does one whose class is deleted
    let (after, _) = derive(&classes[1..], &nodes(2), &file, NONE);
    assert_eq!(after, file);
    let (after, _) = derive(&classes[1..], &[], &file, NONE);
    assert_eq!(after, NodeSettingsFile::default());
}

#[test]
fn what_a_class_says_reaches_the_file() {
    let mut class = class("default", "10.250.0.0/16", 24);
    class.spec.sensitive_cidrs = vec!["192.0.2.0/24".parse().unwrap()];
    class.spec.proxy.fail_mode = crate::class::FailMode::Open;
    let services = [net("10.96.0.0/12")];
    let (file, _) = derive(&[class], &nodes(1), &NodeSettingsFile::default(), &services);
    let settings = &file.classes["default"];
    assert_eq!(settings.service_cidrs, services);
    assert_eq!(settings.fail_mode, crate::class::FailMode::Open);
    assert_eq!(settings.sensitive_cidrs.len(), 1);
    assert_eq!(
        NodeSettingsFile::parse(file.to_json().as_bytes()).unwrap(),
        file
    );
}

proptest! {
    #[test]
    fn no_two_nodes_share_an_address_and_none_has_a_reserved_one(
        names in proptest::collection::btree_set("[a-z]{1,8}", 1..60),
        length in 20u8..=28,
        gone in 0usize..30,
    ) {
        let all: Vec<NodeFacts> = names.iter().map(|name| node(name)).collect();
        let classes = [class("default", "10.250.0.0/16", length), labelled(class("linked", "169.254.0.0/16", 24), "linked")];
        let (first, _) = derive(&classes, &all[..all.len().saturating_sub(gone).max(1)], &NodeSettingsFile::default(), &[]);
        let mut linked = all.clone();
        for (n, node) in linked.iter_mut().enumerate() {
            if n % 3 == 0 {
                node.labels.insert("linked".to_owned(), "yes".to_owned());
                node.renumber = Some("169.254.0.0/16".to_owned());
            }
        }
        let (second, _) = derive(&classes, &linked, &first, &[]);
        for file in [first, second] {
            let ranges: Vec<Ipv4Net> = file.nodes.values().map(|entry| entry.fake_ip_cidr).collect();
            for (n, a) in ranges.iter().enumerate() {
                prop_assert!(!is_avoided(*a), "{a}");
                prop_assert!(ranges[n + 1..].iter().all(|b| !overlap(*a, *b)));
            }
        }
    }
}
