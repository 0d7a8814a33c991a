//! A small vector search: texts and queries as vectors of word counts, nearest by cosine.

use serde::Serialize;

/// Length of a vector: words are hashed into it.
const DIMENSIONS: usize = 256;

const TEXTS: &[(&str, &str)] = &[
    (
        "policy",
        "agent-network denies by default what no policy rule lets through",
    ),
    (
        "credential",
        "the proxy injects the credential that the pod never holds",
    ),
    (
        "fake-ip",
        "every agent pod gets a fake ip on the private bridge of its node",
    ),
    (
        "audit",
        "every decision is written as one audit line without secrets",
    ),
    (
        "dns",
        "names that no rule allows do not resolve in an agent pod",
    ),
    (
        "rollback",
        "a rollback gives the node back to its primary network",
    ),
];

/// A text that is near to a query.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Match {
    pub(super) id: &'static str,
    score: f64,
    text: &'static str,
}

/// The texts with their vectors.
pub(super) struct Index(Vec<(&'static str, &'static str, [f64; DIMENSIONS])>);

impl Index {
    pub(super) fn new() -> Index {
        let texts = TEXTS.iter();
        Index(texts.map(|&(id, text)| (id, text, vector(text))).collect())
    }

    /// The `top` texts that are nearest to `query`, the nearest first.
    pub(super) fn search(&self, query: &str, top: usize) -> Vec<Match> {
        let query = vector(query);
        let mut found: Vec<Match> = self
            .0
            .iter()
            .map(|&(id, text, ref vector)| {
                let score = query.iter().zip(vector).map(|(a, b)| a * b).sum();
                Match { id, score, text }
            })
            .collect();
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found.truncate(top);
        found
    }
}

/// Word counts, of length one (or zero, without words).
fn vector(text: &str) -> [f64; DIMENSIONS] {
    let mut vector = [0.0; DIMENSIONS];
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        if word.is_empty() {
            continue;
        }
        // FNV-1a: any hash that is the same everywhere
        let hash = word
            .to_lowercase()
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| {
                (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
            });
        if let Some(count) = vector.get_mut(hash as usize % DIMENSIONS) {
            *count += 1.0;
        }
    }
    let length = vector.iter().map(|c| c * c).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|c| *c /= length);
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_that_shares_most_words_comes_first() {
        let index = Index::new();
        let found = index.search("Which credential does the proxy inject?", 2);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].id, "credential");
        assert!(found[0].score > found[1].score && found[0].score <= 1.0);
        let found = index.search("a fake IP for every pod", 1);
        assert_eq!(found[0].id, "fake-ip");
        assert_eq!(index.search("", 99).len(), TEXTS.len());
    }
}
