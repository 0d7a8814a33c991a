use std::net::SocketAddr;
use std::time::Instant as Clock;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;

use super::*;
use crate::dns::respond::Transport;
use crate::dns::testing::mock::{Act, MockUpstream, answer};
use crate::dns::testing::{a, on_a_worker, question, response};

fn one_address(_: &Message) -> Message {
    let mut message = response("www.example", RecordType::A);
    message.add_answer(a("www.example", 60, [192, 0, 2, 7]));
    message
}

fn failing(code: ResponseCode) -> impl Fn(&Message) -> Message {
    move |_| {
        let mut message = response("www.example", RecordType::A);
        message.metadata.response_code = code;
        message
    }
}

async fn ask(servers: &[SocketAddr]) -> (Result<Answer, UpstreamError>, Duration) {
    let start = Clock::now();
    let outcome = Upstreams::new(servers).ask(&question("www.example")).await;
    (outcome, start.elapsed())
}

/// A port that refuses.
async fn closed_port() -> SocketAddr {
    tokio::net::UdpSocket::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

#[test]
fn the_answer_of_the_first_server_is_given() {
    on_a_worker(async {
        let (first, second) = (
            MockUpstream::answering(one_address).await,
            MockUpstream::answering(one_address).await,
        );
        let (outcome, _) = ask(&[first.address, second.address]).await;
        assert_eq!(outcome.unwrap().addresses.len(), 1);
        assert_eq!((first.asked(), second.asked()), (1, 0));
    });
}

#[test]
fn a_server_that_refuses_connections_costs_no_time() {
    on_a_worker(async {
        let closed = closed_port().await;
        let good = MockUpstream::answering(one_address).await;
        let (outcome, took) = ask(&[closed, good.address]).await;
        assert!(outcome.is_ok());
        assert!(took < Duration::from_millis(300), "{took:?}");
        let (outcome, took) = ask(&[closed]).await;
        assert_eq!(outcome, Err(UpstreamError::AllFailed));
        assert!(took < Duration::from_millis(300), "{took:?}");
    });
}

#[test]
fn a_silent_server_is_passed_over_within_a_second_and_asked_last_afterwards() {
    on_a_worker(async {
        let silent = MockUpstream::start(|_, _| Act::Silent).await;
        let good = MockUpstream::answering(one_address).await;
        let upstreams = Upstreams::new(&[silent.address, good.address]);
        for _ in 0..FAILURES_TO_DEMOTE {
            let start = Clock::now();
            upstreams.ask(&question("www.example")).await.unwrap();
            assert!(
                start.elapsed() < Duration::from_millis(1500),
                "{:?}",
                start.elapsed()
            );
        }
        let start = Clock::now();
        upstreams.ask(&question("www.example")).await.unwrap();
        assert!(
            start.elapsed() < Duration::from_millis(300),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(silent.asked(), FAILURES_TO_DEMOTE as usize);
    });
}

#[test]
fn when_all_are_silent_the_end_comes_before_four_seconds() {
    on_a_worker(async {
        let silent = MockUpstream::start(|_, _| Act::Silent).await;
        let (outcome, took) = ask(&[silent.address]).await;
        assert_eq!(outcome, Err(UpstreamError::TimedOut));
        assert!(took >= BUDGET && took < Duration::from_secs(4), "{took:?}");
        assert!(silent.asked() > 1, "a lost datagram must be sent again");
    });
}

#[test]
fn a_late_answer_of_the_first_try_still_counts() {
    on_a_worker(async {
        let slow = MockUpstream::start(|_, query| {
            Act::Late(Duration::from_millis(1000), answer(query, one_address))
        })
        .await;
        let (outcome, took) = ask(&[slow.address]).await;
        assert!(outcome.is_ok());
        assert!(took < Duration::from_millis(1500), "{took:?}");
    });
}

#[test]
fn a_truncated_answer_is_asked_for_again_over_tcp() {
    on_a_worker(async {
        let server = MockUpstream::start(|by, query| {
            Act::Say(vec![answer(query, |query| {
                let mut message = one_address(query);
                message.metadata.truncation = by == Transport::Udp;
                message
            })])
        })
        .await;
        let (outcome, _) = ask(&[server.address]).await;
        assert_eq!(outcome.unwrap().addresses.len(), 1);
        let by: Vec<_> = server.seen.borrow().iter().map(|(by, _)| *by).collect();
        assert_eq!(by, [Transport::Udp, Transport::Tcp]);
    });
}

#[test]
fn messages_that_answer_something_else_are_passed_over() {
    on_a_worker(async {
        let server = MockUpstream::start(|_, query| {
            let mut forged = one_address(query);
            forged.metadata.id = query.metadata.id.wrapping_add(1);
            forged.queries.clone_from(&query.queries);
            let other = answer(query, |_| response("other.example", RecordType::A));
            let mut other = Message::from_vec(&other).unwrap();
            other.queries = response("other.example", RecordType::A).queries;
            Act::Say(vec![
                b"x".to_vec(),
                forged.to_vec().unwrap(),
                other.to_vec().unwrap(),
                answer(query, one_address),
            ])
        })
        .await;
        let (outcome, _) = ask(&[server.address]).await;
        assert_eq!(outcome.unwrap().addresses.len(), 1);
    });
}

#[test]
fn a_failing_server_is_followed_by_the_next_and_nxdomain_is_an_answer() {
    on_a_worker(async {
        let broken = MockUpstream::answering(failing(ResponseCode::ServFail)).await;
        let refusing = MockUpstream::answering(failing(ResponseCode::Refused)).await;
        let none = MockUpstream::answering(failing(ResponseCode::NXDomain)).await;
        let (outcome, took) = ask(&[broken.address, refusing.address, none.address]).await;
        assert_eq!(outcome.unwrap().rcode, rcode::NX_DOMAIN);
        assert!(took < Duration::from_millis(300), "{took:?}");
        let (outcome, _) = ask(&[broken.address, refusing.address]).await;
        assert_eq!(outcome, Err(UpstreamError::AllFailed));
    });
}

#[test]
fn a_server_from_before_edns_is_asked_plainly() {
    on_a_worker(async {
        let old = MockUpstream::answering(|query| {
            if query.edns.is_some() {
                return failing(ResponseCode::FormErr)(query);
            }
            one_address(query)
        })
        .await;
        let (outcome, _) = ask(&[old.address]).await;
        assert_eq!(outcome.unwrap().addresses.len(), 1);
        assert_eq!(old.asked(), 2);
    });
}

#[test]
fn ids_and_ports_differ_from_query_to_query() {
    on_a_worker(async {
        let server = MockUpstream::answering(one_address).await;
        let upstreams = Upstreams::new(&[server.address]);
        for _ in 0..20 {
            upstreams.ask(&question("www.example")).await.unwrap();
        }
        let mut ids: Vec<u16> = server
            .seen
            .borrow()
            .iter()
            .map(|(_, query)| query.metadata.id)
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() >= 18, "{ids:?}");
    });
}

#[test]
fn without_servers_the_error_says_what_to_set() {
    on_a_worker(async {
        let (outcome, _) = ask(&[]).await;
        assert!(outcome.unwrap_err().to_string().contains("dns.upstreams"));
    });
}
