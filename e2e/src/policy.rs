//! The runtime policy that the demo and most tests use, and a builder for others.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::addresses::{ANYCAST_CIDR, BANNER, METADATA};

/// The name of the policy that [`Policy::new`] makes, as audit lines write it.
pub const NAME: &str = "agents/e2e";

/// A policy document with one policy for all agent pods.
#[derive(Clone, Debug)]
pub struct Policy {
    header: Value,
    rules: Vec<Value>,
}

impl Policy {
    /// One without rules: everything is denied.
    pub fn new() -> Policy {
        Policy {
            header: json!({
                "namespace": "agents", "name": "e2e", "priority": 100, "mode": "enforce",
                "subjects": {"allNamespaces": true, "podSelector": {}},
            }),
            rules: Vec::new(),
        }
    }

    /// The rules of the demo: the product's own example, with the outside's names.
    pub fn demo() -> Policy {
        Policy::new()
            .allow("docs", "docs.example.com", json!({"port": 80}))
            .allow("echo", "echo.example.com", json!({}))
            .allow("public-git", "git.example.com", json!({}))
            .allow("tls", "secure.example.com", json!({"port": 443}))
            .allow("bulk", "bulk.example.com", json!({}))
            .allow("many", "many.example.com", json!({}))
            .allow("rebind", "rebind.example.com", json!({}))
            .allow_cidr("metadata", &format!("{METADATA}/32"), json!({}))
            .allow_cidr("banner", &format!("{BANNER}/32"), json!({"protocol": "tcp", "port": 2525}))
            .allow_cidr("anycast", ANYCAST_CIDR, json!({"protocol": "tcp", "port": "7000-7099"}))
            .credential(
                "api",
                "api.example.com",
                json!({"header": "Authorization", "prefix": "Bearer ", "valueFromFile": "api/API_TOKEN", "allowCleartext": true}),
            )
            .credential(
                "private-git",
                "git.internal.example.com",
                json!({"header": "Authorization", "format": "basic", "username": "x-access-token",
                       "valueFromFile": "zeroproxy-credentials/REPO_TOKEN", "allowCleartext": true}),
            )
            .credential(
                "vector-db",
                "vector-db.internal.example.com",
                json!({"header": "X-Api-Key", "valueFromFile": "zeroproxy-credentials/RAG_TOKEN", "allowCleartext": true}),
            )
            .deny("production-db", "prod-db.internal.example.com")
            .ingress("allow", "planner", "sa:agents:planner", "agent-server")
            .ingress("deny", "untrusted", "sa:agents:untrusted", "agent-server")
    }

    /// Adds an egress allow rule for a host.
    #[must_use]
    pub fn allow(self, name: &str, host: &str, more: Value) -> Policy {
        self.rule(name, "allow", "egress", json!({"host": host}), more)
    }

    /// Adds an egress allow rule for a CIDR.
    #[must_use]
    pub fn allow_cidr(self, name: &str, cidr: &str, more: Value) -> Policy {
        self.rule(name, "allow", "egress", json!({"cidr": cidr}), more)
    }

    /// Adds an egress allow rule for one address and port.
    #[must_use]
    pub fn allow_tcp(self, name: &str, address: Ipv4Addr, port: u16) -> Policy {
        self.allow_cidr(
            name,
            &format!("{address}/32"),
            json!({"protocol": "tcp", "port": port}),
        )
    }

    /// Adds a credential rule.
    #[must_use]
    pub fn credential(self, name: &str, host: &str, more: Value) -> Policy {
        self.rule(name, "credential", "egress", json!({"host": host}), more)
    }

    /// Adds an egress deny rule for a host.
    #[must_use]
    pub fn deny(self, name: &str, host: &str) -> Policy {
        self.rule(name, "deny", "egress", json!({"host": host}), json!({}))
    }

    /// Adds an ingress rule.
    #[must_use]
    pub fn ingress(self, kind: &str, name: &str, caller: &str, target: &str) -> Policy {
        self.rule(
            name,
            kind,
            "ingress",
            json!({"caller": caller, "target": target}),
            json!({}),
        )
    }

    /// The document.
    pub fn document(&self) -> Value {
        json!({"schemaVersion": 1, "policies": [self.header], "rules": self.rules})
    }

    fn rule(mut self, name: &str, kind: &str, direction: &str, what: Value, more: Value) -> Policy {
        let mut rule = json!({"policy": 0, "name": name, "kind": kind, "direction": direction});
        for part in [what, more] {
            if let (Some(rule), Value::Object(part)) = (rule.as_object_mut(), part) {
                rule.extend(part);
            }
        }
        self.rules.push(rule);
        self
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::new()
    }
}
