//! 100,000 rules are loaded in the memory and time that the specification gives them.
#![expect(
    unsafe_code,
    reason = "a counting allocator has to implement GlobalAlloc"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use agent_core::policy::{PolicySet, RuntimePolicy};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(by: usize) {
    let live = LIVE.fetch_add(by, Ordering::Relaxed) + by;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises about `pointer` and `layout` are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const RULES: usize = 100_000;
const BUDGET: usize = 200 << 20;

fn document(policies: usize, rule: impl Fn(usize) -> String) -> Vec<u8> {
    let headers: Vec<String> = (0..policies)
        .map(|i| {
            let subjects = match policies {
                1 => r#""allNamespaces":true"#.to_owned(),
                _ => format!(
                    r#""allNamespaces":true,"podSelector":{{"matchLabels":{{"app":"a{i}"}}}}"#
                ),
            };
            format!(r#"{{"namespace":"sys","name":"p{i}","subjects":{{{subjects}}}}}"#)
        })
        .collect();
    let rules: Vec<String> = (0..RULES)
        .map(|i| {
            format!(
                r#"{{"policy":{},"name":"rule-{i}","kind":"allow",{}}}"#,
                i % policies,
                rule(i)
            )
        })
        .collect();
    format!(
        r#"{{"schemaVersion":1,"policies":[{}],"rules":[{}]}}"#,
        headers.join(","),
        rules.join(",")
    )
    .into_bytes()
}

/// One test, since the allocator counts for the whole process.
#[test]
fn a_hundred_thousand_rules_fit_their_budget() {
    let net = |i: usize| {
        format!(
            r#""cidr":"10.{}.{}.0/24","port":443"#,
            i / 256 % 256,
            i % 256
        )
    };
    let shapes: [(&str, Vec<u8>); 5] = [
        (
            "distinct hosts",
            document(1, |i| {
                format!(r#""host":"host-{i}.example.com","port":443,"protocol":"tcp""#)
            }),
        ),
        (
            "one host, many paths",
            document(1, |i| {
                format!(r#""host":"api.example.com","paths":["/v1/{i}/*"]"#)
            }),
        ),
        (
            "one host, many ranges",
            document(1, |i| {
                format!(
                    r#""host":"api.example.com","ports":["{}-{}"]"#,
                    1 + i % 30_000,
                    30_001 + i % 30_000
                )
            }),
        ),
        ("networks", document(1, net)),
        (
            "a policy for each rule",
            document(RULES, |i| format!(r#""host":"host-{i}.example.com""#)),
        ),
    ];
    for (shape, bytes) in shapes {
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let started = Instant::now();
        let document = RuntimePolicy::parse(&bytes).unwrap();
        let parsed = started.elapsed();
        let set = PolicySet::compile(&document).unwrap();
        let took = started.elapsed();
        drop(document);
        let (peak, kept) = (
            PEAK.load(Ordering::Relaxed) - before,
            LIVE.load(Ordering::Relaxed) - before,
        );
        println!(
            "{shape}: {} MiB of JSON, peak {} MiB, kept {} MiB, parse {parsed:?}, in all {took:?}",
            bytes.len() >> 20,
            peak >> 20,
            kept >> 20
        );
        assert_eq!(set.rule_count(), RULES);
        assert!(peak < BUDGET, "{shape}: {} MiB at the peak", peak >> 20);
        // The specified 2 s are for release builds; this profile and a busy machine get more.
        let limit = if cfg!(debug_assertions) { 20 } else { 2 };
        assert!(took < Duration::from_secs(limit), "{shape}: {took:?}");
    }
}
