//! Loading the programs, and keeping what is pinned right.
//!
//! Owns the way from nothing, or from an older version, to pinned maps and programs and an attached dispatch program.
//! Attaching to pods is [`crate::attach`]'s.

use std::{fs, io, net::Ipv4Addr};

pub use agent_core::node::Marks;
use agent_ebpf_common::{
    abi::{Build, CONFIG_FAIL_OPEN, Config},
    names,
};
use aya::{
    Ebpf, EbpfLoader,
    programs::{ProgramError, SchedClassifier, SkLookup},
};
use ipnet::Ipv4Net;
use nix::sys::resource::{Resource, setrlimit};

use crate::{
    bpf::{self, LinkTarget, PinnedLink},
    filter,
    maps::{self, CounterRow, MapError, PodEndpoint},
    pins::Pins,
};

mod dispatch;
mod error;
mod inspect;
pub(crate) mod pinned;

pub use error::LoadError;
pub(crate) use error::errno;
use pinned::{
    check_shapes, detach_all, lock, missing_pin, pin_program, remove_dir, remove_file,
    require_bpffs,
};

/// What `cargo xtask build-ebpf` made.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/agent-ebpf"));
static OBJECT_SHA256: &[u8; 32] = include_bytes!(concat!(env!("OUT_DIR"), "/agent-ebpf.sha256"));

/// The global of aya-log that programs compare with a message's level.
const LOG_LEVEL: &str = "AYA_LOG_LEVEL";

/// What the programs are told about the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathConfig {
    /// Address of the bridge; a Fake IP.
    pub gateway: Ipv4Addr,
    /// MAC of the bridge.
    pub gateway_mac: [u8; 6],
    /// The node's Fake IP CIDRs.
    pub fake_cidrs: Vec<Ipv4Net>,
    /// The Service CIDRs that bypass the proxy; none sends Services through it.
    pub service_cidrs: Vec<Ipv4Net>,
    /// The marks, and the bits they own.
    pub marks: Marks,
    /// Whether connections look for a socket of the node's own while the proxy has no listener, instead of finding none.
    /// It opens the node's servers to pods, not the world: delivery is local either way.
    pub fail_open: bool,
    /// Most drop events sent per pod and second; 0 sends none.
    pub events_per_second: u32,
}

/// What the programs write to their debug log; see [`crate::debug_log`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DebugLog {
    /// Nothing; the kernel's verifier removes the code.
    #[default]
    Off = 0,
    /// Every dropped packet.
    Drops = 4,
}

/// The pinned data path of a node.
#[derive(Clone, Debug)]
pub struct Datapath {
    pub(crate) pins: Pins,
}

impl Datapath {
    /// Makes the data path of the calling thread's network namespace what `config` says: loads and pins what is
    /// missing, replaces the programs of another build, and changes settings and prefixes that differ.
    ///
    /// Does nothing when all of it is right already, and then takes no lock. Traffic of attached pods stays controlled
    /// throughout: maps are never emptied, and links change programs in one step.
    ///
    /// # Errors
    /// When the pins can't be written, hold another layout, or belong to another living network namespace; when the
    /// kernel refuses the programs.
    pub fn ensure(pins: &Pins, config: &DatapathConfig) -> Result<Self, LoadError> {
        Self::ensure_with(pins, config, DebugLog::Off)
    }

    /// As [`Self::ensure`], with the programs' debug log switched on or off.
    ///
    /// # Errors
    /// As [`Self::ensure`].
    pub fn ensure_with(
        pins: &Pins,
        config: &DatapathConfig,
        log: DebugLog,
    ) -> Result<Self, LoadError> {
        check_settings(config)?;
        let build = wanted_build(log);
        if is_current(pins, build) {
            write_settings(pins, config)?;
            return Ok(Self { pins: pins.clone() });
        }
        require_bpffs(pins.dir())?;
        for dir in [pins.dir(), &pins.programs(), &pins.links()] {
            fs::create_dir_all(dir).map_err(LoadError::pin("create", dir))?;
        }
        let _lock = lock(pins)?;
        check_shapes(pins)?;
        if missing_pin(pins).is_some() || maps::build(pins)? != build {
            load(pins, config, log).map_err(|error| error.explained("load the eBPF programs"))?;
        } else {
            write_settings(pins, config)?;
        }
        dispatch::ensure(pins).map_err(|error| error.explained("attach the dispatch program"))?;
        maps::write_one(pins, names::BUILD, build)?;
        Ok(Self { pins: pins.clone() })
    }

    /// Opens what is pinned, and changes nothing.
    ///
    /// # Errors
    /// When something is not pinned, or of another layout.
    pub fn open(pins: &Pins) -> Result<Self, LoadError> {
        if let Some(missing) = missing_pin(pins) {
            return Err(LoadError::NotLoaded(missing));
        }
        check_shapes(pins)?;
        Ok(Self { pins: pins.clone() })
    }

    /// Removes every pin of this layout; pods that are still attached lose their programs with it. Fine when there is
    /// nothing.
    ///
    /// # Errors
    /// When a pin can't be removed.
    pub fn remove(pins: &Pins) -> Result<(), LoadError> {
        detach_all(&pins.links());
        for dir in [&pins.links(), &pins.programs(), pins.dir()] {
            remove_dir(dir).map_err(LoadError::pin("remove", dir))?;
        }
        Ok(())
    }

    /// The pods that have an entry, by the index of their host interface.
    ///
    /// # Errors
    /// When the map can't be read.
    pub fn endpoints(&self) -> Result<Vec<(u32, PodEndpoint)>, MapError> {
        maps::endpoints(&self.pins)
    }

    /// The counters. Sums over all rows never go back, also when pods go.
    ///
    /// # Errors
    /// When the map can't be read.
    pub fn counters(&self) -> Result<Vec<CounterRow>, MapError> {
        maps::counters(&self.pins)
    }
}

fn check_settings(config: &DatapathConfig) -> Result<(), LoadError> {
    let m = &config.marks;
    let problem = if !config
        .fake_cidrs
        .iter()
        .any(|cidr| cidr.contains(&config.gateway))
    {
        "the gateway is in none of the Fake IP CIDRs"
    } else if m.proxy == 0 || m.service == 0 {
        "a mark is 0"
    } else if m.proxy & !m.proxy_mask != 0 || m.service & !m.service_mask != 0 {
        "a mark has bits that its mask has not"
    } else if m.proxy_mask & m.service_mask != 0 {
        "the masks of the two marks overlap"
    } else {
        return Ok(());
    };
    Err(LoadError::Settings(problem))
}

/// Identifies the object together with the settings that are compiled into it.
fn wanted_build(log: DebugLog) -> Build {
    let mut sha256 = *OBJECT_SHA256;
    sha256[31] ^= log as u8;
    Build { sha256 }
}

/// Whether the programs are this build's, and dispatch is attached to this network namespace.
fn is_current(pins: &Pins, build: Build) -> bool {
    missing_pin(pins).is_none()
        && check_shapes(pins).is_ok()
        && maps::build(pins).is_ok_and(|found| found == build)
        && dispatch::is_attached(pins).unwrap_or(false)
}

fn write_settings(pins: &Pins, config: &DatapathConfig) -> Result<(), MapError> {
    maps::write_cidrs(pins, names::SERVICE_CIDRS, &config.service_cidrs)?;
    maps::write_cidrs(pins, names::FAKE_CIDRS, &config.fake_cidrs)?;
    maps::write_config(
        pins,
        Config {
            gateway_ip: config.gateway.octets(),
            gateway_mac: config.gateway_mac,
            flags: if config.fail_open {
                CONFIG_FAIL_OPEN
            } else {
                0
            },
            proxy_mark: config.marks.proxy,
            proxy_mask: config.marks.proxy_mask,
            service_mark: config.marks.service,
            service_mask: config.marks.service_mask,
            events_per_second: config.events_per_second,
        },
    )
}

/// Loads both programs on the pinned maps (pinning those that are missing), and puts them in the place of what was
/// pinned and attached before.
fn load(pins: &Pins, config: &DatapathConfig, log: DebugLog) -> Result<(), LoadError> {
    // before 5.11 maps count against the limit; where it may not be raised, the load itself tells
    let _ = setrlimit(
        Resource::RLIMIT_MEMLOCK,
        libc::RLIM_INFINITY,
        libc::RLIM_INFINITY,
    );
    bpf::is_allowed().map_err(LoadError::Call)?;
    let mut object = EbpfLoader::new()
        .default_map_pin_directory(pins.dir())
        .override_global(LOG_LEVEL, &(log as u8), true)
        .load(OBJECT)
        .map_err(|error| LoadError::Object(Box::new(error)))?;
    write_settings(pins, config)?;

    let dispatch: &mut SkLookup = program(&mut object, names::DISPATCH)?;
    dispatch
        .load()
        .map_err(LoadError::program("load", names::DISPATCH))?;
    pin_program(pins, names::DISPATCH, |path| {
        dispatch.pin(path).map_err(io::Error::other)
    })?;

    let pod_ingress: &mut SchedClassifier = program(&mut object, names::POD_INGRESS)?;
    pod_ingress
        .load()
        .map_err(LoadError::program("load", names::POD_INGRESS))?;
    pin_program(pins, names::POD_INGRESS, |path| {
        pod_ingress.pin(path).map_err(io::Error::other)
    })?;
    replace_on_pods(pins, pod_ingress)
}

fn program<'a, P>(object: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, LoadError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    object
        .program_mut(name)
        .ok_or(ProgramError::NotLoaded)
        .and_then(<&mut P>::try_from)
        .map_err(LoadError::program("find", name))
}

/// Puts the classifier in the place of the older one on every pod.
fn replace_on_pods(pins: &Pins, classifier: &mut SchedClassifier) -> Result<(), LoadError> {
    let failed = LoadError::program("replace", names::POD_INGRESS);
    let dir = pins.links();
    for entry in fs::read_dir(&dir).map_err(LoadError::pin("read", &dir))? {
        let path = entry.map_err(LoadError::pin("read", &dir))?.path();
        if path == pins.dispatch_link() {
            continue;
        }
        let Some(link) = PinnedLink::open(&path).map_err(LoadError::pin("open", &path))? else {
            continue;
        };
        match link.target {
            // its interface is gone, and took the link along
            LinkTarget::Interface(0) => {
                remove_file(&path).map_err(LoadError::pin("remove", &path))?;
            }
            LinkTarget::Interface(_) => {
                let program = classifier.fd().map_err(failed)?;
                link.update(program)
                    .map_err(LoadError::pin("update", &path))?;
            }
            LinkTarget::Netns(_) | LinkTarget::Other => {}
        }
    }
    for (ifindex, _) in maps::endpoints(pins)? {
        let name = nix::net::if_::if_indextoname(ifindex);
        let Some(name) = name.ok().and_then(|name| name.into_string().ok()) else {
            continue;
        };
        if filter::attached(ifindex)
            .map_err(ProgramError::IOError)
            .map_err(failed)?
            .is_some()
        {
            filter::replace(classifier, &name).map_err(failed)?;
        }
    }
    Ok(())
}
