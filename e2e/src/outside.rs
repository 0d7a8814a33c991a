//! What a node sees beyond its uplink: a router, web servers, a git server, a DNS server and a cloud's metadata
//! service, all real programs in a network namespace of their own. Their logs are the evidence of what arrived.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::addresses::{
    ANYCAST_CIDR, BANNER, DNS_SERVER, MANY, MANY_COUNT, METADATA, NAMES, NODE, ROUTER,
    SERVICE_BACKEND,
};
use crate::pki::Pki;
use crate::place::Place;
use crate::process::Process;
use crate::secrets::Secrets;
use crate::world::World;

mod nginx;

/// The link from the node to the outside, as the node calls it.
pub const UPLINK: &str = "eth0";
/// The same link's other end.
pub const DOWNLINK: &str = "down0";

/// The running outside.
pub struct Outside {
    place: Place,
    dir: PathBuf,
    pki: Pki,
    servers: Vec<Process>,
}

/// A request as nginx logged it.
#[derive(Clone, Debug, Deserialize)]
pub struct Seen {
    /// The `Host` that arrived.
    pub host: String,
    /// The server's address that was connected to.
    pub to: String,
    /// Where the connection came from.
    pub from: String,
    /// The request line.
    pub request: String,
    /// The answer's status.
    pub status: u16,
    /// Whether the credential of this server came: `right`, `wrong` or `none`.
    pub auth: String,
    /// `X-Agent-Caller` as it arrived.
    pub caller: String,
    /// `X-Agent-Target` as it arrived.
    pub target: String,
    /// `X-Forwarded-For` as it arrived.
    pub forwarded: String,
    /// `http` or `https`.
    pub scheme: String,
}

impl Outside {
    /// Makes the namespace and its link to the node, and starts all servers.
    ///
    /// # Errors
    /// When a program is missing or doesn't start.
    pub fn start(world: &World, secrets: &Secrets) -> Result<Outside> {
        let place = world.namespace("outside")?;
        link(&world.node(), &place)?;
        let dir = world.dir().join("outside");
        fs::create_dir_all(&dir)?;
        let pki = Pki::create(&place, &dir.join("pki"))?;
        let mut outside = Outside {
            place,
            dir,
            pki,
            servers: Vec::new(),
        };
        outside.start_git()?;
        outside.start_nginx(world, secrets)?;
        outside.start_dns()?;
        outside.start_banner()?;
        Ok(outside)
    }

    /// Where its programs run.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The test authority and its server.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// Every request that reached a web server so far.
    ///
    /// # Errors
    /// When the log is damaged.
    pub fn requests(&self) -> Result<Vec<Seen>> {
        self.wait_for_log();
        let text = fs::read_to_string(self.requests_log()).unwrap_or_default();
        text.lines()
            .map(|l| serde_json::from_str(l).with_context(|| format!("nginx logged {l}")))
            .collect()
    }

    /// The requests to `host` so far.
    ///
    /// # Errors
    /// When the log is damaged.
    pub fn requests_to(&self, host: &str) -> Result<Vec<Seen>> {
        Ok(self
            .requests()?
            .into_iter()
            .filter(|s| s.host == host)
            .collect())
    }

    /// The names that the DNS server was asked for so far, each as `TYPE name`.
    pub fn dns_queries(&self) -> Vec<String> {
        let log = self.place.log("dns");
        let log = fs::read_to_string(log).unwrap_or_default();
        log.lines()
            .filter_map(|l| l.split_once("query[")?.1.split_once(" from "))
            .map(|(what, _)| what.replace(']', ""))
            .collect()
    }

    /// Where bare git repositories lie: `public.git` and `private.git`.
    pub fn repositories(&self) -> PathBuf {
        self.dir.join("git")
    }

    /// Lets all servers outlive this value.
    pub fn detach(self) {
        for server in self.servers {
            server.detach();
        }
    }

    /// nginx logs a request after it has answered it. Its one worker does both before it looks at the next connection, so
    /// what was answered before this question is in the log when this one is answered. A server that isn't there logs
    /// nothing more.
    fn wait_for_log(&self) {
        let Ok(mut nginx) = UnixStream::connect(self.dir.join("in-step.sock")) else {
            return;
        };
        let limit = Some(Duration::from_secs(10));
        let _ = nginx.set_read_timeout(limit);
        let _ = nginx.write_all(b"GET / HTTP/1.0\r\n\r\n");
        let _ = nginx.read_to_end(&mut Vec::new());
    }

    fn requests_log(&self) -> PathBuf {
        self.place.log("requests")
    }

    fn start_git(&mut self) -> Result<()> {
        let git = self.repositories();
        fs::create_dir_all(&git)?;
        let script = format!(
            r#"set -e; cd {git}
            export GIT_AUTHOR_NAME=e2e GIT_AUTHOR_EMAIL=e2e@example.com GIT_COMMITTER_NAME=e2e GIT_COMMITTER_EMAIL=e2e@example.com
            for r in public private; do
              git init -q --bare -b main $r.git; git -C $r.git config http.receivepack true
              git init -q -b main w; echo "this is $r" > w/README
              git -C w add README; git -C w commit -q -m first; git -C w push -q ../$r.git main; rm -rf w
            done"#,
            git = git.display()
        );
        self.place.sh(&script)?.success()?;
        let socket = format!("unix:{}", self.dir.join("git.sock").display());
        let fcgi = self.place.spawn(
            "git-http",
            &["fcgiwrap", "-f", "-c", "4", "-s", &socket],
            &[],
        )?;
        self.servers.push(fcgi);
        Ok(())
    }

    fn start_nginx(&mut self, world: &World, secrets: &Secrets) -> Result<()> {
        let site = nginx::Site {
            dir: &self.dir,
            requests: &self.requests_log(),
            errors: &world.logs().join("nginx-errors.log"),
            pki: &self.pki,
            secrets,
        };
        let file = site.write()?;
        let file = file.to_string_lossy().into_owned();
        let server =
            self.place
                .spawn("nginx", &["nginx", "-c", &file, "-g", "daemon off;"], &[])?;
        self.servers.push(server);
        wait_for_port(&self.place, &format!("{METADATA}:80"))
    }

    fn start_dns(&mut self) -> Result<()> {
        let mut conf = format!(
            "no-resolv\nno-hosts\nuser=root\npid-file=\nbind-interfaces\nlisten-address={DNS_SERVER}\n\
             log-queries\nlog-facility=-\ncache-size=0\nlocal-ttl=30\nedns-packet-max=1232\n\
             local=/example.com/\nlocal=/cluster.local/\nlocal=/test/\n\
             txt-record=docs.example.com,\"hello from dnsmasq\"\n\
             cname=alias.example.com,docs.example.com\n"
        );
        for (name, address) in NAMES {
            conf += &format!("host-record={name},{address}\n");
        }
        for i in 0..MANY_COUNT {
            conf += &format!("host-record={MANY},203.0.113.{}\n", 100 + i);
        }
        let file = self.dir.join("dnsmasq.conf");
        fs::write(&file, conf)?;
        let argument = format!("--conf-file={}", file.display());
        let mut dns =
            self.place
                .spawn("dns", &["dnsmasq", "--keep-in-foreground", &argument], &[])?;
        dns.wait_for_output("started, version", Duration::from_secs(5))?;
        self.servers.push(dns);
        Ok(())
    }

    fn start_banner(&mut self) -> Result<()> {
        let listen = format!("TCP-LISTEN:2525,bind={BANNER},fork,reuseaddr");
        let server = self.place.spawn(
            "banner",
            &["socat", &listen, "SYSTEM:echo 220 banner ready; cat"],
            &[],
        )?;
        self.servers.push(server);
        wait_for_port(&self.place, &format!("{BANNER}:2525"))
    }
}

/// The uplink: addresses, routes, and permanent neighbours on both ends, so that not even ARP is ever on it.
fn link(node: &Place, outside: &Place) -> Result<()> {
    let addresses: Vec<String> = NAMES
        .iter()
        .map(|(_, a)| *a)
        .filter(|a| !a.octets().starts_with(&[10]))
        .chain([DNS_SERVER, SERVICE_BACKEND, METADATA])
        .map(|a| format!("ip addr replace {a}/32 dev lo"))
        .collect();
    node.sh(&format!(
        "set -e; ip link add {UPLINK} type veth peer name {DOWNLINK} netns outside
        echo 1 > /proc/sys/net/ipv6/conf/{UPLINK}/disable_ipv6
        ip link set {UPLINK} address 02:00:00:00:00:10; ip addr add {NODE}/24 dev {UPLINK}; ip link set {UPLINK} up
        ip neigh replace {ROUTER} lladdr 02:00:00:00:00:01 dev {UPLINK} nud permanent
        ip route add default via {ROUTER}"
    ))?
    .success()?;
    outside
        .sh(&format!(
            "set -e; echo 1 > /proc/sys/net/ipv6/conf/{DOWNLINK}/disable_ipv6
            ip link set lo up; ip link set {DOWNLINK} address 02:00:00:00:00:01
            ip addr add {ROUTER}/24 dev {DOWNLINK}; ip link set {DOWNLINK} up
            ip neigh replace {NODE} lladdr 02:00:00:00:00:10 dev {DOWNLINK} nud permanent
            ip route add local {ANYCAST_CIDR} dev lo
            {}",
            addresses.join("\n")
        ))?
        .success()?;
    Ok(())
}

/// Waits until something accepts connections at `address` (`host:port`), as seen from `place`.
///
/// # Errors
/// After five seconds.
pub fn wait_for_port(place: &Place, address: &str) -> Result<()> {
    let target: std::net::SocketAddr = address.parse()?;
    place.on_network(|| {
        for _ in 0..500 * crate::patience::slowdown() {
            if std::net::TcpStream::connect_timeout(&target, Duration::from_secs(1)).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        anyhow::bail!("nothing accepts connections at {target}")
    })
}

/// A file that nginx and others can serve: `size` zero bytes that take no room.
///
/// # Errors
/// When it can't be written.
pub fn sparse_file(path: &Path, size: u64) -> Result<()> {
    Ok(fs::File::create(path)?.set_len(size)?)
}
