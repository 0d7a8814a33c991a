//! SIGKILL at every step of an installation, an upgrade and a rollback: the node is in its old or its new state, pods
//! are controlled and connected, the next run completes, and nothing is left in the end.
//!
//! A run with `AGENT_NETWORK_KILL_STRIDE=1` leaves no call out.

use serde_json::Value;

use crate::{
    host::{COMPAT, Host, text},
    support::{
        PLUGIN,
        strace::{self, CHANGES, PROGRAMS, stride, through_all},
    },
    upgrade::{Connection, age, another_version},
    witness::Witness,
};

/// Those of files alone.
const FILES: &str = "rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,write,fsync,fchmod,ftruncate,\
    copy_file_range,sendfile";
/// Those of links and rules alone; on a node that stands most of them only ask.
const NETLINK: &str = "sendto";
/// Loading programs makes hundreds of calls, most of which only ask what the kernel can do: of those every few are taken.
const STRIDE: usize = 9;

/// Runs a command that is killed before its N-th call of a set; false when it came to its end before.
#[track_caller]
fn killed_at(host: &Host, calls: &str, nth: usize, program: &str, arguments: &[String]) -> bool {
    let mut command = strace::kill_before(&host.node, calls, nth, program);
    command.args(arguments);
    let output = command
        .output()
        .expect("these tests need strace: apt-get install strace");
    let (status, killed) = (output.status, strace::was_killed(output.status));
    assert!(
        killed || status.success(),
        "{nth}: {status:?} {}",
        text(&output)
    );
    killed
}

/// That a configuration, where there is one, is whole, and that what it promises is there.
#[track_caller]
fn assert_old_or_new(host: &Host, when: &str) {
    if !host.conf().exists() {
        return;
    }
    let conf = std::fs::read(host.conf()).unwrap();
    let conf: Value =
        serde_json::from_slice(&conf).unwrap_or_else(|_| panic!("{when}: half a configuration"));
    assert_eq!(conf["type"], "agent-cni", "{when}");
    let said = host
        .node
        .sh(&format!("{} --version", host.binary().display()));
    assert!(said.starts_with("agent-cni "), "{when}: {said}");
    // as a runtime would, with the plugin that is there
    assert!(
        host.node.succeeds(&format!(
            "test -s {}/node.json && {{ test -e {}/v1/BUILD || nft list table bridge agent_network; }}",
            host.node.state().display(),
            host.pins().display()
        )),
        "{when}: a configuration, and no node behind it"
    );
}

/// That no file that a runtime reads is there but ours and the primary's.
#[track_caller]
fn assert_no_other_conf(host: &Host, when: &str) {
    for entry in std::fs::read_dir(host.conf_dir()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            [
                "00-agent-cni.conf",
                "00-agent-cni.conf.staged",
                "10-primary.conflist"
            ]
            .contains(&name.as_str()),
            "{when}: {name}"
        );
    }
}

fn once(host: &Host) -> Vec<String> {
    let mut arguments = host.install_arguments();
    arguments.push("--once".into());
    arguments
}

/// Kills an installation of a fresh node at every change; after each, the next run completes it, and a rollback leaves
/// nothing. Every other round rolls the half-installed node back instead.
fn installation(mut host: Host, calls: &str, stride: usize) -> usize {
    let before = host.sysctls();
    let mut pods = 0;
    through_all(stride, |nth| {
        let when = format!("{calls}: killed before change {nth}");
        let killed = killed_at(&host, calls, nth, PLUGIN, &once(&host));
        assert_old_or_new(&host, &when);
        assert_no_other_conf(&host, &when);
        if nth % 2 == 0 || !killed {
            host.once();
            host.assert_installed();
            pods += 1;
            host.node.added(&format!("c{pods}"));
        }
        host.rollback();
        assert_eq!(host.traces_of_us(), "", "{when}");
        assert_eq!(host.sysctls(), before, "{when}");
        killed
    })
}

#[test]
fn an_installation_that_is_killed_before_any_change_of_it() {
    let killed = installation(Host::new(), CHANGES, 1);
    assert!(killed > 20, "only {killed} rounds");
}

#[test]
fn an_installation_that_is_killed_while_it_loads_programs() {
    let killed = installation(Host::new(), PROGRAMS, stride(STRIDE));
    assert!(killed > 5, "only {killed} rounds");
}

#[test]
fn an_installation_in_the_iptables_compat_mode_that_is_killed_before_any_change_of_it() {
    let killed = installation(Host::new().in_mode(COMPAT), CHANGES, stride(3));
    assert!(killed > 8, "only {killed} rounds");
}

/// Kills an upgrade with a pod that has a connection at every change.
fn upgrade(mut host: Host, calls: &str, stride: usize) -> usize {
    host.once();
    host.node.pod("c1");
    let result = host.node.add("c1").ok();
    let mut witness = Witness::start(&host, "c1");
    let mut connection = Connection::open(&host, "c1");
    let versions = ["one", "two"].map(|name| another_version(&host, name));
    through_all(stride, |nth| {
        let when = format!("{calls}: killed before change {nth}");
        let version = &versions[nth / stride % 2];
        age(&host);
        let killed = killed_at(&host, calls, nth, version, &once(&host));
        assert_old_or_new(&host, &when);
        assert_no_other_conf(&host, &when);
        connection.assert_alive(&when);
        witness.assert_controlled(&when);
        let output = host.install_by(version).arg("--once").output().unwrap();
        assert!(output.status.success(), "{when}: {}", text(&output));
        host.assert_installed();
        connection.assert_alive(&when);
        witness.assert_controlled(&when);
        host.node.check("c1", &result).ok();
        killed
    })
}

#[test]
fn an_upgrade_that_is_killed_before_any_change_of_it() {
    let killed = upgrade(Host::with_uplink(), FILES, 1);
    assert!(killed > 10, "only {killed} rounds");
    let killed = upgrade(Host::with_uplink(), NETLINK, stride(7));
    assert!(killed > 3, "only {killed} rounds");
}

#[test]
fn an_upgrade_that_is_killed_while_it_replaces_programs() {
    let killed = upgrade(Host::with_uplink(), PROGRAMS, stride(STRIDE));
    assert!(killed > 5, "only {killed} rounds");
}

/// Kills a rollback with a pod at every change; the next one completes it.
fn rollback(mut host: Host, calls: &str, stride: usize) -> usize {
    let before = host.sysctls();
    host.once();
    host.node.added("c0");
    let mut witness = Witness::start(&host, "c0");
    through_all(stride, |nth| {
        let when = format!("{calls}: killed before change {nth}");
        let killed = killed_at(&host, calls, nth, PLUGIN, &host.rollback_arguments());
        assert_old_or_new(&host, &when);
        assert_no_other_conf(&host, &when);
        // while a pod has its link, everything that controls it is there
        if !host.node.sh("ip -o link | grep agt || true").is_empty() {
            host.node.sh(&format!(
                "nft list table ip agent_network >/dev/null \
                 && {{ ls {}/v1/links/agt* >/dev/null 2>&1 || nft list table bridge agent_network >/dev/null; }}",
                host.pins().display()
            ));
        }
        witness.assert_controlled(&when);
        host.rollback();
        assert_eq!(host.traces_of_us(), "", "{when}");
        assert_eq!(host.sysctls(), before, "{when}");
        host.complete();
        host.node.added(&format!("c{nth}"));
        killed
    })
}

#[test]
fn a_rollback_that_is_killed_before_any_change_of_it() {
    let killed = rollback(Host::with_uplink(), CHANGES, 1);
    assert!(killed > 20, "only {killed} rounds");
}

#[test]
fn a_rollback_that_is_killed_while_it_detaches_programs() {
    let killed = rollback(Host::with_uplink(), PROGRAMS, 1);
    assert!(killed > 1, "only {killed} rounds");
}

#[test]
fn an_upgrade_in_the_iptables_compat_mode_that_is_killed_before_any_change_of_it() {
    let host = || Host::with_uplink().in_mode(COMPAT);
    let killed = upgrade(host(), FILES, 1);
    assert!(killed > 5, "only {killed} rounds");
    let killed = upgrade(host(), NETLINK, stride(13));
    assert!(killed > 3, "only {killed} rounds");
}

#[test]
fn a_rollback_in_the_iptables_compat_mode_that_is_killed_before_any_change_of_it() {
    let killed = rollback(Host::with_uplink().in_mode(COMPAT), CHANGES, stride(3));
    assert!(killed > 8, "only {killed} rounds");
}
