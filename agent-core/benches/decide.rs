//! Decision cost by the number of rules: it must stay within 2x from 10 to 100,000, for every way in which rules can be
//! many. Run with `cargo bench -p agent-core`.

#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot be set up must stop"
)]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4};

use agent_core::identity::Workload;
use agent_core::policy::{
    HostName, LabelSelector, PolicyHeader, PolicySet, Protocol, RequestFacts, Rule, RuleKind,
    RuntimePolicy, Subjects, Verdict,
};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

const SIZES: [usize; 3] = [10, 1_000, 100_000];

fn workload() -> Workload {
    Workload {
        namespace: "agents".into(),
        name: "coder-0".into(),
        uid: "u".into(),
        service_account: Some("coder".into()),
        labels: [("app".to_owned(), "a7".to_owned())].into(),
        namespace_labels: Default::default(),
        fake_ip: Ipv4Addr::new(169, 254, 9, 2),
    }
}

struct Shape {
    name: &'static str,
    /// Whether every rule has a policy with a selector of its own.
    many_policies: bool,
    rule: fn(usize, &mut Rule),
    request: Request,
}

struct Request {
    protocol: Protocol,
    host: Option<&'static str>,
    dst: [u8; 4],
    port: u16,
    path: Option<&'static str>,
}

const HTTP: Request = Request {
    protocol: Protocol::Http,
    host: Some("api.example.com"),
    dst: [198, 51, 100, 1],
    port: 80,
    path: Some("/v1/7/models"),
};

fn shapes() -> Vec<Shape> {
    vec![
        Shape {
            name: "distinct hosts",
            many_policies: false,
            rule: |i, rule| rule.host = Some(format!("host-{i}.example.com")),
            request: Request {
                host: Some("host-7.example.com"),
                ..HTTP
            },
        },
        Shape {
            name: "wildcards",
            many_policies: false,
            rule: |i, rule| rule.host = Some(format!("*.zone-{i}.example.com")),
            request: Request {
                host: Some("a.b.zone-7.example.com"),
                ..HTTP
            },
        },
        Shape {
            name: "one host, paths",
            many_policies: false,
            rule: |i, rule| {
                rule.host = Some("api.example.com".into());
                rule.paths = vec![format!("/v1/{i}/*")];
            },
            request: HTTP,
        },
        Shape {
            name: "one host, ports",
            many_policies: false,
            rule: |i, rule| {
                rule.host = Some("api.example.com".into());
                rule.ports = (1 + (i % 60_000) as u16)
                    .to_string()
                    .parse()
                    .into_iter()
                    .collect();
            },
            request: Request { port: 8, ..HTTP },
        },
        Shape {
            name: "one host, ranges",
            many_policies: false,
            rule: |i, rule| {
                rule.host = Some("api.example.com".into());
                let first = 1 + (i % 30_000);
                rule.ports = format!("{first}-{}", first + 30_000)
                    .parse()
                    .into_iter()
                    .collect();
            },
            request: Request {
                port: 20_000,
                ..HTTP
            },
        },
        Shape {
            name: "networks",
            many_policies: false,
            rule: |i, rule| {
                rule.cidr = format!("10.{}.{}.{}/28", i >> 12, (i >> 4) & 255, (i & 15) << 4)
                    .parse()
                    .ok();
                rule.ports = "5432".parse().into_iter().collect();
            },
            request: Request {
                protocol: Protocol::Tcp,
                host: None,
                dst: [10, 0, 0, 113],
                port: 5432,
                path: None,
            },
        },
        Shape {
            name: "policies with selectors",
            many_policies: true,
            rule: |_, rule| rule.host = Some("api.example.com".into()),
            request: HTTP,
        },
    ]
}

fn document(shape: &Shape, rules: usize) -> RuntimePolicy {
    let header = |i: usize| PolicyHeader {
        namespace: "sys".into(),
        name: format!("p{i}"),
        subjects: Subjects {
            all_namespaces: true,
            pod_selector: if shape.many_policies {
                LabelSelector {
                    match_labels: [("app".to_owned(), format!("a{i}"))].into(),
                    ..Default::default()
                }
            } else {
                LabelSelector::default()
            },
            ..Subjects::default()
        },
        ..PolicyHeader::default()
    };
    let policies = if shape.many_policies { rules } else { 1 };
    RuntimePolicy {
        policies: (0..policies).map(header).collect(),
        rules: (0..rules)
            .map(|i| {
                let mut rule =
                    Rule::new((i % policies) as u32, format!("rule-{i}"), RuleKind::Allow);
                (shape.rule)(i, &mut rule);
                rule
            })
            .collect(),
        ..RuntimePolicy::default()
    }
}

fn decide(c: &mut Criterion) {
    for shape in shapes() {
        let mut group = c.benchmark_group(format!("decide/{}", shape.name));
        let host = shape
            .request
            .host
            .map(|host| HostName::parse(host).unwrap());
        let facts = RequestFacts {
            protocol: shape.request.protocol,
            host: host.as_ref(),
            dst: SocketAddrV4::new(shape.request.dst.into(), shape.request.port),
            port: shape.request.port,
            method: Some("GET"),
            path: shape.request.path,
        };
        for rules in SIZES {
            let set = PolicySet::compile(&document(&shape, rules)).unwrap();
            let scope = set.scope(&workload());
            let verdict = set.decide_request(&scope, &facts);
            assert!(
                matches!(verdict, Verdict::Permit(_)),
                "{} {rules}: {verdict:?}",
                shape.name
            );
            group.bench_with_input(BenchmarkId::from_parameter(rules), &rules, |b, _| {
                b.iter(|| black_box(set.decide_request(black_box(&scope), black_box(&facts))));
            });
        }
        group.finish();
    }
}

fn scope(c: &mut Criterion) {
    let mut group = c.benchmark_group("scope of a known class");
    let shapes = shapes();
    let Some(shape) = shapes.iter().find(|shape| shape.many_policies) else {
        return;
    };
    let workload = workload();
    for rules in SIZES {
        let set = PolicySet::compile(&document(shape, rules)).unwrap();
        group.bench_with_input(BenchmarkId::from_parameter(rules), &rules, |b, _| {
            b.iter(|| black_box(set.scope(black_box(&workload))));
        });
    }
    group.finish();
}

fn load(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse and compile 100000 rules");
    group.sample_size(10);
    for shape in shapes() {
        let bytes = document(&shape, 100_000).to_json().into_bytes();
        group.bench_function(shape.name, |b| {
            b.iter(|| {
                PolicySet::compile(&RuntimePolicy::parse(black_box(&bytes)).unwrap()).unwrap()
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = decide, scope, load
}
criterion_main!(benches);
