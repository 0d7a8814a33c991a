use std::io;
use std::net::Ipv4Addr;

use agent_core::audit::{AuditPod, Decision, Direction, ReasonCode};

use super::*;

/// Keeps what is written; fails, or waits, while it is told to.
#[derive(Clone, Default)]
struct Output {
    lines: Arc<Mutex<Vec<u8>>>,
    fails: Arc<AtomicBool>,
}

impl Output {
    fn text(&self) -> String {
        String::from_utf8(self.lines.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.fails.load(Ordering::Acquire) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.lines.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn record(id: &str) -> AuditRecord<'_> {
    AuditRecord::new(
        "2026-11-30T10:00:00.000000Z",
        id,
        Direction::Egress,
        AuditPod::unknown(Ipv4Addr::new(169, 254, 9, 2)),
        Decision::Deny,
        ReasonCode::EgressDenied,
        "v1",
    )
}

fn until(what: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while !what() {
        assert!(Instant::now() < deadline, "it does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sink(output: &Output, fail_closed: bool, bytes: usize) -> (AuditSink, AuditWriter) {
    let outputs: Vec<Box<dyn Write + Send>> = vec![Box::new(output.clone())];
    AuditSink::with_outputs(outputs, fail_closed, 2, bytes).unwrap()
}

#[test]
fn lines_of_all_threads_come_out_whole_and_none_is_lost() {
    let output = Output::default();
    let (sink, writer) = sink(&output, false, SHARD_BYTES);
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let sink = sink.clone();
            scope.spawn(move || {
                AuditSink::use_worker_buffer(worker);
                for i in 0..500 {
                    sink.record(&record(&format!("{worker}-{i}")));
                }
            });
        }
    });
    writer.finish();
    let text = output.text();
    assert_eq!(text.lines().count(), 1000);
    for line in text.lines() {
        serde_json::from_str::<AuditRecord<'_>>(line).unwrap();
    }
    assert_eq!(sink.counts().written, 1000);
    assert_eq!(sink.counts().shed, 0);
}

#[test]
fn a_line_is_written_without_another_one_after_it() {
    let output = Output::default();
    let (sink, writer) = sink(&output, false, SHARD_BYTES);
    sink.record(&record("only"));
    until(|| output.text().contains("only"));
    writer.finish();
}

#[test]
fn failed_writes_shed_lines_and_count_them_when_open() {
    let output = Output::default();
    let (sink, writer) = sink(&output, false, SHARD_BYTES);
    output.fails.store(true, Ordering::Release);
    sink.record(&record("lost"));
    until(|| sink.counts().shed == 1);
    assert!(sink.accepting());
    output.fails.store(false, Ordering::Release);
    sink.record(&record("kept"));
    writer.finish();
    assert!(!output.text().contains("lost"));
    assert!(output.text().contains("kept"));
}

#[test]
fn failed_writes_stop_decisions_and_lose_nothing_when_closed() {
    let output = Output::default();
    let (sink, writer) = sink(&output, true, SHARD_BYTES);
    assert!(sink.accepting());
    output.fails.store(true, Ordering::Release);
    sink.record(&record("kept"));
    until(|| !sink.accepting());
    output.fails.store(false, Ordering::Release);
    until(|| sink.accepting());
    writer.finish();
    assert!(output.text().contains("kept"));
    assert_eq!(sink.counts().shed, 0);
}

#[test]
fn a_full_buffer_sheds_and_never_waits() {
    let output = Output::default();
    let (sink, writer) = sink(&output, true, 2000);
    output.fails.store(true, Ordering::Release);
    let begun = Instant::now();
    for _ in 0..1000 {
        sink.record(&record("x"));
    }
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(sink.counts().shed > 900);
    output.fails.store(false, Ordering::Release);
    writer.finish();
}
