//! `agent-cni setup`: make the node ready from the configuration file, before the first pod, and with the pods that are
//! attached: what taking the bridge down or flushing tables took from them is restored.

use std::path::Path;

use agent_datapath::rtnl::Rtnl;
use anyhow::{Context, anyhow};
use serde_json::Value;

use crate::{
    claim, error::CniError, file, install::pods, mode::Care, netconf, node, state::StateDir,
};

/// Makes the node ready and says what it is.
///
/// # Errors
/// The file cannot be used, or the node cannot be made ready.
pub(crate) fn run(config: &Path) -> anyhow::Result<String> {
    let bytes = file::read(config).with_context(|| format!("cannot read {}", config.display()))?;
    let bytes = plugin_of(&bytes).with_context(|| format!("cannot use {}", config.display()))?;
    let conf =
        netconf::parse(&bytes).with_context(|| format!("cannot use {}", config.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    claim::refuse_if_rolled_back(&conf.state_dir)?;
    let dir = StateDir::open(&conf.state_dir)?;
    let (node, pods) = runtime
        .block_on(async {
            let node = node::ensure(&conf, &dir, Care::Probe).await?;
            let pods = pods::mend(&node, &dir, &Rtnl::connect()?).await?;
            match pods.error {
                Some(error) => Err(error),
                None => Ok((node, pods)),
            }
        })
        .map_err(|error: CniError| match error.details.is_empty() {
            true => anyhow!("{error}"),
            false => anyhow!("{error}: {}", error.details),
        })?;
    let mended = pods
        .found
        .iter()
        .map(|found| format!("\nmended: {}", found.what))
        .chain(pods.notes.iter().map(|note| format!("\nnote: {note}")))
        .collect::<String>();
    let reason = node.reason.as_ref().map(ToString::to_string);
    Ok(format!(
        "node is ready: Fake IP CIDR {}, gateway {} ({}) on {}, {} service CIDRs\nmode:  {}: {}\nstate: {}\npins:  {}{mended}",
        node.state.fake_ip_cidr,
        node.state.gateway,
        node.state.gateway_mac,
        node.state.bridge,
        node.state.service_cidrs.len(),
        node.state.mode.as_str(),
        reason.as_deref().unwrap_or("settled before"),
        dir.path().display(),
        conf.pin_dir.display()
    ))
}

/// The plugin's own configuration: the file itself, or its entry in a list, which lends it name and version.
pub(crate) fn plugin_of(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let value: Value = serde_json::from_slice(bytes).context("it is not JSON")?;
    let Some(plugins) = value.get("plugins").and_then(Value::as_array) else {
        return Ok(bytes.to_vec());
    };
    let mut plugin = plugins
        .iter()
        .find(|plugin| plugin.get("type").and_then(Value::as_str) == Some("agent-cni"))
        .cloned()
        .ok_or_else(|| anyhow!("its list of plugins has none of type agent-cni"))?;
    if let Some(object) = plugin.as_object_mut() {
        for key in ["cniVersion", "name"] {
            if let Some(inherited) = value.get(key) {
                object.insert(key.into(), inherited.clone());
            }
        }
    }
    Ok(serde_json::to_vec(&plugin)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_lends_name_and_version_to_its_plugin() {
        let list = br#"{"cniVersion": "1.0.0", "name": "agents", "plugins": [
            {"type": "other"}, {"type": "agent-cni", "mtu": 1400}]}"#;
        let conf = netconf::parse(&plugin_of(list).unwrap()).unwrap();
        assert_eq!((conf.name.as_str(), conf.mtu), ("agents", Some(1400)));
    }

    #[test]
    fn a_list_without_us_says_so() {
        let error = plugin_of(br#"{"plugins": [{"type": "bridge"}]}"#).unwrap_err();
        assert!(error.to_string().contains("none of type agent-cni"));
    }
}
