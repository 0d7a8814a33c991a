//! Whose a pod is: by its labels, and ours whenever they are not known.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use agent_core::{
    attachment::PodRef,
    workloads::{PodFacts, WorkloadsFile},
};

use crate::{file, netconf::Selective};

/// How long a pod's entry is waited for: whoever writes the file learns of the pod about when the runtime does.
const PATIENCE: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_millis(50);

/// Whose network a pod gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Ours: controlled.
    Us,
    /// The primary network's.
    Primary,
}

/// Decides by the workloads file, waiting for the pod's own entry for a short time.
pub(super) fn owner(selective: &Selective, pod: &PodRef) -> Owner {
    let until = Instant::now() + PATIENCE;
    loop {
        let file = read(&selective.workloads_file);
        let last = Instant::now() >= until;
        if let Some(owner) = judge(selective, pod, file.as_ref(), last) {
            return owner;
        }
        std::thread::sleep(EVERY);
    }
}

/// The answer, or that it is too early for one. `last` is the end of waiting.
fn judge(
    selective: &Selective,
    pod: &PodRef,
    file: Option<&WorkloadsFile>,
    last: bool,
) -> Option<Owner> {
    let own = file.and_then(|file| file.own(&pod.namespace, &pod.name, &pod.uid));
    let known = match own {
        Some(own) => Some(own),
        // an entry of its own may be on the way
        None if !last => return None,
        None => file.and_then(|file| file.facts(&pod.namespace, &pod.name, &pod.uid)),
    };
    Some(by_labels(selective, pod, known))
}

fn by_labels(selective: &Selective, pod: &PodRef, known: Option<&PodFacts>) -> Owner {
    match known {
        Some(facts) if selective.selector.matches(&facts.labels) => Owner::Us,
        Some(_) => Owner::Primary,
        None => {
            tracing::warn!(
                namespace = %pod.namespace, pod = %pod.name,
                file = %selective.workloads_file.display(),
                "the pod's labels are not known; it gets agent-cni's network"
            );
            Owner::Us
        }
    }
}

/// A file that is not there or cannot be read says nothing about anybody.
fn read(path: &Path) -> Option<WorkloadsFile> {
    let parsed = file::read(path)
        .map_err(|error| error.to_string())
        .and_then(|bytes| WorkloadsFile::parse(&bytes).map_err(|error| error.to_string()));
    match parsed {
        Ok(file) => Some(file),
        Err(error) => {
            tracing::debug!(file = %path.display(), %error, "the workloads file cannot be read");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selective(file: &Path) -> Selective {
        Selective {
            selector: serde_json::from_str(r#"{"matchLabels": {"agent": "yes"}}"#).unwrap(),
            workloads_file: file.to_owned(),
        }
    }

    fn pod() -> PodRef {
        PodRef {
            namespace: "demo".into(),
            name: "a".into(),
            uid: String::new(),
        }
    }

    #[test]
    fn labels_decide_and_what_is_not_known_is_ours() {
        let selective = selective(Path::new("/w"));
        for (text, last, wanted) in [
            (
                r#"{"demo/a": {"labels": {"agent": "yes"}}}"#,
                false,
                Some(Owner::Us),
            ),
            (
                r#"{"demo/a": {"labels": {"agent": "no"}}}"#,
                false,
                Some(Owner::Primary),
            ),
            (r#"{"demo/a": {}}"#, false, Some(Owner::Primary)),
            (r#"{"demo/b": {}}"#, false, None),
            (r#"{"demo/b": {}}"#, true, Some(Owner::Us)),
            // the namespace's entry counts when waiting for the pod's own has an end
            (r#"{"demo/*": {}}"#, false, None),
            (r#"{"demo/*": {}}"#, true, Some(Owner::Primary)),
            (
                r#"{"demo/*": {}, "demo/a": {"labels": {"agent": "yes"}}}"#,
                true,
                Some(Owner::Us),
            ),
        ] {
            let file = WorkloadsFile::parse(text.as_bytes()).unwrap();
            assert_eq!(
                judge(&selective, &pod(), Some(&file), last),
                wanted,
                "{text} {last}"
            );
        }
        // of a pod that had the same name: this one's is on the way
        let file = r#"{"demo/a": {"uid": "old", "labels": {"agent": "no"}}}"#;
        let file = WorkloadsFile::parse(file.as_bytes()).unwrap();
        let new = PodRef {
            uid: "new".into(),
            ..pod()
        };
        assert_eq!(judge(&selective, &new, Some(&file), false), None);
        assert_eq!(judge(&selective, &new, Some(&file), true), Some(Owner::Us));
        assert_eq!(judge(&selective, &pod(), None, false), None);
        assert_eq!(judge(&selective, &pod(), None, true), Some(Owner::Us));
    }

    #[test]
    fn an_entry_that_comes_late_is_waited_for_and_one_that_does_not_come_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("w.json");
        let begun = Instant::now();
        assert_eq!(owner(&selective(&file), &pod()), Owner::Us);
        assert!(begun.elapsed() < PATIENCE * 3);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(EVERY * 4);
                std::fs::write(&file, r#"{"demo/a": {}}"#).unwrap();
            });
            assert_eq!(owner(&selective(&file), &pod()), Owner::Primary);
        });
    }
}
