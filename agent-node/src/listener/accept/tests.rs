use std::io::Write as _;
use std::net::{TcpListener as StdListener, TcpStream as StdStream};

use super::*;

#[test]
fn the_pause_grows_to_its_end_and_no_further() {
    let mut pause = None;
    for _ in 0..20 {
        pause = Some(next_pause(pause));
    }
    assert_eq!(next_pause(None), BACKOFF.0);
    assert_eq!(pause, Some(BACKOFF.1));
}

#[test]
fn a_closing_listener_answers_no_new_handshake_and_keeps_those_in_its_queue() {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = StdStream::connect(address).unwrap();
    SockRef::from(&listener).attach_filter(&DROP_SYN).unwrap();
    let refused = StdStream::connect_timeout(&address, Duration::from_millis(300));
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
    let (_accepted, _) = listener.accept().unwrap();
    queued.write_all(b"still open").unwrap();
}
