//! `agent-cni rollback`: gives the node back, and `--check`: says what is left of us.

mod plan;
mod report;

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use agent_core::node::BRIDGE;
use agent_datapath::{
    bridge, conntrack,
    error::NetError,
    footprint::{self, Places, Survey, Thing},
    link,
    rtnl::Rtnl,
};
use anyhow::Context;
use clap::Args;

use self::{
    plan::Step,
    report::{Done, Output},
};
use crate::{
    claim::{Claim, Role},
    clock,
    install::PlaceOptions,
    state::StateDir,
};

/// An ADD takes a fraction of a second; one that takes longer waits for something, and finds its node gone.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
const CLEAN: u8 = 0;
const NOT_CLEAN: u8 = 1;

/// What `agent-cni rollback` is told.
#[derive(Debug, Clone, Args)]
pub(crate) struct RollbackOptions {
    #[command(flatten)]
    places: PlaceOptions,
    /// Change nothing; list what is left of agent-network: exit code 0 when there is nothing, else 1.
    #[arg(long)]
    check: bool,
    /// Lines for people, or one JSON object for programs.
    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// Does what the options say; answers the exit code.
///
/// # Errors
/// The work cannot be begun at all.
pub(crate) fn run(options: &RollbackOptions) -> anyhow::Result<u8> {
    let places = options.places.places();
    if let Some(unfit) = places.unfit_state_dir() {
        anyhow::bail!("{}. Nothing was changed; {}", unfit.what(), unfit.remedy());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        if options.check {
            let survey = footprint::survey(&places).await;
            println!("{}", report::residues(&survey, options.output));
            return Ok(exit_code(&survey, &[]));
        }
        let done = roll_back(&places).await?;
        let survey = footprint::survey(&places).await;
        println!("{}", report::done(&done, &survey, options.output));
        Ok(exit_code(&survey, &done.failed))
    })
}

fn exit_code(survey: &Survey, failed: &[String]) -> u8 {
    match survey.is_clean() && failed.is_empty() {
        true => CLEAN,
        false => NOT_CLEAN,
    }
}

/// Does every step, and goes on after errors: what can go goes.
async fn roll_back(places: &Places) -> anyhow::Result<Done> {
    let mut claim = Claim::new(places, Role::Rollback);
    // from here on an installer that runs writes no configuration, and an ADD is refused
    let say = claim.seize()?;
    // at once: a pass that is at work may take its time, and new pods come in meanwhile. What does not go is told below.
    let _ = footprint::remove(Thing::Conf, places).await;
    drop(say);
    let _lock = claim.wait().context(
        "only the CNI configuration is removed, so that no new pod comes; run agent-cni rollback again for the rest",
    )?;
    let mut done = Done::default();
    let mut addresses = BTreeSet::new();
    for step in plan::steps() {
        tracing::debug!(step = step.label(), "begin");
        let outcome = match step {
            Step::AwaitVerbs => {
                await_verbs(places);
                // after the verbs, so that a pod that came last is told too
                addresses.extend(pods(places, &mut done));
                announced(&mut addresses).await
            }
            Step::EndConnections => end_connections(&addresses),
            Step::Remove(thing) => footprint::remove(thing, places).await,
        };
        match outcome {
            Ok(()) => {}
            Err(error) => {
                let text = line(&error);
                tracing::error!(step = step.label(), error = %text, "a step of the rollback failed");
                done.failed.push(text);
            }
        }
        if step == Step::Remove(Thing::Conf) {
            tracing::info!("no new pod comes to agent-network on this node");
        }
    }
    done.installer = places.claim_dir().exists();
    Ok(done)
}

/// Waits until no verb is at work, as long as that is sensible.
fn await_verbs(places: &Places) {
    if !places.state_dir.is_dir() {
        return;
    }
    let deadline = Instant::now() + PATIENCE;
    let Ok(dir) = StateDir::open(&places.state_dir) else {
        return;
    };
    for (name, _) in dir.reservations().unwrap_or_default() {
        // taken over: nobody holds it any more. The lock is let go again, and its file goes with the state.
        while matches!(dir.take_over(&name), Ok(None)) && dir.is_reserved(&name) {
            if Instant::now() > deadline {
                tracing::warn!(%name, "a verb is at work and does not end");
                return;
            }
            thread::sleep(POLL);
        }
    }
}

/// Notes the pods that lose their network, and answers their addresses.
fn pods(places: &Places, done: &mut Done) -> Vec<Ipv4Addr> {
    if !places.state_dir.is_dir() {
        return Vec::new();
    }
    let boot = clock::boot_id();
    let attachments = StateDir::open(&places.state_dir).and_then(|dir| dir.attachments());
    let mut addresses = Vec::new();
    for attachment in attachments.unwrap_or_default() {
        if attachment.boot_id == boot {
            done.recreate.push(format!(
                "{}/{}",
                attachment.pod.namespace, attachment.pod.name
            ));
            addresses.push(attachment.fake_ip);
        }
    }
    done.recreate.sort();
    addresses
}

/// Addresses of pods that the state does not know, but the bridge does.
async fn announced(addresses: &mut BTreeSet<Ipv4Addr>) -> Result<(), NetError> {
    let rtnl = Rtnl::connect()?;
    if let Some(index) = link::index_of(&rtnl, BRIDGE).await? {
        addresses.extend(bridge::announced(&rtnl, index).await?);
    }
    Ok(())
}

fn end_connections(addresses: &BTreeSet<Ipv4Addr>) -> Result<(), NetError> {
    addresses
        .iter()
        .try_for_each(|address| conntrack::forget(*address).map(|_| ()))
}

fn line(error: &NetError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
