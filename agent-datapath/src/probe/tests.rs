use super::*;

fn fails(name: FeatureName, errno: i32) -> Tried {
    Tried::failed(name, &io::Error::from_raw_os_error(errno))
}

fn assembled(isolation: Tried, ebpf: ebpf::Attempt, compat: Vec<Tried>) -> Report {
    let bpffs = Tried::ok(FeatureName::Bpffs, "/sys/fs/bpf");
    assemble(isolation, bpffs, ebpf, compat, &Surroundings::default())
}

#[test]
fn a_stage_that_cannot_be_made_is_in_the_way_of_both_modes_and_nothing_was_tried() {
    let isolation = fails(FeatureName::Isolation, libc::EPERM);
    let report = assembled(isolation, ebpf::Attempt::default(), vec![]);
    for whys in [report.ebpf.unwrap_err(), report.compat.unwrap_err()] {
        assert_eq!(whys.len(), 1);
        assert_eq!(whys[0].feature, FeatureName::Isolation);
    }
    let untried = report
        .features
        .iter()
        .filter(|feature| feature.state == State::Untried)
        .count();
    assert_eq!(untried, ebpf::FEATURES.len() + compat::FEATURES.len());
}

#[test]
fn one_thing_that_fails_is_enough_also_when_the_program_is_attached() {
    let attempt = ebpf::Attempt {
        tried: vec![fails(FeatureName::Delivery, libc::ETIMEDOUT)],
        kind: Some(AttachKind::Tcx),
    };
    let isolation = Tried::ok(FeatureName::Isolation, "");
    let compat = compat::FEATURES.map(|name| Tried::ok(name, "")).into();
    let report = assembled(isolation, attempt, compat);
    assert!(!report.works(Mode::Ebpf) && report.works(Mode::IptablesCompat));
    assert_eq!(report.against(Mode::Ebpf)[0].feature, FeatureName::Delivery);
}

#[test]
fn causes_are_told_once() {
    let inner = io::Error::other("verifier says no");
    let outer = io::Error::other(format!("cannot load: {inner}"));
    assert_eq!(chain(&outer), "cannot load: verifier says no");
}
