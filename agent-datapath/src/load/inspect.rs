//! Looking at what is pinned, and comparing it with what [`Datapath::ensure`] makes. Changes nothing.

use agent_ebpf_common::{abi::Config, names};
use aya::maps::lpm_trie::LpmTrie;
use ipnet::Ipv4Net;

use super::{Datapath, DatapathConfig, DebugLog, LoadError, dispatch, wanted_build};
use crate::maps::{self, MapError};

impl Datapath {
    /// Whether the pinned programs are the ones that this build carries; with their debug log on or off.
    ///
    /// # Errors
    /// When the map can't be read.
    pub fn is_this_build(&self) -> Result<bool, MapError> {
        let found = maps::build(&self.pins)?;
        Ok([DebugLog::Off, DebugLog::Drops]
            .into_iter()
            .any(|log| wanted_build(log) == found))
    }

    /// Whether the pinned dispatch program serves the calling thread's network namespace.
    ///
    /// # Errors
    /// When the pinned link or program can't be opened.
    pub fn is_dispatching(&self) -> Result<bool, LoadError> {
        dispatch::is_attached(&self.pins)
    }

    /// What the programs were told about the node; prefixes in ascending order.
    ///
    /// # Errors
    /// When a map can't be read.
    pub fn settings(&self) -> Result<DatapathConfig, MapError> {
        let config: Config = maps::read_one(&self.pins, names::CONFIG)?;
        Ok(DatapathConfig {
            gateway: config.gateway_ip.into(),
            gateway_mac: config.gateway_mac,
            fake_cidrs: self.cidrs(names::FAKE_CIDRS)?,
            service_cidrs: self.cidrs(names::SERVICE_CIDRS)?,
            marks: super::Marks {
                proxy: config.proxy_mark,
                proxy_mask: config.proxy_mask,
                service: config.service_mark,
                service_mask: config.service_mask,
            },
            fail_open: config.flags & super::CONFIG_FAIL_OPEN != 0,
            events_per_second: config.events_per_second,
        })
    }

    fn cidrs(&self, name: &'static str) -> Result<Vec<Ipv4Net>, MapError> {
        let map: LpmTrie<_, agent_ebpf_common::abi::Ipv4Bytes, u32> = maps::open(&self.pins, name)?;
        let mut found = Vec::new();
        for key in map.keys() {
            let key = key.map_err(maps::failed("read", name))?;
            let length = u8::try_from(key.prefix_len()).unwrap_or(u8::MAX);
            found.extend(Ipv4Net::new(key.data().into(), length));
        }
        found.sort();
        Ok(found)
    }
}
