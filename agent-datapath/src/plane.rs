//! What is done for pods, the same in both modes.
//!
//! A node's data path is either the eBPF programs ([`Datapath`]) or the nftables table of the iptables-compat mode
//! ([`Compat`]). Callers that attach, detach and check pods need not know which.

use agent_core::attachment::Mode;

use crate::{
    attach::{AttachError, CheckError},
    compat::{Compat, HostPod},
    error::NetError,
    load::{Datapath, DatapathConfig, LoadError},
    maps::{CounterRow, MapError, PodEndpoint},
    pins::Pins,
};

/// The part of a node that controls its pods' packets.
#[derive(Clone, Debug)]
pub enum Plane {
    /// Programs on the pods' interfaces.
    Ebpf(Datapath),
    /// An nftables chain for each pod.
    Compat(Compat),
}

/// Something about a data path did not work.
#[derive(Debug, thiserror::Error)]
pub enum PlaneError {
    /// Programs could not be loaded, opened or removed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A pod could not be attached or detached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A pod's program is not as it should be.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// A map could not be used.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The nftables table could not be used, or is not as it should be.
    #[error(transparent)]
    Net(#[from] NetError),
}

impl PlaneError {
    /// A fixed label for logs and metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Load(error) => error.reason(),
            Self::Attach(error) => error.reason(),
            Self::Check(error) => error.reason(),
            Self::Map(error) => error.reason(),
            Self::Net(error) => error.reason(),
        }
    }
}

impl Plane {
    /// Makes the data path of the calling thread's network namespace what `config` says, in this mode. The other mode's
    /// is left alone. Does nothing when all of it is right already; attached pods stay controlled throughout.
    ///
    /// # Errors
    /// When the kernel refuses, or what is there belongs to another node.
    pub fn ensure(mode: Mode, pins: &Pins, config: &DatapathConfig) -> Result<Self, PlaneError> {
        Ok(match mode {
            Mode::Ebpf => Self::Ebpf(Datapath::ensure(pins, config)?),
            Mode::IptablesCompat => Self::Compat(Compat::ensure(config)?),
        })
    }

    /// As [`Self::ensure`], with these pods attached, in this mode, from the first packet on: what takes a node's pods
    /// over from the other mode.
    ///
    /// # Errors
    /// As [`Self::ensure`], and when a pod cannot be attached. A pod whose interface is gone is passed over.
    pub fn take_over(
        mode: Mode,
        pins: &Pins,
        config: &DatapathConfig,
        pods: &[HostPod],
    ) -> Result<Self, PlaneError> {
        let is_there =
            |pod: &&HostPod| nix::net::if_::if_nametoindex(pod.ifname.as_str()) == Ok(pod.ifindex);
        let plane = match mode {
            Mode::Ebpf => Self::ensure(mode, pins, config)?,
            Mode::IptablesCompat => {
                let there: Vec<HostPod> = pods.iter().filter(is_there).cloned().collect();
                Self::Compat(Compat::ensure_with(config, &there)?)
            }
        };
        // those of the iptables-compat mode are there by now, unless one has just come
        for pod in pods.iter().filter(is_there) {
            match plane.attach_pod(&pod.ifname, pod.ifindex, &pod.endpoint) {
                // it went meanwhile
                Err(_) if !is_there(&pod) => {}
                other => other?,
            }
        }
        Ok(plane)
    }

    /// Opens what is there, and changes nothing.
    ///
    /// # Errors
    /// When something is missing, or of another layout.
    pub fn open(mode: Mode, pins: &Pins) -> Result<Self, PlaneError> {
        Ok(match mode {
            Mode::Ebpf => Self::Ebpf(Datapath::open(pins)?),
            Mode::IptablesCompat => Self::Compat(Compat::open()?),
        })
    }

    /// As [`Self::open`], and compares what all pods share with what `config` says.
    ///
    /// # Errors
    /// As [`Self::open`], and for the first difference.
    pub fn check(mode: Mode, pins: &Pins, config: &DatapathConfig) -> Result<Self, PlaneError> {
        let plane = Self::open(mode, pins)?;
        if matches!(plane, Self::Compat(_)) {
            Compat::check(config)?;
        }
        Ok(plane)
    }

    /// Whether anything of this mode is there, whole or not.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn is_present(mode: Mode, pins: &Pins) -> Result<bool, PlaneError> {
        Ok(match mode {
            Mode::Ebpf => pins.dir().exists(),
            Mode::IptablesCompat => Compat::is_present()?,
        })
    }

    /// Removes everything of this mode; pods that are still attached are no longer controlled by it. Fine when there is
    /// nothing.
    ///
    /// # Errors
    /// When something is there and can't be removed.
    pub fn remove(mode: Mode, pins: &Pins) -> Result<(), PlaneError> {
        match mode {
            Mode::Ebpf => Datapath::remove(pins)?,
            Mode::IptablesCompat => Compat::remove()?,
        }
        Ok(())
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self {
            Self::Ebpf(_) => Mode::Ebpf,
            Self::Compat(_) => Mode::IptablesCompat,
        }
    }

    /// Holds an interface of this network namespace to a pod's addresses. Idempotent.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses; the interface may then be half attached.
    pub fn attach_pod(
        &self,
        ifname: &str,
        ifindex: u32,
        pod: &PodEndpoint,
    ) -> Result<(), PlaneError> {
        match self {
            Self::Ebpf(datapath) => {
                let kind = datapath.attach_pod(ifname, ifindex, pod)?;
                tracing::debug!(?kind, ifname, "program attached");
            }
            Self::Compat(compat) => compat.attach_pod(ifname, ifindex, pod)?,
        }
        Ok(())
    }

    /// As [`Self::attach_pod`], of several, in one step where the mode has one.
    ///
    /// # Errors
    /// As [`Self::attach_pod`], of any of them.
    pub fn attach_pods(&self, pods: &[HostPod]) -> Result<(), PlaneError> {
        match self {
            Self::Ebpf(_) => pods
                .iter()
                .try_for_each(|pod| self.attach_pod(&pod.ifname, pod.ifindex, &pod.endpoint)),
            Self::Compat(compat) => Ok(compat.attach_pods(pods)?),
        }
    }

    /// Lets go of a pod and folds its counters into the node's. Fine when there is nothing of it, or its interface is
    /// gone. Delete the interface, or set it down, first.
    ///
    /// # Errors
    /// When something is there and can't be removed.
    pub fn detach_pod(&self, ifindex: u32, ifname: &str) -> Result<(), PlaneError> {
        match self {
            Self::Ebpf(datapath) => datapath.detach_pod(ifindex, ifname)?,
            Self::Compat(compat) => compat.detach_pod(ifname)?,
        }
        Ok(())
    }

    /// Checks that the interface is held to the pod's addresses.
    ///
    /// # Errors
    /// The first thing that is not so.
    pub fn check_pod(
        &self,
        ifname: &str,
        ifindex: u32,
        pod: &PodEndpoint,
    ) -> Result<(), PlaneError> {
        match self {
            Self::Ebpf(datapath) => datapath.check_pod(ifname, ifindex, pod)?,
            Self::Compat(compat) => compat.check_pod(ifname, ifindex, pod)?,
        }
        Ok(())
    }

    /// The pods that are attached, by the index of their host interface.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn endpoints(&self) -> Result<Vec<(u32, PodEndpoint)>, PlaneError> {
        Ok(match self {
            Self::Ebpf(datapath) => datapath.endpoints()?,
            Self::Compat(compat) => compat.endpoints()?,
        })
    }

    /// The counters. Sums over all rows never go back, also when pods go.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn counters(&self) -> Result<Vec<CounterRow>, PlaneError> {
        Ok(match self {
            Self::Ebpf(datapath) => datapath.counters()?,
            Self::Compat(compat) => compat.counters()?,
        })
    }
}
