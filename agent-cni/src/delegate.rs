//! Pods that are not ours: the network that was there before gets them.
//!
//! - `choice`: whose a pod is. `primary`: which network was there before. `list`: its configuration, and what each of its
//!   plugins is told. `exec`: calling them. `record`: what is remembered, so that every later verb goes the same way.
//!
//! CNI specification 1.1, sections 3 ("Execution of Network Configurations") and 4 ("Plugin Delegation"). We are towards
//! the primary network what a runtime is, with one difference: the namespace, the container and `CNI_ARGS` are those
//! that the real runtime gave us.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{
    args,
    command::Target,
    error::{CniError, Code},
    netconf::{NetConf, ValidAttachment},
    state::StateDir,
    version::SpecVersion,
};

mod choice;
mod exec;
mod list;
mod primary;
mod record;

use choice::Owner;
use exec::Exec;
use list::{List, in_version};
pub(crate) use primary::primary_of;
use record::{Record, Records};

/// Gives a pod that is not ours to the primary network; answers the result, or nothing when the pod is ours.
///
/// # Errors
/// There is no primary network, or one of its plugins failed, whose error this is. Nothing is left then.
pub(crate) fn add(
    conf: &NetConf,
    target: &Target,
    netns: &Path,
    arguments: &str,
) -> Result<Option<String>, CniError> {
    if conf.selective.is_none() && !Records::exist(&conf.state_dir) {
        return Ok(None);
    }
    let pod = args::parse(arguments)?;
    if leads_back(conf, target)? {
        return Err(CniError::new(
            Code::Primary,
            "the primary network leads back to agent-cni; name the real primary network's file as primary.file",
        ));
    }
    let dir = StateDir::open(&conf.state_dir)?;
    let pending = dir.lock_attachment(target)?;
    let outcome = (|| {
        let records = Records::of(&dir);
        if let Some(record) = records.get(target)? {
            match told_before(conf, &record, netns)? {
                Some(result) => return Ok(Some(result)),
                // half made, or of another boot: taken back, and decided anew
                None => undo(&records, &record)?,
            }
        }
        let Some(selective) = &conf.selective else {
            return Ok(None);
        };
        // an ADD that is repeated stays with what it was, whatever the labels say now
        if dir.attachment(target)?.is_some() || choice::owner(selective, &pod) == Owner::Us {
            return Ok(None);
        }
        if conf.prev_result.is_some() {
            return Err(CniError::new(
                Code::InvalidConfig,
                "agent-cni makes the pod's interface, or has the primary network make it, and must be the first plugin of its list",
            ));
        }
        let (source, list) = primary::find(&conf.primary, &conf.name)?;
        let netns = netns.to_string_lossy();
        let runtime_config = conf.runtime_config.clone();
        let mut record = Record::new(
            target,
            &netns,
            arguments,
            pod.clone(),
            source,
            list,
            runtime_config,
        );
        records.save(&record)?;
        match run_add(&record) {
            Ok(result) => {
                let told = in_version(result.clone(), conf.version);
                record.result = Some(result);
                if let Err(error) = records.save(&record) {
                    undo(&records, &record)?;
                    return Err(error.into());
                }
                Ok(Some(format!("{told:#}")))
            }
            Err(error) => {
                if let Err(left) = undo(&records, &record) {
                    tracing::error!(error = %left, "a failed ADD leaves something; DEL removes it");
                }
                Err(error)
            }
        }
    })();
    pending.done()?;
    outcome
}

/// Whether a plugin of the primary network that we are calling for this pod is calling us. A daemon in between (Multus)
/// loses the environment: then the record is there, and whoever wrote it holds the attachment's lock.
fn leads_back(conf: &NetConf, target: &Target) -> Result<bool, CniError> {
    if exec::is_called_by_us() {
        return Ok(true);
    }
    let dir = StateDir::look(&conf.state_dir);
    Ok(dir.is_busy(target) && Records::of(&dir).get(target)?.is_some())
}

/// The result of an earlier ADD, when it is complete and of this boot.
fn told_before(conf: &NetConf, record: &Record, netns: &Path) -> Result<Option<String>, CniError> {
    let Some(result) = record.result.as_ref().filter(|_| record.is_of_this_boot()) else {
        return Ok(None);
    };
    if Path::new(&record.netns) != netns {
        return Err(CniError::new(
            Code::Conflict,
            format!(
                "container {} already has {} in {}; call DEL before an ADD with another CNI_NETNS ({})",
                record.container_id,
                record.ifname,
                record.netns,
                netns.display()
            ),
        ));
    }
    Ok(Some(format!(
        "{:#}",
        in_version(result.clone(), conf.version)
    )))
}

/// Each plugin in order, with the result of the one before it.
fn run_add(record: &Record) -> Result<Value, CniError> {
    let exec = Exec::from_env();
    let mut result = None;
    for plugin in &record.list.plugins {
        let stdin = record
            .list
            .stdin(plugin, result.as_ref(), &record.runtime_config);
        let answer = exec.call("ADD", stdin)?;
        if !answer.is_object() {
            return Err(CniError::new(
                Code::Primary,
                format!(
                    "the primary network's plugin {} answered ADD without a result",
                    list::type_of(plugin)
                ),
            ));
        }
        result = Some(answer);
    }
    result.ok_or_else(|| CniError::new(Code::Primary, "the primary network has no plugins"))
}

/// DEL by every plugin, the last first. The record goes when all of them have said yes.
fn undo(records: &Records, record: &Record) -> Result<(), CniError> {
    undo_by(&Exec::from_env(), records, record)
}

fn undo_by(exec: &Exec, records: &Records, record: &Record) -> Result<(), CniError> {
    run_del(exec, record)?;
    Ok(records.remove(&record.target())?)
}

fn run_del(exec: &Exec, record: &Record) -> Result<(), CniError> {
    let list = &record.list;
    // since 0.4.0 plugins are told what ADD came to
    let result = record
        .result
        .as_ref()
        .filter(|_| list.speaks(SpecVersion::V0_4_0));
    let mut first = Ok(());
    for plugin in list.plugins.iter().rev() {
        // an ADD that was not completed never came as far as a plugin that is not there
        if record.result.is_none() && !exec.has(plugin) {
            continue;
        }
        // one that fails must not keep the others from letting go
        let done = exec.call("DEL", list.stdin(plugin, result, &record.runtime_config));
        first = first.and(done.map(|_| ()));
    }
    first
}

/// Detaches a pod that the primary network has. One that we know nothing of is told to it too, selector or not: it may
/// have been attached before we came, and the runtime calls us for it now. Answers whether another call of ours is doing just that.
///
/// # Errors
/// A plugin of the primary network failed for a pod that it has.
pub(crate) fn del(conf: &NetConf, target: &Target) -> Result<bool, CniError> {
    // what leads back to us is at work on it already
    if leads_back(conf, target)? {
        return Ok(true);
    }
    if conf.state_dir.exists() {
        // as a rule the pod is ours, and one look is enough
        let alone = conf.selective.is_none() && !Records::exist(&conf.state_dir);
        if alone
            && StateDir::look(&conf.state_dir)
                .attachment(target)?
                .is_some()
        {
            return Ok(false);
        }
        let dir = StateDir::open(&conf.state_dir)?;
        let pending = dir.lock_attachment(target)?;
        let records = Records::of(&dir);
        let outcome = match records.get(target)? {
            Some(record) => undo(&records, &record).map(|()| true),
            // one that an ADD of ours died over is ours too
            None => Ok(dir.attachment(target)?.is_some() || pending.reservation().is_some()),
        };
        // a reservation is the plugin's own DEL's to clear
        if pending.reservation().is_none() {
            pending.done()?;
        }
        if outcome? {
            return Ok(false);
        }
    }
    // a node that has no primary network has nothing of it to release
    if let Ok((source, list)) = primary::find(&conf.primary, &conf.name)
        && let Err(error) = del_unknown(conf, target, source, list)
    {
        tracing::warn!(container = %target.container_id, %error, "the primary network could not be told of a DEL");
    }
    Ok(false)
}

fn del_unknown(
    conf: &NetConf,
    target: &Target,
    source: PathBuf,
    list: List,
) -> Result<(), CniError> {
    let nobody = agent_core::attachment::PodRef {
        namespace: String::new(),
        name: String::new(),
        uid: String::new(),
    };
    let runtime_config = conf.runtime_config.clone();
    run_del(
        &Exec::from_env(),
        &Record::new(target, "", "", nobody, source, list, runtime_config),
    )
}

/// Has the primary network check a pod that it has; answers whether it has it.
///
/// # Errors
/// A plugin found a difference, or the ADD was never completed.
pub(crate) fn check(conf: &NetConf, target: &Target) -> Result<bool, CniError> {
    if exec::is_called_by_us() {
        return Ok(true);
    }
    let Some(record) = Records::of(&StateDir::look(&conf.state_dir)).get(target)? else {
        return Ok(false);
    };
    let Some(result) = record.result.as_ref().filter(|_| record.is_of_this_boot()) else {
        return Err(CniError::new(
            Code::CheckFailed,
            "the primary network's ADD of this pod was not completed; recreate the pod",
        ));
    };
    let list = &record.list;
    if list.disable_check || !list.speaks(SpecVersion::V0_4_0) {
        return Ok(true);
    }
    let exec = Exec::from_env();
    for plugin in &list.plugins {
        exec.call(
            "CHECK",
            list.stdin(plugin, Some(result), &record.runtime_config),
        )?;
    }
    Ok(true)
}

/// Detaches every pod of the primary network that is not valid any more, then has its plugins collect garbage.
///
/// # Errors
/// What did not work, after all the rest was tried.
pub(crate) fn gc(conf: &NetConf) -> Result<(), CniError> {
    if exec::is_called_by_us() {
        return Ok(());
    }
    let valid = conf.valid_attachments.as_deref().unwrap_or_default();
    let mut failures = Vec::new();
    if Records::exist(&conf.state_dir) {
        let dir = StateDir::open(&conf.state_dir)?;
        let records = Records::of(&dir);
        for record in records.all()? {
            if is_valid(valid, &record) {
                continue;
            }
            let pending = dir.lock_attachment(&record.target())?;
            let exec = Exec::from_env().on_behalf_of(&record);
            if let Err(error) = undo_by(&exec, &records, &record) {
                failures.push(format!("{}: {error}", record.container_id));
            }
            pending.done()?;
        }
    }
    if conf.selective.is_some()
        && let Err(error) = collect(conf, valid)
    {
        failures.push(error.to_string());
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(CniError {
            code: Code::Primary,
            msg: "the primary network could not collect its garbage".into(),
            details: failures.join("; "),
        }),
    }
}

fn is_valid(valid: &[ValidAttachment], record: &Record) -> bool {
    valid
        .iter()
        .any(|one| one.container_id == record.container_id && one.ifname == record.ifname)
}

fn collect(conf: &NetConf, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let (_, list) = primary::find(&conf.primary, &conf.name)?;
    if list.disable_gc || !list.speaks(SpecVersion::V1_1_0) {
        return Ok(());
    }
    let exec = Exec::from_env();
    let valid: Vec<Value> = valid
        .iter()
        .map(|one| json!({"containerID": one.container_id, "ifname": one.ifname}))
        .collect();
    let mut first = Ok(());
    for plugin in &list.plugins {
        let mut stdin = list.stdin(plugin, None, &serde_json::Map::new());
        // the second is how the specification's first text called it, and libcni passes both
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            stdin.insert(key.into(), json!(valid));
        }
        first = first.and(exec.call("GC", stdin).map(|_| ()));
    }
    first
}

/// Could a pod that is not ours be added now?
///
/// # Errors
/// There is no primary network (yet), or a plugin of it says no.
pub(crate) fn status(conf: &NetConf) -> Result<(), CniError> {
    if conf.selective.is_none() || exec::is_called_by_us() {
        return Ok(());
    }
    let (_, list) = primary::find(&conf.primary, &conf.name).map_err(|error| CniError {
        code: Code::NotAvailable,
        ..CniError::from(error)
    })?;
    if !list.speaks(SpecVersion::V1_1_0) {
        return Ok(());
    }
    let exec = Exec::from_env();
    for plugin in &list.plugins {
        exec.call("STATUS", list.stdin(plugin, None, &serde_json::Map::new()))?;
    }
    Ok(())
}

impl From<primary::PrimaryError> for CniError {
    fn from(error: primary::PrimaryError) -> Self {
        Self::from_error(Code::Primary, &error)
    }
}
