use std::{path::PathBuf, process::Command, thread};

use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::{
    load::{Datapath, DatapathConfig, DebugLog},
    pins::Pins,
};

/// Runs a test with two builds of the classifier, and an interface `pod0`, in a network namespace of its own.
fn with_two_builds(name: &str, test: impl FnOnce(SchedClassifier, SchedClassifier, u32) + Send) {
    if !nix::unistd::Uid::effective().is_root() {
        let sentence = "filter tests need root, a bpf file system and network namespaces";
        assert!(std::env::var_os("CI").is_none(), "{sentence}");
        eprintln!("not run: {sentence}");
        return;
    }
    let base = PathBuf::from(format!(
        "/sys/fs/bpf/agent-network-{name}-{}",
        std::process::id()
    ));
    let pins = Pins::new(&base);
    thread::scope(|scope| {
        let run = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            tool("ip link add pod0 type veth peer name pod0p");
            let load = |log| {
                Datapath::ensure_with(&pins, &settings(), log).unwrap();
                SchedClassifier::from_pin(pins.program(POD_INGRESS)).unwrap()
            };
            let (old, new) = (load(DebugLog::Off), load(DebugLog::Drops));
            test(old, new, nix::net::if_::if_nametoindex("pod0").unwrap());
        };
        let result = scope.spawn(run).join();
        Datapath::remove(&pins).unwrap();
        std::fs::remove_dir(&base).unwrap();
        result.unwrap();
    });
}

fn settings() -> DatapathConfig {
    DatapathConfig {
        gateway: "169.254.100.1".parse().unwrap(),
        gateway_mac: [2, 0, 0, 0, 0, 1],
        fake_cidrs: vec!["169.254.100.0/24".parse().unwrap()],
        service_cidrs: vec![],
        marks: agent_core::node::Marks::default(),
        fail_open: false,
        events_per_second: 0,
    }
}

fn tool(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn id(program: &SchedClassifier) -> u32 {
    program.info().unwrap().id()
}

#[test]
fn filter_is_attached_replaced_in_place_and_detached() {
    with_two_builds("filter-replace", |mut old, mut new, ifindex| {
        assert_eq!(attached(ifindex).unwrap(), None);
        detach("pod0", ifindex).unwrap();
        attach(&mut old, "pod0", ifindex).unwrap();
        assert_eq!(attached(ifindex).unwrap(), Some(id(&old)));
        attach(&mut new, "pod0", ifindex).unwrap();
        assert_eq!(attached(ifindex).unwrap(), Some(id(&new)));
        assert_eq!(
            filters(ifindex)
                .unwrap()
                .iter()
                .filter_map(our_program)
                .count(),
            1
        );
        detach("pod0", ifindex).unwrap();
        assert_eq!(attached(ifindex).unwrap(), None);
    });
}

#[test]
fn filters_of_others_are_behind_ours_and_stay() {
    with_two_builds("filter-others", |mut ours, mut theirs, ifindex| {
        // what others use at the same priority, with the very same program name
        qdisc_add_clsact("pod0").unwrap();
        let options = NlOptions {
            priority: PRIORITY,
            handle: TcHandle::new(0, 1),
            classid: None,
        };
        let other = theirs
            .attach_with_options(
                "pod0",
                TcAttachType::Ingress,
                TcAttachOptions::Netlink(options),
            )
            .unwrap();
        assert_eq!(attached(ifindex).unwrap(), None, "the handle is not ours");
        detach("pod0", ifindex).unwrap();
        attach(&mut ours, "pod0", ifindex).unwrap();
        assert_eq!(attached(ifindex).unwrap(), Some(id(&ours)));
        let shown = tool("tc filter show dev pod0 ingress");
        let position = |id: u32| shown.find(&format!(" id {id} ")).expect(&shown);
        assert!(position(id(&ours)) < position(id(&theirs)), "{shown}");
        detach("pod0", ifindex).unwrap();
        theirs
            .detach(other)
            .expect("their filter and its qdisc are still there");
    });
}
