//! The rtnetlink connection that the link, address, route and rule modules share, and what its errors mean.

use std::io;

use rtnetlink::Handle;
use tokio::task::JoinHandle;

use crate::error::NetError;

/// A connection to the network namespace of the thread that made it. It ends when this is dropped.
#[derive(Debug)]
pub struct Rtnl {
    handle: Handle,
    driver: JoinHandle<()>,
}

impl Rtnl {
    /// Connects. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// `Refused` when no socket can be had.
    pub fn connect() -> Result<Self, NetError> {
        let (connection, handle, _) = rtnetlink::new_connection()
            .map_err(|source| NetError::refused("open a netlink socket", source))?;
        Ok(Self {
            handle,
            driver: tokio::spawn(connection),
        })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Rtnl {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Names the action that an rtnetlink error belongs to.
pub(crate) trait Doing<T> {
    /// `action` is an infinitive: `add address 192.0.2.1/24`.
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, NetError>;
    /// As `doing`, where the given error number means that there was nothing to do.
    fn doing_unless(
        self,
        errno: i32,
        action: impl FnOnce() -> String,
    ) -> Result<Option<T>, NetError>;
}

impl<T> Doing<T> for Result<T, rtnetlink::Error> {
    fn doing(self, action: impl FnOnce() -> String) -> Result<T, NetError> {
        self.map_err(|error| match error {
            rtnetlink::Error::NetlinkError(message) => NetError::refused(action(), message.to_io()),
            rtnetlink::Error::RequestFailed => NetError::refused(
                action(),
                io::Error::other("the netlink connection is closed"),
            ),
            other => NetError::Protocol {
                action: action(),
                detail: other.to_string(),
            },
        })
    }

    fn doing_unless(
        self,
        errno: i32,
        action: impl FnOnce() -> String,
    ) -> Result<Option<T>, NetError> {
        match self {
            Err(rtnetlink::Error::NetlinkError(message)) if message.raw_code() == -errno => {
                Ok(None)
            }
            other => other.doing(action).map(Some),
        }
    }
}
