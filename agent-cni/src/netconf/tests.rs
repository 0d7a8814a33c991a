use agent_core::attachment::Mode;
use proptest::prelude::*;

use super::*;

fn with(extra: &str) -> Result<NetConf, ConfError> {
    parse(
        format!(r#"{{"cniVersion": "1.1.0", "name": "agents", "type": "agent-cni"{extra}}}"#)
            .as_bytes(),
    )
}

#[test]
fn a_minimal_configuration_gets_the_defaults() {
    let conf = with("").unwrap();
    assert_eq!(conf.version, SpecVersion::V1_1_0);
    assert_eq!(conf.state_dir, PathBuf::from(DEFAULT_STATE_DIR));
    assert_eq!(conf.cool_down_seconds, 60);
    assert_eq!(conf.mode, Requested::Auto);
    assert_eq!(conf.ports, ProxyPorts::default());
    assert!(conf.service_cidrs.is_empty() && conf.fake_ip_cidr.is_none());
}

#[test]
fn keys_that_runtimes_add_are_let_through() {
    with(
        r#", "runtimeConfig": {"portMappings": []}, "capabilities": {"x": true}, "args": {"cni": {}},
            "cni.dev/attachments": [], "example.com/key": 1, "dns": {}, "ipam": {}, "ipMasq": false, "bandwidth": 3"#,
    )
    .unwrap();
}

#[test]
fn a_key_of_ours_misspelt_is_refused_with_the_right_spelling() {
    for (found, meant) in [
        ("serviceCidrs", "serviceCIDRs"),
        ("serviceCIDR", "serviceCIDRs"),
        ("fakeIpCidr", "fakeIPCIDR"),
        ("node_name", "nodeName"),
        ("cooldownSeconds", "coolDownSeconds"),
        ("MTU", "mtu"),
    ] {
        let error = with(&format!(r#", "{found}": []"#))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("did you mean \"{meant}\"")),
            "{found}: {error}"
        );
    }
}

#[test]
fn what_cannot_be_honoured_names_key_and_value() {
    for (extra, says) in [
        (r#", "ipMasq": true"#, "\"ipMasq\": true is not supported"),
        (
            r#", "ipam": {"type": "host-local"}"#,
            r#""ipam": {"type":"host-local"}"#,
        ),
    ] {
        let error = with(extra).unwrap_err();
        assert!(matches!(error, ConfError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn mode_and_ports_are_read() {
    let conf = with(r#", "mode": "iptables-compat", "proxy": {"port": 1, "dnsPort": 2}"#).unwrap();
    assert_eq!(conf.mode, Requested::This(Mode::IptablesCompat));
    assert_eq!(conf.ports, ProxyPorts { proxy: 1, dns: 2 });
    let conf = with(r#", "mode": "ebpf""#).unwrap();
    assert_eq!(conf.mode, Requested::This(Mode::Ebpf));
    assert_eq!(with(r#", "mode": "auto""#).unwrap().mode, Requested::Auto);
}

#[test]
fn values_that_cannot_be_say_what_to_write() {
    for (extra, says) in [
        (
            r#", "fakeIPCIDR": "169.254.9.1/24""#,
            "write 169.254.9.0/24",
        ),
        (
            r#", "fakeIPCIDR": "169.254.9.0/31""#,
            "between a /8 and a /30",
        ),
        (
            r#", "serviceCIDRs": ["fd00::/108"]"#,
            "must be an IPv4 network",
        ),
        (
            r#", "serviceCIDRs": ["10.96.0.0"]"#,
            "must be an IPv4 network with a length",
        ),
        (r#", "serviceCIDRs": ["x"]"#, "is not a network"),
        (r#", "mtu": 10"#, "between 576 and 65535"),
        (r#", "stateDir": "var/lib""#, "must be an absolute path"),
        (r#", "mode": "xdp""#, "write auto, ebpf or iptables-compat"),
        (r#", "proxy": {"port": 0}"#, "must not be 0"),
        (
            r#", "workloadSelector": {}"#,
            "workloadSelector needs workloadsFile",
        ),
        (
            r#", "workloadsFile": "/w.json""#,
            "no effect without workloadSelector",
        ),
        (
            r#", "workloadSelector": {}, "workloadsFile": "w.json""#,
            "must be an absolute path",
        ),
        (
            r#", "workloadsFile": "/w", "workloadSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}"#,
            "In and NotIn need at least one value",
        ),
        (
            r#", "primary": {"file": "../x.conf"}"#,
            "must be the name of a file",
        ),
        (
            r#", "primary": {"confDir": "net.d"}"#,
            "must be an absolute path",
        ),
        (
            r#", "fakeIPCIDR": "10.96.7.0/24", "serviceCIDRs": ["10.96.0.0/12"]"#,
            "overlaps 10.96.0.0/12 of serviceCIDRs",
        ),
    ] {
        let error = with(extra).unwrap_err();
        assert!(matches!(error, ConfError::Invalid(_)), "{extra}: {error}");
        assert!(error.to_string().contains(says), "{extra}: {error}");
    }
}

#[test]
fn a_wrong_type_or_no_json_is_a_decoding_error() {
    for stdin in ["", "[]", "{", r#"{"cniVersion": "1.1.0", "mtu": "x"}"#] {
        assert!(
            matches!(parse(stdin.as_bytes()), Err(ConfError::Decode(_))),
            "{stdin}"
        );
    }
    assert!(matches!(
        with(r#", "proxy": {"prot": 1}"#),
        Err(ConfError::Decode(_))
    ));
}

#[test]
fn a_selector_and_its_file_make_the_network_selective() {
    let conf = with(
        r#", "workloadSelector": {"matchLabels": {"agent": "true"}}, "workloadsFile": "/run/w.json", "primary": {"file": "10-x.conflist"}"#,
    )
    .unwrap();
    let selective = conf.selective.unwrap();
    assert_eq!(selective.selector.match_labels["agent"], "true");
    assert_eq!(conf.primary.file.as_deref(), Some("10-x.conflist"));
    assert_eq!(conf.primary.conf_dir, PathBuf::from("/etc/cni/net.d"));
    let error = with(r#", "workloadSelector": {"matchLabel": {}}, "workloadsFile": "/w""#);
    assert!(matches!(error, Err(ConfError::Decode(_))));
    assert!(with("").unwrap().selective.is_none());
}

#[test]
fn an_unknown_or_missing_version_lists_the_known_ones() {
    for stdin in [
        r#"{}"#,
        r#"{"cniVersion": "2.0.0"}"#,
        r#"{"cniVersion": 1}"#,
    ] {
        let error = parse(stdin.as_bytes()).unwrap_err();
        assert!(matches!(error, ConfError::Version(_)), "{stdin}: {error}");
        assert!(
            error.to_string().contains("0.3.1, 0.4.0, 1.0.0, 1.1.0"),
            "{error}"
        );
    }
}

proptest! {
    #[test]
    fn reading_never_panics_on_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn reading_never_panics_on_any_value_of_any_key(
        key in prop::sample::select(OUR_KEYS.iter().chain(&SPEC_KEYS).copied().collect::<Vec<_>>()),
        value in prop::sample::select(vec![
            "null", "true", "-1", "1e99", "\"\"", "\"\\u0000\"", "[]", "[[]]", "{}", "{\"a\":{}}", "[null]", "4294967296",
        ]),
    ) {
        let _ = with(&format!(", \"{key}\": {value}"));
    }

    #[test]
    fn the_distance_is_symmetric_and_zero_only_for_equals(a in "[a-z]{0,12}", b in "[a-z]{0,12}") {
        prop_assert_eq!(distance(&a, &b), distance(&b, &a));
        prop_assert_eq!(distance(&a, &b) == 0, a == b);
    }
}
