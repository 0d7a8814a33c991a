use super::*;

fn object(name: &str, uid: &str, generation: i64, host: &str) -> Arc<GuardedPolicy> {
    let text = format!(
        r#"{{"apiVersion":"agent.tke.cloud.tencent.com/v1alpha1","kind":"AgentNetworkPolicy",
            "metadata":{{"name":"{name}","namespace":"tke-agent-network-real","uid":"{uid}","generation":{generation}}},
            "spec":{{"egress":{{"allow":[{{"name":"r","host":"{host}"}}]}}}}}}"#
    );
    Arc::new(serde_json::from_str(&text).unwrap())
}

fn key(name: &str) -> Key {
    ("tke-agent-network-real".to_owned(), name.to_owned())
}

fn document(catalogue: &Catalogue) -> RuntimePolicy {
    assemble(catalogue.valid(), &[])
}

fn settle(catalogue: &mut Catalogue) -> String {
    let version = document(catalogue).version.unwrap();
    catalogue.settle(&version);
    version
}

#[test]
fn a_policy_is_new_with_its_own_change_and_not_with_anothers() {
    let mut catalogue = Catalogue::new(CompileOptions::default());
    let a = object("a", "1", 1, "a.example.com");
    assert!(catalogue.update(&[a.clone(), object("b", "2", 1, "b.example.com")]));
    let first = settle(&mut catalogue);
    assert!(!catalogue.update(&[a.clone(), object("b", "2", 1, "b.example.com")]));
    assert!(catalogue.update(&[a.clone(), object("b", "2", 2, "c.example.com")]));
    let second = settle(&mut catalogue);
    let views = catalogue.published();
    assert_eq!(views.policies[&key("a")].since_version, first);
    assert_eq!(views.policies[&key("b")].since_version, second);
    assert!(views.history[&first] >= views.policies[&key("a")].since);
    assert!(views.history[&first] < views.policies[&key("b")].since);
    assert!(views.history[&second] >= views.policies[&key("b")].since);
}

#[test]
fn a_generation_that_says_the_same_is_not_new() {
    let mut catalogue = Catalogue::new(CompileOptions::default());
    catalogue.update(&[object("a", "1", 1, "a.example.com")]);
    let version = settle(&mut catalogue);
    assert!(!catalogue.update(&[object("a", "1", 2, "a.example.com")]));
    let views = catalogue.published();
    let view = &views.policies[&key("a")];
    assert_eq!(
        (view.generation, view.since_version.as_str()),
        (2, version.as_str())
    );
}

#[test]
fn an_invalid_or_deleted_policy_leaves_the_document() {
    let mut catalogue = Catalogue::new(CompileOptions::default());
    let b = object("b", "2", 1, "b.example.com");
    catalogue.update(&[object("a", "1", 1, "a.example.com"), b.clone()]);
    assert!(catalogue.update(&[object("a", "1", 2, "no host"), b.clone()]));
    assert_eq!(document(&catalogue).policies.len(), 1);
    let views = catalogue.published();
    assert!(
        matches!(&views.policies[&key("a")].outcome, Outcome::Invalid(why) if why.contains("no host"))
    );
    assert!(
        !catalogue.update(&[object("a", "1", 3, "none either"), b]),
        "it was out already"
    );
    assert!(catalogue.update(&[]));
    assert!(document(&catalogue).policies.is_empty());
}

#[test]
fn what_was_published_before_this_process_is_not_new() {
    let mut before = Catalogue::new(CompileOptions::default());
    before.update(&[
        object("a", "1", 1, "a.example.com"),
        object("b", "2", 1, "b.example.com"),
    ]);
    let old = document(&before);
    let mut catalogue = Catalogue::new(CompileOptions::default());
    catalogue.begin(Some(old.to_json().as_bytes()));
    // b was changed while no controller ran
    catalogue.update(&[
        object("a", "1", 1, "a.example.com"),
        object("b", "2", 2, "c.example.com"),
    ]);
    settle(&mut catalogue);
    let views = catalogue.published();
    let at_old = views.history[old.version.as_ref().unwrap()];
    assert!(
        at_old >= views.policies[&key("a")].since,
        "a proxy with the old document enforces a"
    );
    assert!(
        at_old < views.policies[&key("b")].since,
        "and not b as it is now"
    );
}

#[test]
fn going_back_to_an_earlier_document_counts_for_those_who_never_left_it() {
    let mut catalogue = Catalogue::new(CompileOptions::default());
    catalogue.update(&[object("a", "1", 1, "a.example.com")]);
    let first = settle(&mut catalogue);
    catalogue.update(&[object("a", "1", 2, "b.example.com")]);
    let second = settle(&mut catalogue);
    catalogue.update(&[object("a", "1", 3, "a.example.com")]);
    assert_eq!(settle(&mut catalogue), first);
    let views = catalogue.published();
    assert!(views.history[&first] >= views.policies[&key("a")].since);
    assert!(views.history[&second] < views.policies[&key("a")].since);
}

#[test]
fn an_object_that_cannot_be_read_hides_no_other() {
    let text = r#"{"apiVersion":"agent.tke.cloud.tencent.com/v1alpha1","kind":"AgentNetworkPolicy",
        "metadata":{"name":"x","namespace":"tke-agent-network-real","uid":"9","generation":1},"spec":{"egress":7}}"#;
    let broken: Arc<GuardedPolicy> = Arc::new(serde_json::from_str(text).unwrap());
    let mut catalogue = Catalogue::new(CompileOptions::default());
    catalogue.update(&[broken, object("a", "1", 1, "a.example.com")]);
    assert_eq!(document(&catalogue).policies.len(), 1);
    let views = catalogue.published();
    assert!(
        matches!(&views.policies[&key("x")].outcome, Outcome::Invalid(why) if why.contains("can't be read"))
    );
}
