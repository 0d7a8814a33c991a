//! The controller in numbers and in trouble: a thousand policies, a hundred simulated proxies of which some are slow, dead
//! or late, two controllers, an API server that goes away, conflicts, a slow projection.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(
    clippy::needless_pass_by_value,
    reason = "json! in a call reads better without an ampersand"
)]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::cluster::control::simulated::{Manner, Simulated};
use e2e::cluster::control::{
    Controller, Projection, RealProxy, SYSTEM, announce, prepare, set_ready,
};
use e2e::cluster::{ApiServer, eventually};
use e2e::machine::can_run;
use e2e::steps::Steps;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const POLICIES: usize = 1000;

fn policy(name: &str, rules: usize, path: &str) -> Value {
    let rules: Vec<Value> = (0..rules)
        .map(|n| json!({"name": format!("r{n}"), "host": format!("{name}-{n}.example.com"), "paths": [path]}))
        .collect();
    json!({
        "apiVersion": "agent.tke.cloud.tencent.com/v1alpha1", "kind": "AgentNetworkPolicy",
        "metadata": {"name": name, "namespace": SYSTEM}, "spec": {"egress": {"allow": rules}},
    })
}

fn list(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn phases(server: &ApiServer) -> Result<Vec<(String, String)>> {
    let got = server.kubectl().json(&["-n", SYSTEM, "get", "anp"])?;
    let items = got["items"].as_array().context("no items")?;
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    Ok(items
        .iter()
        .map(|p| {
            (
                text(&p["status"]["phase"]),
                text(&p["status"]["nodes"]["summary"]),
            )
        })
        .collect())
}

fn all_are(server: &ApiServer, phase: &str, nodes: &str) -> Result<()> {
    let got = phases(server)?;
    let other: Vec<_> = got
        .iter()
        .filter(|(p, n)| p != phase || n != nodes)
        .collect();
    ensure!(
        other.is_empty(),
        "{} of {} are others, such as {:?}",
        other.len(),
        got.len(),
        other[0]
    );
    Ok(())
}

/// Waits until what was applied last of policy `name` is enforced.
fn is_active(server: &ApiServer, name: &str) -> Result<()> {
    eventually("it is Active", LIMIT, || {
        let got = server.kubectl().json(&["-n", SYSTEM, "get", "anp", name])?;
        let current = got["status"]["observedGeneration"] == got["metadata"]["generation"];
        ensure!(
            current && got["status"]["phase"] == "Active",
            "{}",
            got["status"]
        );
        Ok(())
    })
}

#[test]
fn controller_serves_a_hundred_simulated_proxies_some_slow_dead_or_late() {
    if !can_run().unwrap() {
        return;
    }
    let mut steps = Steps::new();
    let server = ApiServer::start().unwrap();
    prepare(&server).unwrap();
    let projection = Projection::start(&server).unwrap();
    let manner = |n: u16| match n {
        1..=5 => Manner::Slow(Duration::from_secs(3)),
        6..=8 => Manner::Silent,
        9..=10 => Manner::Absent,
        _ => Manner::Prompt,
    };
    let proxies: Vec<(u16, Manner)> = (1..=100).map(|n| (n, manner(n))).collect();
    let simulated = Simulated::start(&server, &projection, &proxies).unwrap();
    announce(&server, 1..=90).unwrap();
    // what is dead is not ready, as kubelet would find
    set_ready(&server, 6..=10, false).unwrap();
    let mut controller = Controller::start(
        &server,
        &server.kubeconfig("admin"),
        18080,
        &["--degraded-after", "8"],
    )
    .unwrap();
    controller.wait_until_ready().unwrap();
    steps.step("every ready one is brought along, slow ones too", || {
        server
            .kubectl()
            .apply(&policy("one", 1, "/a").to_string())?;
        eventually("it is Active", LIMIT, || {
            all_are(&server, "Active", "85/90")
        })
    });
    steps.step(
        "dead ones that are called ready keep it from being Active, and are named",
        || {
            set_ready(&server, 6..=10, true)?;
            eventually("it is Degraded", LIMIT, || {
                all_are(&server, "Degraded", "85/90")
            })?;
            let got = server
                .kubectl()
                .json(&["-n", SYSTEM, "get", "anp", "one"])?;
            let message = got["status"]["message"].to_string();
            ensure!(
                message.contains("node-6") && message.contains("and 2 more"),
                "{message}"
            );
            ensure!(controller.metric("proxies_unreachable", &[])? >= 2.0);
            Ok(())
        },
    );
    steps.step("they hold up no other", || {
        let before = simulated.calls();
        server
            .kubectl()
            .apply(&policy("one", 1, "/b").to_string())?;
        let begun = Instant::now();
        eventually("80 prompt and 5 slow ones have it", LIMIT, || {
            all_are(&server, "Pending", "85/90").or_else(|_| all_are(&server, "Degraded", "85/90"))
        })?;
        eprintln!(
            "        in {:?}, {} calls",
            begun.elapsed(),
            simulated.calls() - before
        );
        set_ready(&server, 6..=10, false)?;
        eventually("it is Active", LIMIT, || {
            all_are(&server, "Active", "85/90")
        })
    });
    steps.step("late joiners are brought along", || {
        announce(&server, 91..=100)?;
        eventually("they have it", LIMIT, || {
            all_are(&server, "Active", "95/100")
        })
    });
    steps.step("a slow projection is waited for", || {
        projection.delay(Duration::from_secs(6));
        server
            .kubectl()
            .apply(&policy("one", 1, "/c").to_string())?;
        eventually("it is Pending", LIMIT, || {
            all_are(&server, "Pending", "0/100")
        })?;
        eventually("it is Active", LIMIT, || {
            all_are(&server, "Active", "95/100")
        })?;
        projection.delay(Duration::ZERO);
        Ok(())
    });
    steps.finish().unwrap();
}

#[test]
fn controller_publishes_a_thousand_policies_in_parts_and_each_change_costs_one_status() {
    if !can_run().unwrap() {
        return;
    }
    let mut steps = Steps::new();
    let server = ApiServer::start().unwrap();
    prepare(&server).unwrap();
    let projection = Projection::start(&server).unwrap();
    let proxy = RealProxy::start(&server, &projection, 1).unwrap();
    announce(&server, 1..=1).unwrap();
    let mut controller =
        Controller::start(&server, &server.kubeconfig("admin"), 18080, &[]).unwrap();
    controller.wait_until_ready().unwrap();
    steps.step("a thousand policies become Active", || {
        for chunk in (0..POLICIES).collect::<Vec<_>>().chunks(250) {
            let items = chunk.iter().map(|n| {
                policy(
                    &format!("p{n}"),
                    8,
                    "/v1/models/of/some/length/so/that/it/counts",
                )
            });
            server.kubectl().apply(&list(items.collect()))?;
        }
        let begun = Instant::now();
        eventually("they are", Duration::from_secs(120), || {
            all_are(&server, "Active", "1/1")
        })?;
        eprintln!("        {:?} after the last was applied", begun.elapsed());
        Ok(())
    });
    steps.step("in parts, which a real proxy reads", || {
        ensure!(
            controller.metric("document_parts", &[])? >= 3.0,
            "{}",
            controller.get("/metrics")?
        );
        eventually("it has them", LIMIT, || {
            ensure!(proxy.version()? == projection.version());
            Ok(())
        })
    });
    steps.step(
        "one change costs one status, one ConfigMap for each part, and one Event",
        || {
            let count = |object: &str| {
                controller.metric("api_writes_total", &[&format!("object=\"{object}\"")])
            };
            eventually("it comes to rest", LIMIT, || {
                let before = controller.writes()?;
                std::thread::sleep(Duration::from_secs(2));
                ensure!(controller.writes()? == before);
                Ok(())
            })?;
            let (status, maps) = (count("status")?, count("configmap")?);
            let begun = Instant::now();
            server
                .kubectl()
                .apply(&policy("p500", 8, "/changed").to_string())?;
            is_active(&server, "p500")?;
            eprintln!("        enforced in {:?}", begun.elapsed());
            std::thread::sleep(Duration::from_secs(2));
            let (status, maps) = (count("status")? - status, count("configmap")? - maps);
            let parts = controller.metric("document_parts", &[])?;
            ensure!(
                status <= 2.0 && maps <= parts,
                "{status} statuses, {maps} ConfigMaps of {parts}"
            );
            Ok(())
        },
    );
    steps.step("a restart writes nothing", || {
        ensure!(controller.stop(Signal::SIGTERM)? == 0);
        let mut controller = Controller::start(&server, &server.kubeconfig("admin"), 18081, &[])?;
        controller.wait_until_ready()?;
        eventually("it leads and has looked", LIMIT, || {
            ensure!(controller.metric("reconciles_total", &["part=\"status\""])? >= 2.0);
            Ok(())
        })?;
        std::thread::sleep(Duration::from_secs(3));
        ensure!(
            controller.writes()? == 0.0,
            "{} writes",
            controller.writes()?
        );
        // and parts that a smaller document doesn't have are removed
        server
            .kubectl()
            .run(&["-n", SYSTEM, "delete", "anp", "--all", "--wait=false"])?
            .success()?;
        eventually("one ConfigMap is left", LIMIT, || {
            let maps = server.kubectl().json(&[
                "-n",
                SYSTEM,
                "get",
                "configmaps",
                "-l",
                "app.kubernetes.io/managed-by=agent-network-controller",
            ])?;
            ensure!(
                maps["items"]
                    .as_array()
                    .is_some_and(|items| items.len() == 1)
            );
            Ok(())
        })?;
        eventually("and nothing is allowed", LIMIT, || {
            ensure!(proxy.version()? == projection.version());
            Ok(())
        })
    });
    steps.finish().unwrap();
}

#[test]
fn controller_of_two_one_leads_and_an_api_server_that_restarts_stops_neither() {
    if !can_run().unwrap() {
        return;
    }
    let mut steps = Steps::new();
    let mut server = ApiServer::start().unwrap();
    prepare(&server).unwrap();
    let projection = Projection::start(&server).unwrap();
    let proxies: Vec<(u16, Manner)> = (1..=3).map(|n| (n, Manner::Prompt)).collect();
    let _simulated = Simulated::start(&server, &projection, &proxies).unwrap();
    announce(&server, 1..=3).unwrap();
    let flags = ["--lease-seconds", "4"];
    let mut a = Controller::start(&server, &server.kubeconfig("admin"), 18080, &flags).unwrap();
    a.wait_until_ready().unwrap();
    eventually("a leads", LIMIT, || {
        ensure!(a.metric("leader", &[])? == 1.0);
        Ok(())
    })
    .unwrap();
    let mut b = Controller::start(&server, &server.kubeconfig("admin"), 18090, &flags).unwrap();
    b.wait_until_ready().unwrap();
    steps.step("one leads, and only it writes", || {
        server
            .kubectl()
            .apply(&policy("one", 1, "/a").to_string())?;
        eventually("it is Active", LIMIT, || all_are(&server, "Active", "3/3"))?;
        ensure!(b.metric("leader", &[])? == 0.0 && b.writes()? == 0.0);
        Ok(())
    });
    steps.step(
        "a leader that hangs is replaced, and does nothing twice when it wakes",
        || {
            let before = map(&server)?;
            a.signal(Signal::SIGSTOP)?;
            eventually("b leads", LIMIT, || {
                ensure!(b.metric("leader", &[])? == 1.0);
                Ok(())
            })?;
            std::thread::sleep(Duration::from_secs(2));
            ensure!(b.writes()? == 0.0, "nothing changed, and it wrote");
            server
                .kubectl()
                .apply(&policy("one", 1, "/b").to_string())?;
            is_active(&server, "one")?;
            let written = map(&server)?;
            ensure!(written != before);
            a.signal(Signal::SIGCONT)?;
            eventually("a knows that it leads no more", LIMIT, || {
                ensure!(a.metric("leader", &[])? == 0.0);
                Ok(())
            })?;
            std::thread::sleep(Duration::from_secs(2));
            ensure!(map(&server)? == written, "the stale leader wrote");
            Ok(())
        },
    );
    steps.step(
        "the API server goes for ten seconds and comes back, and both go on",
        || {
            server.restart(Duration::from_secs(10))?;
            ensure!(a.is_running() && b.is_running());
            // the new process knows no events of before, so watches that go on from there have expired
            eventually("their watches had expired", LIMIT, || {
                ensure!(
                    a.log().contains("Expired") || a.log().contains("too old"),
                    "{}",
                    a.log()
                );
                Ok(())
            })?;
            server
                .kubectl()
                .apply(&policy("one", 1, "/c").to_string())?;
            is_active(&server, "one")
        },
    );
    steps.step(
        "others' writes between make conflicts, and the last word is right",
        || {
            for n in 0..15 {
                server
                    .kubectl()
                    .apply(&policy("one", 1, &format!("/conflict{n}")).to_string())?;
                let note = format!("note={n}");
                let line = ["-n", SYSTEM, "annotate", "--overwrite", "anp", "one", &note];
                server.kubectl().run(&line)?.success()?;
            }
            is_active(&server, "one")
        },
    );
    steps.step("SIGTERM lets the other lead at once", || {
        let (leader, other) = if a.metric("leader", &[])? == 1.0 {
            (a, b)
        } else {
            (b, a)
        };
        ensure!(leader.stop(Signal::SIGTERM)? == 0);
        eventually("it does", Duration::from_secs(5), || {
            ensure!(other.metric("leader", &[])? == 1.0);
            Ok(())
        })?;
        server
            .kubectl()
            .apply(&policy("one", 1, "/d").to_string())?;
        is_active(&server, "one")
    });
    steps.finish().unwrap();
}

fn map(server: &ApiServer) -> Result<Value> {
    let map = server
        .kubectl()
        .json(&["-n", SYSTEM, "get", "configmap", "agent-network-policy"])?;
    Ok(json!([map["data"], map["metadata"]["resourceVersion"]]))
}
