//! `agent-cni doctor`: is this node as it should be, and if not, what mends it?
//!
//! - `options`: where to look. `facts`: looking, and nothing else. `checks`: judging facts, purely.
//! - `check`, `report`: what a check answers, and how it is told.
//!
//! Changes nothing on the node.

use std::io::{IsTerminal, Write};

mod check;
mod checks;
mod facts;
mod options;
mod report;

use options::Output;
pub(crate) use options::{Options, spelt_as_command};

/// Looks, tells, and answers the exit code: 0 when nothing fails.
///
/// # Errors
/// When there is no event loop, or stdout is closed.
pub(crate) fn run(options: &Options) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let facts = runtime.block_on(facts::Facts::collect(options));
    let report = report::Report::new(checks::run(&facts));
    let colour = std::io::stdout().is_terminal();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(report.body(options.output, colour).as_bytes())?;
    match options.output {
        Output::Table => writeln!(stdout, "{}", report.verdict())?,
        Output::Json => eprintln!("{}", report.verdict()),
    }
    Ok(u8::from(report.failed() > 0))
}
