//! A real cluster, one node of which this project takes over and gives back: what kubelet, kube-proxy, CoreDNS and
//! `kubectl` find. One bring-up, many steps; all are tried and reported.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::cluster::agent::Agent;
use e2e::cluster::{Cluster, OUTSIDE_PORT, ProxyMode, ROUTER, eventually, is_true};
use e2e::machine::can_run;
use e2e::place::Finished;
use e2e::steps::Steps;
use serde_json::Value;

const SERVICE: &str = "10.96.0.80";

#[test]
fn kubelet_finds_agent_pods_in_order_on_a_node_taken_over_and_ordinary_ones_when_it_is_given_back()
{
    if !can_run().unwrap() {
        return;
    }
    let before = machine();
    let mut steps = Steps::new();
    let mut cluster = None;
    steps.step("a cluster of two nodes with a primary CNI comes up", || {
        cluster = Some(Cluster::start()?);
        Ok(())
    });
    let mut worlds = Vec::new();
    if let Some(cluster) = &mut cluster {
        worlds = [cluster.n1.world(), cluster.n2.world()]
            .map(e2e::world::World::name)
            .into();
        scenario(cluster, &mut steps);
    }
    // the cluster is still there, so that it leaves its logs behind when this fails
    steps.finish().unwrap();
    drop(cluster);
    assert_eq!(machine(), before, "the machine itself must stay as it is");
    for world in worlds {
        let left = Command::new("find")
            .args(["/sys/fs/cgroup", "/tmp/agent-network-e2e", "-name"])
            .arg(format!("*{world}*"))
            .output()
            .unwrap();
        let left = String::from_utf8(left.stdout).unwrap();
        assert!(left.is_empty(), "left of {world}: {left}");
    }
}

fn scenario(cluster: &mut Cluster, steps: &mut Steps) {
    steps.step("ordinary pods run on both nodes, as on any cluster", || {
        let kubectl = cluster.kubectl();
        kubectl.apply(include_str!("kubelet/apps.yaml"))?;
        kubectl.wait(
            "apps",
            "condition=Ready",
            &["pod/web", "pod/neighbour", "pod/before", "pod/leaver"],
        )?;
        as_before(cluster)
    });
    let mut agent = None;
    let taken = steps.step("the project takes a node over, which stays Ready", || {
        agent = Some(take_over(cluster, &[])?);
        cluster.wait_for_nodes()
    });
    let Some(agent) = agent.filter(|_| taken) else {
        return;
    };
    pods(cluster, &agent, steps);
    names_and_services(cluster, steps, "iptables");
    steps.step("iptables: doctor passes", || passes(&agent));
    policy(cluster, &agent, steps);
    people(cluster, steps);
    steps.step(
        "the other node, and pods that were there before, are as before",
        || as_before(cluster),
    );
    // containerd calls the network that is there now, and that one passes on what it doesn't know
    steps.step(
        "a pod that was there before goes, and the primary CNI has its address back",
        || {
            let ip = pod_ip(cluster, "apps", "leaver")?;
            let lease = format!("/var/lib/cni/networks/primary/{ip}");
            let held = cluster.n1.place().run(&["cat", &lease])?;
            ensure!(held.ok(), "it had no lease: {held}");
            cluster.kubectl().delete("apps", &["pod/leaver"])?;
            let left = cluster.n1.place().run(&["cat", &lease])?;
            ensure!(!left.ok(), "its address is not free: {left}");
            Ok(())
        },
    );
    steps.step("kube-proxy goes on in nftables mode", || {
        cluster.n1.switch_kube_proxy(ProxyMode::Nftables)?;
        eventually("its table is there", Duration::from_secs(20), || {
            let table = ["nft", "list", "chain", "ip", "kube-proxy", "services"];
            cluster.n1.place().run(&table)?.success().map(|_| ())
        })
    });
    names_and_services(cluster, steps, "nftables");
    steps.step("nftables: doctor passes", || passes(&agent));
    services_of_agents(cluster, steps);
    steps.step("no probe has failed all the while", || {
        let pod = cluster
            .kubectl()
            .json(&["-n", "agents", "get", "pod", "coder"])?;
        let containers = pod["status"]["containerStatuses"].as_array();
        let containers = containers.context("no containers")?;
        ensure!(containers.len() == 3, "{pod}");
        ensure!(
            containers
                .iter()
                .all(|c| c["restartCount"] == 0 && c["ready"] == true),
            "{}",
            pod["status"]
        );
        Ok(())
    });
    given_back(cluster, agent, steps);
    again_with_a_private_range(cluster, steps);
}

fn take_over(cluster: &Cluster, flags: &[&str]) -> Result<Agent> {
    let policy = include_str!("kubelet/policy.yaml");
    Agent::take_over(&cluster.n1, cluster.kubectl(), policy, flags)
}

fn pods(cluster: &Cluster, agent: &Agent, steps: &mut Steps) {
    let kubectl = cluster.kubectl();
    steps.step(
        "agent pods become ready: kubelet's HTTP, TCP and exec probes pass",
        || {
            kubectl.apply(include_str!("kubelet/agents.yaml"))?;
            agent.introduce_pods()?;
            kubectl.wait("agents", "condition=Ready", &["pod/coder", "pod/worker"])
        },
    );
    steps.step("their addresses in the cluster are Fake IPs", || {
        let pool = agent.pool()?;
        let network = pool.rsplit_once('.').context("no network")?.0;
        for name in ["coder", "worker"] {
            let ip = pod_ip(cluster, "agents", name)?;
            ensure!(
                ip.starts_with(&format!("{network}.")),
                "{name} has {ip}, not of {pool}"
            );
        }
        Ok(())
    });
}

fn names_and_services(cluster: &Cluster, steps: &mut Steps, mode: &str) {
    let coder = |command: &[&str]| in_coder(cluster, command);
    steps.step(
        &format!("{mode}: cluster names are resolved through the DNS proxy"),
        || {
            for (name, address) in [
                ("kubernetes.default.svc.cluster.local", "10.96.0.1"),
                ("web.apps.svc.cluster.local", SERVICE),
                ("web.apps", SERVICE),
            ] {
                let done = coder(&["probe", "lookup", name])?.success()?;
                ensure!(done.stdout.trim() == address, "{name}: {done}");
            }
            Ok(())
        },
    );
    steps.step(
        &format!("{mode}: a Service answers, and sees the node's address"),
        || {
            let node = cluster.n1.address();
            for url in ["http://web.apps/".to_owned(), format!("http://{SERVICE}/")] {
                let done = coder(&["probe", "get", &url])?.success()?;
                ensure!(
                    done.stdout.contains(&format!("hello from web to {node}:")),
                    "{url}: {done}"
                );
            }
            Ok(())
        },
    );
    steps.step(
        &format!("{mode}: the API server answers under its Service's name"),
        || {
            let ca = "SSL_CERT_FILE=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
            let url = "https://kubernetes.default.svc/version";
            let done = coder(&["env", ca, "probe", "get", url])?.success()?;
            ensure!(done.stdout.contains("gitVersion"), "{done}");
            Ok(())
        },
    );
}

fn policy(cluster: &Cluster, agent: &Agent, steps: &mut Steps) {
    let coder = |url: &str| in_coder(cluster, &["probe", "get", url]);
    steps.step("an allowed destination answers", || {
        let done = coder(&format!("http://docs.example.com:{OUTSIDE_PORT}/"))?.success()?;
        ensure!(done.stdout.contains("hello from"), "{done}");
        Ok(())
    });
    steps.step(
        "a denied destination is denied with the proxy's text",
        || {
            let done = coder(&format!("http://{ROUTER}:{OUTSIDE_PORT}/"))?;
            ensure!(!done.ok() && !done.stdout.contains("hello from"), "{done}");
            let body: Value =
                serde_json::from_str(&done.stdout).with_context(|| done.to_string())?;
            ensure!(body["reason"] == "EGRESS_DENIED_BY_POLICY", "{body}");
            ensure!(
                body["host"] == ROUTER && body["remedy"] != Value::Null,
                "{body}"
            );
            Ok(())
        },
    );
    steps.step("a denied name is not resolved", || {
        let done = in_coder(cluster, &["probe", "lookup", "evil.example.com"])?;
        ensure!(!done.ok() && done.all().contains("no such host"), "{done}");
        Ok(())
    });
    steps.step("a pod that no policy selects gets nothing", || {
        let url = format!("http://{ROUTER}:{OUTSIDE_PORT}/");
        let done = cluster
            .kubectl()
            .exec("agents", "worker", &["probe", "get", &url])?;
        ensure!(
            !done.ok() && done.all().contains("EGRESS_DENIED_BY_POLICY"),
            "{done}"
        );
        Ok(())
    });
    steps.step(
        "one agent pod does not reach another by its address",
        || {
            let worker = pod_ip(cluster, "agents", "worker")?;
            let done = coder(&format!("http://{worker}:8080/"))?;
            ensure!(
                done.all().contains("DIRECT_BYPASS_DENIED_BY_ZEROPROXY"),
                "{done}"
            );
            Ok(())
        },
    );
    steps.step(
        "the audit names pod and service account as kubelet knows them",
        || {
            let uid = cluster
                .kubectl()
                .json(&["-n", "agents", "get", "pod", "coder"])?;
            let uid = uid["metadata"]["uid"].clone();
            eventually("the lines are there", Duration::from_secs(5), || {
                let lines = agent.audit()?;
                let of_coder = |decision: &str| {
                    lines.iter().any(|l| {
                        l["pod"]["uid"] == uid
                            && l["pod"]["service_account"] == "coder"
                            && l["direction"] == "egress"
                            && l["decision"] == decision
                    })
                };
                ensure!(of_coder("allow") && of_coder("deny"), "{lines:?}");
                Ok(())
            })
        },
    );
}

fn people(cluster: &Cluster, steps: &mut Steps) {
    let kubectl = cluster.kubectl();
    steps.step("kubectl exec works", || {
        let done = in_coder(cluster, &["hostname"])?.success()?;
        ensure!(done.stdout.trim() == "coder", "{done}");
        Ok(())
    });
    steps.step("kubectl logs works", || {
        let done = kubectl
            .run(&["-n", "agents", "logs", "coder", "-c", "http"])?
            .success()?;
        ensure!(done.stdout.contains("serving on :8080"), "{done}");
        Ok(())
    });
    steps.step("kubectl port-forward works", || {
        let line = ["-n", "agents", "port-forward", "pod/coder", "19090:8080"];
        let mut forward = kubectl.spawn("port-forward", &line)?;
        forward.wait_for_output("Forwarding from", Duration::from_secs(20))?;
        let done = cluster
            .place()
            .run(&["curl", "-sS", "-m", "10", "http://127.0.0.1:19090/"])?
            .success()?;
        ensure!(done.stdout.contains("hello from coder"), "{done}");
        Ok(())
    });
}

fn services_of_agents(cluster: &Cluster, steps: &mut Steps) {
    let kubectl = cluster.kubectl();
    steps.step(
        "known: a link-local agent pod costs its Service all endpoints, and an event says so",
        || {
            kubectl.apply(include_str!("kubelet/mixed.yaml"))?;
            kubectl.wait("agents", "condition=Ready", &["pod/ordinary"])?;
            let slices = [
                "-n",
                "agents",
                "get",
                "endpointslices",
                "-l",
                "kubernetes.io/service-name=mixed",
            ];
            eventually(
                "the ordinary pod is an endpoint",
                Duration::from_secs(20),
                || {
                    let slices = kubectl.json(&slices)?.to_string();
                    ensure!(slices.contains("\"addresses\""), "{slices}");
                    Ok(())
                },
            )?;
            kubectl
                .run(&["-n", "agents", "label", "pod", "worker", "mixed=yes"])?
                .success()?;
            eventually(
                "an event names the refusal",
                Duration::from_secs(20),
                || {
                    let events = [
                        "-n",
                        "agents",
                        "get",
                        "events",
                        "--field-selector=involvedObject.name=mixed",
                    ];
                    let events = kubectl.json(&events)?.to_string();
                    ensure!(events.contains("FailedToUpdateEndpointSlices"), "{events}");
                    Ok(())
                },
            )?;
            kubectl.delete("agents", &["service/mixed", "pod/ordinary"])
        },
    );
}

fn given_back(cluster: &Cluster, agent: Agent, steps: &mut Steps) {
    let kubectl = cluster.kubectl();
    steps.step("an agent pod is deleted, and its link goes", || {
        let links = || {
            cluster
                .n1
                .place()
                .sh("ip -o link show master agentcni0 | wc -l")
        };
        ensure!(links()?.stdout.trim() == "2", "{}", links()?);
        kubectl.delete("agents", &["pod/coder"])?;
        ensure!(links()?.stdout.trim() == "1", "{}", links()?);
        Ok(())
    });
    let given = steps.step(
        "the node is given back: nothing is left, and the pod that still runs is named",
        || {
            let said = agent.give_back()?;
            ensure!(said.contains("agents/worker"), "{said}");
            kubectl.delete("agents", &["pod/worker"])
        },
    );
    if !given {
        return;
    }
    steps.step(
        "new pods have ordinary addresses, and are under no policy",
        || {
            kubectl.apply(include_str!("kubelet/agents.yaml"))?;
            kubectl.wait("agents", "condition=Ready", &["pod/coder", "pod/worker"])?;
            let ip = pod_ip(cluster, "agents", "coder")?;
            ensure!(ip.starts_with("10.244.1."), "coder has {ip}");
            for url in [
                format!("http://{ROUTER}:{OUTSIDE_PORT}/"),
                "http://web.apps/".to_owned(),
            ] {
                in_coder(cluster, &["probe", "get", &url])?.success()?;
            }
            let done = cluster.kubectl().exec(
                "apps",
                "neighbour",
                &["probe", "get", &format!("http://{ip}:8080/")],
            )?;
            ensure!(done.stdout.contains("hello from coder"), "{done}");
            as_before(cluster)
        },
    );
}

fn again_with_a_private_range(cluster: &Cluster, steps: &mut Steps) {
    let mut agent = None;
    let taken = steps.step("the node is taken over again, with a private range", || {
        agent = Some(take_over(cluster, &["--fake-ip-cidr", "10.200.0.0/24"])?);
        Ok(())
    });
    let Some(agent) = agent.filter(|_| taken) else {
        return;
    };
    steps.step(
        "an agent pod of a private range is an endpoint of its Service",
        || {
            let kubectl = cluster.kubectl();
            kubectl.apply(include_str!("kubelet/private.yaml"))?;
            kubectl.wait("agents", "condition=Ready", &["pod/listed"])?;
            let ip = pod_ip(cluster, "agents", "listed")?;
            ensure!(ip.starts_with("10.200.0."), "it has {ip}");
            let of_it = "kubernetes.io/service-name=listed";
            eventually("the endpoint is there", Duration::from_secs(20), || {
                let slices = ["-n", "agents", "get", "endpointslices", "-l", of_it];
                let slices = kubectl.json(&slices)?.to_string();
                ensure!(slices.contains(&format!("\"{ip}\"")), "{slices}");
                Ok(())
            })?;
            kubectl.delete("agents", &["pod/listed"])
        },
    );
    steps.step("it is given back a second time", || {
        agent.give_back().map(|_| ())
    });
}

fn passes(agent: &Agent) -> Result<()> {
    let said = agent.doctor()?;
    let passed = said.stdout.trim_end().ends_with("AGENT_CNI_DOCTOR_PASSED");
    ensure!(said.ok() && passed, "{said}");
    Ok(())
}

/// What ordinary pods on both nodes can do on a cluster without this project.
fn as_before(cluster: &Cluster) -> Result<()> {
    for (pod, network) in [("neighbour", "10.244.2."), ("before", "10.244.1.")] {
        let ip = pod_ip(cluster, "apps", pod)?;
        ensure!(ip.starts_with(network), "{pod} has {ip}");
        let done = cluster
            .kubectl()
            .exec("apps", pod, &["probe", "get", "http://web/"])?;
        ensure!(done.stdout.contains("hello from web"), "{pod}: {done}");
        let url = format!("http://evil.example.com:{OUTSIDE_PORT}/");
        let done = cluster
            .kubectl()
            .exec("apps", pod, &["probe", "get", &url])?;
        ensure!(done.stdout.contains("hello from"), "{pod}: {done}");
    }
    let nodes = cluster.kubectl().json(&["get", "nodes"])?;
    let nodes = nodes["items"].as_array().context("no nodes")?;
    ensure!(nodes.iter().all(|n| is_true(n, "Ready")), "{nodes:?}");
    Ok(())
}

fn in_coder(cluster: &Cluster, command: &[&str]) -> Result<Finished> {
    let line = [
        &["-n", "agents", "exec", "coder", "-c", "http", "--"][..],
        command,
    ]
    .concat();
    cluster.kubectl().run(&line)
}

fn pod_ip(cluster: &Cluster, namespace: &str, name: &str) -> Result<String> {
    let pod = cluster
        .kubectl()
        .json(&["-n", namespace, "get", "pod", name])?;
    let ip = pod["status"]["podIP"].as_str();
    Ok(ip
        .with_context(|| format!("{name} has no address"))?
        .to_owned())
}

/// What the machine's own network is, and the settings that kubelet would change for all.
fn machine() -> String {
    let script = "ip -br link; ip -br addr; ip route show table all; ip rule; nft -s list ruleset
        sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys net.ipv4.ip_forward";
    let out = Command::new("bash").args(["-c", script]).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}
