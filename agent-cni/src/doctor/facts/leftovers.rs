//! What is ours and should not be there any more: of the other mode, of other versions, of a change that was cut short.

use std::path::{Path, PathBuf};

use agent_core::attachment::Mode;
use agent_datapath::footprint::{self, Places, Residue, Survey, Thing};

use super::{seen, state::State};
use crate::doctor::{check::Seen, options::Options};

/// See the module.
#[derive(Debug)]
pub(crate) struct Leftovers {
    /// What was found, and the command that removes it.
    pub(crate) found: Vec<(String, String)>,
    /// What could not be looked at, and why.
    pub(crate) unseen: Vec<String>,
}

impl Leftovers {
    /// Looks for it.
    pub(crate) async fn read(state: &State, options: &Options, pin_dir: &Path) -> Self {
        let places = Places {
            bin_dir: options.host_cni_bin.clone(),
            conf_dir: options.host_cni_conf.clone(),
            state_dir: options.state_dir.clone(),
            pin_base: pin_dir.to_owned(),
        };
        let mode = state.node.as_ref().map_or(Mode::Ebpf, |node| node.mode);
        let layouts = seen(footprint::foreign_layouts(pin_dir));
        judge(mode, footprint::survey(&places).await, layouts)
    }
}

fn judge(mode: Mode, survey: Survey, layouts: Seen<Vec<PathBuf>>) -> Leftovers {
    let mut unseen: Vec<String> = survey
        .unseen
        .into_iter()
        .map(|(thing, why)| format!("{}: {why}", thing.label()))
        .collect();
    let mut found: Vec<(String, String)> = survey
        .residues
        .into_iter()
        .filter(|residue| is_left_over(mode, residue))
        .map(|residue| (residue.what, residue.by_hand))
        .collect();
    match layouts {
        Ok(layouts) => found.extend(layouts.into_iter().map(|path| {
            let path = path.display();
            (
                format!("{path}, of another version"),
                format!("rm -r {path}"),
            )
        })),
        Err(why) => unseen.push(why),
    }
    Leftovers { found, unseen }
}

/// Whether a node in this mode that is right does not have it.
fn is_left_over(mode: Mode, residue: &Residue) -> bool {
    let what = &residue.what;
    match (residue.thing, mode) {
        (Thing::IptablesChains | Thing::Ipset, Mode::Ebpf)
        | (Thing::PolicyRoute, Mode::IptablesCompat) => true,
        // every mode has the table of the family ip, and iptables-compat the bridge's
        (Thing::NftTables, Mode::Ebpf) => !what.contains("ip agent_network"),
        (Thing::NftTables, Mode::IptablesCompat) => {
            !what.contains("ip agent_network") && !what.contains("bridge agent_network")
        }
        (Thing::Conf | Thing::Binary, _) => what.contains("staged"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_mode_and_a_cut_short_change_leave_is_left_over() {
        use Mode::{Ebpf, IptablesCompat};
        use Thing::{Binary, Bridge, Conf, Ipset, IptablesChains, NftTables, PolicyRoute, Sysctls};
        for (thing, what, ebpf, compat) in [
            (IptablesChains, "nat/AGENT-CNI-PREROUTING", true, false),
            (Ipset, "agent-cni-services", true, false),
            (PolicyRoute, "rule 100", false, true),
            (NftTables, "nftables table ip agent_network", false, false),
            (
                NftTables,
                "nftables table bridge agent_network",
                true,
                false,
            ),
            (NftTables, "nftables table inet agent_network", true, true),
            (Conf, "/etc/cni/net.d/00-agent-cni.conf", false, false),
            (Conf, "/etc/cni/net.d/00-agent-cni.conf.staged", true, true),
            (Binary, "/opt/cni/bin/.agent-cni.staged", true, true),
            (Bridge, "agentcni0", false, false),
            (Sysctls, "net/ipv4/ip_forward", false, false),
        ] {
            let residue = Residue {
                thing,
                what: what.into(),
                by_hand: String::new(),
            };
            assert_eq!(is_left_over(Ebpf, &residue), ebpf, "{what} in ebpf");
            assert_eq!(
                is_left_over(IptablesCompat, &residue),
                compat,
                "{what} in compat"
            );
        }
    }

    #[test]
    fn other_layouts_and_what_cannot_be_seen_are_told() {
        let survey = Survey {
            residues: vec![],
            unseen: vec![(Thing::Pins, "EPERM".into())],
        };
        let leftovers = judge(
            Mode::Ebpf,
            survey.clone(),
            Ok(vec!["/sys/fs/bpf/x/v0".into()]),
        );
        assert_eq!(leftovers.found[0].1, "rm -r /sys/fs/bpf/x/v0");
        assert_eq!(leftovers.unseen, ["pins: EPERM"]);
        assert_eq!(judge(Mode::Ebpf, survey, Err("no".into())).unseen.len(), 2);
    }
}
