//! kube-proxy's IPVS mode for a few Services: the dummy interface with the Services' addresses, virtual servers,
//! ipsets and rules as it makes them for a cluster whose pod CIDR it doesn't know.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::addresses::{CLUSTER_DNS, DNS_SERVER, NODE, SERVICE_BACKEND, SERVICE_IP};
use crate::place::Place;

/// A Service that has no endpoints.
pub const EMPTY_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 81);
/// A Service whose endpoint was written by hand; see [`Ipvs::serve`].
pub const ODD_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 82);
/// A load balancer's address, which is in no Service CIDR; its packets are the proxy's.
pub const BALANCER_IP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 90);
/// A Service's port on every address of the node; the proxy's as well.
pub const NODE_PORT: u16 = 30_080;

/// Replaces what the iptables mode had installed, as kube-proxy does when its mode is changed.
const SCRIPT: &str = r#"
set -e
for chain in KUBE-SERVICES KUBE-POSTROUTING; do iptables -w -t nat -F $chain; done
ip link add kube-ipvs0 type dummy
for a in $VIPS; do ip addr add $a/32 dev kube-ipvs0; done
sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
ipvsadm --clear
sysctl -qw net.ipv4.vs.conntrack=1 net.ipv4.vs.conn_reuse_mode=0 net.ipv4.vs.expire_nodest_conn=1
ipset create KUBE-CLUSTER-IP hash:ip,port
ipset create KUBE-LOAD-BALANCER hash:ip,port
ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
ipset add KUBE-LOAD-BALANCER $BALANCER,tcp:80
ipset add KUBE-NODE-PORT-TCP $NODE_PORT
ip addr add $BALANCER/32 dev kube-ipvs0
ip addr add $DNS/32 dev kube-ipvs0
for a in $BALANCER:80 $NODE:$NODE_PORT; do ipvsadm -A -t $a -s rr; ipvsadm -a -t $a -r $BACKEND:8080 -m; done
for p in tcp udp; do
  ipset add KUBE-CLUSTER-IP $DNS,$p:53
  ipvsadm -A --$p-service $DNS:53 -s rr
  ipvsadm -a --$p-service $DNS:53 -r $DNS_SERVER:53 -m
done
for a in $VIPS; do ipset add KUBE-CLUSTER-IP $a,tcp:80; ipvsadm -A -t $a:80 -s rr; done
ipset add KUBE-CLUSTER-IP $SERVICE,udp:9999
ipvsadm -A -u $SERVICE:9999 -s rr
ipvsadm -a -t $SERVICE:80 -r $BACKEND:8080 -m
ipvsadm -a -u $SERVICE:9999 -r $BACKEND:9999 -m
iptables-restore -w --noflush <<RULES
*nat
:KUBE-NODE-PORT -
:KUBE-LOAD-BALANCER -
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP src,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
*filter
:KUBE-FORWARD -
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
RULES
"#;

/// The node's virtual servers.
pub struct Ipvs {
    node: Place,
}

impl Ipvs {
    /// Sets it up on a node that has the iptables mode's rules.
    ///
    /// # Errors
    /// When the kernel has no IPVS, or `ipvsadm` is missing.
    pub fn install(node: &Place) -> Result<Ipvs> {
        let vips = format!("{SERVICE_IP} {EMPTY_IP} {ODD_IP}");
        let env = [
            ("VIPS", vips.as_str()),
            ("SERVICE", &SERVICE_IP.to_string()),
            ("BACKEND", &SERVICE_BACKEND.to_string()),
            ("DNS", &CLUSTER_DNS.to_string()),
            ("DNS_SERVER", &DNS_SERVER.to_string()),
            ("BALANCER", &BALANCER_IP.to_string()),
            ("NODE", &NODE.to_string()),
            ("NODE_PORT", &NODE_PORT.to_string()),
        ];
        node.run_with(&["bash", "-c", SCRIPT], &env, b"", 120)?
            .success()?;
        Ok(Ipvs { node: node.clone() })
    }

    /// Gives [`ODD_IP`] this endpoint and no other, as whoever may write EndpointSlices can.
    ///
    /// # Errors
    /// When `ipvsadm` fails.
    pub fn serve(&self, endpoint: &str) -> Result<()> {
        let script = format!(
            "ipvsadm -D -t {ODD_IP}:80; ipvsadm -A -t {ODD_IP}:80 -s rr && ipvsadm -a -t {ODD_IP}:80 -r {endpoint} -m"
        );
        self.node.sh(&script)?.success().map(|_| ())
    }
}
