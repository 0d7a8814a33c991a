//! The probe on this kernel: what it finds, what refusals look like, and that it leaves nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::{fs, path::Path, process::Command, thread, time::Instant};

use agent_core::attachment::Mode;
use agent_datapath::probe::{FeatureName, Reason, Report, Requested, State, choose, probe};
use support::{expected_kind, in_new_netns};

const BPFFS: &str = "/sys/fs/bpf";

fn state(report: &Report, name: FeatureName) -> State {
    let feature = report.features.iter().find(|f| f.name == name);
    feature
        .unwrap_or_else(|| panic!("{name:?}: {report:#?}"))
        .state
}

/// What a person would look at to see whether something was left.
fn traces() -> Vec<String> {
    let mut traces = Vec::new();
    for line in [
        "ip link",
        "ip rule",
        "ip route show table all",
        "nft list tables",
    ] {
        let (program, arguments) = line.split_once(' ').unwrap();
        let output = Command::new(program)
            .args(arguments.split(' '))
            .output()
            .expect(program);
        assert!(output.status.success(), "{line}: {output:?}");
        traces.push(String::from_utf8(output.stdout).unwrap());
    }
    traces.push(fs::read_to_string("/proc/thread-self/mountinfo").unwrap());
    traces.push(fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap());
    traces.push(format!(
        "{:?}",
        fs::metadata("/run/xtables.lock")
            .map(|m| m.modified().unwrap())
            .ok()
    ));
    traces
}

#[test]
fn everything_works_here_and_nothing_is_left() {
    in_new_netns(|| {
        let before = traces();
        let start = Instant::now();
        let report = probe(Path::new(BPFFS));
        println!("probed in {:?}: {:#?}", start.elapsed(), report.features);
        assert_eq!(report.ebpf, Ok(expected_kind()));
        assert_eq!(report.compat, Ok(()));
        assert!(report.features.iter().all(|f| f.state == State::Works));
        assert_eq!(traces(), before);
        let (mode, reason) = choose(Requested::Auto, None, &report).unwrap();
        assert_eq!(
            (mode, reason),
            (Mode::Ebpf, Reason::EbpfWorks(expected_kind()))
        );
    });
}

#[test]
fn pins_on_another_file_system_are_in_the_way_of_ebpf_alone_with_the_remedy() {
    in_new_netns(|| {
        let dir = tempfile::tempdir().unwrap();
        let report = probe(dir.path());
        let whys = report.ebpf.clone().unwrap_err();
        assert_eq!(whys.len(), 1, "{whys:#?}");
        assert!(whys[0].to_string().contains("mount -t bpf bpf /sys/fs/bpf"));
        assert_eq!(state(&report, FeatureName::Delivery), State::Works);
        assert!(report.works(Mode::IptablesCompat));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    });
}

#[test]
fn probes_side_by_side_do_not_meet() {
    in_new_netns(|| {
        let probes: Vec<_> = (0..4)
            .map(|_| thread::spawn(|| probe(Path::new(BPFFS))))
            .collect();
        for report in probes {
            let report = report.join().unwrap();
            assert_eq!(report.ebpf, Ok(expected_kind()), "{report:#?}");
        }
    });
}
