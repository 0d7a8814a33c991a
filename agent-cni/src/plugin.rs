//! One call by a runtime: environment and stdin in, one JSON object on stdout, an exit code.

use std::io::{Read, Write};

use crate::{
    add, check,
    command::{self, EnvError, Request, Verb},
    del, delegate,
    error::{CniError, Code},
    gc,
    netconf::{self, ConfError, NetConf},
    result, status,
    version::NEWEST,
};

/// A configuration has a few hundred bytes; a prevResult adds some thousands.
const STDIN_LIMIT: u64 = 1 << 20;

/// Answers the runtime; the exit code is 0 or 1, as the specification has it.
pub(crate) fn run(verb: &str) -> u8 {
    let mut stdin = Vec::new();
    let read = std::io::stdin().take(STDIN_LIMIT).read_to_end(&mut stdin);
    let asked = netconf::version_of(&stdin);
    let answer = match read {
        Ok(_) => std::panic::catch_unwind(|| answer(verb, &stdin)).unwrap_or_else(|_| {
            Err(CniError::new(
                Code::Internal,
                "agent-cni failed by a defect of its own; what it began is removed by the next ADD, DEL or GC",
            ))
        }),
        Err(error) => Err(CniError::caused(Code::Io, "cannot read stdin", &error)),
    };
    let (text, code) = match answer {
        Ok(text) => (text, 0),
        Err(error) => {
            tracing::error!(
                code = error.code.number(), details = %error.details, "{verb} failed: {error}"
            );
            (
                error.to_json(asked.as_deref().unwrap_or(NEWEST.as_str())),
                1,
            )
        }
    };
    if text.is_empty() {
        return code;
    }
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.write_all(b"\n"))
    {
        Ok(()) => code,
        Err(error) => {
            tracing::error!(%error, "cannot write the answer");
            1
        }
    }
}

fn answer(verb: &str, stdin: &[u8]) -> Result<String, CniError> {
    let request = command::parse(verb, |name| std::env::var(name).ok())?;
    if request == Request::Version {
        let asked = netconf::version_of(stdin);
        return Ok(result::versions(
            asked.as_deref().unwrap_or(NEWEST.as_str()),
        ));
    }
    let conf = netconf::parse(stdin)?;
    must_have(request.verb(), &conf)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CniError::caused(Code::Internal, "cannot start an event loop", &error))?;
    runtime.block_on(serve(request, &conf))
}

async fn serve(request: Request, conf: &NetConf) -> Result<String, CniError> {
    let nothing = String::new();
    match request {
        Request::Add {
            target,
            netns,
            args,
        } => {
            if let Some(result) = delegate::add(conf, &target, &netns, &args)? {
                return Ok(result);
            }
            let added = add::add(conf, &target, &netns, &args).await?;
            Ok(added.to_json(conf.version))
        }
        Request::Del { target } => {
            if delegate::del(conf, &target)? {
                return Ok(nothing);
            }
            del::del(conf, &target).await.map(|()| nothing)
        }
        Request::Check { target, netns } => {
            if delegate::check(conf, &target)? {
                return Ok(nothing);
            }
            check::check(conf, &target, &netns).await.map(|()| nothing)
        }
        Request::Gc => {
            gc::gc(conf).await?;
            delegate::gc(conf).map(|()| nothing)
        }
        Request::Status => {
            status::status(conf).await?;
            delegate::status(conf).map(|()| nothing)
        }
        Request::Version => Ok(nothing),
    }
}

fn must_have(verb: Verb, conf: &NetConf) -> Result<(), ConfError> {
    if conf.version >= verb.since() {
        return Ok(());
    }
    Err(ConfError::VerbTooNew {
        verb: verb.as_str(),
        since: verb.since().as_str(),
        version: conf.version.as_str(),
    })
}

impl From<EnvError> for CniError {
    fn from(error: EnvError) -> Self {
        Self::from_error(Code::InvalidEnvironment, &error)
    }
}

impl From<ConfError> for CniError {
    fn from(error: ConfError) -> Self {
        let code = match &error {
            ConfError::Decode(_) => Code::Decode,
            ConfError::Version(_) | ConfError::VerbTooNew { .. } => Code::IncompatibleVersion,
            ConfError::Unsupported { .. } => Code::UnsupportedField,
            ConfError::Misspelt { .. } | ConfError::Invalid(_) => Code::InvalidConfig,
        };
        Self::from_error(code, &error)
    }
}
