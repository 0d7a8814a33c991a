//! A DNS server on loopback that answers by a function, over UDP and TCP.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, SOA};
use hickory_proto::rr::{Name, RData, Record};

/// One query as the server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) tcp: bool,
}

/// The server. Its threads end with the test's process.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Upstream {
    /// `answer` fills in a response that has ID and question already; false: stay silent.
    pub(crate) fn start(
        answer: impl Fn(&mut Message, bool) -> bool + Send + Sync + 'static,
    ) -> Upstream {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = udp.local_addr().unwrap();
        let tcp = TcpListener::bind(address).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let answer = Arc::new(answer);
        let (log, by) = (seen.clone(), answer.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = udp.recv_from(&mut buffer) {
                if let Some(reply) = reply(&buffer[..length], false, &log, &*by) {
                    let _ = udp.send_to(&reply, peer);
                }
            }
        });
        let (log, by) = (seen.clone(), answer);
        std::thread::spawn(move || {
            for stream in tcp.incoming() {
                let mut stream = stream.unwrap();
                let mut length = [0; 2];
                stream.read_exact(&mut length).unwrap();
                let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut query).unwrap();
                if let Some(reply) = reply(&query, true, &log, &*by) {
                    let length = (reply.len() as u16).to_be_bytes();
                    let _ = stream.write_all(&[&length[..], &reply].concat());
                }
            }
        });
        Upstream { address, seen }
    }

    /// Says 192.0.2.7 to everything.
    pub(crate) fn one_address() -> Upstream {
        Upstream::start(|message, _| {
            let name = message.queries[0].name().clone();
            message.add_answer(a(&name, 60, Ipv4Addr::new(192, 0, 2, 7)));
            true
        })
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The names that were asked, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.name).collect()
    }
}

fn reply(
    query: &[u8],
    tcp: bool,
    seen: &Mutex<Vec<Seen>>,
    answer: &dyn Fn(&mut Message, bool) -> bool,
) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).unwrap();
    let name = query.queries[0].name().to_ascii();
    seen.lock().unwrap().push(Seen { name, tcp });
    let mut message = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    message.metadata.recursion_available = true;
    message.queries.clone_from(&query.queries);
    answer(&mut message, tcp).then(|| message.to_vec().unwrap())
}

pub(crate) fn a(owner: &Name, ttl: u32, address: Ipv4Addr) -> Record {
    Record::from_rdata(owner.clone(), ttl, RData::A(A(address)))
}

/// "No such name", to be kept for half a minute.
pub(crate) fn no_such_name(message: &mut Message) {
    message.metadata.response_code = ResponseCode::NXDomain;
    let zone = Name::from_ascii("example.").unwrap();
    let data = SOA::new(zone.clone(), zone.clone(), 1, 7200, 900, 86400, 30);
    message.add_authority(Record::from_rdata(zone, 60, RData::SOA(data)));
}
