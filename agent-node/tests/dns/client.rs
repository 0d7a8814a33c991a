//! A pod's resolver, byte by byte: queries from a given address over UDP and TCP.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use socket2::{Domain, Socket, Type};

/// The server that pods ask: nobody's address, as the cluster DNS Service's is to the node.
pub(crate) const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 53), 53);

/// Longer than the proxy may take for anything.
const PATIENCE: Duration = Duration::from_secs(5);

/// A query for `name`; with an EDNS record when `edns` says a size.
pub(crate) fn query(name: &str, qtype: RecordType, edns: Option<u16>) -> Message {
    let mut message = Message::new(fastrand::u16(..), MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let mut name = Name::from_ascii(name).unwrap();
    name.set_fqdn(true);
    message.add_query(Query::query(name, qtype));
    if let Some(size) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        message.set_edns(edns);
    }
    message
}

/// A UDP socket of the pod at `ip`, which hears the asked server only.
pub(crate) fn socket(ip: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.connect(SERVER).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// What the pod at `ip` gets for `query` over UDP; `None` when nothing comes within `patience`.
pub(crate) fn try_udp(ip: Ipv4Addr, query: &[u8], patience: Duration) -> Option<Vec<u8>> {
    let socket = socket(ip);
    socket.set_read_timeout(Some(patience)).unwrap();
    socket.send(query).unwrap();
    let mut buffer = [0; 65535];
    let length = socket.recv(&mut buffer).ok()?;
    Some(buffer[..length].to_vec())
}

/// The reply to `query` over UDP.
pub(crate) fn udp(ip: Ipv4Addr, query: &Message) -> Message {
    let bytes = try_udp(ip, &query.to_vec().unwrap(), PATIENCE).expect("no reply over UDP");
    let reply = Message::from_vec(&bytes).unwrap();
    assert_eq!(reply.metadata.id, query.metadata.id);
    assert_eq!(reply.metadata.message_type, MessageType::Response);
    reply
}

/// The reply to an A question over UDP.
pub(crate) fn ask(ip: Ipv4Addr, name: &str) -> Message {
    udp(ip, &query(name, RecordType::A, Some(1232)))
}

/// As [`ask`], asking again as stub resolvers do: a busy machine may lose a datagram. Their users wait 10 seconds.
pub(crate) fn ask_as_a_stub_resolver(ip: Ipv4Addr, name: &str) -> Message {
    let query = query(name, RecordType::A, Some(1232)).to_vec().unwrap();
    let reply = (0..5).find_map(|_| try_udp(ip, &query, Duration::from_secs(2)));
    Message::from_vec(&reply.expect("no reply to five queries")).unwrap()
}

/// A TCP connection of the pod at `ip`.
pub(crate) fn connect(ip: Ipv4Addr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((ip, 0)).into()).unwrap();
    socket.connect(&SocketAddr::V4(SERVER).into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a message with its length.
pub(crate) fn send(stream: &mut TcpStream, message: &[u8]) {
    let length = (message.len() as u16).to_be_bytes();
    stream.write_all(&[&length[..], message].concat()).unwrap();
}

/// The next message; `None` at the end of the stream.
pub(crate) fn receive(stream: &mut TcpStream) -> Option<Message> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).ok()?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message).unwrap();
    Some(Message::from_vec(&message).unwrap())
}

/// The reply to `query` over TCP.
pub(crate) fn tcp(ip: Ipv4Addr, query: &Message) -> Message {
    let mut stream = connect(ip);
    send(&mut stream, &query.to_vec().unwrap());
    let reply = receive(&mut stream).expect("no reply over TCP");
    assert_eq!(reply.metadata.id, query.metadata.id);
    reply
}

/// The IPv4 addresses of a reply.
pub(crate) fn addresses(reply: &Message) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    for record in &reply.answers {
        if let hickory_proto::rr::RData::A(address) = &record.data {
            found.push(address.0);
        }
    }
    found
}
