//! What the API server has to refuse, and a few things that it has to take although they look unusual.

use serde_json::{Value, json};

/// An object that must be refused, and words of the sentence that says what to write.
pub(crate) struct Row {
    pub(crate) object: Value,
    pub(crate) says: &'static str,
}

pub(crate) fn policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "agent.tke.cloud.tencent.com/v1alpha1", "kind": "AgentNetworkPolicy",
        "metadata": {"name": name, "namespace": super::SYSTEM}, "spec": spec,
    })
}

pub(crate) fn class(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "agent.tke.cloud.tencent.com/v1alpha1", "kind": "AgentNetworkClass",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// `base` with the fields of `patch`; null removes one.
fn with(mut base: Value, patch: &Value) -> Value {
    for (key, value) in patch.as_object().unwrap() {
        if value.is_null() {
            base.as_object_mut().unwrap().remove(key);
        } else {
            base[key] = value.clone();
        }
    }
    base
}

/// The spec of a policy with one rule, which is a valid one but for `patch`.
fn rule(list: &str, patch: Value) -> Value {
    let rule = match list {
        "credential" => json!({
            "name": "r", "host": "git.example.com", "header": "Authorization",
            "valueFrom": {"name": "zeroproxy-credentials", "key": "TOKEN"},
        }),
        _ => json!({"name": "r", "host": "git.example.com"}),
    };
    let rule = with(rule, &patch);
    json!({"egress": {list: [rule]}})
}

fn ingress(caller: &str, target: &str) -> Value {
    json!({"ingress": {"allow": [{"caller": caller, "target": target}]}})
}

fn selector(expression: Value) -> Value {
    json!({"podSelector": {"matchExpressions": [expression]}})
}

pub(crate) fn table() -> Vec<Row> {
    let policies = policies().into_iter().enumerate();
    let classes = classes().into_iter().enumerate();
    policies
        .map(|(i, (says, spec))| Row {
            object: policy(&format!("policy-{i:02}"), spec),
            says,
        })
        .chain(classes.map(|(i, (says, spec))| Row {
            object: class(&format!("class-{i:02}"), spec),
            says,
        }))
        .collect()
}

fn policies() -> Vec<(&'static str, Value)> {
    let allow = |patch: Value| rule("allow", patch);
    let deny = |patch: Value| rule("deny", patch);
    let credential = |patch: Value| rule("credential", patch);
    let address = "write cidr instead of host, such as cidr: 192.0.2.7/32";
    let star = "write \"*\" or \"*.example.com\"";
    let alone = "write a name alone, such as api.example.com";
    let port = "write a port from 1 to 65535 or a range such as \"8000-8999\"";
    let path = "write an exact path (/v1/models) or everything under one (/v1/*)";
    let segments = "write the path without empty, . and .. segments";
    let caller =
        "write sa:<namespace>:<service-account>, ns:<namespace>, pod:<namespace>:<name> or \"*\"";
    let target = "write the name of a service, <namespace>/<name>, or \"*\"";
    let range = "write an address and a prefix length, such as 192.0.2.0/24";
    let two = json!([{"name": "a", "host": "a.example"}, {"name": "a", "host": "b.example"}]);
    let long_list: Vec<u32> = (1..=33).collect();
    vec![
        // names
        (
            "write it like public-git",
            allow(json!({"name": "public git"})),
        ),
        ("write it like public-git", allow(json!({"name": ""}))),
        (
            "spec.egress.allow[0].name: Required value",
            allow(json!({"name": null})),
        ),
        (
            "spec.egress.allow[1]: Duplicate value",
            json!({"egress": {"allow": two}}),
        ),
        // hosts and ranges
        (
            "write host (a name, *.suffix, or \"*\" for every host) or cidr",
            allow(json!({"host": null})),
        ),
        (
            "host and cidr exclude each other; write two rules",
            allow(json!({"cidr": "192.0.2.0/24"})),
        ),
        (address, allow(json!({"host": "192.0.2.7"}))),
        (address, allow(json!({"host": "2130706433"}))),
        (address, deny(json!({"host": "0x7f.1"}))),
        (address, allow(json!({"host": "[::1]"}))),
        (address, allow(json!({"host": "fe80::1"}))),
        (star, allow(json!({"host": "api.*.example.com"}))),
        (star, allow(json!({"host": "*example.com"}))),
        (star, deny(json!({"host": "*.*.example.com"}))),
        (alone, allow(json!({"host": "https://api.example.com"}))),
        (alone, allow(json!({"host": "api.example.com:443"}))),
        (alone, allow(json!({"host": "api.example.com/v1"}))),
        (alone, deny(json!({"host": "bad host"}))),
        (
            "parts between dots have 1 to 63 characters",
            allow(json!({"host": "a..example"})),
        ),
        (
            "parts between dots have 1 to 63 characters",
            allow(json!({"host": ""})),
        ),
        (range, allow(json!({"host": null, "cidr": "192.0.2.7"}))),
        (range, deny(json!({"host": null, "cidr": "192.0.2.0/33"}))),
        // ports, protocols, methods, paths
        (
            "write all of them into ports",
            allow(json!({"port": 443, "ports": [80]})),
        ),
        (port, allow(json!({"port": 0}))),
        (port, allow(json!({"port": 65536}))),
        (port, allow(json!({"port": "https"}))),
        (port, allow(json!({"ports": [443, "0-80"]}))),
        (
            "write the lower port of a range first",
            allow(json!({"port": "8999-8000"})),
        ),
        (
            "must have at most 32 items",
            allow(json!({"ports": long_list})),
        ),
        (
            "supported values: \"http\", \"https\", \"grpc\", \"tls\", \"tcp\"",
            allow(json!({"protocol": "HTTP"})),
        ),
        (
            "write an HTTP method in capitals, such as GET",
            allow(json!({"methods": ["get"]})),
        ),
        (
            "methods and paths are HTTP's; write protocol: https",
            allow(json!({"protocol": "tls", "methods": ["GET"]})),
        ),
        (
            "methods and paths are HTTP's; write protocol: https",
            credential(json!({"protocol": "tls", "paths": ["/"]})),
        ),
        (path, allow(json!({"paths": ["v1/models"]}))),
        (path, allow(json!({"paths": ["/v1*"]}))),
        (path, allow(json!({"paths": ["/*/models"]}))),
        (
            "without parameters, query and fragment",
            deny(json!({"paths": ["/search?q=1"]})),
        ),
        (segments, allow(json!({"paths": ["/a/../b"]}))),
        (segments, allow(json!({"paths": ["/a//b"]}))),
        ("such as spaces, as %20", allow(json!({"paths": ["/a b"]}))),
        (
            "supported values: \"originate\"",
            allow(json!({"tls": "terminate"})),
        ),
        (
            "write host instead of cidr",
            allow(json!({"host": null, "cidr": "192.0.2.0/24", "tls": "originate"})),
        ),
        (
            "a deny rule does nothing about tls; leave tls out",
            deny(json!({"tls": "originate"})),
        ),
        // credentials
        (
            "write the host that it is for",
            credential(json!({"host": "*"})),
        ),
        (
            "not to an address; write the host's name",
            credential(json!({"host": "192.0.2.7"})),
        ),
        (
            "spec.egress.credential[0].valueFrom: Required value",
            credential(json!({"valueFrom": null})),
        ),
        (
            "unknown field \"spec.egress.credential[0].valueFromEnv\"",
            credential(json!({"valueFromEnv": {"name": "TOKEN"}})),
        ),
        (
            "unknown field \"spec.egress.credential[0].cidr\"",
            credential(json!({"cidr": "192.0.2.0/24"})),
        ),
        (
            "write a header's name alone, such as Authorization",
            credential(json!({"header": "Authorization: Bearer"})),
        ),
        (
            "write the one that carries the credential, such as Authorization",
            credential(json!({"header": "Host"})),
        ),
        (
            "write the one that carries the credential, such as Authorization",
            credential(json!({"header": "X-Agent-Caller"})),
        ),
        ("write username too", credential(json!({"format": "basic"}))),
        (
            "write format: basic too",
            credential(json!({"username": "git"})),
        ),
        (
            "a user name has no colon",
            credential(json!({"format": "basic", "username": "git:x"})),
        ),
        (
            "leave prefix out",
            credential(json!({"format": "basic", "username": "git", "prefix": "Basic "})),
        ),
        (
            "write a prefix of printable ASCII characters",
            credential(json!({"prefix": "Bearer\n"})),
        ),
        (
            "supported values: \"raw\", \"basic\"",
            credential(json!({"format": "bearer"})),
        ),
        (
            "write the name of a Secret",
            credential(json!({"valueFrom": {"name": "ns/secret", "key": "K"}})),
        ),
        (
            "write a key of the Secret, such as REPO_TOKEN",
            credential(json!({"valueFrom": {"name": "s", "key": "../x"}})),
        ),
        // callers and targets
        (caller, ingress("planner", "agent-server")),
        (caller, ingress("sa:agents", "agent-server")),
        (caller, ingress("user:agents:planner", "agent-server")),
        (target, ingress("*", "agent-server:8080")),
        (target, ingress("*", "http://agent-server")),
        // selectors
        (
            "In and NotIn compare; write at least one value in values",
            selector(json!({"key": "app", "operator": "In"})),
        ),
        (
            "Exists and DoesNotExist compare nothing; leave values out",
            selector(json!({"key": "app", "operator": "Exists", "values": ["a"]})),
        ),
        (
            "supported values: \"In\", \"NotIn\", \"Exists\", \"DoesNotExist\"",
            selector(json!({"key": "app", "operator": "Equals", "values": ["a"]})),
        ),
        (
            "write a label's key such as app or example.com/team",
            selector(json!({"key": "app name", "operator": "Exists"})),
        ),
        (
            "write a label's key such as app or example.com/team",
            json!({"podSelector": {"matchLabels": {"": "a"}}}),
        ),
        (
            "write a label's value of letters, digits",
            json!({"namespaceSelector": {"matchLabels": {"team": "a b"}}}),
        ),
        // the policy itself
        (
            "should be less than or equal to 1000000",
            json!({"priority": 1_000_001}),
        ),
        (
            "supported values: \"enforce\", \"audit\"",
            json!({"mode": "dry-run"}),
        ),
        (
            "supported values: \"deny\", \"allow\"",
            json!({"directBypass": {"defaultAction": "drop"}}),
        ),
        ("unknown field \"spec.egres\"", json!({"egres": {}})),
    ]
}

fn classes() -> Vec<(&'static str, Value)> {
    let ipv4 = "write an IPv4 range, such as 169.254.0.0/16 or 10.250.0.0/16";
    vec![
        (ipv4, json!({"fakeIPCIDR": "169.254.0.0"})),
        (ipv4, json!({"fakeIPCIDR": "fd00::/16"})),
        (
            "write the first address of the range",
            json!({"fakeIPCIDR": "10.250.1.2/16"}),
        ),
        (
            "write a range from a /8 to a /29",
            json!({"fakeIPCIDR": "10.250.0.0/30", "nodePrefixLength": 29}),
        ),
        (
            "127.0.0.0/8 is every host's own; write another range",
            json!({"fakeIPCIDR": "127.9.0.0/16"}),
        ),
        (
            "every policy denies 100.64.0.0/10; write another range",
            json!({"fakeIPCIDR": "100.64.0.0/16"}),
        ),
        (
            "every policy denies 100.64.0.0/10; write another range",
            json!({"fakeIPCIDR": "100.0.0.0/8"}),
        ),
        (
            "no host has an address from 224.0.0.0 on; write another range",
            json!({"fakeIPCIDR": "239.0.0.0/16"}),
        ),
        (
            "no host has an address in 0.0.0.0/8; write another range",
            json!({"fakeIPCIDR": "0.0.0.0/8"}),
        ),
        (
            "nodePrefixLength is the length of one node's part of fakeIPCIDR; write a larger number",
            json!({"fakeIPCIDR": "10.250.0.0/20", "nodePrefixLength": 16}),
        ),
        (
            "should be less than or equal to 29",
            json!({"nodePrefixLength": 30}),
        ),
        (
            "should be greater than or equal to 16",
            json!({"nodePrefixLength": 8}),
        ),
        (
            "169.254.169.254 is the metadata address",
            json!({"fakeIPCIDR": "169.254.169.0/24"}),
        ),
        (
            "fakeIPCIDR overlaps serviceCIDRs; write a range that nothing else",
            json!({"fakeIPCIDR": "10.96.0.0/16", "serviceCIDRs": ["10.96.0.0/12"]}),
        ),
        (
            "write an IPv4 range such as 10.96.0.0/12; agent pods have no IPv6",
            json!({"serviceCIDRs": ["fd00::/108"]}),
        ),
        (
            "write the first address of the range, such as 10.96.0.0/12",
            json!({"serviceCIDRs": ["10.96.0.1/12"]}),
        ),
        (
            "write the cluster's own range, such as 10.96.0.0/12",
            json!({"serviceCIDRs": ["0.0.0.0/0"]}),
        ),
        (
            "write two different ports",
            json!({"proxy": {"port": 18053}}),
        ),
        (
            "should be greater than or equal to 1",
            json!({"proxy": {"port": 0}}),
        ),
        (
            "should be less than or equal to 65535",
            json!({"proxy": {"dnsPort": 70000}}),
        ),
        (
            "supported values: \"Closed\", \"Open\"",
            json!({"proxy": {"failMode": "open"}}),
        ),
        (
            "supported values: \"Zero\", \"Passthrough\"",
            json!({"cni": {"defaultConnectivity": "All"}}),
        ),
        (
            "supported values: \"auto\", \"ebpf\", \"iptables-compat\"",
            json!({"cni": {"mode": "iptables"}}),
        ),
        (
            "write an address and a prefix length, such as 192.0.2.0/24",
            json!({"sensitiveCIDRs": ["metadata.internal"]}),
        ),
        (
            "In and NotIn compare; write at least one value",
            json!({"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn"}]}}),
        ),
        (
            "write a label's key such as app",
            json!({"workloadSelector": {"matchLabels": {"-app": "a"}}}),
        ),
        (
            "unknown field \"spec.fakeIpCidr\"",
            json!({"fakeIpCidr": "169.254.0.0/16"}),
        ),
    ]
}

pub(crate) fn accepted() -> Vec<Value> {
    let specs = [
        rule("allow", json!({"host": "*", "port": "443"})),
        rule(
            "allow",
            json!({"host": "*.EXAMPLE.com.", "ports": [80, "8000-8999", "1-65535"]}),
        ),
        rule(
            "allow",
            json!({"host": "bücher.example", "methods": ["GET", "M-SEARCH"], "paths": ["/", "/*", "/@scope%2Fname/*"]}),
        ),
        rule(
            "allow",
            json!({"host": "_sip._tcp.example.com", "protocol": "grpc"}),
        ),
        rule("deny", json!({"host": null, "cidr": "2001:db8::/32"})),
        rule("deny", json!({"host": null, "cidr": "192.0.2.7/24"})),
        rule(
            "credential",
            json!({"format": "basic", "username": "x-access-token", "tls": "originate"}),
        ),
        rule(
            "credential",
            json!({"host": "*.example.com", "header": "X-Api-Key", "prefix": ""}),
        ),
        ingress("*", "*"),
        ingress("pod:agents:planner-0.x", "Agents/Server"),
        json!({"podSelector": {"matchLabels": {"app.kubernetes.io/name": "a", "empty": ""}}, "priority": -5, "mode": "audit"}),
        json!({"podSelector": null, "egress": {"allow": null}}),
        json!({"egress": {"allow": [{"name": "r", "host": "a.example", "port": null, "tls": null}]}}),
    ];
    let policies = specs
        .into_iter()
        .enumerate()
        .map(|(i, spec)| policy(&format!("accepted-{i:02}"), spec));
    let specs = [
        json!({"fakeIPCIDR": "10.250.0.0/16", "nodePrefixLength": 29, "serviceCIDRs": ["10.96.0.0/12"]}),
        json!({"fakeIPCIDR": "169.254.77.0/24", "proxy": {"failMode": "Open"}, "cni": {"mode": "iptables-compat"}}),
        json!({"sensitiveCIDRs": ["10.0.0.0/8", "fd00::/8"], "workloadSelector": {"matchLabels": {"agent": "true"}}}),
    ];
    let classes = specs
        .into_iter()
        .enumerate()
        .map(|(i, spec)| class(&format!("accepted-{i:02}"), spec));
    policies.chain(classes).collect()
}
