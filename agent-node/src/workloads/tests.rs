use std::collections::BTreeMap;
use std::path::Path;

use agent_core::attachment::{Attachment, Mode, PodRef as AttachedPod, SCHEMA_VERSION};
use agent_core::mac::MacAddr;

use super::table::{Builder, Complaint};
use super::*;

fn attachment(container: &str, name: &str, ip: [u8; 4]) -> Attachment {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    Attachment {
        schema_version: SCHEMA_VERSION,
        container_id: container.into(),
        ifname: "eth0".into(),
        netns: "/var/run/netns/x".into(),
        pod: AttachedPod {
            namespace: "demo".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
        },
        fake_ip: ip.into(),
        mac: MacAddr([2, 0, 0, 0, 0, ip[3]]),
        host_veth: format!("agve{container}"),
        ifindex: u32::from(ip[3]) + 100,
        mode: Mode::Ebpf,
        created: "2026-11-30T10:34:56.000000Z".into(),
        boot_id: boot_id.trim().into(),
    }
}

fn facts(account: &str) -> impl Fn(PodRef<'_>) -> Option<PodFacts> {
    let facts = PodFacts {
        service_account: Some(account.into()),
        labels: BTreeMap::from([("app".into(), "a".into())]),
        namespace_labels: BTreeMap::new(),
    };
    move |_| Some(facts.clone())
}

const A: [u8; 4] = [169, 254, 9, 2];
const B: [u8; 4] = [169, 254, 9, 3];

#[test]
fn an_attachment_and_facts_make_an_identity() {
    let mut builder = Builder::default();
    let pods = [Arc::new(attachment("c1", "a", A))];
    let table = builder.build(&pods, facts("coder")).unwrap();
    let found = &table[&A.into()];
    assert_eq!(found.workload.name, "a");
    assert_eq!(found.workload.service_account.as_deref(), Some("coder"));
    assert_eq!(found.workload.labels["app"], "a");
    assert!(
        builder.build(&pods, facts("coder")).is_none(),
        "nothing has changed"
    );
}

#[test]
fn two_claims_on_one_address_deny_both_and_close_the_first_ones_connections() {
    let mut builder = Builder::default();
    let first = Arc::new(attachment("c1", "a", A));
    let alone = std::slice::from_ref(&first);
    let table = builder.build(alone, facts("s")).unwrap();
    let known = table[&A.into()].clone();
    let second = Arc::new(attachment("c2", "b", A));
    let table = builder.build(&[first.clone(), second], facts("s")).unwrap();
    assert!(table.is_empty());
    assert!(known.gone.is_cancelled());
    assert_eq!(
        builder.complaints(),
        [Complaint::TwoClaims(
            A.into(),
            vec!["demo/a".into(), "demo/b".into()]
        )]
    );
    // When one of them is gone the other is known, as somebody new.
    let table = builder.build(&[first], facts("s")).unwrap();
    assert!(!table[&A.into()].gone.is_cancelled());
}

#[test]
fn an_address_reused_is_another_identity() {
    let mut builder = Builder::default();
    let table = builder
        .build(&[Arc::new(attachment("c1", "a", A))], facts("s"))
        .unwrap();
    let old = table[&A.into()].clone();
    let table = builder
        .build(&[Arc::new(attachment("c2", "a", A))], facts("s"))
        .unwrap();
    let new = &table[&A.into()];
    assert!(old.gone.is_cancelled());
    assert!(!new.gone.is_cancelled());
    assert_ne!(old.generation, new.generation);
}

#[test]
fn changed_labels_are_a_new_generation_of_the_same_attachment() {
    let mut builder = Builder::default();
    let pods = [
        Arc::new(attachment("c1", "a", A)),
        Arc::new(attachment("c2", "b", B)),
    ];
    let table = builder.build(&pods, facts("one")).unwrap();
    let before = table[&A.into()].clone();
    let table = builder.build(&pods, facts("two")).unwrap();
    let after = &table[&A.into()];
    assert_eq!(after.workload.service_account.as_deref(), Some("two"));
    assert!(after.generation > before.generation);
    assert!(!before.gone.is_cancelled());
    after.gone.cancel();
    assert!(before.gone.is_cancelled(), "one attachment has one token");
}

#[test]
fn a_pod_that_nobody_knows_has_no_identity() {
    let mut builder = Builder::default();
    let pods = [Arc::new(attachment("c1", "a", A))];
    assert!(builder.build(&pods, |_| None).is_none());
    let table = builder.build(&pods, facts("s")).unwrap();
    let known = table[&A.into()].clone();
    assert!(builder.build(&pods, |_| None).unwrap().is_empty());
    assert!(known.gone.is_cancelled());
}

struct Fixture {
    state: tempfile::TempDir,
    facts: tempfile::TempDir,
    workloads: Workloads,
}

impl Fixture {
    fn new(wait: Duration) -> (Fixture, Follower) {
        let fixture = Fixture {
            state: tempfile::tempdir().unwrap(),
            facts: tempfile::tempdir().unwrap(),
            workloads: Workloads::new(wait),
        };
        let file = fixture.facts.path().join("workloads.json");
        std::fs::write(&file, r#"{"demo/*":{"serviceAccount":"s"}}"#).unwrap();
        let source = Box::new(FactsFile::new(&file));
        let follower = Follower::start(&fixture.workloads, fixture.state.path(), source);
        (fixture, follower)
    }

    fn write(&self, attachment: &Attachment) {
        write(
            self.state.path(),
            &attachment.file_name(),
            &attachment.to_json(),
        );
    }
}

fn write(dir: &Path, name: &str, text: &str) {
    let temp = dir.join(format!(".{name}.tmp"));
    std::fs::write(&temp, text).unwrap();
    std::fs::rename(temp, dir.join(name)).unwrap();
}

#[tokio::test]
async fn a_connection_waits_for_its_state_file() {
    let (fixture, follower) = Fixture::new(Duration::from_secs(5));
    tokio::spawn(follower.run());
    let workloads = fixture.workloads.clone();
    let waiting = tokio::spawn(async move { workloads.identify(A.into()).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    fixture.write(&attachment("c1", "a", A));
    let found = waiting.await.unwrap().unwrap();
    assert_eq!(found.workload.name, "a");
    assert_eq!(found.ifindex, 102);
    assert!(fixture.workloads.at_interface(102).is_some());

    let gone = found.gone.clone();
    std::fs::remove_file(fixture.state.path().join("c1_eth0.json")).unwrap();
    tokio::time::timeout(Duration::from_secs(2), gone.cancelled())
        .await
        .expect("DEL cancels");
    assert!(fixture.workloads.known(A.into()).is_none());
}

#[tokio::test]
async fn an_address_without_state_is_unknown_after_the_wait() {
    let (fixture, follower) = Fixture::new(Duration::from_millis(50));
    tokio::spawn(follower.run());
    let begun = std::time::Instant::now();
    assert!(fixture.workloads.identify(A.into()).await.is_none());
    assert!(begun.elapsed() >= Duration::from_millis(50));
}

#[tokio::test]
async fn waiting_is_bounded() {
    let workloads = Workloads::new(Duration::from_secs(60));
    let mut waiting = tokio::task::JoinSet::new();
    for n in 0..MAX_WAITING {
        let workloads = workloads.clone();
        let ip = Ipv4Addr::from(0xc612_0000 + u32::try_from(n / MAX_WAITING_PER_ADDRESS).unwrap());
        waiting.spawn(async move { workloads.identify(ip).await });
    }
    while workloads.0.waiting.lock().all < MAX_WAITING {
        tokio::task::yield_now().await;
    }
    let one_more = tokio::time::timeout(Duration::from_secs(5), workloads.identify(B.into()));
    assert!(one_more.await.unwrap().is_none());
    waiting.abort_all();
    while waiting.join_next().await.is_some() {}
    assert_eq!(workloads.0.waiting.lock().all, 0);
    assert!(workloads.0.waiting.lock().by_address.is_empty());
}

#[tokio::test]
async fn one_unknown_address_does_not_take_anothers_place() {
    let workloads = Workloads::new(Duration::from_secs(60));
    let mut waiting = tokio::task::JoinSet::new();
    let wait = |ip: [u8; 4]| {
        let workloads = workloads.clone();
        async move { workloads.identify(ip.into()).await }
    };
    for _ in 0..MAX_WAITING_PER_ADDRESS {
        waiting.spawn(wait(A));
    }
    while workloads.0.waiting.lock().all < MAX_WAITING_PER_ADDRESS {
        tokio::task::yield_now().await;
    }
    assert!(workloads.identify(A.into()).await.is_none());
    waiting.spawn(wait(B));
    while workloads.0.waiting.lock().all <= MAX_WAITING_PER_ADDRESS {
        tokio::task::yield_now().await;
    }
}

#[test]
fn garbage_and_foreign_files_disturb_nobody() {
    let (fixture, mut follower) = Fixture::new(Duration::from_secs(1));
    let dir = fixture.state.path();
    write(dir, "c9_eth0.json", "{");
    write(dir, "c8_eth0.json", "");
    write(dir, "node.json", "{}");
    write(dir, "notes.txt", "hello");
    std::fs::create_dir(dir.join("folder.json")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.join("link.json")).unwrap();
    write(
        dir,
        "c7_eth0.json",
        &Attachment {
            boot_id: "another".into(),
            ..attachment("c7", "old", B)
        }
        .to_json(),
    );
    fixture.write(&attachment("c1", "a", A));
    follower.refresh();
    assert_eq!(fixture.workloads.len(), 1);
    assert!(fixture.workloads.known(A.into()).is_some());
}

#[test]
fn a_state_folder_that_vanishes_takes_all_identities_away() {
    let (fixture, mut follower) = Fixture::new(Duration::from_secs(1));
    fixture.write(&attachment("c1", "a", A));
    follower.refresh();
    let known = fixture.workloads.known(A.into()).unwrap();
    std::fs::remove_dir_all(fixture.state.path()).unwrap();
    follower.refresh();
    assert!(fixture.workloads.is_empty());
    assert!(known.gone.is_cancelled());
}
