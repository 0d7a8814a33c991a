use std::os::unix::fs::symlink;
use std::path::PathBuf;

use agent_core::policy::CredentialFormat;
use http::HeaderValue;

use super::*;

const CANARY: &str = "canary-s3cret-value";

struct Fixture {
    dir: tempfile::TempDir,
    store: CredentialStore,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("repo")).unwrap();
        let store = CredentialStore::new(dir.path());
        Fixture { dir, store }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn write(&self, file: &str, value: impl AsRef<[u8]>) {
        std::fs::write(self.path(file), value).unwrap();
    }

    fn value(&self, reference: &CredentialRef) -> Result<HeaderValue, CredentialError> {
        self.store
            .get(reference)
            .map(|secret| secret.header_value())
    }
}

fn reference(file: &str) -> CredentialRef {
    CredentialRef {
        header: "authorization".into(),
        file: file.into(),
        prefix: String::new(),
        format: CredentialFormat::Raw,
        username: None,
        strip_from_response: true,
        allow_cleartext: false,
    }
}

#[test]
fn a_value_is_rendered_raw_with_prefix_and_as_basic() {
    let fixture = Fixture::new();
    fixture.write("repo/token", format!("{CANARY}\n"));
    let raw = reference("repo/token");
    assert_eq!(fixture.value(&raw).unwrap(), CANARY);
    assert!(fixture.value(&raw).unwrap().is_sensitive());
    let bearer = CredentialRef {
        prefix: "Bearer ".into(),
        ..raw.clone()
    };
    assert_eq!(fixture.value(&bearer).unwrap(), format!("Bearer {CANARY}"));
    let basic = CredentialRef {
        format: CredentialFormat::Basic,
        username: Some("git".into()),
        ..raw
    };
    // `printf 'git:canary-s3cret-value' | base64`
    assert_eq!(
        fixture.value(&basic).unwrap(),
        "Basic Z2l0OmNhbmFyeS1zM2NyZXQtdmFsdWU="
    );
}

#[test]
fn only_one_trailing_newline_is_trimmed_and_control_characters_are_refused() {
    let fixture = Fixture::new();
    let token = reference("repo/token");
    for (value, right) in [
        ("v", true),
        ("v\n", true),
        ("v\r\n", true),
        ("v\n\n", false),
        ("a\nb", false),
        ("a\rb", false),
        ("a\0b", false),
        ("a\tb", false),
        ("\n", false),
        ("", false),
    ] {
        fixture.write("repo/token", value);
        fixture.store.refresh();
        let result = fixture.value(&token);
        assert_eq!(result.is_ok(), right, "{value:?}");
        if let Err(error) = result {
            assert!(matches!(error.reason(), "empty" | "control_character"));
        }
    }
}

#[test]
fn files_outside_the_folder_are_refused_however_they_are_written() {
    let fixture = Fixture::new();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("key"), CANARY).unwrap();
    symlink(outside.path().join("key"), fixture.path("repo/abs")).unwrap();
    symlink("../../etc/passwd", fixture.path("repo/up")).unwrap();
    for file in [
        "/etc/passwd",
        "../etc/passwd",
        "repo/../../x",
        "",
        ".",
        "repo/abs",
        "repo/up",
    ] {
        let error = fixture.value(&reference(file)).unwrap_err();
        assert_eq!(error.reason(), "outside", "{file}: {error}");
    }
    assert_eq!(
        fixture.value(&reference("repo")).unwrap_err().reason(),
        "unreadable"
    );
    assert_eq!(
        fixture.value(&reference("repo/none")).unwrap_err().reason(),
        "missing"
    );
    assert_eq!(
        fixture.value(&reference("none/none")).unwrap_err().reason(),
        "missing"
    );
}

#[test]
fn a_rotated_projected_secret_is_used_and_a_removed_one_is_an_error() {
    let fixture = Fixture::new();
    let volume = fixture.path("repo");
    let swap = |version: &str, value: &str| {
        std::fs::create_dir(volume.join(version)).unwrap();
        std::fs::write(volume.join(version).join("token"), value).unwrap();
        symlink(version, volume.join("..tmp")).unwrap();
        std::fs::rename(volume.join("..tmp"), volume.join("..data")).unwrap();
    };
    swap("..1", "one");
    symlink("..data/token", volume.join("token")).unwrap();
    let token = reference("repo/token");
    assert_eq!(fixture.value(&token).unwrap(), "one");
    swap("..2", "two");
    fixture.store.refresh();
    assert_eq!(fixture.value(&token).unwrap(), "two");
    std::fs::remove_file(volume.join("..data")).unwrap();
    fixture.store.refresh();
    assert_eq!(fixture.value(&token).unwrap_err().reason(), "missing");
    assert_eq!(fixture.store.unavailable()[0].0, "repo/token");
    swap("..3", "three");
    fixture.store.refresh();
    assert_eq!(fixture.value(&token).unwrap(), "three");
    assert!(fixture.store.unavailable().is_empty());
}

#[test]
fn a_running_store_follows_within_a_second() {
    let fixture = Fixture::new();
    let store = CredentialStore::start(fixture.dir.path()).unwrap();
    let token = reference("repo/late");
    assert!(store.get(&token).is_err());
    fixture.write("repo/late", "here");
    let deadline = Instant::now() + Duration::from_secs(1);
    while store.get(&token).is_err() {
        assert!(Instant::now() < deadline, "not within a second");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_form_of_an_echoed_value_is_redacted() {
    let fixture = Fixture::new();
    fixture.write("repo/token", CANARY);
    let basic = CredentialRef {
        format: CredentialFormat::Basic,
        username: Some("git".into()),
        ..reference("repo/token")
    };
    let secret = fixture.store.get(&basic).unwrap();
    for (echo, redacted) in [
        ("x canary-s3cret-value y", "x [redacted] y"),
        ("Basic Z2l0OmNhbmFyeS1zM2NyZXQtdmFsdWU=", "[redacted]"),
        ("t=Z2l0OmNhbmFyeS1zM2NyZXQtdmFsdWU=;", "t=[redacted];"),
    ] {
        let value = HeaderValue::from_static(echo);
        assert_eq!(secret.redact(&value).unwrap(), redacted);
    }
    assert!(
        secret
            .redact(&HeaderValue::from_static("harmless"))
            .is_none()
    );
}

#[test]
fn no_error_and_no_debug_output_holds_the_value() {
    let fixture = Fixture::new();
    fixture.write("repo/token", format!("{CANARY}\0"));
    let error = fixture.value(&reference("repo/token")).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(CANARY));
    fixture.write("repo/token", CANARY);
    fixture.store.refresh();
    let value = fixture.value(&reference("repo/token")).unwrap();
    assert!(!format!("{value:?}").contains(CANARY));
}

#[test]
fn what_nobody_uses_is_forgotten() {
    let fixture = Fixture::new();
    fixture.write("repo/token", CANARY);
    let token = reference("repo/token");
    fixture.value(&token).unwrap();
    fixture.store.forget_unused();
    assert_eq!(fixture.store.0.slots.load().len(), 1);
    fixture.store.forget_unused();
    assert_eq!(fixture.store.0.slots.load().len(), 0);
    assert!(fixture.value(&token).is_ok());
}
