use agent_core::{
    attachment::{Mode, PodRef, SCHEMA_VERSION},
    mac::MacAddr,
};

use super::*;

fn target(container_id: &str) -> Target {
    Target {
        container_id: container_id.into(),
        ifname: "eth0".into(),
    }
}

fn attachment(container_id: &str) -> Attachment {
    Attachment {
        schema_version: SCHEMA_VERSION,
        container_id: container_id.into(),
        ifname: "eth0".into(),
        netns: "/run/netns/p".into(),
        pod: PodRef {
            namespace: "agents".into(),
            name: "p".into(),
            uid: String::new(),
        },
        fake_ip: Ipv4Addr::new(169, 254, 9, 2),
        mac: MacAddr([0x0a, 0x58, 169, 254, 9, 2]),
        host_veth: "agt0123456789ab".into(),
        ifindex: 7,
        mode: Mode::Ebpf,
        created: "2026-11-30T10:34:56.000000Z".into(),
        boot_id: "b".into(),
    }
}

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_saved_is_read_and_removed_twice() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    state.save_attachment(&attachment("c1")).unwrap();
    assert_eq!(
        state.attachment(&target("c1")).unwrap(),
        Some(attachment("c1"))
    );
    assert_eq!(state.attachments().unwrap(), [attachment("c1")]);
    assert_eq!(files(directory.path()), ["c1_eth0.json", "pending"]);
    state.remove_attachment(&target("c1")).unwrap();
    state.remove_attachment(&target("c1")).unwrap();
    assert_eq!(state.attachment(&target("c1")).unwrap(), None);
}

#[test]
fn garbage_is_set_aside_and_counts_as_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    fs::write(
        directory.path().join("c1_eth0.json"),
        b"{\"schemaVersion\": 1",
    )
    .unwrap();
    fs::write(directory.path().join("node.json"), b"").unwrap();
    fs::write(directory.path().join("foreign.json"), b"[1, 2]").unwrap();
    fs::create_dir(directory.path().join("c2_eth0.json")).unwrap();
    assert_eq!(state.attachments().unwrap(), []);
    assert!(state.node().unwrap().is_none());
    let names = files(directory.path());
    assert_eq!(
        names
            .iter()
            .filter(|name| name.contains(".corrupt-"))
            .count(),
        4,
        "{names:?}"
    );
}

#[test]
fn a_file_under_another_containers_name_is_not_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    fs::write(
        directory.path().join("c2_eth0.json"),
        attachment("c1").to_json(),
    )
    .unwrap();
    assert_eq!(state.attachment(&target("c2")).unwrap(), None);
    fs::write(
        directory.path().join("c3_eth0.json"),
        attachment("c1").to_json(),
    )
    .unwrap();
    assert_eq!(state.attachments().unwrap(), []);
}

#[test]
fn a_reservation_is_seen_by_others_until_it_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    let pending = state.lock_attachment(&target("c1")).unwrap();
    let reservation = Reservation {
        container_id: "c1".into(),
        ifname: "eth0".into(),
        fake_ip: Ipv4Addr::new(169, 254, 9, 2),
        host_veth: "agt0123456789ab".into(),
    };
    let lock = state.lock_allocation().unwrap();
    pending.reserve(&lock, &reservation).unwrap();
    pending.reserve(&lock, &reservation).unwrap();
    assert_eq!(pending.reservation(), Some(reservation.clone()));
    assert_eq!(
        state.reservations().unwrap(),
        [("c1_eth0".to_owned(), Some(reservation.clone()))]
    );
    assert!(state.take_over("c1_eth0").unwrap().is_none());
    drop(pending);
    let taken = state.take_over("c1_eth0").unwrap().unwrap();
    assert_eq!(taken.reservation(), Some(reservation));
    taken.done().unwrap();
    assert_eq!(state.reservations().unwrap(), []);
}

#[test]
fn a_released_list_of_bytes_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    let state = StateDir::open(directory.path()).unwrap();
    fs::write(directory.path().join("released"), [0xff, 0xfe]).unwrap();
    let lock = state.lock_allocation().unwrap();
    assert!(state.released(&lock).unwrap().is_empty());
    state.release(&lock, Ipv4Addr::new(169, 254, 9, 2)).unwrap();
    assert_eq!(state.released(&lock).unwrap().len(), 1);
}
