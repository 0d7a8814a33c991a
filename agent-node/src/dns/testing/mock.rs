//! A DNS server on loopback that does what a test tells it to, over UDP and TCP.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use hickory_proto::op::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::AbortHandle;

use crate::dns::respond::Transport;

/// What the server does about one query.
pub(crate) enum Act {
    /// Sends these messages, in order.
    Say(Vec<Vec<u8>>),
    /// Sends a message after a while.
    Late(Duration, Vec<u8>),
    /// Says nothing.
    Silent,
}

/// The server; ends when dropped. Must live on a `LocalSet`.
pub(crate) struct MockUpstream {
    pub(crate) address: SocketAddr,
    /// Every query that came.
    pub(crate) seen: Rc<RefCell<Vec<(Transport, Message)>>>,
    tasks: [AbortHandle; 2],
}

impl MockUpstream {
    pub(crate) async fn start(act: impl Fn(Transport, &Message) -> Act + 'static) -> MockUpstream {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        let seen = Rc::new(RefCell::new(Vec::new()));
        let act = Rc::new(act);
        let tasks = [
            tokio::task::spawn_local(over_udp(Rc::new(udp), act.clone(), seen.clone()))
                .abort_handle(),
            tokio::task::spawn_local(over_tcp(tcp, act, seen.clone())).abort_handle(),
        ];
        MockUpstream {
            address,
            seen,
            tasks,
        }
    }

    /// Answers every query with what `reply` makes of it.
    pub(crate) async fn answering(reply: impl Fn(&Message) -> Message + 'static) -> MockUpstream {
        MockUpstream::start(move |_, query| Act::Say(vec![answer(query, &reply)])).await
    }

    pub(crate) fn asked(&self) -> usize {
        self.seen.borrow().len()
    }
}

/// The bytes of `reply`, with the query's ID and question.
pub(crate) fn answer(query: &Message, reply: impl Fn(&Message) -> Message) -> Vec<u8> {
    let mut message = reply(query);
    message.metadata.id = query.metadata.id;
    message.queries.clone_from(&query.queries);
    message.to_vec().unwrap()
}

impl Drop for MockUpstream {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

type Seen = Rc<RefCell<Vec<(Transport, Message)>>>;

async fn over_udp(
    socket: Rc<UdpSocket>,
    act: Rc<impl Fn(Transport, &Message) -> Act + 'static>,
    seen: Seen,
) {
    loop {
        let mut buffer = [0; 4096];
        let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
        let query = Message::from_vec(&buffer[..length]).unwrap();
        let doing = act(Transport::Udp, &query);
        seen.borrow_mut().push((Transport::Udp, query));
        match doing {
            Act::Silent => {}
            Act::Say(messages) => {
                for message in messages {
                    socket.send_to(&message, peer).await.unwrap();
                }
            }
            Act::Late(wait, message) => {
                let socket = socket.clone();
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(wait).await;
                    let _ = socket.send_to(&message, peer).await;
                });
            }
        }
    }
}

async fn over_tcp(
    listener: TcpListener,
    act: Rc<impl Fn(Transport, &Message) -> Act + 'static>,
    seen: Seen,
) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut bytes = vec![0; usize::from(length)];
        stream.read_exact(&mut bytes).await.unwrap();
        let query = Message::from_vec(&bytes).unwrap();
        let doing = act(Transport::Tcp, &query);
        seen.borrow_mut().push((Transport::Tcp, query));
        if let Act::Say(messages) = doing {
            for message in messages {
                stream
                    .write_all(&crate::dns::frame::framed(&message))
                    .await
                    .unwrap();
            }
        }
    }
}
