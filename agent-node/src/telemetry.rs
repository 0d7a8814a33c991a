//! Diagnostic logging, to standard error; standard output belongs to audit lines.
//!
//! Messages are constant, data is in fields. Nothing that holds a secret has a `Debug` or
//! `Display`, so no field can carry one.

use std::error::Error;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// JSON, unless standard error is a terminal.
    Auto,
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// The filter or the subscriber was refused.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter can't be read.
    #[error("`{0}` is not a log filter; write for example `info` or `agent_node=debug,warn`")]
    Filter(String),
    /// A subscriber exists already.
    #[error("logging is set up already")]
    Twice,
}

/// Sets up logging for the process.
///
/// # Errors
/// When `filter` isn't one, or logging was set up before.
pub fn init(filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    let filter =
        EnvFilter::try_new(filter).map_err(|_| TelemetryError::Filter(filter.to_owned()))?;
    let terminal = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal);
    let json = match format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !terminal,
    };
    let done = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.try_init()
    };
    done.map_err(|_| TelemetryError::Twice)
}

/// An error and all its sources in one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
