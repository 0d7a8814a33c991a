//! The iptables-compat mode's control of pods: the nftables table `bridge agent_network`.

use crate::{
    error::NetError,
    load::DatapathConfig,
    maps::{CounterRow, PodEndpoint},
};

/// The table of a node.
#[derive(Clone, Debug)]
pub struct Compat(());

impl Compat {
    /// Makes the table what `config` says; the pods in it stay.
    ///
    /// # Errors
    /// `Refused` when the kernel says no; then nothing has changed.
    pub fn ensure(config: &DatapathConfig) -> Result<Self, NetError> {
        let _ = config;
        Err(unready())
    }

    /// Opens the table, and changes nothing.
    ///
    /// # Errors
    /// `Differs` when there is none, or another version's.
    pub fn open() -> Result<Self, NetError> {
        Err(unready())
    }

    /// Whether there is a table.
    ///
    /// # Errors
    /// `Refused` when the kernel cannot be asked.
    pub fn is_present() -> Result<bool, NetError> {
        Ok(false)
    }

    /// Removes the table; fine when there is none.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub fn remove() -> Result<(), NetError> {
        Ok(())
    }

    /// Holds an interface to a pod's addresses.
    ///
    /// # Errors
    /// `NoLink`, or `Refused` when the kernel says no.
    pub fn attach_pod(&self, _: &str, _: u32, _: &PodEndpoint) -> Result<(), NetError> {
        Err(unready())
    }

    /// Lets go of a pod, and folds its counters into the retired ones.
    ///
    /// # Errors
    /// `Refused` when the kernel says no.
    pub fn detach_pod(&self, _: &str) -> Result<(), NetError> {
        Err(unready())
    }

    /// Checks that the interface is held to the pod's addresses.
    ///
    /// # Errors
    /// `Differs` for the first thing that is not so.
    pub fn check_pod(&self, _: &str, _: u32, _: &PodEndpoint) -> Result<(), NetError> {
        Err(unready())
    }

    /// The pods in the table.
    ///
    /// # Errors
    /// `Refused` when the kernel cannot be asked.
    pub fn endpoints(&self) -> Result<Vec<(u32, PodEndpoint)>, NetError> {
        Err(unready())
    }

    /// The counters.
    ///
    /// # Errors
    /// `Refused` when the kernel cannot be asked.
    pub fn counters(&self) -> Result<Vec<CounterRow>, NetError> {
        Err(unready())
    }
}

fn unready() -> NetError {
    NetError::differs("table bridge agent_network", "unwritten", "written")
}
