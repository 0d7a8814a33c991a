//! Agents that call agents: the caller's name is the pod's own, and a rule decides.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use e2e::place::Finished;
use e2e::{Pod, PodSpec};

mod support;
use support::{body, node, status};

fn call(pod: &Pod, headers: &[&str]) -> Finished {
    let mut arguments = vec!["--resolve", "agent-server:80:203.0.113.99"];
    for header in headers {
        arguments.extend(["-H", header]);
    }
    arguments.push("http://agent-server/task");
    pod.curl(&arguments).unwrap()
}

#[test]
fn a_call_is_decided_by_the_callers_verified_name() {
    let Some(mut node) = node("ingress") else {
        return;
    };
    let planner = node.add_pod(&PodSpec::named("planner")).unwrap();
    let untrusted = node.add_pod(&PodSpec::named("untrusted")).unwrap();
    let stranger = node.add_pod(&PodSpec::named("stranger")).unwrap();
    let target = "X-Agent-Target: agent-server";

    let done = call(&planner, &[target, "X-Agent-Caller: sa:agents:planner"]);
    assert_eq!(status(&done), 200, "{done}");
    assert!(body(&done).contains("sa:agents:planner"), "{done}");
    let count = || node.outside.requests_to("agent-server").unwrap().len();
    let before = count();
    for (pod, caller, reason) in [
        (
            &untrusted,
            "sa:agents:untrusted",
            "INGRESS_DENIED_BY_ZEROPROXY",
        ),
        (
            &stranger,
            "sa:agents:stranger",
            "INGRESS_DENIED_BY_ZEROPROXY",
        ),
        (&untrusted, "sa:agents:planner", "IDENTITY_MISMATCH"),
        (&planner, "sa:other:planner", "IDENTITY_MISMATCH"),
        (&planner, "*", "IDENTITY_MISMATCH"),
    ] {
        let done = call(pod, &[target, &format!("X-Agent-Caller: {caller}")]);
        assert_eq!(status(&done), 403, "{caller}: {done}");
        assert!(body(&done).contains(reason), "{caller}: {done}");
        node.audit_line(reason, |l| {
            l["reason"] == reason && l["pod"]["name"] == *pod.spec.name
        })
        .unwrap();
    }
    let done = call(
        &planner,
        &[
            "X-Agent-Target: nobody",
            "X-Agent-Caller: sa:agents:planner",
        ],
    );
    assert_eq!(status(&done), 403, "{done}");
    let done = call(
        &planner,
        &[target, target, "X-Agent-Caller: sa:agents:planner"],
    );
    assert!(status(&done) >= 400, "two targets: {done}");
    assert_eq!(count(), before);
}

#[test]
fn what_a_pod_says_about_itself_does_not_reach_an_ordinary_upstream() {
    let Some(mut node) = node("ingress") else {
        return;
    };
    let pod = node.add_pod(&PodSpec::named("planner")).unwrap();
    let done = pod
        .curl(&[
            "-H",
            "X-Agent-Caller: sa:agents:boss",
            "-H",
            "X-Forwarded-For: 10.0.0.1",
            "-H",
            "X_Agent_Caller: sa:agents:boss",
            "http://echo.example.com/",
        ])
        .unwrap();
    assert_eq!(status(&done), 200, "{done}");
    assert!(
        body(&done).starts_with("caller= target= forwarded= "),
        "{done}"
    );
}
