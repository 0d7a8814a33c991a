//! The listeners that the dispatch program gives connections to.
//!
//! Owns the socket map and the number of workers in it. A socket leaves the map by itself when its last descriptor is
//! closed; a new process takes over by registering its own in the same slots.

use std::os::fd::BorrowedFd;

pub use agent_ebpf_common::dispatch::SocketClass;
use agent_ebpf_common::{
    abi::{DispatchState, MAX_WORKERS},
    names,
};
use aya::maps::{MapData, MapError as AyaMapError, MapInfo, SockMap};

use crate::{
    maps::{self, MapError},
    pins::Pins,
};

/// The pinned socket map.
pub struct Dispatch {
    pins: Pins,
    sockets: SockMap<MapData>,
    id: u32,
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatch")
            .field("pins", &self.pins)
            .field("id", &self.id)
            .finish()
    }
}

/// A listener could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// There are more workers than the map has slots for, or none.
    #[error("{0} workers: it must be 1 to {MAX_WORKERS}")]
    Workers(u16),
    /// The kernel refused the socket.
    #[error(
        "cannot register the {class:?} socket of worker {worker} (it must be bound, and listen if it is TCP)"
    )]
    Socket {
        /// What it would serve.
        class: SocketClass,
        /// Whose it is.
        worker: u16,
        /// Why it failed.
        #[source]
        source: AyaMapError,
    },
    /// A map could not be used.
    #[error(transparent)]
    Map(#[from] MapError),
}

impl DispatchError {
    /// A fixed label for logs and metrics.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Workers(_) => "workers",
            Self::Socket { .. } => "socket",
            Self::Map(error) => error.reason(),
        }
    }
}

impl Dispatch {
    /// Opens the pinned map.
    ///
    /// # Errors
    /// When the data path is not loaded.
    pub fn open(pins: &Pins) -> Result<Self, DispatchError> {
        let sockets = maps::open(pins, names::SOCKETS)?;
        let id = MapInfo::from_pin(pins.map(names::SOCKETS))
            .map_err(maps::failed("open", names::SOCKETS))?
            .id();
        Ok(Self {
            pins: pins.clone(),
            sockets,
            id,
        })
    }

    /// Makes a bound UDP socket or a listening TCP socket the one of its class and worker. A socket that was there
    /// keeps what it has accepted, and gets no more.
    ///
    /// # Errors
    /// When the worker's number is too large, or the socket is neither.
    pub fn register(
        &mut self,
        class: SocketClass,
        worker: u16,
        socket: BorrowedFd<'_>,
    ) -> Result<(), DispatchError> {
        let slot = class
            .slot(worker.into())
            .ok_or(DispatchError::Workers(worker))?;
        self.sockets
            .set(slot, &socket, 0)
            .map_err(|source| DispatchError::Socket {
                class,
                worker,
                source,
            })
    }

    /// Spreads connections over the workers 0 to `workers - 1`. To be called after they have registered.
    ///
    /// # Errors
    /// When it is 0 or more than the map has slots for.
    pub fn set_workers(&mut self, workers: u16) -> Result<(), DispatchError> {
        if workers == 0 || u32::from(workers) > MAX_WORKERS {
            return Err(DispatchError::Workers(workers));
        }
        let state = DispatchState {
            workers: workers.into(),
        };
        Ok(maps::write_one(&self.pins, names::DISPATCH_STATE, state)?)
    }

    /// The kernel's ID of the socket map: it changes when the pins were removed and made anew, and then the listeners
    /// must be registered again.
    #[must_use]
    pub const fn map_id(&self) -> u32 {
        self.id
    }
}
