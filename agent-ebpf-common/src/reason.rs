//! Why a packet was passed or dropped.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)+) => {
        /// Why a packet was passed or dropped; a key of the counters and a field of drop events.
        ///
        /// The numbers are part of the ABI: never reused, only added.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum Reason { $($(#[$doc])* $name = $value,)+ }

        impl Reason {
            /// Every reason, in numeric order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// A fixed snake_case label, for metrics and audit lines.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The reason with that number, if there is one.
            #[must_use]
            pub const fn from_u32(value: u32) -> Option<Self> {
                match value { $($value => Some(Self::$name),)+ _ => None }
            }
        }
    };
}

reasons! {
    /// Passed: TCP to be handled by the proxy.
    Proxied = 1, "proxied";
    /// Passed: DNS (UDP or TCP port 53) to be handled by the proxy.
    Dns = 2, "dns";
    /// Passed: to a Service CIDR, past the proxy.
    Service = 3, "service";
    /// Passed: TCP back to the node, on a connection that the node opened (probes).
    HostReply = 4, "host_reply";
    /// Passed: ARP request for the gateway.
    Arp = 5, "arp";

    /// Dropped: the interface has no endpoint entry.
    NoEndpoint = 16, "no_endpoint";
    /// Dropped: the source MAC is not the endpoint's.
    SpoofedMac = 17, "spoofed_mac";
    /// Dropped: the source address is not the endpoint's Fake IP.
    SpoofedIp = 18, "spoofed_ip";
    /// Dropped: the destination MAC is not the gateway's.
    WrongGatewayMac = 19, "wrong_gateway_mac";
    /// Dropped: an EtherType that is neither IPv4 nor ARP, IPv6 or VLAN.
    NotIpv4 = 20, "not_ipv4";
    /// Dropped: IPv6.
    Ipv6 = 21, "ipv6";
    /// Dropped: a VLAN-tagged frame.
    Vlan = 22, "vlan";
    /// Dropped: ARP that is not the endpoint's own request for the gateway.
    ArpNotForGateway = 23, "arp_not_for_gateway";
    /// Dropped: a header that is cut short or contradicts itself.
    Malformed = 24, "malformed";
    /// Dropped: a fragment of an IPv4 datagram, the first one too.
    Fragment = 25, "fragment";
    /// Dropped: an IP protocol other than TCP, UDP and ICMP.
    Protocol = 26, "protocol";
    /// Dropped: UDP that is not DNS.
    Udp = 27, "udp";
    /// Dropped: ICMP.
    Icmp = 28, "icmp";
    /// Dropped: not TCP, to a Fake IP.
    FakeCidr = 29, "fake_cidr";
    /// Dropped: the data path has no configuration yet.
    NoConfig = 30, "no_config";
    /// Dropped: a destination that is never one host's: 0/8, 127/8, 224/4 and 240/4.
    BadDestination = 31, "bad_destination";
}

impl Reason {
    /// Whether packets with this reason were dropped.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        self as u32 >= Self::NoEndpoint as u32
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn numbers_and_labels_are_unique_and_round_trip() {
        for (i, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(Reason::from_u32(*reason as u32), Some(*reason));
            for other in &Reason::ALL[i + 1..] {
                assert_ne!(reason.as_str(), other.as_str());
                assert!((*reason as u32) < *other as u32);
            }
        }
        assert_eq!(Reason::from_u32(0), None);
        assert_eq!(Reason::from_u32(u32::MAX), None);
    }

    #[test]
    fn only_the_five_passing_reasons_pass() {
        let passing = Reason::ALL.iter().filter(|r| !r.is_drop()).count();
        assert_eq!(passing, 5);
        assert!(!Reason::Arp.is_drop() && Reason::NoEndpoint.is_drop());
    }
}
