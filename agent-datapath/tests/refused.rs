//! The probe in processes that are refused things, as container runtimes and unprivileged users meet it.
//!
//! Apart from the tests of what works: aya finds out what a kernel can do once per process, and here it can nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::path::Path;

use agent_core::attachment::Mode;
use agent_datapath::probe::{FeatureName, Report, Requested, State, choose, probe};
use support::{in_new_netns, refuse};

const BPFFS: &str = "/sys/fs/bpf";

fn state(report: &Report, name: FeatureName) -> State {
    let feature = report.features.iter().find(|f| f.name == name);
    feature
        .unwrap_or_else(|| panic!("{name:?}: {report:#?}"))
        .state
}

#[test]
fn a_refused_bpf_call_leads_to_compat_and_says_who_refused() {
    for (errno, wanted) in [
        (nix::libc::EPERM, "a seccomp filter is in force"),
        (
            nix::libc::ENOSYS,
            "a seccomp filter of this process answers",
        ),
    ] {
        in_new_netns(move || {
            refuse::bpf_calls(errno);
            let report = probe(Path::new(BPFFS));
            let whys = report.ebpf.clone().unwrap_err();
            assert_eq!(whys[0].feature, FeatureName::Programs, "{whys:#?}");
            assert!(whys[0].meaning.contains(wanted), "{whys:#?}");
            assert_eq!(state(&report, FeatureName::Delivery), State::Untried);
            let (mode, reason) = choose(Requested::Auto, None, &report).unwrap();
            assert_eq!(mode, Mode::IptablesCompat, "{report:#?}");
            assert!(reason.to_string().contains(wanted), "{reason}");
            choose(Requested::This(Mode::Ebpf), None, &report).unwrap_err();
        });
    }
}

#[test]
fn a_process_without_privilege_is_told_which_one_it_lacks() {
    in_new_netns(|| {
        refuse::all_capabilities();
        let report = probe(Path::new(BPFFS));
        let error = choose(Requested::Auto, None, &report).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("lacks CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_BPF"),
            "{text}"
        );
    });
}
