//! The demo: brings a node up, shows each promise with what both sides saw, and says which markers it proved.
//!
//! A step that finds something wrong is reported and the next ones still run; the demo passes only when all do. A
//! marker is recorded only at the end of the code that checked it, never by name alone.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::capture::Capture;
use crate::node::Node;
use crate::pod::{Pod, PodSpec};

mod agents;
mod cluster;
mod denied;
mod egress;
mod marker;
mod narrator;
mod records;

pub use marker::Marker;
use narrator::Narrator;

/// What the steps work with.
pub(crate) struct Stage {
    node: Node,
    planner: Pod,
    untrusted: Pod,
    say: Narrator,
}

/// One step: its heading and what it does.
type Step = (&'static str, fn(&mut Stage) -> Result<()>);

const STEPS: &[Step] = &[
    (
        "DNS is answered by the proxy, from the address that was asked",
        egress::dns,
    ),
    ("A request that policy allows", egress::allowed),
    ("A request that no rule lets through", denied::by_default),
    ("A request that a rule denies", denied::by_rule),
    (
        "A credential is set on the way out; the pod never has it",
        egress::credential,
    ),
    (
        "The metadata service, although a rule allows it",
        denied::metadata,
    ),
    (
        "Another pod's address: direct bypass",
        denied::direct_bypass,
    ),
    (
        "Everything that is neither TCP nor DNS",
        denied::other_packets,
    ),
    (
        "A Service goes past the proxy, marked 0x77, to kube-proxy",
        cluster::service,
    ),
    ("One agent calls another", agents::gateway),
    ("A coding agent: git over http", agents::coding),
    ("A RAG agent: python requests", agents::rag),
    ("The audit lines", records::audit),
    ("The counters", records::counters),
    ("No secret was printed or seen by a pod", records::secrets),
];

/// Runs the demo; `Ok(false)` when something didn't hold.
///
/// # Errors
/// When the node can't be brought up at all.
pub fn run(keep: bool) -> Result<bool> {
    let started = Instant::now();
    let mut say = Narrator::new();
    say.heading("A node, its proxy and two pods, in namespaces of their own");
    let mut node = Node::start_with_proxy("demo-node").context("bring the node up")?;
    let planner = node
        .add_pod(&PodSpec::named("planner"))
        .context("add the first pod")?;
    let untrusted = node
        .add_pod(&PodSpec::named("untrusted"))
        .context("add the second pod")?;
    say.saw(
        "node",
        "agent-cni setup: bridge, routes, nftables, programs; agent-node zeroproxy: ready",
    );
    for pod in [&planner, &untrusted] {
        say.saw(
            "CNI",
            &format!(
                "ADD agents/{}: {}/32, gateway {}",
                pod.spec.name, pod.ip, pod.gateway
            ),
        );
    }
    let captures = [
        Capture::start(planner.network(), "pod-side-planner", "eth0", "")?,
        Capture::start(untrusted.network(), "pod-side-untrusted", "eth0", "")?,
    ];
    let mut stage = Stage {
        node,
        planner,
        untrusted,
        say,
    };
    let mut captures = Some(captures);
    for (heading, step) in STEPS {
        stage.say.heading(heading);
        if *heading == STEPS[STEPS.len() - 1].0 {
            captures
                .take()
                .into_iter()
                .flatten()
                .try_for_each(|c| c.stop().map(|_| ()))?;
        }
        if let Err(error) = step(&mut stage) {
            stage.say.failed(&error);
        }
    }
    let holds = stage.say.close(started.elapsed());
    if keep {
        leave_up(stage)?;
    }
    Ok(holds)
}

fn leave_up(stage: Stage) -> Result<()> {
    let lines =
        [&stage.planner, &stage.untrusted].map(|p| (p.spec.name.clone(), p.place().shell_line()));
    let node_line = stage.node.place().shell_line();
    let audit = stage.node.file("audit.jsonl");
    let folder = stage.node.keep(vec![stage.planner, stage.untrusted])?;
    println!("\nThe node stays up. As root:");
    for (name, line) in lines {
        println!("  enter pod {name:<10} {line}");
    }
    println!("  enter the node       {node_line}");
    println!("  try in a pod         curl http://docs.example.com/    # a rule allows it");
    println!("                       curl http://203.0.113.16/        # no rule does");
    println!("  audit lines          tail -f {}", audit.display());
    println!("  logs                 {}/logs", folder.display());
    println!(
        "  remove everything    {} remove {}",
        std::env::current_exe()?.display(),
        folder.display()
    );
    Ok(())
}

/// Fails with `message` unless `holds`.
pub(crate) fn ensure(holds: bool, message: &str) -> Result<()> {
    if holds { Ok(()) } else { bail!("{message}") }
}
