//! `agent-cni install`: takes a node over, and keeps it right until the process ends. Ending removes nothing: an
//! installer that is shut down, evicted or upgraded is not an uninstallation; `agent-cni rollback` is.

mod options;
mod pass;
mod plan;
pub(crate) mod pods;
mod preflight;
mod primary;
mod report;
mod settings;
mod stage;
mod watch;

use std::{collections::BTreeSet, time::Duration};

use agent_core::node_settings::TakenSettings;
use agent_datapath::footprint::{Places, VERSION_RECORD};
use anyhow::Context;

pub(crate) use self::options::{InstallOptions, PlaceOptions};
use self::{
    pass::Installer,
    preflight::Facts,
    report::{Found, HEARTBEAT_SECONDS, Problem, Status},
    settings::Follow,
    watch::{Wake, Watch},
};
use crate::{
    claim::{self, Claim, Owner, Role, Say, Standing},
    clock,
    netconf::{self, NetConf},
    state::StateDir,
};

const DONE: u8 = 0;
const NOT_READY: u8 = 1;

/// Does what the options say; answers the exit code.
///
/// # Errors
/// The options cannot be used, or the process cannot start its work at all.
pub(crate) fn run(options: &InstallOptions) -> anyhow::Result<u8> {
    let places = options.places.places();
    if options.ready {
        return ready(&places);
    }
    let host = &options.places.host_root;
    anyhow::ensure!(
        host.is_dir(),
        "--host-root {} is no directory; mount the host's root there",
        host.display()
    );
    let settings = Follow::new(options, &places.state_dir);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let goal = match settings {
            Some(_) => None,
            None => Some(Goal::new(&places, options.clone())?),
        };
        let work = Work::start(places, goal, settings)?;
        match options.once {
            true => work.once().await,
            false => work.keep().await,
        }
    })
}

fn ready(places: &Places) -> anyhow::Result<u8> {
    // one that was killed in its midst leaves a status that is young for a while
    if let Some(since) = claim::rolled_back_since(places) {
        println!(
            "not ready: a rollback of this node has begun ({since}); run agent-cni rollback to its end, or start the installer anew"
        );
        return Ok(NOT_READY);
    }
    let status = report::read(&places.state_dir)
        .with_context(|| format!("cannot read the status in {}", places.state_dir.display()))?;
    match report::not_ready(status.as_ref(), clock::now_seconds()) {
        None => {
            println!("ready");
            Ok(DONE)
        }
        Some(why) => {
            println!("not ready: {why}");
            Ok(NOT_READY)
        }
    }
}

/// What the node is to be.
struct Goal {
    options: InstallOptions,
    conf: NetConf,
    installer: Installer,
}

impl Goal {
    /// What these options say.
    fn new(places: &Places, options: InstallOptions) -> anyhow::Result<Self> {
        // which capabilities it names has no part in what is done here
        let text = options.conf_text(&BTreeSet::new());
        let conf = netconf::parse(text.as_bytes())?.seen_below(&options.places.host_root);
        Ok(Self {
            installer: Installer::new(
                places.clone(),
                conf.clone(),
                options.clone(),
                &pass::own_program(),
            )?,
            options,
            conf,
        })
    }
}

/// An installer at work.
struct Work {
    places: Places,
    /// Absent while the node's class is waited for.
    goal: Option<Goal>,
    settings: Option<Follow>,
    claim: Option<Claim>,
    status: Status,
    /// Whether a pass of this process found everything right: what differs from then on was broken by somebody.
    settled: bool,
    /// The status that is in the file.
    written: Option<Status>,
    /// Whether somebody else has the say: then nothing is to be waited for.
    stood_down: bool,
}

impl Work {
    /// Takes the say over the node.
    fn start(places: Places, goal: Option<Goal>, settings: Option<Follow>) -> anyhow::Result<Self> {
        let before = report::read(&places.state_dir).unwrap_or_default();
        if let Some(from) = before
            .as_ref()
            .map(|status| status.version.as_str())
            .filter(|version| *version != env!("CARGO_PKG_VERSION"))
        {
            tracing::info!(
                from,
                to = env!("CARGO_PKG_VERSION"),
                "another version is replaced"
            );
        }
        let mut work = Self {
            places,
            goal,
            settings,
            claim: None,
            status: report::begin(before),
            settled: false,
            written: None,
            stood_down: false,
        };
        work.take_claim()?;
        Ok(work)
    }

    fn take_claim(&mut self) -> anyhow::Result<()> {
        // the lock is let go at once; each pass takes it again
        let (claim, _lock) = Claim::take(&self.places, Role::Installer)?;
        self.claim = Some(claim);
        Ok(())
    }

    async fn once(mut self) -> anyhow::Result<u8> {
        self.pass().await;
        self.end();
        for problem in &self.status.problems {
            eprintln!("agent-cni: {}; {}", problem.what, problem.remedy);
        }
        Ok(match self.status.ready {
            true => {
                println!("node is ready");
                DONE
            }
            false => NOT_READY,
        })
    }

    async fn keep(mut self) -> anyhow::Result<u8> {
        let mut directories = vec![self.places.conf_dir.clone(), self.places.bin_dir.clone()];
        directories.extend(self.settings.as_ref().map(Follow::directory));
        let mut watch = Watch::new(directories)?;
        loop {
            self.pass().await;
            if watch.next(self.every()).await == Wake::End {
                break;
            }
        }
        tracing::info!("the installer ends; the node stays as it is");
        self.sign_off();
        self.end();
        Ok(DONE)
    }

    /// One look at everything; says what it found.
    async fn pass(&mut self) {
        let Some(mut claim) = self.claim.take() else {
            return;
        };
        let before = self.status.problems.clone();
        let noted = std::mem::take(&mut self.status.notes);
        match claim.standing() {
            // held until the pass is over
            Ok(Standing::Mine(_lock)) => match self.work(&claim.say()).await {
                None => self.report(),
                // whoever has the say writes the status, or removes it
                Some(owner) => self.lost(&owner),
            },
            // what they do is no news to one that has to do nothing
            Ok(Standing::Busy) if self.stood_down => {}
            Ok(Standing::Busy) => {
                self.fail("a rollback or another installer is at work", "wait");
            }
            Ok(Standing::Lost(owner)) => self.lost(&owner),
            Err(error) => {
                let problem = Problem::of(&error);
                self.fail(&problem.what, &problem.remedy);
            }
        }
        self.claim = Some(claim);
        if self.status.problems != before {
            for problem in &self.status.problems {
                tracing::error!(problem = %problem.what, remedy = %problem.remedy, "the node is not ready");
            }
            if self.status.problems.is_empty() {
                tracing::info!("the node is ready");
            }
        }
        if self.status.notes != noted {
            for note in &self.status.notes {
                tracing::warn!(%note, "noted");
            }
        }
    }

    fn lost(&mut self, to: &Owner) {
        self.stood_down = true;
        let (what, remedy) = match to.role {
            Role::Rollback => (
                "the node was rolled back",
                "remove this installer; to take the node over again, restart it",
            ),
            Role::Installer => ("another installer has started since", "remove this one"),
        };
        self.fail(&format!("{what} ({})", to.since), remedy);
    }

    fn every(&self) -> Duration {
        let goal = self.goal.as_ref();
        goal.map_or(Duration::from_secs(1), |goal| goal.installer.every())
    }

    /// Makes what the node's class says now the goal. Answers what is remembered of it, and what should be known.
    fn follow(&mut self) -> Result<(Option<TakenSettings>, Vec<String>), Problem> {
        let Some(settings) = &mut self.settings else {
            return Ok((None, Vec::new()));
        };
        let wanted = settings.look(is_installed(&self.places))?;
        let same = |goal: &Goal| goal.options == wanted.options;
        if !self.goal.as_ref().is_some_and(same) {
            let goal = Goal::new(&self.places, wanted.options)
                .map_err(|error| Problem::new(format!("{error:#}"), "mend the node's class"))?;
            if self.goal.replace(goal).is_some() {
                tracing::info!("the node's settings are others now");
            }
            // what differs from here on is what the class changed
            self.settled = false;
        }
        Ok((wanted.taken, wanted.notes))
    }

    /// A pass; answers who took the say over the node meanwhile.
    async fn work(&mut self, say: &Say) -> Option<Owner> {
        let (taken, notes, trouble) = match self.follow() {
            Ok((taken, notes)) => (taken, notes, None),
            Err(problem) => (None, Vec::new(), Some(problem)),
        };
        let by_flags = taken.is_none() && trouble.is_none();
        let Some(goal) = &mut self.goal else {
            self.status.ready = false;
            self.status.problems = trouble.into_iter().collect();
            return None;
        };
        let facts = preflight::look(&self.places, &goal.conf).await;
        let mut problems = preflight::problems(&facts, &goal.conf);
        problems.extend(trouble);
        if !problems.is_empty() && !goal.installer.is_installed() {
            // nothing of a node is touched that cannot be taken over
            self.status.problems = problems;
            self.status.ready = false;
            return None;
        }
        self.stood_down = false;
        let wanted = goal.conf.fail_open;
        let away = wanted && crate::node::proxy_is_away(&goal.conf);
        if self.status.fail_open.see(wanted, away) {
            settings::tell_open(away);
            if !away {
                settings::forget_open(&self.places);
            }
            // the rules that follow from it are no repair
            self.settled = false;
        }
        let outcome = goal.installer.pass(say).await;
        self.tell(&outcome.found);
        if outcome.lost.is_none() {
            problems.extend(taken.and_then(|taken| settings::remember(&self.places, &taken).err()));
            if by_flags {
                problems.extend(settings::forget(&self.places).err());
            }
        }
        self.status.problems = problems;
        self.status.problems.extend(outcome.problems);
        self.status.notes = notes;
        self.status.notes.extend(outcome.notes);
        self.status.notes.extend(note(&facts));
        self.status.ready = self.status.problems.is_empty();
        self.settled |= self.status.ready && outcome.lost.is_none();
        outcome.lost
    }

    /// One event for each thing that was mended.
    fn tell(&mut self, found: &[Found]) {
        for found in found {
            let kind = found.kind.label();
            match self.settled {
                true => tracing::warn!(kind, found = %found.what, "repaired"),
                false => tracing::info!(kind, found = %found.what, "installed"),
            }
        }
        if self.settled {
            self.status.count(found.iter().map(|found| found.kind));
        }
    }

    fn fail(&mut self, what: &str, remedy: &str) {
        self.status.ready = false;
        self.status.problems = vec![Problem::new(what, remedy)];
    }

    /// Writes the status, when it is new or the one in the file grows old.
    fn report(&mut self) {
        let state = &self.places.state_dir;
        // nothing was begun yet, or in a directory of others, and this is no reason to begin
        if !state.exists() || self.places.unfit_state_dir().is_some() {
            return;
        }
        let now = clock::now_seconds();
        let same = self.written.as_ref().is_some_and(|written| {
            now.saturating_sub(written.heartbeat) < HEARTBEAT_SECONDS
                && Status {
                    heartbeat: written.heartbeat,
                    ..self.status.clone()
                } == *written
        });
        if same {
            return;
        }
        self.status.heartbeat = now;
        let written = StateDir::open(state)
            .map_err(|error| error.to_string())
            .and_then(|dir| report::write(&self.status, &dir).map_err(|error| error.to_string()));
        match written {
            Ok(()) => self.written = Some(self.status.clone()),
            Err(error) => {
                // once: a disk stays full for more than a second
                if self.written.take().is_some() {
                    tracing::error!(%error, "the status cannot be written");
                }
            }
        }
    }

    /// Says that nobody keeps the node any more, where this installer still has the say.
    fn sign_off(&mut self) {
        let standing = self.claim.as_mut().map(Claim::standing);
        if let Some(Ok(Standing::Mine(_lock))) = standing {
            self.fail("the installer has ended", "start it again");
            self.report();
        }
    }

    fn end(&mut self) {
        if let Some(claim) = self.claim.take() {
            claim.end(&self.places);
        }
    }
}

/// Whether an earlier pass, of whatever process, came as far as the configuration.
fn is_installed(places: &Places) -> bool {
    places.state_dir.join(VERSION_RECORD).exists()
}

fn note(facts: &Facts) -> Option<String> {
    (!preflight::has_primary(&facts.confs)).then(|| {
        "no other network is configured in net.d: after a rollback the node has none".to_owned()
    })
}
