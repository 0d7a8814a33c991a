//! Answers that are still good, bounded in number and bytes (RFC 1035 §7.4, RFC 2308).
//!
//! Two generations: new answers go into the young one; when it holds half of what may be kept, it
//! becomes the old one and the old one is dropped. An answer that is used moves to the young one.
//! Each step costs the same however much is kept.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::answer::{Answer, Question};

/// Answers that one worker keeps. Nodes ask for some hundreds of names.
pub(crate) const MAX_ENTRIES: usize = 16 * 1024;
/// Bytes of answers that one worker keeps.
pub(crate) const MAX_BYTES: usize = 8 * 1024 * 1024;

/// One worker's cache. Times are arguments.
pub(crate) struct Cache {
    young: Generation,
    old: Generation,
    max_entries: usize,
    max_bytes: usize,
}

#[derive(Default)]
struct Generation {
    entries: HashMap<Question, Entry>,
    bytes: usize,
}

#[derive(Clone)]
struct Entry {
    answer: Rc<Answer>,
    stored: Instant,
}

impl Cache {
    /// An empty cache with the given bounds.
    pub(crate) fn new(max_entries: usize, max_bytes: usize) -> Cache {
        Cache {
            young: Generation::default(),
            old: Generation::default(),
            max_entries,
            max_bytes,
        }
    }

    /// The answer to `question` and how old it is, when it is still good.
    pub(crate) fn get(
        &mut self,
        question: &Question,
        now: Instant,
    ) -> Option<(Rc<Answer>, Duration)> {
        if let Some(entry) = self.young.entries.get(question) {
            return entry.good(now);
        }
        let entry = self.old.entries.get(question)?.clone();
        let found = entry.good(now)?;
        self.keep(question, entry);
        Some(found)
    }

    /// Keeps `answer`, unless its TTL says that it must not be.
    pub(crate) fn put(&mut self, question: &Question, answer: Rc<Answer>, now: Instant) {
        if !answer.ttl.is_zero() {
            self.keep(
                question,
                Entry {
                    answer,
                    stored: now,
                },
            );
        }
    }

    /// Answers that are kept, good or not.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.young.entries.len() + self.old.entries.len()
    }

    fn keep(&mut self, question: &Question, entry: Entry) {
        let weight = weight(question, &entry);
        if weight > self.max_bytes / 2 {
            return;
        }
        let full = self.young.entries.len() >= self.max_entries / 2
            || self.young.bytes + weight > self.max_bytes / 2;
        if full {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.bytes += weight;
        if let Some(replaced) = self.young.entries.insert(question.clone(), entry) {
            self.young.bytes -= self::weight(question, &replaced);
        }
    }
}

impl Entry {
    fn good(&self, now: Instant) -> Option<(Rc<Answer>, Duration)> {
        let age = now.saturating_duration_since(self.stored);
        (age < self.answer.ttl).then(|| (Rc::clone(&self.answer), age))
    }
}

fn weight(question: &Question, entry: &Entry) -> usize {
    question.name.len() + size_of::<Question>() + entry.answer.weight()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::testing::{answer_to, question};

    #[test]
    fn an_answer_is_good_until_its_ttl_ends() {
        let mut cache = Cache::new(16, 1 << 20);
        let start = Instant::now();
        let asked = question("a.example");
        cache.put(&asked, Rc::new(answer_to(&asked, 60)), start);
        let (_, age) = cache
            .get(&asked, start + Duration::from_millis(59_900))
            .unwrap();
        assert_eq!(age.as_secs(), 59);
        assert!(cache.get(&asked, start + Duration::from_secs(60)).is_none());
    }

    #[test]
    fn an_answer_with_ttl_zero_is_not_kept() {
        let mut cache = Cache::new(16, 1 << 20);
        let asked = question("a.example");
        cache.put(&asked, Rc::new(answer_to(&asked, 0)), Instant::now());
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn dnssec_and_plain_answers_are_kept_apart() {
        let mut cache = Cache::new(16, 1 << 20);
        let now = Instant::now();
        let plain = question("a.example");
        let signed = Question {
            dnssec_ok: true,
            ..plain.clone()
        };
        cache.put(&plain, Rc::new(answer_to(&plain, 60)), now);
        assert!(cache.get(&signed, now).is_none());
    }

    #[test]
    fn what_is_used_survives_a_flood_and_the_bounds_hold() {
        let mut cache = Cache::new(100, 1 << 20);
        let now = Instant::now();
        let used = question("used.example");
        cache.put(&used, Rc::new(answer_to(&used, 60)), now);
        for number in 0..1000 {
            let asked = question(&format!("n{number}.example"));
            cache.put(&asked, Rc::new(answer_to(&asked, 60)), now);
            assert!(cache.get(&used, now).is_some(), "after {number}");
            assert!(cache.len() <= 100);
        }
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut cache = Cache::new(10_000, 20_000);
        let now = Instant::now();
        for number in 0..1000 {
            let asked = question(&format!("n{number}.example"));
            cache.put(&asked, Rc::new(answer_to(&asked, 60)), now);
            assert!(cache.young.bytes + cache.old.bytes <= 20_000);
        }
        assert!(cache.len() > 10);
    }
}
