//! The result of ADD in the shape of each version of the specification.

use std::net::Ipv4Addr;

use agent_core::mac::MacAddr;
use serde_json::{Map, Value, json};

use crate::version::SpecVersion;

/// What an ADD made, independent of the version it is told in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Added {
    /// The bridge's name.
    pub(crate) bridge: String,
    /// The bridge's MAC.
    pub(crate) bridge_mac: MacAddr,
    /// The host's end of the veth.
    pub(crate) host_veth: String,
    /// The pod's interface.
    pub(crate) ifname: String,
    /// Its MAC.
    pub(crate) mac: MacAddr,
    /// Bytes of IP a frame may carry.
    pub(crate) mtu: u32,
    /// The pod's network namespace.
    pub(crate) sandbox: String,
    /// The pod's address.
    pub(crate) address: Ipv4Addr,
    /// Its gateway.
    pub(crate) gateway: Ipv4Addr,
}

/// Where the pod's interface is in the list of interfaces.
const POD_INTERFACE: usize = 2;
/// `RT_SCOPE_LINK`.
const SCOPE_LINK: u8 = 253;

impl Added {
    /// The JSON object for stdout. DNS is empty: kubelet writes the pod's resolv.conf.
    pub(crate) fn to_json(&self, version: SpecVersion) -> String {
        let mtu = (version >= SpecVersion::V1_1_0).then_some(self.mtu);
        let mut pod = interface(&self.ifname, self.mac, mtu);
        pod.insert("sandbox".into(), json!(self.sandbox));
        let interfaces = [
            interface(&self.bridge, self.bridge_mac, None),
            // the kernel's random MAC of the host's end means nothing to anybody
            Map::from_iter([("name".to_owned(), json!(self.host_veth))]),
            pod,
        ];
        let mut address = Map::from_iter([
            ("address".to_owned(), json!(format!("{}/32", self.address))),
            ("gateway".to_owned(), json!(self.gateway)),
            ("interface".to_owned(), json!(POD_INTERFACE)),
        ]);
        // told by the address itself since 1.0.0
        if version < SpecVersion::V1_0_0 {
            address.insert("version".into(), json!("4"));
        }
        let mut to_gateway =
            Map::from_iter([("dst".to_owned(), json!(format!("{}/32", self.gateway)))]);
        if version >= SpecVersion::V1_1_0 {
            to_gateway.insert("scope".into(), json!(SCOPE_LINK));
        }
        let default = json!({"dst": "0.0.0.0/0", "gw": self.gateway});
        let result = json!({
            "cniVersion": version.as_str(),
            "interfaces": interfaces,
            "ips": [address],
            "routes": [Value::Object(to_gateway), default],
            "dns": {},
        });
        format!("{result:#}")
    }
}

fn interface(name: &str, mac: MacAddr, mtu: Option<u32>) -> Map<String, Value> {
    let mut interface = Map::from_iter([
        ("name".to_owned(), json!(name)),
        ("mac".to_owned(), json!(mac)),
    ]);
    if let Some(mtu) = mtu {
        interface.insert("mtu".into(), json!(mtu));
    }
    interface
}

/// The answer to VERSION.
pub(crate) fn versions(asked: &str) -> String {
    let supported = crate::version::SUPPORTED.map(SpecVersion::as_str);
    format!(
        "{:#}",
        json!({"cniVersion": asked, "supportedVersions": supported})
    )
}

/// The addresses in an earlier result, of any version since 0.3.1. A result that cannot be read has none.
pub(crate) fn addresses_in(result: &Value) -> Vec<String> {
    let ips = result
        .get("ips")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    ips.iter()
        .filter_map(|ip| ip.get("address")?.as_str())
        .map(|address| address.split('/').next().unwrap_or(address).to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(version: SpecVersion) -> Value {
        let added = Added {
            bridge: "agentcni0".into(),
            bridge_mac: MacAddr([2, 0xa9, 169, 254, 9, 1]),
            host_veth: "agt0123456789ab".into(),
            ifname: "eth0".into(),
            mac: MacAddr([0x0a, 0x58, 169, 254, 9, 2]),
            mtu: 1500,
            sandbox: "/run/netns/p".into(),
            address: Ipv4Addr::new(169, 254, 9, 2),
            gateway: Ipv4Addr::new(169, 254, 9, 1),
        };
        serde_json::from_str(&added.to_json(version)).unwrap()
    }

    #[test]
    fn each_version_has_its_shape() {
        for version in crate::version::SUPPORTED {
            let result = result(version);
            assert_eq!(result["cniVersion"], version.as_str());
            assert_eq!(result["interfaces"][2]["sandbox"], "/run/netns/p");
            assert_eq!(result["ips"][0]["interface"], 2);
            assert_eq!(result["ips"][0]["address"], "169.254.9.2/32");
            assert_eq!(
                result["routes"][1],
                json!({"dst": "0.0.0.0/0", "gw": "169.254.9.1"})
            );
            assert_eq!(result["dns"], json!({}));
            let old = version < SpecVersion::V1_0_0;
            assert_eq!(
                result["ips"][0]["version"],
                if old { json!("4") } else { Value::Null }
            );
            let new = version >= SpecVersion::V1_1_0;
            assert_eq!(
                result["interfaces"][2]["mtu"],
                if new { json!(1500) } else { Value::Null }
            );
            assert_eq!(
                result["routes"][0]["scope"],
                if new { json!(253) } else { Value::Null }
            );
        }
    }

    #[test]
    fn addresses_of_an_earlier_result_come_without_their_length() {
        assert_eq!(addresses_in(&result(SpecVersion::V0_4_0)), ["169.254.9.2"]);
        for garbage in [
            json!(null),
            json!([]),
            json!({"ips": 1}),
            json!({"ips": [{"address": 1}]}),
        ] {
            assert!(addresses_in(&garbage).is_empty());
        }
    }
}
