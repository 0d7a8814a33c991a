"""Sends frames that a pod must not get out, from a packet socket: python3 frames.py IP MAC GATEWAY GATEWAY_MAC OTHER_IP OTHER_MAC.

Prints the name of each kind that was sent, one a line.
"""
import socket, struct, sys

ip, mac, gateway, gateway_mac, other_ip, other_mac = sys.argv[1:7]
OUT = "203.0.113.10"
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))


def m(text):
    return bytes.fromhex(text.replace(":", ""))


def a(text):
    return socket.inet_aton(text)


def total(data):
    if len(data) % 2:
        data += b"\0"
    n = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    n = (n >> 16) + (n & 0xFFFF)
    return ~(n + (n >> 16)) & 0xFFFF


def ip4(payload, src=ip, dst=OUT, proto=17, frag=0, options=b"", ttl=64):
    ihl = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH4s4s", 0x40 | ihl, 0, ihl * 4 + len(payload), 7, frag, ttl, proto, 0, a(src), a(dst)) + options
    return head[:10] + struct.pack("!H", total(head)) + head[12:] + payload


def udp(sport=40000, dport=9997, data=b"leak"):
    return struct.pack("!HHHH", sport, dport, 8 + len(data), 0) + data


def tcp(src=ip, dst=OUT, sport=40001, dport=9997, flags=2):
    head = struct.pack("!HHIIBBHHH", sport, dport, 1, 0, 0x50, flags, 65535, 0, 0)
    pseudo = a(src) + a(dst) + struct.pack("!BBH", 0, 6, len(head))
    return head[:16] + struct.pack("!H", total(pseudo + head)) + head[18:]


def icmp():
    body = struct.pack("!BBHHH", 8, 0, 0, 1, 1) + b"leak"
    return body[:2] + struct.pack("!H", total(body)) + body[4:]


def arp(op, sha, spa, tha, tpa):
    return struct.pack("!HHBBH", 1, 0x0800, 6, 4, op) + m(sha) + a(spa) + m(tha) + a(tpa)


def eth(payload, kind=0x0800, src=mac, dst=gateway_mac):
    return m(dst) + m(src) + struct.pack("!H", kind) + payload


ANY = "ff:ff:ff:ff:ff:ff"
ZERO = "00:00:00:00:00:00"
ipv6 = struct.pack("!IHBB", 6 << 28, 12, 17, 64) + socket.inet_pton(socket.AF_INET6, "fe80::2") + socket.inet_pton(socket.AF_INET6, "ff02::1") + udp()
kinds = {
    "udp": eth(ip4(udp())),
    "udp to the node": eth(ip4(udp(), dst="192.0.2.10")),
    "udp to the gateway": eth(ip4(udp(), dst=gateway)),
    "udp to another pod": eth(ip4(udp(), dst=other_ip)),
    "udp to another pod at layer 2": eth(ip4(udp(), dst=other_ip), dst=other_mac),
    "udp to everybody": eth(ip4(udp(), dst="255.255.255.255"), dst=ANY),
    "multicast": eth(ip4(udp(dport=5353), dst="224.0.0.251"), dst="01:00:5e:00:00:fb"),
    "icmp": eth(ip4(icmp(), proto=1)),
    "icmp to another pod": eth(ip4(icmp(), dst=other_ip, proto=1)),
    "gre": eth(ip4(b"\0\0\x08\0" + ip4(udp()), proto=47)),
    "sctp": eth(ip4(b"\0" * 12, proto=132)),
    "ip in ip": eth(ip4(ip4(udp()), proto=4)),
    "spoofed address, udp": eth(ip4(udp(), src="192.0.2.77")),
    "spoofed address, tcp": eth(ip4(tcp(src="192.0.2.77"), src="192.0.2.77", proto=6)),
    "the node's address": eth(ip4(tcp(src="192.0.2.10"), src="192.0.2.10", proto=6)),
    "another pod's address": eth(ip4(tcp(src=other_ip), src=other_ip, proto=6)),
    "the gateway's address": eth(ip4(tcp(src=gateway), src=gateway, proto=6)),
    "spoofed mac": eth(ip4(tcp(), proto=6), src="02:de:ad:be:ef:01"),
    "another pod's mac": eth(ip4(tcp(), proto=6), src=other_mac),
    "tcp to another pod at layer 2": eth(ip4(tcp(dst=other_ip), dst=other_ip, proto=6), dst=other_mac),
    "first fragment": eth(ip4(udp(), frag=0x2000)),
    "later fragment": eth(ip4(b"leak" * 4, frag=0x0002)),
    "tcp in fragments": eth(ip4(tcp()[:8], proto=6, frag=0x2000)),
    "ip options, udp": eth(ip4(udp(), options=b"\x07\x03\x04\0")),
    "ip options, source route": eth(ip4(tcp(), proto=6, options=b"\x83\x07\x04" + a(OUT) + b"\0")),
    "tcp without syn": eth(ip4(tcp(flags=16), proto=6)),
    "vlan": eth(struct.pack("!HH", 5, 0x0800) + ip4(udp()), kind=0x8100),
    "vlan in vlan": eth(struct.pack("!HHHH", 5, 0x8100, 6, 0x0800) + ip4(udp()), kind=0x88A8),
    "ipv6": eth(ipv6, kind=0x86DD, dst="33:33:00:00:00:01"),
    "ipv6 to the gateway": eth(ipv6, kind=0x86DD),
    "arp for another pod": eth(arp(1, mac, ip, ZERO, other_ip), kind=0x0806, dst=ANY),
    "arp for the router": eth(arp(1, mac, ip, ZERO, "192.0.2.1"), kind=0x0806, dst=ANY),
    "arp in another pod's name": eth(arp(2, mac, other_ip, ZERO, gateway), kind=0x0806, dst=ANY),
    "arp in the gateway's name": eth(arp(2, mac, gateway, other_mac, other_ip), kind=0x0806, dst=other_mac),
    "lldp": eth(b"\x02\x07\x04" + b"x" * 50, kind=0x88CC, dst="01:80:c2:00:00:0e"),
    "short ip header": eth(b"\x45\0\0"),
    "ip header longer than the packet": eth(ip4(b"")[:20].replace(b"\x45", b"\x4f", 1)),
}
for name, frame in kinds.items():
    for _ in range(3):
        s.send(frame.ljust(60, b"\0") if not name.startswith("short") else frame)
    print(name)
