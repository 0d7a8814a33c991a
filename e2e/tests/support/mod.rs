//! What the node tests share: a node or a reason not to have one, and what curl's output says.

#![allow(dead_code)]

use std::time::Duration;

use e2e::addresses::{NODE, ROUTER};
use e2e::capture::Capture;
use e2e::machine::can_run;
use e2e::place::Finished;
use e2e::{Node, Pod, PodSpec};

/// A node with its proxy and one pod, or `None` on a machine that can't run it (never with `CI=true`).
pub(crate) fn node_and_pod(name: &str) -> Option<(Node, Pod)> {
    let mut node = node(name)?;
    let pod = node.add_pod(&PodSpec::named("client")).unwrap();
    Some((node, pod))
}

/// A node with its proxy.
pub(crate) fn node(name: &str) -> Option<Node> {
    can_run()
        .unwrap()
        .then(|| Node::start_with_proxy(name).unwrap())
}

/// The status of the last answer that `curl -i` printed.
pub(crate) fn status(done: &Finished) -> u16 {
    let head = done
        .stdout
        .lines()
        .rfind(|l| l.starts_with("HTTP/"))
        .unwrap_or_else(|| panic!("no answer: {done}"));
    head.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The value of a header that `curl -i` printed.
pub(crate) fn header<'a>(done: &'a Finished, name: &str) -> Option<&'a str> {
    done.stdout.lines().find_map(|l| {
        let (n, value) = l.split_once(':')?;
        n.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

/// The body that `curl -i` printed.
pub(crate) fn body(done: &Finished) -> &str {
    done.stdout
        .rsplit_once("\r\n\r\n")
        .map_or("", |(_, body)| body)
}

/// The capture is empty, and it would not be if something had been there.
pub(crate) fn assert_empty(node: &Node, capture: Capture, what: &str) {
    std::thread::sleep(Duration::from_millis(500));
    node.place()
        .run(&["ping", "-c", "1", "-W", "2", &ROUTER.to_string()])
        .unwrap()
        .success()
        .unwrap();
    let captured = capture.stop().unwrap();
    let own = format!("icmp and host {NODE}");
    assert!(
        !captured.packets(&own).unwrap().is_empty(),
        "the capture sees nothing at all"
    );
    let others = captured.packets(&format!("not ({own})")).unwrap();
    assert!(
        others.is_empty(),
        "{what}: {} packets got out:\n{}",
        others.len(),
        others.join("\n")
    );
}
