//! Loading, pinning, adopting and replacing, and attaching to interfaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::{fs, path::Path, thread, time::Instant};

use agent_core::node::Marks;
use agent_datapath::{
    attach::{AttachError, AttachKind, CheckError},
    load::{Datapath, DatapathConfig, DebugLog, LoadError},
    maps::PodEndpoint,
    pins::Pins,
};
use agent_ebpf_common::{
    Reason,
    abi::{Build, Config, Counter, CounterKey},
    names,
};
use aya::{
    maps::{Array, HashMap, Map, MapData, MapInfo, PerCpuHashMap, PerCpuValues},
    programs::{
        LinkOrder, ProgramInfo, SchedClassifier, TcAttachType,
        tc::{self, NlOptions, TcAttachOptions, TcHandle},
    },
};
use support::{PinDir, expected_kind, in_new_netns, index_of, pod, run, run_ip, settings, veth};

fn program_id(pins: &Pins, name: &str) -> u32 {
    ProgramInfo::from_pin(pins.program(name)).expect(name).id()
}

fn map_ids(pins: &Pins) -> Vec<u32> {
    [
        names::CONFIG,
        names::ENDPOINTS,
        names::SOCKETS,
        names::COUNTERS,
    ]
    .map(|name| MapInfo::from_pin(pins.map(name)).expect(name).id())
    .to_vec()
}

fn read_config(pins: &Pins) -> Config {
    let map = Map::from_map_data(MapData::from_pin(pins.map(names::CONFIG)).unwrap()).unwrap();
    Array::<_, Config>::try_from(map)
        .unwrap()
        .get(&0, 0)
        .unwrap()
}

/// Makes the pinned programs look like another build's.
fn forget_build(pins: &Pins) {
    let map = Map::from_map_data(MapData::from_pin(pins.map(names::BUILD)).unwrap()).unwrap();
    Array::<_, Build>::try_from(map)
        .unwrap()
        .set(0, Build { sha256: [7; 32] }, 0)
        .unwrap();
}

/// The programs on the interface's TCX hook; nothing is known on kernels that have none.
fn tcx_programs(interface: &str) -> Option<Vec<u32>> {
    if expected_kind() == AttachKind::Clsact {
        return None;
    }
    let (_, programs) = SchedClassifier::query_tcx(interface, TcAttachType::Ingress).unwrap();
    Some(programs.iter().map(ProgramInfo::id).collect())
}

#[test]
fn open_says_what_is_missing_before_anything_is_loaded() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let error = Datapath::open(&dir.pins()).unwrap_err();
        assert!(matches!(error, LoadError::NotLoaded(_)), "{error}");
    });
}

#[test]
fn ensure_twice_changes_nothing_and_takes_a_few_milliseconds() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        Datapath::ensure(&pins, &settings()).unwrap();
        let before = (map_ids(&pins), program_id(&pins, names::POD_INGRESS));
        let start = Instant::now();
        Datapath::ensure(&pins, &settings()).unwrap();
        println!("second ensure: {:?}", start.elapsed());
        Datapath::open(&pins).unwrap();
        assert_eq!(
            before,
            (map_ids(&pins), program_id(&pins, names::POD_INGRESS))
        );
    });
}

#[test]
fn changed_settings_are_written_and_programs_stay() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        Datapath::ensure(&pins, &settings()).unwrap();
        let before = program_id(&pins, names::POD_INGRESS);
        let changed = DatapathConfig {
            fail_open: true,
            events_per_second: 7,
            ..settings()
        };
        Datapath::ensure(&pins, &changed).unwrap();
        let config = read_config(&pins);
        assert_eq!((config.flags, config.events_per_second), (1, 7));
        assert_eq!(program_id(&pins, names::POD_INGRESS), before);
    });
}

#[test]
fn prefixes_become_exactly_those_wanted() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        for cidrs in [
            vec!["10.96.0.0/12", "172.20.0.0/16"],
            vec!["172.20.0.0/16", "10.0.0.0/8", "192.0.2.7/32"],
            vec![],
        ] {
            let config = DatapathConfig {
                service_cidrs: cidrs.iter().map(|c| c.parse().unwrap()).collect(),
                ..settings()
            };
            Datapath::ensure(&pins, &config).unwrap();
            let map = MapData::from_pin(pins.map(names::SERVICE_CIDRS)).unwrap();
            let map = Map::from_map_data(map).unwrap();
            let map = aya::maps::lpm_trie::LpmTrie::<_, [u8; 4], u32>::try_from(map).unwrap();
            let mut found: Vec<String> = map
                .keys()
                .map(|key| key.unwrap())
                .map(|key| {
                    format!(
                        "{}/{}",
                        std::net::Ipv4Addr::from(key.data()),
                        key.prefix_len()
                    )
                })
                .collect();
            found.sort();
            let mut wanted = cidrs.clone();
            wanted.sort_unstable();
            assert_eq!(found, wanted);
        }
    });
}

#[test]
fn settings_that_contradict_themselves_are_refused() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let marks = |proxy, proxy_mask, service, service_mask| DatapathConfig {
            marks: Marks {
                proxy,
                proxy_mask,
                service,
                service_mask,
            },
            ..settings()
        };
        for config in [
            DatapathConfig {
                fake_cidrs: vec![],
                ..settings()
            },
            DatapathConfig {
                gateway: "192.0.2.1".parse().unwrap(),
                ..settings()
            },
            marks(0, 0xff00, 0x77, 0xff),
            marks(0x10000, 0xff00, 0x77, 0xff),
            marks(0x100, 0xff00, 0x77, 0x1ff),
        ] {
            let error = Datapath::ensure(&dir.pins(), &config).unwrap_err();
            assert_eq!(error.reason(), "settings", "{error}");
        }
        assert!(!dir.base().exists());
    });
}

#[test]
fn pins_outside_a_bpf_file_system_are_refused_with_the_remedy() {
    in_new_netns(|| {
        let dir = tempfile::tempdir().unwrap();
        let error = Datapath::ensure(&Pins::new(dir.path()), &settings()).unwrap_err();
        assert!(
            error.to_string().contains("mount -t bpf bpf /sys/fs/bpf"),
            "{error}"
        );
    });
}

#[test]
fn a_map_of_another_shape_is_not_adopted() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        fs::create_dir_all(pins.dir()).unwrap();
        let foreign = HashMap::<MapData, u32, u64>::create(16, 0).unwrap();
        foreign.pin(pins.map(names::ENDPOINTS)).unwrap();
        let error = Datapath::ensure(&pins, &settings()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("ENDPOINTS has values of 8 bytes, not 12"),
            "{text}"
        );
        assert!(!pins.program(names::POD_INGRESS).exists());
    });
}

#[test]
fn another_build_is_replaced_while_pods_and_dispatch_stay_attached() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        let datapath = Datapath::ensure(&pins, &settings()).unwrap();
        let index = veth("pod0");
        assert_eq!(
            datapath.attach_pod("pod0", index, &pod()).unwrap(),
            expected_kind()
        );
        let (maps, old) = (map_ids(&pins), program_id(&pins, names::POD_INGRESS));
        assert!(tcx_programs("pod0").is_none_or(|programs| programs == [old]));

        // the debug log is compiled in: another build
        let datapath = Datapath::ensure_with(&pins, &settings(), DebugLog::Drops).unwrap();
        let new = program_id(&pins, names::POD_INGRESS);
        assert_ne!(old, new);
        assert!(tcx_programs("pod0").is_none_or(|programs| programs == [new]));
        assert_eq!(
            map_ids(&pins),
            maps,
            "maps, and with them sockets and endpoints, are kept"
        );
        datapath.check_pod("pod0", index, &pod()).unwrap();
    });
}

#[test]
fn an_interrupted_replacement_is_completed() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        let datapath = Datapath::ensure(&pins, &settings()).unwrap();
        let index = veth("pod0");
        datapath.attach_pod("pod0", index, &pod()).unwrap();
        // as left by a process that was killed between loading and attaching
        forget_build(&pins);
        fs::remove_file(pins.dispatch_link()).unwrap();
        fs::rename(pins.program(names::DISPATCH), pins.program("dispatch:new")).unwrap();
        Datapath::ensure(&pins, &settings()).unwrap();
        assert!(pins.dispatch_link().exists() && !pins.program("dispatch:new").exists());
        datapath.check_pod("pod0", index, &pod()).unwrap();
    });
}

#[test]
fn pins_that_serve_another_living_namespace_are_left_to_it() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        Datapath::ensure(&pins, &settings()).unwrap();
        let other = pins.clone();
        thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let error = Datapath::ensure(&other, &settings()).unwrap_err();
            assert_eq!(error.reason(), "other_namespace", "{error}");
        })
        .join()
        .unwrap();
    });
}

#[test]
fn pins_of_a_namespace_that_is_gone_are_taken_over() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        let first = pins.clone();
        thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            Datapath::ensure(&first, &settings()).unwrap();
        })
        .join()
        .unwrap();
        // the kernel takes a namespace apart in its own time
        let deadline = Instant::now() + support::patience(std::time::Duration::from_secs(10));
        while let Err(error) = Datapath::ensure(&pins, &settings()) {
            assert_eq!(error.reason(), "other_namespace", "{error}");
            assert!(Instant::now() < deadline, "{error}");
            thread::sleep(std::time::Duration::from_millis(20));
        }
    });
}

#[test]
fn attach_is_idempotent_and_survives_the_process_that_did_it() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        let index = veth("pod.0");
        for _ in 0..2 {
            let datapath = Datapath::ensure(&pins, &settings()).unwrap();
            assert_eq!(
                datapath.attach_pod("pod.0", index, &pod()).unwrap(),
                expected_kind()
            );
        }
        let program = program_id(&pins, names::POD_INGRESS);
        assert!(tcx_programs("pod.0").is_none_or(|programs| programs == [program]));
        let datapath = Datapath::open(&pins).unwrap();
        datapath.check_pod("pod.0", index, &pod()).unwrap();
        assert_eq!(datapath.endpoints().unwrap(), [(index, pod())]);
    });
}

#[test]
fn a_recreated_interface_of_the_same_name_is_attached_anew() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let datapath = Datapath::ensure(&dir.pins(), &settings()).unwrap();
        let old = veth("pod0");
        datapath.attach_pod("pod0", old, &pod()).unwrap();
        run_ip("link del pod0");
        let new = veth("pod0");
        assert_ne!(old, new);
        let error = datapath.attach_pod("pod0", old, &pod()).unwrap_err();
        assert!(matches!(error, AttachError::NoInterface { .. }), "{error}");
        datapath.attach_pod("pod0", new, &pod()).unwrap();
        datapath.check_pod("pod0", new, &pod()).unwrap();
    });
}

#[test]
fn detach_removes_everything_and_is_fine_when_all_is_gone() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        let datapath = Datapath::ensure(&pins, &settings()).unwrap();
        let index = veth("pod0");
        datapath.attach_pod("pod0", index, &pod()).unwrap();
        run_ip("link del pod0");
        let pinned = expected_kind() == AttachKind::Tcx;
        assert_eq!(
            pins.pod_link("pod0").exists(),
            pinned,
            "a pin outlives its interface"
        );
        for _ in 0..2 {
            datapath.detach_pod(index, "pod0").unwrap();
            assert!(!pins.pod_link("pod0").exists());
            assert_eq!(datapath.endpoints().unwrap(), []);
        }
        datapath.detach_pod(4_000_000, "never").unwrap();
    });
}

#[test]
fn counters_of_a_pod_that_goes_are_kept_in_the_sums() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        let datapath = Datapath::ensure(&pins, &settings()).unwrap();
        let map = Map::from_map_data(MapData::from_pin(pins.map(names::COUNTERS)).unwrap());
        let mut map = PerCpuHashMap::<_, CounterKey, Counter>::try_from(map.unwrap()).unwrap();
        let cpus = aya::util::nr_cpus().unwrap();
        for ifindex in [7, 8] {
            let key = CounterKey {
                ifindex,
                reason: Reason::Udp as u32,
            };
            let each = vec![
                Counter {
                    packets: 2,
                    bytes: 100
                };
                cpus
            ];
            map.insert(key, PerCpuValues::try_from(each).unwrap(), 0)
                .unwrap();
        }
        let sum = || {
            datapath
                .counters()
                .unwrap()
                .iter()
                .map(|row| row.packets)
                .sum::<u64>()
        };
        let before = sum();
        datapath.detach_pod(7, "gone7").unwrap();
        datapath.detach_pod(8, "gone8").unwrap();
        assert_eq!(sum(), before);
        let rows = datapath.counters().unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].ifindex, rows[0].bytes), (0, 200 * cpus as u64));
    });
}

#[test]
fn check_names_what_is_wrong() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        let datapath = Datapath::ensure(&pins, &settings()).unwrap();
        let index = veth("pod0");
        let check = || datapath.check_pod("pod0", index, &pod()).unwrap_err();
        assert!(matches!(check(), CheckError::NotAttached { .. }));

        datapath.attach_pod("pod0", index, &pod()).unwrap();
        let other = PodEndpoint {
            mac: [2, 0, 0, 0, 0, 9],
            ..pod()
        };
        let error = datapath.check_pod("pod0", index, &other).unwrap_err();
        assert!(matches!(error, CheckError::OtherEndpoint { .. }), "{error}");
    });
}

#[test]
fn check_sees_a_program_put_before_ours_and_a_lost_link() {
    in_new_netns(|| {
        if expected_kind() == AttachKind::Clsact {
            return; // the filter's tests are beside it
        }
        let dir = PinDir::new();
        let pins = dir.pins();
        let datapath = Datapath::ensure(&pins, &settings()).unwrap();
        let index = veth("pod0");
        datapath.attach_pod("pod0", index, &pod()).unwrap();
        let check = || datapath.check_pod("pod0", index, &pod()).unwrap_err();

        let mut theirs = SchedClassifier::from_pin(pins.program(names::POD_INGRESS)).unwrap();
        forget_build(&pins);
        Datapath::ensure(&pins, &settings()).unwrap();
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        let link = theirs
            .attach_with_options("pod0", TcAttachType::Ingress, first)
            .unwrap();
        assert!(
            matches!(check(), CheckError::NotFirst { .. }),
            "{}",
            check()
        );
        // ours goes before it again, and theirs stays
        datapath.attach_pod("pod0", index, &pod()).unwrap();
        datapath.check_pod("pod0", index, &pod()).unwrap();
        let ours = SchedClassifier::from_pin(pins.program(names::POD_INGRESS)).unwrap();
        let [ours, others] = [&ours, &theirs].map(|program| program.info().unwrap().id());
        assert_eq!(tcx_programs("pod0").unwrap(), [ours, others]);
        theirs.detach(link).unwrap();
        datapath.check_pod("pod0", index, &pod()).unwrap();

        fs::remove_file(pins.pod_link("pod0")).unwrap();
        assert!(matches!(check(), CheckError::NotAttached { .. }));
    });
}

#[test]
fn programs_of_others_on_the_hook_stay_when_ours_goes() {
    in_new_netns(|| {
        if expected_kind() == AttachKind::Clsact {
            return; // the filter's tests are beside it
        }
        let dir = PinDir::new();
        let pins = dir.pins();
        Datapath::ensure(&pins, &settings()).unwrap();
        let mut theirs = SchedClassifier::from_pin(pins.program(names::POD_INGRESS)).unwrap();
        // one program can't be attached twice: from here on ours is another than theirs
        forget_build(&pins);
        let datapath = Datapath::ensure(&pins, &settings()).unwrap();
        let index = veth("pod0");
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        let _link = theirs
            .attach_with_options("pod0", TcAttachType::Ingress, first)
            .unwrap();
        tc::qdisc_add_clsact("pod0").unwrap();
        let options = NlOptions {
            priority: 1,
            handle: TcHandle::new(0, 1),
            classid: None,
        };
        let filter = theirs
            .attach_with_options(
                "pod0",
                TcAttachType::Ingress,
                TcAttachOptions::Netlink(options),
            )
            .unwrap();
        datapath.attach_pod("pod0", index, &pod()).unwrap();
        assert_eq!(tcx_programs("pod0").unwrap().len(), 2);
        datapath.detach_pod(index, "pod0").unwrap();
        assert_eq!(tcx_programs("pod0").unwrap().len(), 1);
        theirs.detach(filter).expect("their filter is still there");
    });
}

#[test]
fn two_hundred_pods_are_attached_at_once() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        run("ip", "link add br0 type bridge");
        let names: Vec<String> = (0..200).map(|i| format!("pod{i}")).collect();
        let indices: Vec<u32> = names.iter().map(|name| veth(name)).collect();
        let netns = fs::File::open("/proc/thread-self/ns/net").unwrap();
        let start = Instant::now();
        thread::scope(|scope| {
            for (i, (name, &index)) in names.iter().zip(&indices).enumerate() {
                let (pins, netns) = (&pins, &netns);
                scope.spawn(move || {
                    nix::sched::setns(netns, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                    // as 200 ADDs do on a node where nothing is loaded yet
                    let datapath = Datapath::ensure(pins, &settings()).unwrap();
                    let fake_ip = std::net::Ipv4Addr::new(169, 254, 100, 2 + i as u8);
                    let pod = PodEndpoint {
                        fake_ip,
                        mac: [2, 0, 0, 0, 1, i as u8],
                    };
                    datapath.attach_pod(name, index, &pod).unwrap();
                    datapath.check_pod(name, index, &pod).unwrap();
                });
            }
        });
        println!("200 pods attached in {:?}", start.elapsed());
        let datapath = Datapath::open(&pins).unwrap();
        assert_eq!(datapath.endpoints().unwrap().len(), 200);
        let program = program_id(&pins, names::POD_INGRESS);
        for name in &names {
            assert!(
                tcx_programs(name).is_none_or(|programs| programs == [program]),
                "one for all"
            );
        }
        thread::scope(|scope| {
            for (name, &index) in names.iter().zip(&indices) {
                let (datapath, netns) = (&datapath, &netns);
                scope.spawn(move || {
                    nix::sched::setns(netns, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
                    datapath.detach_pod(index, name).unwrap();
                });
            }
        });
        assert_eq!(datapath.endpoints().unwrap(), []);
        assert_eq!(
            fs::read_dir(pins.links()).unwrap().count(),
            1,
            "dispatch only"
        );
        assert_eq!(index_of("lo"), 1);
    });
}

#[test]
fn remove_leaves_nothing_and_is_fine_twice() {
    in_new_netns(|| {
        let dir = PinDir::new();
        let pins = dir.pins();
        Datapath::ensure(&pins, &settings()).unwrap();
        for _ in 0..2 {
            Datapath::remove(&pins).unwrap();
            assert!(!Path::new(pins.dir()).exists());
        }
    });
}
