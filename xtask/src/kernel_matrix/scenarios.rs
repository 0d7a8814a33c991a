//! What is run on each kernel: test programs of this workspace, whole or by the names of their tests.

use Mode::{Auto, Compat, Every};

/// The mode that a scenario runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The one that the node chooses on that kernel.
    Auto,
    /// iptables-compat, on every kernel.
    Compat,
    /// None in particular: the program has tests of both.
    Every,
}

impl Mode {
    /// For the table, and for the node tests' environment.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Auto => "auto",
            Compat => "iptables-compat",
            Every => "every",
        }
    }
}

/// What the short form has of a scenario.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fast {
    Nothing,
    All,
    Only(&'static [&'static str]),
}

impl Scenario {
    /// As the short form runs it, if it does.
    pub(super) fn shortened(self) -> Option<Self> {
        match self.fast {
            Fast::Nothing => None,
            Fast::All => Some(self),
            Fast::Only(tests) => Some(Self { tests, ..self }),
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) mode: Mode,
    pub(super) name: String,
    /// Package and target of the test program.
    pub(super) program: (&'static str, &'static str),
    /// Which tests; all that aren't ignored when there are none. Those that are named run also when they are ignored:
    /// they are meant for a machine like this.
    pub(super) tests: &'static [&'static str],
    /// What the short form has of it.
    pub(super) fast: Fast,
    /// Seconds after which it is ended, on an emulated machine that is busy.
    pub(super) limit: u32,
}

/// Programs, maps, hooks and rules by themselves: package, target, what the short form has.
const DATA_PATH: &[(&str, &str, Fast)] = &[
    (
        "agent-datapath",
        "probe",
        Fast::Only(&["everything_works_here_and_nothing_is_left"]),
    ),
    ("agent-datapath", "refused", Fast::All),
    (
        "agent-datapath",
        "programs",
        Fast::Only(&[
            "every_verdict_has_its_action_mark_and_counter",
            "nothing_passes_on_an_interface_without_endpoint",
            "programs_are_shorter_than_a_thousand_instructions",
        ]),
    ),
    (
        "agent-datapath",
        "loading",
        Fast::Only(&[
            "another_build_is_replaced_while_pods_and_dispatch_stay_attached",
            "attach_is_idempotent_and_survives_the_process_that_did_it",
        ]),
    ),
    (
        "agent-datapath",
        "delivery",
        Fast::Only(&[
            "tcp_to_an_unrouted_address_reaches_the_listener_with_that_address",
            "dns_over_udp_and_tcp_has_listeners_of_its_own",
            "without_a_listener_nothing_connects_and_a_closed_listener_leaves_the_map",
            "drops_are_told_at_a_limited_rate",
        ]),
    ),
    ("agent-datapath", "compat", Fast::Nothing),
    ("agent-datapath", "iptables", Fast::Nothing),
    ("agent-datapath", "node_network", Fast::Nothing),
    ("agent-datapath", "bridge_filter", Fast::Nothing),
    ("agent-datapath", "agent_datapath", Fast::Nothing),
];

/// Nodes with real clients and servers, in each mode: name, target, tests, what the short form has.
const NODES: &[(&str, &str, &[&str], Fast)] = &[
    (
        "egress",
        "egress",
        &[
            "a_refusal_says_in_words_what_was_refused_by_which_rule",
            "tls_goes_by_the_verified_name_alone",
            "a_server_that_speaks_first_works_by_a_rule_for_its_address_and_port",
        ],
        Fast::Nothing,
    ),
    (
        "dns",
        "dns",
        &[
            "any_server_that_a_pod_asks_answers_from_its_own_address",
            "a_large_answer_is_truncated_and_whole_over_tcp_and_edns",
            "a_name_that_no_rule_has_is_refused_here_and_asked_nowhere",
        ],
        Fast::Nothing,
    ),
    (
        "service",
        "service",
        &[
            "a_service_is_reached_with_the_mark_and_from_the_nodes_address",
            "a_udp_service_works_and_its_reply_comes_from_the_service",
            "a_service_address_that_kube_proxy_does_not_serve_is_no_way_out",
            "the_clusters_dns_service_is_answered_by_the_proxy_and_never_reached",
            "the_node_reaches_a_pod_for_probes_and_the_pod_does_not_reach_the_node",
            "the_node_reaches_a_pod_through_a_service_and_hears_its_answer",
        ],
        Fast::Nothing,
    ),
    (
        "leaks",
        "leaks",
        &["nothing_gets_out_around_a_running_proxy_and_each_kind_is_counted"],
        Fast::All,
    ),
    (
        "leaks without a proxy",
        "leaks",
        &["nothing_gets_out_without_a_proxy"],
        Fast::Nothing,
    ),
    (
        "leaks without locks",
        "leaks",
        &["nothing_gets_out_when_all_that_controls_pods_is_removed_at_once"],
        Fast::Nothing,
    ),
    (
        "ipvs",
        "ipvs",
        &[
            "services_by_ipvs_are_reached_from_the_nodes_address_and_answer",
            "a_service_by_ipvs_is_no_way_out_to_the_node_to_a_pod_or_to_a_sensitive_range",
            "what_is_for_the_proxy_gets_there_and_nowhere_else_though_ipvs_serves_its_address",
        ],
        Fast::Only(&[
            "what_is_for_the_proxy_gets_there_and_nowhere_else_though_ipvs_serves_its_address",
        ]),
    ),
    (
        "restart",
        "restart",
        &[
            "pods_work_again_after_the_proxy_was_killed_and_started_anew",
            "a_new_proxy_takes_over_without_a_refused_connection",
        ],
        Fast::Nothing,
    ),
];

/// The whole list, in the order of running.
pub(super) fn all() -> Vec<Scenario> {
    let data_path = DATA_PATH.iter().map(|(package, target, fast)| Scenario {
        mode: Every,
        name: (*target).to_owned(),
        program: (package, target),
        tests: &[],
        fast: *fast,
        limit: 900,
    });
    let nodes = [Auto, Compat].into_iter().flat_map(|mode| {
        NODES
            .iter()
            .map(move |(name, target, tests, fast)| Scenario {
                mode,
                name: (*name).to_owned(),
                program: ("e2e", target),
                tests,
                fast: *fast,
                limit: 1_200,
            })
    });
    data_path.chain(nodes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_scenario_runs_in_both_modes_and_the_short_form_has_some_of_each() {
        let all = all();
        let names = |mode| -> Vec<&str> {
            let of_mode = all.iter().filter(|scenario| scenario.mode == mode);
            of_mode.map(|scenario| scenario.name.as_str()).collect()
        };
        assert_eq!(names(Auto), names(Compat));
        for mode in [Auto, Compat, Every] {
            let mut short = all.iter().cloned().filter_map(Scenario::shortened);
            assert!(short.any(|scenario| scenario.mode == mode), "{mode:?}");
        }
    }

    #[test]
    fn every_test_program_of_the_data_path_is_run() {
        let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent-datapath/tests");
        let mut there: Vec<String> = std::fs::read_dir(tests)
            .unwrap()
            .filter_map(|entry| {
                let path = entry.unwrap().path();
                let is_program = path.is_file() || path.join("main.rs").is_file();
                let name = path.file_stem().unwrap().to_str().unwrap();
                is_program.then(|| name.to_owned())
            })
            .chain(["agent_datapath".to_owned()])
            .collect();
        let mut run: Vec<String> = all()
            .into_iter()
            .filter(|scenario| scenario.program.0 == "agent-datapath")
            .map(|scenario| scenario.program.1.to_owned())
            .collect();
        there.sort();
        run.sort();
        assert_eq!(run, there);
    }

    #[test]
    fn named_tests_exist() {
        for scenario in all()
            .into_iter()
            .chain(all().into_iter().filter_map(Scenario::shortened))
        {
            let (package, target) = scenario.program;
            let path = format!(
                "{}/../{package}/tests/{target}.rs",
                env!("CARGO_MANIFEST_DIR")
            );
            for test in scenario.tests {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(
                    text.contains(&format!("fn {test}()")),
                    "{path} has no {test}"
                );
            }
        }
    }
}
