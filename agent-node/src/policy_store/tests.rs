use std::path::PathBuf;

use super::*;

struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("policy.json")
    }

    fn write(&self, text: &str) {
        let temp = self.dir.path().join("temp");
        std::fs::write(&temp, text).unwrap();
        std::fs::rename(&temp, self.path()).unwrap();
    }
}

fn document(rule: &str) -> String {
    format!(
        r#"{{"schemaVersion":1,"policies":[{{"namespace":"demo","name":"p","subjects":{{"namespaces":["demo"]}}}}],
        "rules":[{{"policy":0,"name":"{rule}","kind":"allow","host":"{rule}.example.com"}}]}}"#
    )
}

#[tokio::test]
async fn a_missing_document_denies_all_until_one_appears() {
    let fixture = Fixture::new();
    let store = PolicyStore::follow(&fixture.path()).unwrap();
    assert!(!store.status().loaded);
    assert!(
        store
            .status()
            .problem
            .as_deref()
            .unwrap()
            .contains("can't be read")
    );
    assert_eq!(store.load().set.rule_count(), 0);
    assert_eq!(store.generation(), 0);

    fixture.write(&document("one"));
    store.changed(0).await;
    assert!(store.status().loaded);
    assert_eq!(store.status().problem, None);
    assert_eq!(store.load().set.rule_count(), 1);
    assert_eq!(store.load().version, store.status().version);
    assert_eq!(store.generation(), 1);
}

#[tokio::test]
async fn a_broken_document_is_refused_and_the_active_version_stays() {
    let fixture = Fixture::new();
    fixture.write(&document("one"));
    let store = PolicyStore::follow(&fixture.path()).unwrap();
    let version = store.load().version.clone();
    for (n, bad) in ["{", r#"{"schemaVersion":9}"#, ""].into_iter().enumerate() {
        fixture.write(bad);
        let status = store.check_now().await;
        assert!(status.loaded && status.problem.is_some(), "{bad}");
        assert_eq!(status.refused, n as u64 + 1);
        assert_eq!(store.load().version, version);
    }
    std::fs::remove_file(fixture.path()).unwrap();
    assert!(store.check_now().await.problem.is_some());
    assert_eq!(store.load().version, version);

    fixture.write(&document("one"));
    assert_eq!(store.check_now().await.problem, None);
    assert_eq!(
        store.generation(),
        1,
        "the same content is the same generation"
    );
    fixture.write(&document("two"));
    assert_ne!(store.check_now().await.version, version);
    assert_eq!(store.generation(), 2);
}

#[tokio::test]
async fn those_who_hold_an_old_snapshot_keep_it_whole() {
    let fixture = Fixture::new();
    fixture.write(&document("one"));
    let store = PolicyStore::follow(&fixture.path()).unwrap();
    let old = store.load();
    fixture.write(&document("two"));
    store.changed(old.generation).await;
    assert_eq!(old.generation, 1);
    assert_eq!(old.set.rule_count(), 1);
    assert_ne!(old.version, store.load().version);
}
