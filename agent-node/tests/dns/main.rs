//! The DNS proxy as a pod meets it: real sockets, a real policy document, real state files, each
//! test in a network namespace of its own. Needs root; a machine that can't make a namespace fails
//! with a sentence.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that can't go on fails, and says where"
)]

mod client;
mod node;
mod upstream;

mod abuse;
mod answers;
mod dig;
mod policy;
