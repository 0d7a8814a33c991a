//! Cluster DNS through the DNS proxy, and Services through kube-proxy.

use std::time::Duration;

use anyhow::ensure;
use e2e::cluster::{Cluster, ProxyMode, eventually};
use e2e::patience::patience;
use e2e::steps::Steps;

use crate::common::{SERVICE, in_coder};

/// What an agent pod finds by name and by address.
pub(crate) fn names_and_services(cluster: &Cluster, steps: &mut Steps) {
    let coder = |command: &[&str]| in_coder(cluster, command);
    steps.step("cluster names are resolved through the DNS proxy", || {
        for (name, address) in [
            ("kubernetes.default.svc.cluster.local", "10.96.0.1"),
            ("web.apps.svc.cluster.local", SERVICE),
            ("web.apps", SERVICE),
        ] {
            let done = coder(&["probe", "lookup", name])?.success()?;
            ensure!(done.stdout.trim() == address, "{name}: {done}");
        }
        Ok(())
    });
    steps.step("a Service answers, and sees the node's address", || {
        let node = cluster.n1.address();
        for url in ["http://web.apps/".to_owned(), format!("http://{SERVICE}/")] {
            let done = coder(&["probe", "get", &url])?.success()?;
            ensure!(
                done.stdout.contains(&format!("hello from web to {node}:")),
                "{url}: {done}"
            );
        }
        Ok(())
    });
    steps.step("a Service answers over UDP from its own address", || {
        let node = cluster.n1.address();
        for server in ["web.apps:9000".to_owned(), format!("{SERVICE}:9000")] {
            let done = coder(&["probe", "udp", &server])?.success()?;
            ensure!(
                done.stdout.contains(&format!("hello from web to {node}:")),
                "{server}: {done}"
            );
        }
        Ok(())
    });
    steps.step("a UDP port that no Service has does not answer", || {
        let done = coder(&["probe", "udp", &format!("{SERVICE}:9001")])?;
        ensure!(!done.ok() && !done.stdout.contains("hello"), "{done}");
        Ok(())
    });
    steps.step("the API server answers under its Service's name", || {
        let ca = "SSL_CERT_FILE=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
        let url = "https://kubernetes.default.svc/version";
        let done = coder(&["env", ca, "probe", "get", url])?.success()?;
        ensure!(done.stdout.contains("gitVersion"), "{done}");
        Ok(())
    });
}

/// kube-proxy is started anew in another mode, as an administrator would.
pub(crate) fn kube_proxy_goes_on(cluster: &mut Cluster, steps: &mut Steps, mode: ProxyMode) {
    steps.step("kube-proxy goes on", || {
        cluster.n1.switch_kube_proxy(mode)?;
        let rules = match mode {
            ProxyMode::Iptables => "iptables-save -t nat | grep -q KUBE-SVC",
            ProxyMode::Nftables => "nft list chain ip kube-proxy services",
        };
        eventually("its rules are there", Duration::from_secs(20), || {
            cluster.n1.place().sh(rules)?.success().map(|_| ())
        })
    });
    // its rules may come before ours in the iptables-compat mode: queries are dropped until the installer has seen it
    steps.step(
        "names are resolved again within the time of a repair",
        || {
            eventually("an answer", patience(Duration::from_secs(5)), || {
                let name = "kubernetes.default.svc.cluster.local";
                in_coder(cluster, &["probe", "lookup", name])?
                    .success()
                    .map(|_| ())
            })
        },
    );
}

/// Agent pods as a Service's endpoints.
pub(crate) fn agents_as_endpoints(cluster: &Cluster, steps: &mut Steps) {
    let kubectl = cluster.kubectl();
    steps.step(
        "known: a link-local agent pod costs its Service all endpoints, and an event says so",
        || {
            kubectl.apply(include_str!("mixed.yaml"))?;
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
