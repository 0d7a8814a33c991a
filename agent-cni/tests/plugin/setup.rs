//! `agent-cni setup`.

use serde_json::{Value, json};

use crate::support::{Node, PLUGIN};

#[test]
fn setup_makes_the_node_ready_and_twice_is_once() {
    let node = Node::new();
    let file = node.files().join("00-agent-cni.conf");
    std::fs::write(&file, node.conf.to_string()).unwrap();
    let setup = || {
        node.command(PLUGIN)
            .args(["setup", "--config", file.to_str().unwrap()])
            .output()
            .unwrap()
    };
    let output = setup();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(
        text.contains("node is ready: Fake IP CIDR 169.254.9.0/24"),
        "{text}"
    );
    let state: Value =
        serde_json::from_slice(&std::fs::read(node.state().join("node.json")).unwrap()).unwrap();
    assert_eq!(state["gateway"], "169.254.9.1");
    assert_eq!(state["serviceCidrs"], json!(["10.96.0.0/12"]));
    let shown = || node.sh("ip -o addr; ip rule; nft list ruleset");
    let before = shown();
    assert!(setup().status.success());
    assert_eq!(shown(), before);
    node.call("STATUS", "", &node.conf).ok();
}

#[test]
fn setup_explains_a_file_it_cannot_use() {
    let node = Node::new();
    let file = node.files().join("conf");
    for (content, says) in [
        ("{", "it is not JSON"),
        (r#"{"cniVersion": "9"}"#, "use one of 0.3.1"),
        (
            r#"{"cniVersion": "1.1.0", "fakeIpCidr": "x"}"#,
            "did you mean",
        ),
    ] {
        std::fs::write(&file, content).unwrap();
        let output = node
            .command(PLUGIN)
            .args(["setup", "--config", file.to_str().unwrap()])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1));
        assert!(text.contains(says), "{content}: {text}");
    }
}
