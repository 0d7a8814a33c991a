//! What an error number means in its surroundings, and what to do. Pure.

use super::{FeatureName, Surroundings};

/// One sentence or more; empty when the error says it all.
pub(super) fn explain(feature: FeatureName, errno: Option<i32>, around: &Surroundings) -> String {
    match (feature, errno) {
        (_, Some(libc::EPERM | libc::EACCES)) => refused(around),
        (
            FeatureName::Bpffs | FeatureName::Programs | FeatureName::Dispatch,
            Some(libc::ENOSYS),
        ) => if around.seccomp_filter {
            "a seccomp filter of this process answers for bpf(2): run it with seccompProfile Unconfined".into()
        } else {
            "the kernel is built without bpf(2): CONFIG_BPF_SYSCALL".into()
        },
        (FeatureName::Bpffs | FeatureName::Programs, Some(libc::ENODEV)) => {
            "the kernel knows no bpf file system: CONFIG_BPF_SYSCALL".into()
        }
        (FeatureName::Programs | FeatureName::Dispatch, Some(libc::EINVAL)) => {
            "the kernel lacks a program type, map type or helper that the programs need; Linux 5.10 has them all".into()
        }
        (FeatureName::Programs, Some(libc::ENOMEM)) => {
            "there is no memory for the maps".into()
        }
        (FeatureName::Classifier, Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL)) => {
            "the kernel has neither TCX nor clsact filters: CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS".into()
        }
        (FeatureName::Isolation, Some(libc::EINVAL | libc::ENOSPC)) => {
            "no namespace can be made: CONFIG_NET_NS, or the limit user.max_net_namespaces".into()
        }
        (
            FeatureName::NodeNetwork | FeatureName::CompatRules | FeatureName::BridgeTable,
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::ENOENT),
        ) => {
            "the kernel needs bridges, veth, traffic control with clsact and bpf (CONFIG_NET_SCH_INGRESS, CONFIG_NET_CLS_BPF) and nf_tables with nat, ct and the bridge family, built in or as modules".into()
        }
        (_, Some(libc::EROFS)) => {
            "a file system is mounted read-only: this needs a privileged container, or the node itself".into()
        }
        _ => String::new(),
    }
}

/// Who may have said EPERM, most likely first.
fn refused(around: &Surroundings) -> String {
    if !around.missing_capabilities.is_empty() {
        return format!(
            "this process lacks {}: run it as root, in a privileged container",
            around.missing_capabilities.join(", ")
        );
    }
    let mut causes = Vec::new();
    if around.seccomp_filter {
        causes.push("a seccomp filter is in force: run with seccompProfile Unconfined".to_owned());
    }
    if let Some(bytes) = around.memory_lock_limit {
        causes.push(format!(
            "this kernel counts maps as locked memory and the limit is {bytes} bytes: set LimitMEMLOCK=infinity"
        ));
    }
    if let Some(level) = &around.lockdown {
        causes.push(format!("kernel lockdown is {level}"));
    }
    if causes.is_empty() {
        causes.push(
            "all capabilities are there, so a security module (SELinux, AppArmor, BPF LSM) or an outer user namespace refuses"
                .to_owned(),
        );
    }
    causes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_most_likely_cause() {
        let none = Surroundings::default();
        let capabilities = Surroundings {
            missing_capabilities: vec!["CAP_BPF", "CAP_SYS_ADMIN"],
            seccomp_filter: true,
            ..none.clone()
        };
        let seccomp = Surroundings {
            seccomp_filter: true,
            ..none.clone()
        };
        let memory = Surroundings {
            memory_lock_limit: Some(65_536),
            ..none.clone()
        };
        let lockdown = Surroundings {
            lockdown: Some("confidentiality".into()),
            ..none.clone()
        };
        for (around, errno, wanted) in [
            (&capabilities, libc::EPERM, "lacks CAP_BPF, CAP_SYS_ADMIN"),
            (&seccomp, libc::EPERM, "seccomp filter"),
            (&seccomp, libc::ENOSYS, "seccomp filter"),
            (&none, libc::ENOSYS, "CONFIG_BPF_SYSCALL"),
            (&memory, libc::EPERM, "LimitMEMLOCK=infinity"),
            (&lockdown, libc::EPERM, "lockdown is confidentiality"),
            (&none, libc::EPERM, "security module"),
        ] {
            let text = explain(FeatureName::Programs, Some(errno), around);
            assert!(text.contains(wanted), "{around:?} {errno}: {text}");
        }
    }

    #[test]
    fn an_error_without_a_number_is_left_to_speak_for_itself() {
        let text = explain(FeatureName::Bpffs, None, &Surroundings::default());
        assert_eq!(text, "");
    }
}
