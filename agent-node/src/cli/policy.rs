//! `agent-node policy`: a document looked at without a proxy.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use agent_core::audit::Decision;
use agent_core::identity::Workload;
use agent_core::policy::parts::Index;
use agent_core::policy::{
    ExplainRequest, Explanation, NodeNets, PolicySet, Protocol, RuntimePolicy,
};
use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::Output;
use crate::policy_parts;

/// Stands for the pod's address, which no rule selects by.
const NO_ADDRESS: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// The runtime policy document (JSON).
    file: PathBuf,
    /// The pod that asks.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = namespaced)]
    workload: (String, String),
    /// Its service account.
    #[arg(long, value_name = "NAME")]
    service_account: Option<String>,
    /// One of its labels; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// A label of its namespace; may be repeated.
    #[arg(long = "namespace-label", value_name = "KEY=VALUE", value_parser = label)]
    namespace_labels: Vec<(String, String)>,
    /// The name it asks for.
    #[arg(long, required_unless_present_any = ["ip", "target"])]
    host: Option<String>,
    /// The address it dials.
    #[arg(long)]
    ip: Option<Ipv4Addr>,
    /// The port it dials.
    #[arg(long)]
    port: Option<u16>,
    /// What it speaks: http, https, tls, tcp or grpc. [port 80, a method or a path: http; a host: tls; else tcp]
    #[arg(long, value_parser = protocol)]
    protocol: Option<Protocol>,
    /// The HTTP method.
    #[arg(long)]
    method: Option<String>,
    /// The HTTP path, without query.
    #[arg(long)]
    path: Option<String>,
    /// The agent it calls, instead of a destination.
    #[arg(long, conflicts_with_all = ["host", "ip", "port", "protocol", "method", "path"])]
    target: Option<String>,
    /// An address that the name resolves to, to be checked as well; may be repeated.
    #[arg(long = "address", value_name = "IP")]
    addresses: Vec<IpAddr>,
    /// How to print the answer.
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Serialize)]
struct Checked<'a> {
    version: &'a str,
    policies: usize,
    rules: usize,
}

pub(super) fn check(file: &Path, output: Output) -> anyhow::Result<()> {
    let (document, set) = read(file)?;
    let checked = Checked {
        version: set.version(),
        policies: document.policies.len(),
        rules: set.rule_count(),
    };
    match output {
        Output::Json => println!("{}", serde_json::to_string(&checked)?),
        Output::Table => println!(
            "{} is valid: {} policies, {} rules\nversion {}",
            file.display(),
            checked.policies,
            checked.rules,
            checked.version
        ),
    }
    Ok(())
}

/// Prints the answer; true when the request would be let through.
pub(super) fn explain_file(args: &ExplainArgs) -> anyhow::Result<bool> {
    let (_, set) = read(&args.file)?;
    let (namespace, name) = args.workload.clone();
    let question = ExplainRequest {
        workload: Workload {
            namespace,
            name,
            uid: String::new(),
            service_account: args.service_account.clone(),
            labels: args.labels.iter().cloned().collect::<BTreeMap<_, _>>(),
            namespace_labels: args.namespace_labels.iter().cloned().collect(),
            fake_ip: NO_ADDRESS,
        },
        host: args.host.clone(),
        ip: args.ip,
        port: args.port,
        protocol: args.protocol,
        method: args.method.clone(),
        path: args.path.clone(),
        target: args.target.clone(),
        addresses: args.addresses.clone(),
    };
    let answer = set.explain(&question, &NodeNets::default())?;
    print(&answer, args.output)?;
    Ok(answer.decision != Decision::Deny)
}

fn print(answer: &Explanation, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        println!("{}", serde_json::to_string(answer)?);
        return Ok(());
    }
    println!("decision  {}", answer.decision.as_str());
    println!("reason    {}", answer.reason);
    if let Some(rule) = &answer.rule {
        println!("rule      {rule}");
    }
    if let Some(policy) = &answer.policy {
        println!("policy    {policy}");
    }
    if let Some(denial) = &answer.would_deny {
        println!("would     deny: {}", denial.message);
    }
    if let Some(credential) = &answer.credential {
        println!("credential {} from {}", credential.header, credential.file);
    }
    let policies = answer.policies.join(", ");
    println!(
        "policies  {}",
        if policies.is_empty() {
            "none is for this pod"
        } else {
            &policies
        }
    );
    println!("version   {}", answer.policy_version);
    println!("          {}", answer.message);
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<(RuntimePolicy, PolicySet)> {
    let mut bytes = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
    if let Some(index) = Index::parse(&bytes) {
        bytes = policy_parts::read(file, &index)
            .with_context(|| format!("{} is in {} parts", file.display(), index.parts))?;
    }
    let document =
        RuntimePolicy::parse(&bytes).with_context(|| format!("{} is refused", file.display()))?;
    let set =
        PolicySet::compile(&document).with_context(|| format!("{} is refused", file.display()))?;
    Ok((document, set))
}

fn namespaced(text: &str) -> anyhow::Result<(String, String)> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => bail!("write NAMESPACE/NAME, for example `demo/coder`"),
    }
}

fn label(text: &str) -> anyhow::Result<(String, String)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => bail!("write KEY=VALUE, for example `app=coder`"),
    }
}

fn protocol(text: &str) -> anyhow::Result<Protocol> {
    Protocol::ALL
        .into_iter()
        .find(|protocol| protocol.as_str() == text)
        .context("write http, https, tls, tcp or grpc")
}
