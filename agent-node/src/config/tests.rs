use super::*;

const MINIMAL: &str =
    r#""policyFile":"/p/policy.json","workloadsFile":"/p/workloads.json","credentialsDir":"/c""#;

fn parse(rest: &str) -> Result<Config, ConfigError> {
    let comma = if rest.is_empty() { "" } else { "," };
    Config::parse(format!("{{{MINIMAL}{comma}{rest}}}").as_bytes())
}

#[test]
fn three_paths_are_enough() {
    let config = parse("").unwrap();
    assert_eq!(config.listen, DEFAULT_LISTEN);
    assert_eq!(config.state_dir, Path::new(DEFAULT_STATE_DIR));
    assert_eq!(config.drain, DEFAULT_DRAIN);
    assert!(config.dns.enforce);
    assert!(!config.tls.allow_unverified_sni);
    assert!((1..=MAX_WORKERS).contains(&config.workers));
}

#[test]
fn a_bad_value_is_told_by_field_with_what_to_write() {
    for (text, field, remedy) in [
        (r#""listen":"18080""#, "listen", "127.0.0.1:18080"),
        (r#""listen":"[::1]:18080""#, "listen", "127.0.0.1:18080"),
        (
            r#""dns":{"listen":"18053"}"#,
            "dns.listen",
            "127.0.0.1:18053",
        ),
        (
            r#""localClient":{"tokenFile":"token","namespace":"a","name":"b"}"#,
            "localClient.tokenFile",
            "starts with `/`",
        ),
        (
            r#""localClient":{"tokenFile":"/token","namespace":"a","name":"B C"}"#,
            "localClient.name",
            "lower-case letters",
        ),
        (r#""stateDir":"state""#, "stateDir", "starts with `/`"),
        (
            r#""dns":{"upstreams":["kube-dns"]}"#,
            "dns.upstreams[0]",
            "10.96.0.10",
        ),
        (
            r#""dns":{"deniedRcode":"SERVFAIL"}"#,
            "dns.deniedRcode",
            "REFUSED",
        ),
        (
            r#""dns":{"clusterDomain":"a..b"}"#,
            "dns.clusterDomain",
            "cluster.local",
        ),
        (r#""workers":17"#, "workers", "1 to 16"),
        (r#""workers":0"#, "workers", "1 to 16"),
        (r#""drainSeconds":-1"#, "drainSeconds", "seconds"),
        (
            r#""limits":{"connectionsPerPod":0}"#,
            "limits.connectionsPerPod",
            "at least 1",
        ),
        (
            r#""limits":{"firstByteTimeoutMs":0}"#,
            "limits.firstByteTimeoutMs",
            "milliseconds",
        ),
        (
            r#""limits":{"headerBytes":10}"#,
            "limits.headerBytes",
            "8192",
        ),
        (r#""audit":{"stdout":false}"#, "audit.stdout", "audit.file"),
        (
            r#""audit":{"file":"audit.log"}"#,
            "audit.file",
            "starts with `/`",
        ),
        (
            r#""fakeCidrs":["169.254.0.1/99"]"#,
            "fakeCidrs[0]",
            "169.254.64.0/24",
        ),
        (
            r#""upstreams":{"a b":{"addresses":["192.0.2.1"]}}"#,
            "upstreams[\"a b\"]",
            "git.example.com",
        ),
        (
            r#""upstreams":{"a":{"addresses":[]}}"#,
            "addresses",
            "at least one",
        ),
        (
            r#""upstreams":{"a":{"addresses":["192.0.2.1:80"]}}"#,
            "addresses[0]",
            "192.0.2.10",
        ),
        (
            r#""upstreams":{"a":{"addresses":["192.0.2.1"],"scheme":"ftp"}}"#,
            "scheme",
            "https",
        ),
        (
            r#""upstreams":{"a":{"addresses":["192.0.2.1","127.0.0.1"]}}"#,
            "upstreams[\"a\"].port",
            "or in the key",
        ),
        (
            r#""upstreams":{"a":{"addresses":["::ffff:127.0.0.1"]}}"#,
            "upstreams[\"a\"].port",
            "or in the key",
        ),
        (
            r#""upstreams":{"a":{"addresses":["0.0.0.0"]}}"#,
            "upstreams[\"a\"].port",
            "or in the key",
        ),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(
            error.contains(field) && error.contains(remedy),
            "{text}: {error}"
        );
    }
}

#[test]
fn unknown_missing_and_mistyped_fields_are_refused_by_name() {
    for (text, says) in [
        (format!("{{{MINIMAL},\"polcyFile\":\"/x\"}}"), "polcyFile"),
        (
            format!("{{{MINIMAL},\"tls\":{{\"allowUnverifiedSni\":true}}}}"),
            "allowUnverifiedSni",
        ),
        (r#"{"policyFile":"/p"}"#.to_owned(), "credentialsDir"),
        ("not json".to_owned(), "line 1"),
    ] {
        let error = crate::telemetry::chain(&Config::parse(text.as_bytes()).unwrap_err());
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn an_upstream_with_the_port_wins_over_one_without() {
    let config = parse(
        r#""upstreams":{"Git.Example.com.":{"addresses":["192.0.2.1"]},
            "git.example.com:443":{"addresses":["192.0.2.2"],"port":8443,"scheme":"https"}}"#,
    )
    .unwrap();
    let address = |port| {
        let upstream = config.upstreams.get("git.example.com", port);
        upstream.map(|upstream| upstream.addresses[0].to_string())
    };
    assert_eq!(address(80).as_deref(), Some("192.0.2.1"));
    assert_eq!(address(443).as_deref(), Some("192.0.2.2"));
    assert!(config.upstreams.get("example.com", 80).is_none());
    assert!(config.upstreams.has_name("git.example.com"));
}

#[test]
fn loopback_is_an_upstream_with_a_port_in_the_key_or_the_entry() {
    for (key, entry, any_port) in [
        ("a:8080", r#"{"addresses":["127.0.0.1"]}"#, false),
        ("a", r#"{"addresses":["127.0.0.1"],"port":8080}"#, false),
        ("a", r#"{"addresses":["192.0.2.1"]}"#, true),
    ] {
        let config = parse(&format!(r#""upstreams":{{"{key}":{entry}}}"#)).unwrap();
        let upstream = config.upstreams.get("a", 8080).unwrap();
        assert_eq!(upstream.any_port, any_port, "{key} {entry}");
    }
}

#[test]
fn name_servers_are_read_from_resolv_conf() {
    let text = "# comment\nsearch a b\nnameserver 10.96.0.10\nnameserver fe80::1%eth0\n nameserver 2001:db8::1\n";
    let servers = Config::dns_servers_of(text);
    assert_eq!(
        servers,
        vec![
            "10.96.0.10:53".parse().unwrap(),
            "[2001:db8::1]:53".parse().unwrap()
        ]
    );
}

#[test]
fn facts_about_pods_come_from_one_place() {
    let paths = r#""policyFile":"/p/policy.json","credentialsDir":"/c""#;
    let facts = |rest: &str| Config::parse(format!("{{{paths}{rest}}}").as_bytes());
    let file = facts(r#","workloadsFile":"/w""#).unwrap().facts;
    assert_eq!(file, FactsFrom::File("/w".into()));
    let cluster = facts(r#","cluster":{"nodeName":"n1"}"#).unwrap().facts;
    assert_eq!(
        cluster,
        FactsFrom::Cluster(ClusterConfig {
            node_name: "n1".into(),
            kubeconfig: None,
            snapshot_file: DEFAULT_SNAPSHOT_FILE.into(),
        })
    );
    for (rest, field, remedy) in [
        ("", "cluster", "`cluster` with `nodeName`"),
        (
            r#","workloadsFile":"/w","cluster":{"nodeName":"n1"}"#,
            "workloadsFile",
            "one of them",
        ),
        (
            r#","cluster":{"nodeName":"n,metadata.name=x"}"#,
            "cluster.nodeName",
            "kubectl get nodes",
        ),
        (
            r#","cluster":{"nodeName":""}"#,
            "cluster.nodeName",
            "downward API",
        ),
        (
            r#","cluster":{"nodeName":"n1","kubeconfig":"k"}"#,
            "cluster.kubeconfig",
            "starts with `/`",
        ),
        (
            r#","cluster":{"nodeName":"n1","snapshotFile":"s"}"#,
            "cluster.snapshotFile",
            "starts with `/`",
        ),
    ] {
        let error = facts(rest).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{field}: ")), "{rest}: {error}");
        assert!(error.contains(remedy), "{rest}: {error}");
    }
}
