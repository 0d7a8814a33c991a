use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;

use super::*;
use crate::dns::testing::mock::{Act, MockUpstream, answer};
use crate::dns::testing::{a, on_a_worker, question, response};

fn one_address(ttl: u32) -> impl Fn(&Message) -> Message {
    move |_| {
        let mut message = response("www.example", RecordType::A);
        message.add_answer(a("www.example", ttl, [192, 0, 2, 7]));
        message
    }
}

fn host(text: &str) -> HostName {
    HostName::parse(text).unwrap()
}

#[test]
fn a_name_is_asked_for_once_and_then_remembered() {
    on_a_worker(async {
        let server = MockUpstream::answering(one_address(60)).await;
        let resolver = Resolver::with_servers(&[server.address]);
        let first = resolver.lookup(&question("www.example")).await.unwrap();
        assert_eq!(first.source, Source::Upstream);
        let second = resolver.lookup(&question("www.example")).await.unwrap();
        assert_eq!(second.source, Source::Cache);
        assert_eq!(
            resolver
                .resolve(&host("WWW.example"))
                .await
                .unwrap()
                .addresses
                .len(),
            1
        );
        assert_eq!((server.asked(), resolver.cached_answers()), (1, 1));
    });
}

#[test]
fn many_who_ask_the_same_at_once_make_one_query() {
    on_a_worker(async {
        let server = MockUpstream::start(|_, query| {
            Act::Late(Duration::from_millis(100), answer(query, one_address(0)))
        })
        .await;
        let resolver = Resolver::with_servers(&[server.address]);
        let asked = question("www.example");
        let all = futures_util::future::join_all((0..50).map(|_| resolver.lookup(&asked))).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(server.asked(), 1);
        resolver.lookup(&asked).await.unwrap();
        assert_eq!(server.asked(), 2, "TTL 0 is shared but not kept");
    });
}

#[test]
fn an_asker_who_goes_away_does_not_take_the_query_with_him() {
    on_a_worker(async {
        let server = MockUpstream::start(|_, query| {
            Act::Late(Duration::from_millis(200), answer(query, one_address(60)))
        })
        .await;
        let resolver = Resolver::with_servers(&[server.address]);
        let asked = question("www.example");
        let wait = Duration::from_millis(50);
        let (first, second) = tokio::join!(
            tokio::time::timeout(wait, resolver.lookup(&asked)),
            resolver.lookup(&asked)
        );
        assert!(first.is_err());
        assert!(second.is_ok());
        assert_eq!(server.asked(), 1);
    });
}

#[test]
fn a_query_that_nobody_waits_for_any_more_is_started_anew() {
    on_a_worker(async {
        let server = MockUpstream::start(|_, query| {
            Act::Late(Duration::from_millis(100), answer(query, one_address(60)))
        })
        .await;
        let resolver = Resolver::with_servers(&[server.address]);
        let asked = question("www.example");
        let gone = tokio::time::timeout(Duration::from_millis(20), resolver.lookup(&asked)).await;
        assert!(gone.is_err());
        assert!(resolver.lookup(&asked).await.is_ok());
        assert_eq!(server.asked(), 2);
    });
}

#[test]
fn a_failure_is_given_to_everybody_for_a_second() {
    on_a_worker(async {
        let server = MockUpstream::answering(|_| {
            let mut message = response("www.example", RecordType::A);
            message.metadata.response_code = hickory_proto::op::ResponseCode::ServFail;
            message
        })
        .await;
        let resolver = Resolver::with_servers(&[server.address]);
        for _ in 0..10 {
            let outcome = resolver.lookup(&question("www.example")).await;
            assert_eq!(outcome.unwrap_err(), UpstreamError::AllFailed);
        }
        assert_eq!(server.asked(), 1);
        tokio::time::sleep(FAILURE_TTL + Duration::from_millis(50)).await;
        assert!(resolver.lookup(&question("www.example")).await.is_err());
        assert_eq!(server.asked(), 2);
    });
}

#[test]
fn resolving_tells_no_such_name_from_no_address_from_no_server() {
    on_a_worker(async {
        let server = MockUpstream::answering(|query| {
            let asked = query.queries[0].name().to_ascii();
            let mut message = response(&asked, RecordType::A);
            if asked.starts_with("none") {
                message.metadata.response_code = hickory_proto::op::ResponseCode::NXDomain;
            }
            message
        })
        .await;
        let resolver = Resolver::with_servers(&[server.address]);
        for (name, error) in [
            ("none.example", ResolveError::NoSuchName),
            ("empty.example", ResolveError::NoAddress),
        ] {
            assert_eq!(resolver.resolve(&host(name)).await, Err(error));
        }
        let nobody = Resolver::with_servers(&[]);
        let error = nobody.resolve(&host("www.example")).await.unwrap_err();
        assert_eq!(error.reason(), "dns_unavailable");
    });
}
