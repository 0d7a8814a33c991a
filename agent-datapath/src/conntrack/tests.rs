use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use super::*;

const POD: Ipv4Addr = Ipv4Addr::new(169, 254, 9, 2);

/// An entry as the kernel sends it: tuple with addresses and protocol, status, id.
fn entry(source: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![36, 0, 1, 0x80, 20, 0, 1, 0x80, 8, 0, 1, 0];
    bytes.extend(source);
    bytes.extend([8, 0, 2, 0, 10, 96, 0, 10]);
    bytes.extend([12, 0, 2, 0x80, 5, 0, 1, 0, 6, 0, 0, 0]);
    bytes.extend([8, 0, 3, 0, 0, 0, 0, 0x8e]);
    bytes.extend([8, 0, 12, 0, 1, 2, 3, 4]);
    bytes
}

#[test]
fn an_entry_is_read_when_the_address_began_it() {
    let bytes = entry(POD.octets());
    let connection = Connection::begun_by(&bytes, POD).unwrap();
    assert_eq!(connection.tuple, bytes[4..36]);
    assert_eq!(connection.id.as_deref(), Some(&[1, 2, 3, 4][..]));
    assert_eq!(connection.zone, None);
    let other = entry([169, 254, 9, 20]);
    assert_eq!(Connection::begun_by(&other, POD), None);
    // to the address, not from it
    assert_eq!(
        Connection::begun_by(&entry(POD.octets()), Ipv4Addr::new(10, 96, 0, 10)),
        None
    );
}

#[test]
fn a_cut_entry_is_nobodys() {
    let bytes = entry(POD.octets());
    for length in 0..36 {
        assert_eq!(
            Connection::begun_by(&bytes[..length], POD),
            None,
            "{length}"
        );
    }
}

#[test]
fn a_connection_is_ended_by_the_bytes_that_name_it() {
    let bytes = entry(POD.octets());
    let mut connection = Connection::begun_by(&bytes, POD).unwrap();
    connection.zone = Some(vec![0, 5]);
    let mut expected = vec![72, 0, 0, 0, 2, 1, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0];
    expected.extend(&bytes[..36]);
    expected.extend([8, 0, 12, 0, 1, 2, 3, 4]);
    expected.extend([6, 0, 18, 0, 0, 5, 0, 0]);
    assert_eq!(connection.delete(), expected);
}

#[test]
fn a_kernel_without_connection_tracking_is_no_error() {
    for errno in [
        libc::EINVAL,
        libc::ENOENT,
        libc::EOPNOTSUPP,
        libc::EPROTONOSUPPORT,
    ] {
        let answer: io::Result<()> = Err(io::Error::from_raw_os_error(errno));
        assert!(absent_as_none(answer).unwrap().is_none(), "{errno}");
    }
    for errno in [libc::EPERM, libc::EAGAIN, libc::ENOBUFS, libc::EBUSY] {
        let answer: io::Result<()> = Err(io::Error::from_raw_os_error(errno));
        assert!(absent_as_none(answer).is_err(), "{errno}");
    }
}

/// Runs on a thread of its own in a network namespace of its own, which ends with the thread.
fn in_new_namespace(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .expect("these tests make network namespaces: run them as root");
        test();
    })
    .join()
    .unwrap();
}

fn conntrack(line: &str) -> String {
    let output = Command::new("conntrack")
        .args(line.split_whitespace())
        .output()
        .expect("conntrack is installed");
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn insert(source: &str, destination: &str, port: u16, more: &str) {
    conntrack(&format!(
        "-I -s {source} -d {destination} -p tcp --sport {port} --dport 80 --state ESTABLISHED -t 100 {more}"
    ));
}

#[test]
fn all_that_an_address_began_is_ended_and_nothing_else() {
    in_new_namespace(|| {
        assert_eq!(forget(POD).unwrap(), 0);
        for port in 1..=300 {
            insert("169.254.9.2", "10.96.0.10", port, "");
        }
        insert("169.254.9.2", "10.96.0.10", 1, "-w 5");
        conntrack("-I -s 169.254.9.2 -d 10.96.0.10 -p udp --sport 1 --dport 53 -t 100");
        insert("169.254.9.20", "10.96.0.10", 1, "");
        insert("192.0.2.1", "169.254.9.2", 1, "");
        assert_eq!(forget(POD).unwrap(), 302);
        let left = conntrack("-L");
        assert_eq!(left.lines().count(), 2, "{left}");
        assert!(left.contains("src=169.254.9.20 dst=10.96.0.10"), "{left}");
        assert!(left.contains("src=192.0.2.1 dst=169.254.9.2"), "{left}");
        assert_eq!(forget(POD).unwrap(), 0);
    });
}

#[test]
fn the_kernel_and_we_find_the_same() {
    in_new_namespace(|| {
        for source in ["169.254.9.2", "169.254.9.20", "192.0.2.1"] {
            insert(source, "10.96.0.10", 1, "");
        }
        let socket = NetfilterSocket::open().unwrap();
        let sent = |question: &[u8]| {
            let mut count = 0;
            socket.each(question, |_| count += 1).unwrap();
            count
        };
        assert_eq!(sent(&everything()), 3);
        assert_eq!(sent(&filtered(POD)), 1);
        // as a kernel before 5.8, which sends all
        let found = begun_by(&socket, &everything(), POD).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found, begun_by(&socket, &filtered(POD), POD).unwrap());
    });
}
