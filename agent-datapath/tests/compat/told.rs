//! What is told of drops, and what nft shows.

use std::time::Duration;

use agent_core::attachment::Mode;
use agent_datapath::{events::DropEvents, load::DatapathConfig, pins::Pins};
use agent_ebpf_common::{Reason, testing::*};

use crate::{
    bridge::{Bridge, limit, nft},
    support::{in_new_netns, run, settings},
};

#[test]
fn drops_are_told_with_what_was_dropped_and_no_more_than_allowed() {
    in_new_netns(|| {
        let config = DatapathConfig {
            events_per_second: 5,
            ..settings()
        };
        let bridge = Bridge::new(&config);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let pins = Pins::new(std::path::Path::new("/nonexistent"));
            let mut events = DropEvents::open_mode(Mode::IptablesCompat, &pins).unwrap();
            // the group is taken
            assert!(DropEvents::open_mode(Mode::IptablesCompat, &pins).is_err());
            bridge.send(&udp(WORLD_IP, 443));
            let event = tokio::time::timeout(limit(), events.next());
            let event = event.await.expect("an event").unwrap();
            assert_eq!(
                (event.ifindex, event.reason, event.src, event.dst),
                (
                    bridge.ifindex,
                    Reason::Udp,
                    Some(POD_IP.into()),
                    Some(WORLD_IP.into())
                )
            );
            assert_eq!((event.proto, event.sport, event.dport), (17, 40_000, 443));
            assert_eq!(event.len as usize, udp(WORLD_IP, 443).len());
            bridge.send(&frame(
                0x8100,
                &[&[0, 5, 8, 0], &udp(WORLD_IP, 443)[14..]].concat(),
            ));
            let event = tokio::time::timeout(limit(), events.next());
            assert_eq!(event.await.expect("an event").unwrap().reason, Reason::Vlan);
            for _ in 0..200 {
                bridge.send(&frame(0x86dd, &[0x60; 60]));
            }
            let mut seen = 0;
            while let Ok(event) =
                tokio::time::timeout(Duration::from_millis(500), events.next()).await
            {
                assert_eq!(event.unwrap().reason, Reason::Ipv6);
                seen += 1;
            }
            assert!((1..60).contains(&seen), "{seen}");
        });
    });
}

#[test]
fn nft_shows_what_is_meant() {
    in_new_netns(|| {
        Bridge::new(&settings());
        let listing = nft("list table bridge agent_network");
        println!("{listing}");
        for line in [
            "type filter hook prerouting priority dstnat; policy accept;",
            "iifname vmap @pods",
            "iifname \"agt*\" counter packets 0 bytes 0 goto drop_no_endpoint",
            "meta mark set meta mark & 0xfaffff00 | 0x0a000000 accept",
            "elements = { \"agt000000000001\" : goto pod_agt000000000001 }",
            "ether saddr != 02:00:00:00:00:02 counter packets 0 bytes 0 goto drop_spoofed_mac",
            "@nh,96,32 != 0xa9fe6402 counter packets 0 bytes 0 goto drop_spoofed_ip",
            "meta l4proto tcp @nh,128,32 @service_cidrs counter packets 0 bytes 0 goto pass_to_service",
            "log prefix \"udp\" group 18080 snaplen 128",
        ] {
            assert!(listing.contains(line), "{line}");
        }
        run("nft", "list ruleset");
    });
}
