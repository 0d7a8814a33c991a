//! A place is a set of namespaces in which commands run: the node, the outside, a pod. Runs commands there to their
//! end, starts background processes, and runs closures on its network. Owns no namespace; see [`crate::world`].
//!
//! Everything that any command prints is also kept under the world's `logs/`, where the secret is searched for.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow, bail};
use nix::sched::{CloneFlags, setns};

use crate::patience::slowdown;
use crate::process::Process;

/// Seconds after which a command that hasn't ended is killed (it then counts as failed, with code 124).
const LIMIT_SECONDS: u32 = 60;

static TRANSCRIPT: Mutex<()> = Mutex::new(());

/// Where a command runs.
#[derive(Clone, Debug)]
pub struct Place {
    enter: Vec<String>,
    netns: PathBuf,
    logs: PathBuf,
}

/// What a finished command left behind.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command, for messages.
    pub command: String,
    /// Exit code; 124 when it ran out of time, -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Finished {
    /// This, when the command exited 0.
    ///
    /// # Errors
    /// When it didn't; the message has all that it printed.
    pub fn success(self) -> Result<Finished> {
        if self.code == 0 {
            Ok(self)
        } else {
            Err(anyhow!("{self}"))
        }
    }

    /// Whether the command exited 0.
    pub fn ok(&self) -> bool {
        self.code == 0
    }

    /// Standard output and standard error in one text.
    pub fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "`{}` exited {}: {}",
            self.command,
            self.code,
            self.all().trim()
        )
    }
}

impl Place {
    pub(crate) fn in_world(pid1: i32, netns: PathBuf, logs: PathBuf) -> Place {
        let mut enter: Vec<String> = ["nsenter", "-t"].map(str::to_owned).into();
        enter.push(pid1.to_string());
        enter.extend(["-m", "-r", "-u", "-i", "-p"].map(str::to_owned));
        enter.push(format!("--net={}", netns.display()));
        enter.push("--".to_owned());
        Place { enter, netns, logs }
    }

    pub(crate) fn of_process(pid: i32, logs: PathBuf) -> Place {
        let enter = format!("nsenter -t {pid} -m -r -u -i -p -n --")
            .split(' ')
            .map(str::to_owned)
            .collect();
        Place {
            enter,
            netns: format!("/proc/{pid}/ns/net").into(),
            logs,
        }
    }

    /// The command line by which a person gets a shell here.
    pub fn shell_line(&self) -> String {
        format!("{} bash", self.enter.join(" "))
    }

    /// The network namespace, as this process reaches it.
    pub fn netns(&self) -> &Path {
        &self.netns
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// Only when it can't be started; a failing command is in [`Finished::code`].
    pub fn run(&self, argv: &[&str]) -> Result<Finished> {
        self.run_with(argv, &[], b"", LIMIT_SECONDS * slowdown())
    }

    /// Runs a shell script to its end.
    ///
    /// # Errors
    /// Only when the shell can't be started.
    pub fn sh(&self, script: &str) -> Result<Finished> {
        self.run(&["bash", "-c", script])
    }

    /// Runs a command with further environment variables, standard input and a limit in seconds.
    ///
    /// # Errors
    /// Only when it can't be started.
    pub fn run_with(
        &self,
        argv: &[&str],
        env: &[(&str, &str)],
        stdin: &[u8],
        limit: u32,
    ) -> Result<Finished> {
        let command = argv.join(" ");
        let limit = format!("{limit}");
        let mut line: Vec<&str> = vec!["timeout", "-k", "2", &limit];
        line.extend(argv);
        let mut child = self
            .base(&line, env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start `{command}`"))?;
        let mut pipe = child.stdin.take().context("no stdin")?;
        let output = std::thread::scope(|s| {
            // a command that never reads its input isn't an error
            s.spawn(move || pipe.write_all(stdin).and_then(|()| pipe.flush()));
            child.wait_with_output()
        })?;
        let finished = Finished {
            command,
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        self.note(&finished)?;
        Ok(finished)
    }

    /// Starts a process that goes on; its output goes to `logs/NAME.log`.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn spawn(&self, name: &str, argv: &[&str], env: &[(&str, &str)]) -> Result<Process> {
        let log = self.log(name);
        let file = OpenOptions::new().create(true).append(true).open(&log)?;
        let child = self
            .base(argv, env)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Process::new(name, child, log)
    }

    /// Runs a closure on a thread of its own whose network is this place's.
    ///
    /// # Errors
    /// When the namespace can't be entered, or the closure fails or panics.
    pub fn on_network<T: Send>(&self, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|s| {
            let handle = s.spawn(|| {
                enter_network(&self.netns)?;
                f()
            });
            match handle.join() {
                Ok(result) => result,
                Err(_) => bail!("a thread in {} panicked", self.netns.display()),
            }
        })
    }

    /// The log file `NAME.log` of this world.
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    fn base(&self, argv: &[&str], env: &[(&str, &str)]) -> Command {
        let mut c = Command::new(&self.enter[0]);
        c.args(&self.enter[1..]).args(argv).env_clear();
        c.env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        c.env("HOME", "/root")
            .env("LANG", "C.UTF-8")
            .envs(env.iter().copied());
        c
    }

    fn note(&self, done: &Finished) -> Result<()> {
        let _one_at_a_time = TRANSCRIPT
            .lock()
            .map_err(|_| anyhow!("another command panicked"))?;
        let path = self.logs.join("commands.log");
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        writeln!(
            file,
            "[{}] $ {} -> {}",
            self.netns.display(),
            done.command,
            done.code
        )?;
        file.write_all(done.stdout.as_bytes())?;
        file.write_all(done.stderr.as_bytes())?;
        Ok(())
    }
}

/// Moves the calling thread into the network namespace at `path`.
///
/// # Errors
/// When it can't be opened or entered.
pub fn enter_network(path: &Path) -> Result<()> {
    let file = fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
    setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", path.display()))
}
