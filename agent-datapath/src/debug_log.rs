//! The programs' debug log, passed on to tracing.
//!
//! Off unless the programs were loaded with [`crate::load::DebugLog::Drops`]. Meant for a person at the node: it tells
//! of every dropped packet, without a limit.

use std::io;

use agent_ebpf_common::names::POD_INGRESS;
use aya_log::EbpfLogger;
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    load::{LoadError, pinned::program_id},
    pins::Pins,
};

/// The debug log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DebugLogError {
    /// The programs have no log.
    #[error("cannot open the programs' debug log")]
    Open(#[source] aya_log::Error),
    /// The log could not be waited on.
    #[error("cannot wait for the programs' debug log")]
    Wait(#[source] io::Error),
    /// The pinned program could not be opened.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The reading end of the debug log of the pinned classifier.
pub struct DebugLogReader {
    log: AsyncFd<EbpfLogger<ToTracing>>,
}

impl std::fmt::Debug for DebugLogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DebugLogReader").finish_non_exhaustive()
    }
}

impl DebugLogReader {
    /// Opens the log of the program that is pinned now. Must be called in a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// When nothing is pinned.
    #[expect(
        unsafe_code,
        reason = "tokio can't know that the descriptor outlives the registration"
    )]
    pub fn open(pins: &Pins) -> Result<Self, DebugLogError> {
        let program = program_id(pins, POD_INGRESS)?;
        let log = EbpfLogger::init_from_id_with_logger(program, ToTracing)
            .map_err(DebugLogError::Open)?;
        // SAFETY: the map owns its descriptor, which stays open and the same until `log` is dropped.
        let log = unsafe { AsyncFd::register_with_interest(log, Interest::READABLE) };
        Ok(Self {
            log: log.map_err(|error| DebugLogError::Wait(error.into()))?,
        })
    }

    /// Waits for messages and passes them on. Cancel safe.
    ///
    /// # Errors
    /// When the runtime can't wait on the log.
    pub async fn forward(&mut self) -> Result<(), DebugLogError> {
        let mut guard = self.log.readable_mut().await.map_err(DebugLogError::Wait)?;
        guard.get_inner_mut().flush();
        guard.clear_ready();
        Ok(())
    }
}

/// aya-log writes to the `log` crate; the rest of the project to tracing.
struct ToTracing;

impl log::Log for ToTracing {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        tracing::debug!(target: "agent_ebpf", message = %record.args());
    }

    fn flush(&self) {}
}
