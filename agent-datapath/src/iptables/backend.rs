//! Which of the two worlds of iptables is a node's. Pure.
//!
//! Rules in the other world work as well, but in an order that nobody chose, and nobody who looks sees them. kubelet
//! leaves a hint for exactly this question (KEP-3178); the rest is as `iptables-wrappers` does it.

/// One of the two iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// iptables over nftables.
    Nft,
    /// The one before it.
    Legacy,
}

impl Backend {
    /// The program's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nft => "iptables-nft",
            Self::Legacy => "iptables-legacy",
        }
    }
}

/// What was seen of an iptables that works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) backend: Backend,
    /// kubelet's chains are in it.
    pub(super) hint: bool,
    /// kube-proxy's chains are in it.
    pub(super) kube_proxy: bool,
    /// How many rules are in it that are not ours.
    pub(super) foreign_rules: usize,
}

/// Why a backend was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// kube-proxy has its rules in it, and the order between its rules and ours matters.
    KubeProxy,
    /// kubelet says so.
    KubeletHint,
    /// It has more rules of others.
    MoreRules,
    /// It is the only one that works here.
    Only,
    /// Nothing tells, and it is the newer one.
    Default,
}

/// A backend, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The backend.
    pub backend: Backend,
    /// Why.
    pub why: Why,
    /// Whether others have rules in the other one too.
    pub both_in_use: bool,
}

/// Chooses among those that work; none when there is none.
pub(super) fn choose(seen: &[Seen]) -> Option<Choice> {
    let only = |wanted: fn(&Seen) -> bool| {
        let mut found = seen.iter().filter(|seen| wanted(seen));
        found.next().filter(|_| found.next().is_none())
    };
    let chosen = |seen: &Seen, why| (seen.backend, why);
    let (backend, why) = if let [one] = seen {
        chosen(one, Why::Only)
    } else if let Some(one) = only(|seen| seen.kube_proxy) {
        chosen(one, Why::KubeProxy)
    } else if let Some(one) = only(|seen| seen.hint) {
        chosen(one, Why::KubeletHint)
    } else {
        let most = seen.iter().map(|seen| seen.foreign_rules).max()?;
        let mut busiest = seen.iter().filter(|seen| seen.foreign_rules == most);
        match (busiest.next()?, busiest.next()) {
            (one, None) => chosen(one, Why::MoreRules),
            (_, Some(_)) => (Backend::Nft, Why::Default),
        }
    };
    Some(Choice {
        backend,
        why,
        both_in_use: seen.iter().filter(|seen| seen.foreign_rules > 0).count() > 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(backend: Backend, hint: bool, kube_proxy: bool, foreign_rules: usize) -> Seen {
        Seen {
            backend,
            hint,
            kube_proxy,
            foreign_rules,
        }
    }

    #[test]
    fn kube_proxy_beats_kubelets_hint_beats_the_number_of_rules() {
        use Backend::{Legacy, Nft};
        for (nft, legacy, backend, why) in [
            ((false, false, 0), (false, false, 0), Nft, Why::Default),
            ((false, false, 3), (false, false, 3), Nft, Why::Default),
            ((false, false, 2), (false, false, 3), Legacy, Why::MoreRules),
            ((true, false, 2), (false, false, 3), Nft, Why::KubeletHint),
            (
                (false, false, 9),
                (true, false, 3),
                Legacy,
                Why::KubeletHint,
            ),
            ((true, false, 9), (false, true, 3), Legacy, Why::KubeProxy),
            // left by the time before a switch: neither says more than the other
            ((true, true, 9), (true, true, 3), Nft, Why::MoreRules),
        ] {
            let all = [
                seen(Nft, nft.0, nft.1, nft.2),
                seen(Legacy, legacy.0, legacy.1, legacy.2),
            ];
            let choice = choose(&all).unwrap();
            assert_eq!((choice.backend, choice.why), (backend, why), "{all:?}");
        }
    }

    #[test]
    fn the_only_one_that_works_is_chosen_whatever_is_in_it() {
        let choice = choose(&[seen(Backend::Legacy, false, false, 0)]).unwrap();
        assert_eq!((choice.backend, choice.why), (Backend::Legacy, Why::Only));
        assert_eq!(choose(&[]), None);
    }

    #[test]
    fn rules_of_others_in_both_are_told() {
        let both = [
            seen(Backend::Nft, false, false, 1),
            seen(Backend::Legacy, false, false, 1),
        ];
        assert!(choose(&both).unwrap().both_in_use);
        let one = [
            seen(Backend::Nft, false, false, 1),
            seen(Backend::Legacy, false, false, 0),
        ];
        assert!(!choose(&one).unwrap().both_in_use);
    }
}
