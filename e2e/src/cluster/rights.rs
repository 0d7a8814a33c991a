//! Rights of a component against what it did: the API server's audit log is the witness.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::ApiServer;

/// Fails when `user` was forbidden anything so far, or has a right by the manifest `file` that it never used, or one on
/// Secrets.
///
/// # Errors
/// As said; the message names them.
pub fn assert_used(server: &ApiServer, file: &str, user: &str) -> Result<()> {
    let (done, forbidden) = done(server, user)?;
    ensure!(forbidden.is_empty(), "forbidden: {forbidden:#?}");
    let rights = rights(server, file)?;
    ensure!(
        !rights
            .iter()
            .any(|right| right.what.resource.contains("secret") || right.what.verb == "*"),
        "{rights:#?}"
    );
    let unused: Vec<&Right> = rights
        .iter()
        .filter(|right| !done.iter().any(|done| right.covers(done)))
        .collect();
    ensure!(unused.is_empty(), "granted and never used: {unused:#?}");
    Ok(())
}

/// One thing that somebody may do, or did.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    namespace: String,
    group: String,
    resource: String,
    verb: String,
    name: String,
}

/// A rule's right: to one of these names, or to any.
#[derive(Debug)]
struct Right {
    what: Use,
    names: BTreeSet<String>,
}

impl Right {
    fn covers(&self, done: &Use) -> bool {
        let what = &self.what;
        (what.namespace.is_empty() || what.namespace == done.namespace)
            && (&what.group, &what.resource, &what.verb)
                == (&done.group, &done.resource, &done.verb)
            && (self.names.is_empty() || self.names.contains(&done.name))
    }
}

/// What `user` did, and what of it was forbidden.
fn done(server: &ApiServer, user: &str) -> Result<(BTreeSet<Use>, Vec<Use>)> {
    let log = std::fs::read_to_string(server.audit_log())?;
    let mut done = BTreeSet::new();
    let mut forbidden = Vec::new();
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).context("the audit log")?;
        if event["user"]["username"] != user || event["objectRef"].is_null() {
            continue;
        }
        let text = |key: &str| {
            event["objectRef"][key]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let resource = match text("subresource") {
            sub if sub.is_empty() => text("resource"),
            sub => format!("{}/{sub}", text("resource")),
        };
        let one = Use {
            namespace: text("namespace"),
            group: text("apiGroup"),
            resource,
            verb: event["verb"].as_str().unwrap_or_default().to_owned(),
            name: text("name"),
        };
        if event["annotations"]["authorization.k8s.io/decision"] == "forbid"
            || event["responseStatus"]["code"] == 403
        {
            forbidden.push(one.clone());
        }
        // an apply that makes an object is also held against `create`
        if one.verb == "patch" && event["responseStatus"]["code"] == 201 {
            done.insert(Use {
                verb: "create".to_owned(),
                ..one.clone()
            });
        }
        done.insert(one);
    }
    ensure!(!done.is_empty(), "{user} did nothing");
    Ok((done, forbidden))
}

/// The rights of the file, as bound by it.
fn rights(server: &ApiServer, file: &str) -> Result<Vec<Right>> {
    let line = ["create", "--dry-run=client", "-o", "json", "-f", file];
    let printed = server.kubectl().run(&line)?.success()?.stdout;
    let mut objects = Vec::new();
    for value in serde_json::Deserializer::from_str(&printed).into_iter::<Value>() {
        let value = value?;
        match value["items"].as_array() {
            Some(items) => objects.extend(items.clone()),
            None => objects.push(value),
        }
    }
    let strings = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(|v| v.as_str().map(str::to_owned)).collect()
    };
    let mut rights = Vec::new();
    for object in objects.iter().filter(|o| o["rules"].is_array()) {
        // a ClusterRole's rights are used wherever it is bound
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in object["rules"].as_array().into_iter().flatten() {
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        rights.push(Right {
                            what: Use {
                                namespace: namespace.to_owned(),
                                group: group.clone(),
                                resource: resource.clone(),
                                verb,
                                name: String::new(),
                            },
                            names: strings(&rule["resourceNames"]).into_iter().collect(),
                        });
                    }
                }
            }
        }
    }
    ensure!(!rights.is_empty(), "{file} grants nothing: {printed}");
    Ok(rights)
}
