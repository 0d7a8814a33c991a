//! The harness itself: worlds are whole, apart from each other, and leave nothing behind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::process::Command;

use e2e::addresses::{DNS_SERVER, SERVICE_IP};
use e2e::machine::can_run;
use e2e::outside::Outside;
use e2e::secrets::Secrets;
use e2e::world::{WORLDS, World};
use e2e::{procfs, service};

fn host_links() -> String {
    let out = Command::new("ip").args(["-br", "link"]).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn a_world_has_its_own_everything_and_vanishes_with_its_owner() {
    if !can_run().unwrap() {
        return;
    }
    let before = host_links();
    let world = World::create("harness").unwrap();
    let (dir, pid1) = (world.dir().to_owned(), world.pid1());
    let node = world.node();
    assert_eq!(node.run(&["hostname"]).unwrap().stdout.trim(), "harness");
    node.sh("echo x > /etc/cni/net.d/x && echo y > /var/lib/y && ip link add l1 type bridge")
        .unwrap()
        .success()
        .unwrap();
    let other = World::create("harness").unwrap();
    assert!(
        !other
            .node()
            .sh("ls /etc/cni/net.d/x /var/lib/y")
            .unwrap()
            .ok()
    );
    assert!(
        !other
            .node()
            .run(&["ip", "link", "show", "l1"])
            .unwrap()
            .ok()
    );
    assert_eq!(
        host_links(),
        before,
        "the machine's own network must stay as it is"
    );
    assert!(
        node.sh("bpftool prog list >/dev/null; mountpoint /sys/fs/bpf")
            .unwrap()
            .ok()
    );
    drop(world);
    assert!(procfs::start_time(pid1).is_err(), "PID 1 is still there");
    assert!(!dir.exists(), "{} is still there", dir.display());
    assert!(!fs::exists("/var/lib/y").unwrap());
    drop(other);
}

#[test]
fn a_world_vanishes_when_its_owner_is_killed() {
    if !can_run().unwrap() {
        return;
    }
    // this very test binary, running the test below as a process of its own
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "owner_that_waits_to_be_killed",
            "--ignored",
            "--nocapture",
        ])
        .env("E2E_OWNER", "1")
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let prefix = format!("killed-{}-", child.id());
    let find = || {
        let entries = fs::read_dir(WORLDS).ok()?;
        entries.flatten().map(|e| e.path()).find(|p| {
            p.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with(&prefix))
                && p.join("pid1").exists()
        })
    };
    let dir = wait_for(find).expect("the owner makes a world");
    let text = fs::read_to_string(dir.join("pid1")).unwrap();
    let pid1: i32 = text.split(' ').next().unwrap().parse().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for(|| (procfs::start_time(pid1).is_err() && !dir.exists()).then_some(()))
        .expect("the world vanishes with its owner");
}

#[test]
#[ignore = "run by a_world_vanishes_when_its_owner_is_killed"]
fn owner_that_waits_to_be_killed() {
    if std::env::var_os("E2E_OWNER").is_none() {
        return;
    }
    let world = World::create("killed").unwrap();
    let _sleeper = world
        .node()
        .spawn("sleeper", &["sleep", "600"], &[])
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(600));
}

#[test]
fn the_outside_serves_what_a_node_expects() {
    if !can_run().unwrap() {
        return;
    }
    let world = World::create("harness").unwrap();
    let secrets = Secrets::draw().unwrap();
    let outside = Outside::start(&world, &secrets).unwrap();
    service::install(&world.node()).unwrap();
    let node = world.node();
    let get = |arguments: &str| {
        node.sh(&format!("curl -sS --max-time 5 {arguments}"))
            .unwrap()
            .all()
    };
    let dig = |what: &str| {
        node.sh(&format!("dig +tries=1 @{DNS_SERVER} {what}"))
            .unwrap()
            .stdout
    };

    assert_eq!(dig("+short docs.example.com").trim(), "203.0.113.10");
    assert!(dig("nothing.example.com").contains("NXDOMAIN"));
    assert!(dig("AAAA docs.example.com").contains("NOERROR"));
    assert!(dig("+noedns +ignore many.example.com").contains("flags: qr aa tc"));
    assert_eq!(dig("+short +tcp many.example.com").lines().count(), 42);
    let at = "--resolve docs.example.com:80:203.0.113.10 --resolve api.example.com:80:203.0.113.11";
    assert!(get(&format!("{at} http://docs.example.com/")).contains("hello from docs"));
    assert!(get(&format!("{at} http://api.example.com/")).contains("a token is wanted"));
    let token = format!("-H 'Authorization: Bearer {}'", secrets.api_token);
    assert!(get(&format!("{at} {token} http://api.example.com/")).contains("the token is right"));
    assert_eq!(
        outside
            .requests_to("api.example.com")
            .unwrap()
            .iter()
            .map(|s| &*s.auth)
            .collect::<Vec<_>>(),
        ["none", "right"]
    );
    let tls = format!(
        "--cacert {} --resolve secure.example.com:443:203.0.113.20",
        outside.pki().ca.display()
    );
    assert!(get(&format!("{tls} https://secure.example.com/")).contains("over tls from secure"));
    assert!(get(&format!("http://{SERVICE_IP}/")).contains("hello from the service"));
    assert!(get("http://169.254.169.254/").contains("metadata-credentials"));
    let clone = "git -c http.curloptResolve=git.example.com:80:203.0.113.12 clone -q http://git.example.com/public.git /tmp/agent-network-e2e-clone-$$ && cat /tmp/agent-network-e2e-clone-$$/README; rm -rf /tmp/agent-network-e2e-clone-$$";
    assert!(node.sh(clone).unwrap().all().contains("this is public"));
    let banner = node
        .sh("timeout 3 socat -u TCP:203.0.113.30:2525 - | head -1")
        .unwrap()
        .stdout;
    assert_eq!(banner.trim(), "220 banner ready");
}

fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..500 {
        if let Some(found) = what() {
            return Some(found);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    None
}
