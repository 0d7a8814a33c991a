//! Calling another plugin by the protocol: our own environment with the same parameters, its configuration on stdin.

use std::{
    ffi::OsString,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::Value;

use super::{
    list::{Plugin, type_of},
    record::Record,
};
use crate::error::{CniError, Code};

/// Set for the plugins that we call: whoever sees it is called by itself.
const DELEGATING: &str = "AGENT_CNI_DELEGATING";

/// Whether it is us who called us, through a plugin of the primary network.
pub(super) fn is_called_by_us() -> bool {
    std::env::var_os(DELEGATING).is_some()
}

/// Calls plugins of `CNI_PATH`.
#[derive(Debug, Clone)]
pub(super) struct Exec {
    path: OsString,
    variables: Vec<(&'static str, String)>,
}

impl Exec {
    /// With the runtime's `CNI_PATH`.
    pub(super) fn from_env() -> Self {
        Self {
            path: std::env::var_os("CNI_PATH").unwrap_or_default(),
            variables: Vec::new(),
        }
    }

    /// For an attachment that the runtime did not name: GC has none of its variables.
    pub(super) fn on_behalf_of(self, record: &Record) -> Self {
        Self {
            variables: vec![
                ("CNI_CONTAINERID", record.container_id.clone()),
                ("CNI_IFNAME", record.ifname.clone()),
                ("CNI_NETNS", record.netns.clone()),
                ("CNI_ARGS", record.args.clone()),
            ],
            ..self
        }
    }

    /// Calls a verb; answers what the plugin printed, null when that was nothing.
    ///
    /// # Errors
    /// The plugin's own error as it is; or ours, when there is no such plugin or it does not keep to the protocol.
    pub(super) fn call(&self, verb: &str, conf: Plugin) -> Result<Value, CniError> {
        let kind = type_of(&conf).to_owned();
        let program = self.find(&kind)?;
        let failed = |error: &std::io::Error| {
            CniError::caused(
                Code::Primary,
                format!(
                    "cannot run the primary network's plugin {}",
                    program.display()
                ),
                error,
            )
        };
        // container, namespace, interface and arguments are the caller's own, unless told otherwise
        let mut child = Command::new(&program)
            .env("CNI_COMMAND", verb)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env(DELEGATING, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|error| failed(&error))?;
        let stdin = child.stdin.take();
        let text = Value::Object(conf).to_string();
        let writer = std::thread::spawn(move || {
            // a plugin that answers without reading is fine
            stdin.map(|mut stdin| stdin.write_all(text.as_bytes()))
        });
        let output = child.wait_with_output().map_err(|error| failed(&error))?;
        // it has written all, or nobody reads any more
        let _ = writer.join();
        let printed: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        if output.status.success() {
            return match printed {
                Some(printed) => Ok(printed),
                None if output.stdout.iter().all(u8::is_ascii_whitespace) => Ok(Value::Null),
                None => Err(CniError::new(
                    Code::Primary,
                    format!(
                        "the primary network's plugin {kind} printed something that is not JSON"
                    ),
                )),
            };
        }
        let error = printed.as_ref().and_then(passed_on).unwrap_or_else(|| {
            CniError::new(
                Code::Primary,
                format!(
                    "the primary network's plugin {kind} failed without saying why ({})",
                    output.status
                ),
            )
        });
        tracing::warn!(plugin = %kind, verb, code = error.code.number(), "a plugin of the primary network failed");
        Err(error)
    }

    /// Whether there is such a plugin.
    pub(super) fn has(&self, plugin: &Plugin) -> bool {
        self.find(type_of(plugin)).is_ok()
    }

    /// The first of that name in the directories.
    fn find(&self, kind: &str) -> Result<PathBuf, CniError> {
        std::env::split_paths(&self.path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(kind))
            .find(|file| file.is_file())
            .ok_or_else(|| {
                CniError::new(
                    Code::Primary,
                    format!(
                        "the primary network needs the plugin {kind}, which is in no directory of CNI_PATH ({})",
                        self.path.to_string_lossy()
                    ),
                )
            })
    }
}

/// An error object of the specification.
fn passed_on(printed: &Value) -> Option<CniError> {
    let text = |key: &str| printed.get(key).and_then(Value::as_str).unwrap_or_default();
    let code = printed.get("code")?.as_u64()?;
    Some(CniError {
        code: Code::Delegated(u32::try_from(code).ok()?),
        msg: text("msg").to_owned(),
        details: text("details").to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn exec(script: &str) -> (tempfile::TempDir, Exec) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::join_paths(["relative".into(), dir.path().to_owned()]).unwrap();
        (
            dir,
            Exec {
                path,
                variables: vec![],
            },
        )
    }

    fn conf() -> Plugin {
        Plugin::from_iter([
            ("type".to_owned(), json!("p")),
            ("big".to_owned(), json!("x".repeat(1 << 18))),
        ])
    }

    #[test]
    fn the_plugin_gets_verb_and_stdin_and_its_answer_is_the_answer() {
        let (_dir, exec) =
            exec(r#"n=$(wc -c); echo "{\"verb\": \"$CNI_COMMAND\", \"bytes\": $n}""#);
        let answer = exec.call("CHECK", conf()).unwrap();
        assert_eq!(answer["verb"], "CHECK");
        assert!(answer["bytes"].as_u64().unwrap() > 1 << 18);
    }

    #[test]
    fn a_plugin_that_reads_nothing_and_prints_nothing_is_fine() {
        let (_dir, exec) = exec("exit 0");
        assert_eq!(exec.call("DEL", conf()).unwrap(), Value::Null);
    }

    #[test]
    fn the_plugins_error_is_passed_on() {
        let (_dir, exec) = exec(r#"echo '{"code": 11, "msg": "again", "details": "d"}'; exit 1"#);
        let error = exec.call("ADD", conf()).unwrap_err();
        assert_eq!(error.code.number(), 11);
        assert_eq!((error.msg.as_str(), error.details.as_str()), ("again", "d"));
    }

    #[test]
    fn a_plugin_that_breaks_the_protocol_is_named() {
        for (script, says) in [
            ("echo hello", "not JSON"),
            ("exit 3", "without saying why"),
            ("kill -9 $$", "without saying why"),
        ] {
            let (_dir, exec) = exec(script);
            let error = exec.call("ADD", conf()).unwrap_err();
            assert_eq!(error.code, Code::Primary);
            assert!(error.msg.contains(says), "{script}: {error}");
        }
        let (_dir, exec) = exec("exit 0");
        let other = Plugin::from_iter([("type".to_owned(), json!("other"))]);
        let error = exec.call("ADD", other).unwrap_err();
        assert!(error.msg.contains("needs the plugin other"), "{error}");
    }
}
