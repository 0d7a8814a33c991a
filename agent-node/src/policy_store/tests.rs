use std::collections::BTreeMap;
use std::path::PathBuf;

use agent_core::identity::Workload;
use agent_core::policy::HostName;

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

    fn settings(&self) -> PathBuf {
        self.dir.path().join("settings")
    }

    fn own_settings(&self) -> OwnSettings {
        OwnSettings {
            path: self.settings(),
            node: Some("n1".into()),
        }
    }

    /// What the node's class says about pods without a policy.
    fn class(&self, connectivity: &str) {
        self.class_of("n1", connectivity);
    }

    fn class_of(&self, node: &str, connectivity: &str) {
        let text = format!(
            r#"{{"schemaVersion":1,"node":"{node}","class":"c","fakeIPCIDR":"169.254.9.0/24","settings":{{"proxyPort":18080,"dnsPort":18053,
            "failMode":"Closed","defaultConnectivity":"{connectivity}","mode":"auto"}}}}"#
        );
        std::fs::write(self.settings(), text).unwrap();
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
    let store = PolicyStore::follow(&fixture.path(), fixture.own_settings()).unwrap();
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
    let store = PolicyStore::follow(&fixture.path(), fixture.own_settings()).unwrap();
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
    let store = PolicyStore::follow(&fixture.path(), fixture.own_settings()).unwrap();
    let old = store.load();
    fixture.write(&document("two"));
    store.changed(old.generation).await;
    assert_eq!(old.generation, 1);
    assert_eq!(old.set.rule_count(), 1);
    assert_ne!(old.version, store.load().version);
}

/// A projected volume: a folder of one time, and `..data` that leads to it.
fn project(fixture: &Fixture, time: &str, texts: &[&str]) {
    let (dir, volume) = (fixture.dir.path(), fixture.dir.path().join(time));
    std::fs::create_dir(&volume).unwrap();
    for (number, text) in texts.iter().enumerate() {
        let name = match number {
            0 => "policy.json".to_owned(),
            n => agent_core::policy::parts::file_name(u32::try_from(n).unwrap()),
        };
        std::fs::write(volume.join(&name), text).unwrap();
        let link = dir.join(&name);
        if !link.is_symlink() {
            std::os::unix::fs::symlink(Path::new("..data").join(&name), link).unwrap();
        }
    }
    let temp = dir.join("..data_tmp");
    std::os::unix::fs::symlink(time, &temp).unwrap();
    std::fs::rename(temp, dir.join("..data")).unwrap();
}

fn in_parts(rule: &str) -> Vec<String> {
    // spaces make it long without changing what it says
    let document =
        document(rule).replace("\"rules\":[", &format!("\"rules\":[{}", " ".repeat(9000)));
    let version = RuntimePolicy::parse(document.as_bytes())
        .unwrap()
        .content_version();
    agent_core::policy::parts::split(document, &version, 4096)
}

#[tokio::test]
async fn parts_are_taken_together_and_a_missing_one_keeps_the_version_before() {
    let fixture = Fixture::new();
    let one = in_parts("one");
    let two = in_parts("two");
    assert_eq!((one.len(), two.len()), (4, 4));
    let texts = |parts: &[&String]| {
        parts
            .iter()
            .map(|p| p.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    let put = |time: &str, parts: &[&String]| {
        let texts = texts(parts);
        project(
            &fixture,
            time,
            &texts.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    put("..1", &one.iter().collect::<Vec<_>>());
    let store = PolicyStore::follow(&fixture.path(), fixture.own_settings()).unwrap();
    let first = store.status();
    assert!(first.loaded && first.problem.is_none(), "{first:?}");
    assert_eq!(store.load().set.rule_count(), 1);

    // the index is there before its parts
    put("..2", &[&two[0], &two[1], &one[2], &one[3]]);
    let status = store.check_now().await;
    assert_eq!(status.version, first.version);
    assert!(
        status
            .problem
            .as_deref()
            .unwrap()
            .contains("part 2 is of version"),
        "{status:?}"
    );
    put("..3", &[&two[0], &two[1], &two[2]]);
    let status = store.check_now().await;
    assert_eq!(status.version, first.version);
    assert!(
        status
            .problem
            .as_deref()
            .unwrap()
            .contains("part 3 can't be read"),
        "{status:?}"
    );
    assert_eq!(status.refused, 0, "it is on its way, not refused");

    put("..4", &two.iter().collect::<Vec<_>>());
    let status = store.check_now().await;
    assert_ne!(status.version, first.version);
    assert_eq!((status.problem.as_deref(), store.generation()), (None, 2));

    // and a document that fits again
    let small = document("one");
    project(&fixture, "..5", &[&small]);
    let status = store.check_now().await;
    assert_eq!(
        (status.version.as_str(), status.problem.as_deref()),
        (first.version.as_str(), None)
    );
}

#[tokio::test]
async fn the_class_opens_pods_without_a_policy_and_whatever_isnt_its_word_closes_them() {
    let stranger = Workload {
        namespace: "elsewhere".into(),
        name: "stranger".into(),
        uid: String::new(),
        service_account: None,
        labels: BTreeMap::new(),
        namespace_labels: BTreeMap::new(),
        fake_ip: std::net::Ipv4Addr::new(169, 254, 9, 2),
    };
    let fixture = Fixture::new();
    fixture.class("Passthrough");
    let store = PolicyStore::follow(&fixture.path(), fixture.own_settings()).unwrap();
    let passes = |store: &PolicyStore| {
        let snapshot = store.load();
        let name = HostName::parse("a.example").unwrap();
        let scope = snapshot.set.scope(&stranger);
        snapshot.set.may_resolve(&scope, &name)
    };
    assert!(!passes(&store), "no document, nothing passes");
    fixture.write(&document("one"));
    store.check_now().await;
    assert!(passes(&store) && store.status().passthrough);
    let version = store.load().version.clone();
    for closed in ["Zero", "garbage", "another node's", ""] {
        let generation = store.generation();
        match closed {
            "" => std::fs::remove_file(fixture.settings()).unwrap(),
            "another node's" => fixture.class_of("n2", "Passthrough"),
            other => fixture.class(other),
        }
        store.check_now().await;
        assert!(!passes(&store) && !store.status().passthrough, "{closed}");
        assert!(
            store.generation() > generation,
            "connections are looked at again"
        );
        fixture.class("Passthrough");
        store.check_now().await;
        assert!(passes(&store), "after {closed}");
    }
    assert_eq!(store.load().version, version);
    assert_eq!(store.status().problem, None);
}
