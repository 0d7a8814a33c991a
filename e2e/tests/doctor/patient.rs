//! The node that is broken and mended, and what the doctor says of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use e2e::cni::{PLUGIN, STATE_DIR};
use e2e::machine::program;
use e2e::place::Finished;
use e2e::{Node, PodSpec};
use serde_json::Value;

use crate::case::{Case, mode};
use crate::support::node;

/// A node with its proxy, and a pod that may be taken apart.
pub(crate) struct Patient {
    node: Node,
    victim: PodSpec,
}

impl Patient {
    pub(crate) fn new(name: &str) -> Option<Self> {
        let mut node = node(name)?;
        let victim = PodSpec::named("victim");
        node.introduce(&victim).unwrap();
        node.world().namespace(&victim.netns_name()).unwrap();
        node.plugin.add(&victim).unwrap();
        Some(Self { node, victim })
    }

    /// Runs the doctor; answers its exit code, its findings by check, and its last line.
    pub(crate) fn doctor(&self, under: &str) -> (i32, BTreeMap<String, Value>, String) {
        let agent_cni = program("agent-cni").unwrap();
        let line = format!(
            "{} {} doctor --output json",
            self.fill(under),
            agent_cni.display()
        );
        let done = self.node.place().sh(&line).unwrap();
        let report: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("no report: {done}"));
        let findings = report["checks"].as_array().unwrap().iter();
        let findings = findings
            .map(|one| (one["id"].as_str().unwrap().to_owned(), one.clone()))
            .collect();
        let last = done.stderr.lines().last().unwrap_or_default().to_owned();
        assert_eq!(report["result"], last.as_str(), "{done}");
        (done.code, findings, last)
    }

    /// The victim's link and index, paths and programs, for the scripts.
    fn fill(&self, script: &str) -> String {
        let state = self.node.world().inside(STATE_DIR);
        let read = |name: &str| -> Value {
            std::fs::read(state.join(name))
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                .unwrap_or_default()
        };
        let victim = read(&format!("{}_eth0.json", self.victim.container_id()));
        let pool = "169.254.0.0/24".to_owned();
        let pool = read("node.json")["fakeIpCidr"]
            .as_str()
            .map_or(pool, str::to_owned);
        let index = victim["ifindex"].as_u64().unwrap_or_default() as u32;
        let [a, b, c, d] = index.to_ne_bytes();
        script
            .replace(
                "ZEROPROXY",
                "(setsid AGENT_NODE zeroproxy --config FILES/zeroproxy.json > /run/zeroproxy.log 2>&1 &)",
            )
            .replace("FILES", e2e::node::FILES)
            .replace("VETH", victim["hostVeth"].as_str().unwrap_or("none"))
            .replace("KEY", &format!("{a} {b} {c} {d}"))
            .replace("HALF", &pool.replace(".0/24", ".128/25"))
            .replace("GATEWAY", &pool.replace(".0/24", ".1"))
            .replace("STATE", STATE_DIR)
            .replace("PINS", "/sys/fs/bpf/agent-network/v1")
            .replace("NETD", "/etc/cni/net.d")
            .replace("BUILT", program("agent-cni").unwrap().to_str().unwrap())
            .replace(
                "AGENT_NODE",
                program("agent-node").unwrap().to_str().unwrap(),
            )
            .replace("PLUGIN", PLUGIN)
            .replace("TESTS", concat!(env!("CARGO_MANIFEST_DIR"), "/tests"))
            .replace("FILE", &format!("{}_eth0.json", self.victim.container_id()))
            .replace("SETUP", &format!("{PLUGIN} setup"))
            .replace("NETNS", &self.victim.netns_name())
    }

    pub(crate) fn sh(&self, script: &str) -> Finished {
        self.node.place().sh(&self.fill(script)).unwrap()
    }

    /// What a runtime does to a pod that is deleted and made again.
    pub(crate) fn recreate(&self) {
        self.node.plugin.del(&self.victim).unwrap();
        self.sh("ip netns del NETNS");
        self.node
            .world()
            .namespace(&self.victim.netns_name())
            .unwrap();
        self.node.plugin.add(&self.victim).unwrap();
    }

    /// Breaks each, sees it named, mends it, sees it gone. Tells all that did not go so.
    pub(crate) fn examine(&self, cases: &[Case]) {
        let (code, healthy, last) = self.doctor("");
        let level = |findings: &BTreeMap<String, Value>, id: &str| {
            findings[id]["level"].as_str().unwrap().to_owned()
        };
        let complaints: Vec<_> = healthy
            .values()
            .filter(|one| one["level"] == "fail")
            .collect();
        assert_eq!(
            (code, last.as_str()),
            (0, "AGENT_CNI_DOCTOR_PASSED"),
            "{complaints:#?}"
        );
        let mut wrong = Vec::new();
        let runs = |case: &&Case| case.only.is_empty() || case.only == mode();
        for case in cases.iter().filter(runs) {
            let title = format!("{} {}", case.spoil, case.under);
            self.sh(case.spoil).success().unwrap();
            let (code, sick, last) = self.doctor(case.under);
            // programs are the whole machine's: another test's one is seen here too
            let shared = |id: &str| id == "socket-lb" && case.names[0].0 != id;
            let may = |id: &str| case.names.contains(&(id, "?")) || shared(id);
            let named: BTreeMap<&str, String> = sick
                .keys()
                .map(|id| (id.as_str(), level(&sick, id)))
                .filter(|(id, found)| *found != level(&healthy, id) && !may(id))
                .collect();
            let wanted: BTreeMap<&str, String> = case
                .names
                .iter()
                .filter(|(id, _)| !may(id))
                .map(|(id, level)| (*id, (*level).to_owned()))
                .collect();
            let told = &sick[case.names[0].0];
            if named != wanted {
                let all: Vec<_> = named.keys().map(|id| &sick[*id]).collect();
                wrong.push(format!(
                    "{title}: named {named:?}, wanted {wanted:?}: {all:#?}"
                ));
            }
            if !told["found"].as_str().unwrap().contains(case.says) {
                wrong.push(format!("{title}: {told}"));
            }
            let fails = sick.values().filter(|one| one["level"] == "fail").count();
            let verdict = match fails {
                0 => "AGENT_CNI_DOCTOR_PASSED".to_owned(),
                fails => format!("AGENT_CNI_DOCTOR_FAILED: {fails}"),
            };
            assert_eq!((code, last), (i32::from(fails > 0), verdict), "{title}");
            for mend in case.mend.split(" THEN ") {
                match mend {
                    "RECREATE" => self.recreate(),
                    // the remedy is a command: it is run to the letter
                    "REMEDY" => {
                        let remedy = told["remedy"].as_str().unwrap();
                        self.node.place().sh(remedy).unwrap().success().unwrap();
                    }
                    mend => {
                        self.sh(mend).success().unwrap();
                    }
                }
            }
            // the proxy looks again a few times a minute
            let until = Instant::now() + Duration::from_secs(20);
            loop {
                let (_, mended, _) = self.doctor("");
                let left: Vec<_> = mended
                    .keys()
                    .filter(|id| level(&mended, id) != level(&healthy, id) && !shared(id))
                    .map(|id| mended[id].to_string())
                    .collect();
                if left.is_empty() {
                    break;
                }
                if Instant::now() > until {
                    wrong.push(format!("{title}: after the mend {left:#?}"));
                    break;
                }
                std::thread::sleep(Duration::from_millis(300));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }
}
