//! What addresses a connection and a permit may lead to; `tests` itself holds what rules say about requests and calls.

use super::*;

#[test]
fn a_permit_by_network_leads_to_the_dialled_address_alone() {
    let set =
        one(r#"{"policy":0,"name":"net","kind":"allow","cidr":"198.51.100.0/24","port":443}"#);
    let Verdict::Permit(permit) = verdict(&set, "tls any.example:443") else {
        panic!("denied")
    };
    let dst = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 443);
    assert_eq!(permit.dial_by(), DialBy::OriginalDestination(dst));
    assert!(
        set.check_address(&permit, "198.51.100.1".parse().unwrap(), 443, &nets())
            .is_ok()
    );
    assert!(
        set.check_address(&permit, "198.51.100.2".parse().unwrap(), 443, &nets())
            .is_err()
    );
    assert!(!set.may_resolve(
        &set.scope(&workload()),
        &HostName::parse("any.example").unwrap()
    ));
}

#[test]
fn a_deny_rule_on_a_network_covers_what_a_name_resolves_to() {
    let set = one(r#"{"policy":0,"name":"all","kind":"allow","host":"*"},
           {"policy":0,"name":"inside","kind":"deny","cidr":"10.0.0.0/8"},
           {"policy":0,"name":"writes","kind":"deny","cidr":"203.0.113.0/24","methods":["POST"]},
           {"policy":0,"name":"ssh","kind":"deny","cidr":"198.18.0.0/15","port":22}"#);
    for (request, ip, expected) in [
        ("http GET a.example:80 /", "10.1.2.3", Some("inside")),
        ("http GET a.example:80 /", "::ffff:10.1.2.3", Some("inside")),
        ("http GET a.example:80 /", "192.0.2.1", None),
        ("http GET a.example:80 /", "203.0.113.1", None),
        ("http POST a.example:80 /", "203.0.113.1", Some("writes")),
        ("tls a.example:443", "203.0.113.1", Some("writes")),
        ("tls a.example:443", "198.18.0.1", None),
        ("tls a.example:22", "198.18.0.1", Some("ssh")),
    ] {
        let Verdict::Permit(permit) = verdict(&set, request) else {
            panic!("{request}: denied")
        };
        let port = ask(request).dst.port();
        for checked in [
            set.check_address(&permit, ip.parse().unwrap(), port, &nets()),
            set.check_fixed_address(&permit, ip.parse().unwrap(), port),
        ] {
            let rule = checked.err().and_then(|denial| denial.rule);
            assert_eq!(rule.as_deref(), expected, "{request} {ip}");
        }
    }
    check(&set, &[("tcp 10.0.0.1:22", "deny inside")]);
}

#[test]
fn a_deny_rule_on_a_network_covers_the_port_decided_on_and_the_one_connected_to() {
    let set = one(
        r#"{"policy":0,"name":"safe","kind":"allow","host":"a.example","tls":"originate"},
           {"policy":0,"name":"tls","kind":"deny","cidr":"203.0.113.0/24","port":443},
           {"policy":0,"name":"plain","kind":"deny","cidr":"198.18.0.0/15","port":80},
           {"policy":0,"name":"writes","kind":"deny","cidr":"192.0.2.0/24","port":443,"methods":["POST"]}"#,
    );
    for (request, ip, port, expected) in [
        ("http GET a.example:80 /", "203.0.113.1", 443, Some("tls")),
        ("http GET a.example:80 /", "203.0.113.1", 80, None),
        ("http GET a.example:80 /", "203.0.113.1", 8443, None),
        ("http GET a.example:80 /", "198.18.0.1", 443, Some("plain")),
        ("http GET a.example:8080 /", "198.18.0.1", 80, Some("plain")),
        ("http GET a.example:8080 /", "198.18.0.1", 8080, None),
        ("http post a.example:80 /", "192.0.2.1", 443, Some("writes")),
        ("http GET a.example:80 /", "192.0.2.1", 443, None),
    ] {
        let Verdict::Permit(permit) = verdict(&set, request) else {
            panic!("{request}: denied")
        };
        for checked in [
            set.check_address(&permit, ip.parse().unwrap(), port, &nets()),
            set.check_fixed_address(&permit, ip.parse().unwrap(), port),
        ] {
            let rule = checked.err().and_then(|denial| denial.rule);
            assert_eq!(rule.as_deref(), expected, "{request} {ip}:{port}");
        }
    }
}

#[test]
fn a_deny_rule_on_a_network_in_audit_mode_is_held_against_both_ports_too() {
    let set = set(
        r#"{"namespace":"sys","name":"p","mode":"audit","subjects":{"allNamespaces":true}}"#,
        r#"{"policy":0,"name":"tls","kind":"deny","cidr":"203.0.113.0/24","port":443}"#,
    );
    let Verdict::Permit(permit) = verdict(&set, "http GET a.example:80 /") else {
        panic!("denied")
    };
    let ip = "203.0.113.1".parse().unwrap();
    assert!(set.check_address(&permit, ip, 443, &nets()).is_ok());
    assert!(set.would_deny_address(&permit, ip, 80).is_none());
    let denial = set.would_deny_address(&permit, ip, 443).unwrap();
    assert_eq!(denial.rule.as_deref(), Some("tls"));
}

#[test]
fn built_in_denials_hold_whatever_a_rule_allows() {
    let set = one(r#"{"policy":0,"name":"all","kind":"allow","host":"*"},
           {"policy":0,"name":"net","kind":"allow","cidr":"0.0.0.0/0","ports":["1-65535"]}"#);
    let scope = set.scope(&workload());
    let Verdict::Permit(permit) = verdict(&set, "http GET a.example:80 /") else {
        panic!("denied")
    };
    for (ip, reason) in [
        ("169.254.169.254", ReasonCode::SensitiveAddressDenied),
        ("100.64.1.1", ReasonCode::SensitiveAddressDenied),
        ("169.254.9.7", ReasonCode::DirectBypassDenied),
        ("169.254.9.1", ReasonCode::DirectBypassDenied),
        ("192.0.2.10", ReasonCode::NodeAddressDenied),
        ("127.0.0.1", ReasonCode::NodeAddressDenied),
    ] {
        let dst = OrigDst(SocketAddrV4::new(ip.parse().unwrap(), 80));
        match set.decide_connection(&scope, dst, &nets()) {
            ConnectionVerdict::Deny(denial) => assert_eq!(denial.reason, reason, "{ip}"),
            ConnectionVerdict::Inspect => panic!("{ip} is let through"),
        }
        let denial = set
            .check_address(&permit, ip.parse().unwrap(), 80, &nets())
            .unwrap_err();
        // A permit by name is not the address that was dialled, so the order of the built-in checks is the same.
        assert_eq!(denial.reason, reason, "{ip}");
    }
    let fine = OrigDst(SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 80));
    assert_eq!(
        set.decide_connection(&scope, fine, &nets()),
        ConnectionVerdict::Inspect
    );
    assert!(
        set.check_fixed_address(&permit, "127.0.0.1".parse().unwrap(), 80)
            .is_ok()
    );
    assert!(
        set.check_fixed_address(&permit, "169.254.169.254".parse().unwrap(), 80)
            .is_err()
    );
}

#[test]
fn the_operators_ranges_are_sensitive_too() {
    let document =
        RuntimePolicy::parse(br#"{"schemaVersion":1,"sensitiveCidrs":["198.51.100.0/24"]}"#)
            .unwrap();
    let set = PolicySet::compile(&document).unwrap();
    assert!(
        set.check_sensitive("198.51.100.9".parse().unwrap())
            .is_err()
    );
    assert!(
        PolicySet::empty()
            .check_sensitive("198.51.100.9".parse().unwrap())
            .is_ok()
    );
    assert!(
        PolicySet::empty()
            .check_sensitive("100.64.0.1".parse().unwrap())
            .is_err()
    );
}

#[test]
fn direct_bypass_is_settled_by_the_highest_priority_that_says_something() {
    let policy = |name: &str, priority: i32, action: &str| {
        let action = if action.is_empty() {
            String::new()
        } else {
            format!(r#","directBypass":"{action}""#)
        };
        format!(
            r#"{{"namespace":"sys","name":"{name}","priority":{priority},"subjects":{{"allNamespaces":true}}{action}}}"#
        )
    };
    for (policies, inspected) in [
        (vec![], false),
        (vec![policy("a", 0, "")], false),
        (vec![policy("a", 0, "allow")], true),
        (vec![policy("a", 0, "allow"), policy("b", 9, "")], true),
        (vec![policy("a", 0, "allow"), policy("b", 0, "deny")], false),
        (vec![policy("a", 1, "allow"), policy("b", 0, "deny")], true),
    ] {
        let set = set(&policies.join(","), "");
        let dst = OrigDst("169.254.9.7:80".parse().unwrap());
        let verdict = set.decide_connection(&set.scope(&workload()), dst, &nets());
        assert_eq!(
            verdict == ConnectionVerdict::Inspect,
            inspected,
            "{policies:?}"
        );
    }
}

#[test]
fn an_allowed_bypass_opens_the_dialled_pod_and_no_other() {
    let set = set(
        r#"{"namespace":"sys","name":"p","directBypass":"allow","subjects":{"allNamespaces":true}}"#,
        r#"{"policy":0,"name":"net","kind":"allow","cidr":"169.254.9.0/24","port":80},
           {"policy":0,"name":"all","kind":"allow","host":"*"}"#,
    );
    let Verdict::Permit(permit) = verdict(&set, "tcp 169.254.9.7:80") else {
        panic!("denied")
    };
    assert!(
        set.check_address(&permit, "169.254.9.7".parse().unwrap(), 80, &nets())
            .is_ok()
    );
    let Verdict::Permit(permit) = verdict(&set, "http GET a.example:80 /") else {
        panic!("denied")
    };
    assert!(
        set.check_address(&permit, "169.254.9.7".parse().unwrap(), 80, &nets())
            .is_err()
    );
}
