//! A node for tests.

use std::path::PathBuf;

use agent_core::attachment::Mode;

use crate::{
    bridge::Bridge,
    network::{MaskedMark, NodeNetwork, ProxyPorts},
};

pub(crate) fn node() -> NodeNetwork {
    NodeNetwork {
        mode: Mode::Ebpf,
        leaving_other: false,
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        ports: ProxyPorts::default(),
        bridge: Bridge {
            name: "agentcni0".into(),
            mac: [2, 0xa9, 169, 254, 9, 1],
            address: "169.254.9.1/24".parse().unwrap(),
        },
        proxy: MaskedMark {
            value: 0x0a00_0000,
            mask: 0x0f00_0000,
        },
        service: MaskedMark {
            value: 0x77,
            mask: 0xff,
        },
        route_table: 18080,
        rule_pref: 100,
        without_proxy: crate::network::WithoutProxy::Dropped,
        sensitive: Vec::new(),
        sysctl_record: PathBuf::new(),
    }
}
