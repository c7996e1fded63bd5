//! Connections of sides that trust each other, and of sides that do not.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use paragpu_communicator_secure::issue::{Authority, Issued};
use paragpu_communicator_secure::rustls::Connection;
use paragpu_communicator_secure::{
    Credentials, Error, Files, Handshake, Identity, KeyLifetime, Secured,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

const LIFETIMES: [KeyLifetime; 2] = [KeyLifetime::Replaceable, KeyLifetime::Lasting];

fn seconds_from_now(seconds: i64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs().checked_add_signed(seconds).unwrap()
}

fn guest_of(directory: &Path, expires: u64) -> Issued {
    let identity = Identity {
        vm: "web-1".into(),
        memory: 1 << 30,
        sessions: 4,
        lease: 0,
        expires,
    };
    Authority::open(directory)
        .unwrap()
        .guest(&identity)
        .unwrap()
}

fn host_of(directory: &Path, name: &str) -> Issued {
    let until = SystemTime::now() + Duration::from_secs(3600);
    let authority = Authority::open(directory).unwrap();
    authority.host(&[name.to_owned()], until).unwrap()
}

fn credentials(own: &Issued, ca: &Path, wear: KeyLifetime) -> Credentials {
    let files = Files {
        section: "tcp",
        ca,
        certificate: &own.certificate,
        key: &own.key,
        key_shared: false,
    };
    Credentials::load(files, wear).unwrap()
}

fn pair() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    (one.into(), other.into())
}

fn wait_readable(socket: &OwnedFd) {
    let limit = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "the peer is silent");
}

/// Does the handshake, sends `said`, and reads as many bytes.
fn shake(connection: Connection, socket: &OwnedFd, said: &[u8]) -> Result<Handshake, Error> {
    let mut handshake = Handshake::new(connection);
    handshake.write(socket, said)?;
    let mut heard = Vec::new();
    while heard.len() < said.len() {
        match handshake.read(socket, said.len() - heard.len(), &mut heard) {
            Ok(_) => {}
            Err(Error::Io(Errno::AGAIN)) => wait_readable(socket),
            Err(error) => return Err(error),
        }
    }
    assert!(handshake.is_over());
    Ok(handshake)
}

type Ends = (Result<Handshake, Error>, Result<Handshake, Error>);

/// The result of a connection between a guest and a host.
fn meet(guest: &Credentials, host: &Credentials, name: &str) -> (Ends, (OwnedFd, OwnedFd)) {
    let (near, far) = pair();
    let (client, server) = (guest.client(name).unwrap(), host.server().unwrap());
    let ends = std::thread::scope(|scope| {
        let host = scope.spawn(|| {
            let end = shake(server, &far, b"welcome");
            if end.is_err() {
                rustix::net::shutdown(&far, rustix::net::Shutdown::Both).unwrap();
            }
            end
        });
        let guest = shake(client, &near, b"hello..");
        if guest.is_err() {
            let _ = rustix::net::shutdown(&near, rustix::net::Shutdown::Both);
        }
        (guest, host.join().unwrap())
    });
    (ends, (near, far))
}

fn forward(from: &mut Secured, out: &OwnedFd, to: &mut Secured, into: &OwnedFd, bytes: &[u8]) {
    let mut records = Vec::new();
    let (first, rest) = bytes.split_at(bytes.len() / 3);
    from.sealer.seal(&[first, rest], &mut records).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut left = records.as_slice();
            while !left.is_empty() {
                let sent = send(out, left, SendFlags::empty()).unwrap();
                left = &left[sent..];
            }
        });
        let mut got = vec![0; bytes.len()];
        let mut at = 0;
        while at < got.len() {
            let most = (at + 40_000).min(got.len());
            let receive = |room: &mut [u8]| -> Result<usize, Error> {
                Ok(recv(into, room, RecvFlags::empty())?.1)
            };
            at += to.opener.read(&mut got[at..most], receive).unwrap();
        }
        assert!(got == bytes);
    });
}

#[test]
fn bytes_arrive_and_processes_take_over() {
    let directory = tempfile::tempdir().unwrap();
    let (guest, host) = (
        guest_of(directory.path(), seconds_from_now(600)),
        host_of(directory.path(), "gpu1.example"),
    );
    for wear in LIFETIMES {
        let (near, far) = (
            credentials(&guest, &host.ca, wear),
            credentials(&host, &guest.ca, wear),
        );
        let ((one, other), (near, far)) = meet(&near, &far, "gpu1.example");
        let (one, other) = (one.unwrap(), other.unwrap());
        let identity = Identity::of(other.peer().unwrap()).unwrap().unwrap();
        assert_eq!((identity.vm.as_str(), identity.memory), ("web-1", 1 << 30));
        assert!(identity.expires > seconds_from_now(500));
        assert_eq!(
            Identity::of(one.peer().unwrap()),
            Ok(None),
            "a host is no VM"
        );
        let (mut one, mut other) = (one.finish().unwrap(), other.finish().unwrap());
        let bytes: Vec<u8> = (0..700_001_u32).map(|i| i.wrapping_mul(i) as u8).collect();
        for round in 0..3 {
            forward(&mut one, &near, &mut other, &far, &bytes);
            forward(&mut other, &far, &mut one, &near, &bytes[round..round + 1]);
            // Another process continues.
            other = Secured::from_state(&other.state()).unwrap();
        }
    }
}

#[test]
fn what_was_read_ahead_goes_along() {
    let directory = tempfile::tempdir().unwrap();
    let guest = guest_of(directory.path(), seconds_from_now(600));
    let host = host_of(directory.path(), "h");
    let (near, far) = (
        credentials(&guest, &host.ca, KeyLifetime::Lasting),
        credentials(&host, &guest.ca, KeyLifetime::Lasting),
    );
    let ((one, other), _) = meet(&near, &far, "h");
    let (mut one, mut other) = (
        one.unwrap().finish().unwrap(),
        other.unwrap().finish().unwrap(),
    );
    let mut records = Vec::new();
    for piece in [b"abc".as_slice(), b"defgh", b"ij"] {
        one.sealer.seal(&[piece], &mut records).unwrap();
    }
    // All but the last byte arrived at once.
    let (there, last) = records.split_at(records.len() - 1);
    let mut letter = [0; 1];
    let mut came = Some(there);
    let mut receive = |room: &mut [u8]| -> Result<usize, Error> {
        let there = came.take().ok_or(Errno::AGAIN)?;
        room[..there.len()].copy_from_slice(there);
        Ok(there.len())
    };
    assert_eq!(other.opener.read(&mut letter, &mut receive).unwrap(), 1);
    let mut other = Secured::from_state(&other.state()).unwrap();
    let mut rest = [0; 20];
    let mut receive = |room: &mut [u8]| -> Result<usize, Error> {
        room[..1].copy_from_slice(last);
        Ok(1)
    };
    assert_eq!(other.opener.read(&mut rest, &mut receive).unwrap(), 7);
    assert_eq!(&rest[..7], b"bcdefgh");
    assert_eq!(other.opener.read(&mut rest, &mut receive).unwrap(), 2);
    assert_eq!(&rest[..2], b"ij");
}

#[test]
fn a_changed_record_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let guest = guest_of(directory.path(), seconds_from_now(600));
    let host = host_of(directory.path(), "h");
    let (near, far) = (
        credentials(&guest, &host.ca, KeyLifetime::Replaceable),
        credentials(&host, &guest.ca, KeyLifetime::Replaceable),
    );
    let ((one, other), _) = meet(&near, &far, "h");
    let (mut one, other) = (
        one.unwrap().finish().unwrap(),
        other.unwrap().finish().unwrap(),
    );
    let state = other.state();
    let mut good = Vec::new();
    one.sealer.seal(&[b"something"], &mut good).unwrap();
    let mut again = Vec::new();
    one.sealer.seal(&[b"something"], &mut again).unwrap();
    let opened = |records: &[u8]| {
        let mut fresh = Secured::from_state(&state).unwrap();
        let mut place = [0; 64];
        let mut left = records;
        fresh
            .opener
            .read(&mut place, |room| -> Result<usize, Error> {
                let count = room.len().min(left.len());
                room[..count].copy_from_slice(&left[..count]);
                left = &left[count..];
                Ok(count)
            })
            .map(|count| place[..count].to_vec())
    };
    assert_eq!(opened(&good).unwrap(), b"something");
    assert!(opened(&again).is_err(), "out of order");
    for place in 0..good.len() {
        let mut changed = good.clone();
        changed[place] ^= 0x40;
        // An end of the connection, if the record claims more bytes than arrive.
        let outcome = opened(&changed);
        let came = outcome.as_ref().map(Vec::len).unwrap_or(0);
        // The header's last version byte is ignored, as RFC 8446 (5.1) asks.
        assert!(came == 0 || place == 2, "byte {place}: {outcome:?}");
    }
}

#[test]
fn malformed_states_are_refused() {
    assert!(Secured::from_state(&[]).is_err());
    assert!(Secured::from_state(&[0; 200]).is_err());
    let mut state = vec![1; 300];
    // More sealed bytes than the state contains.
    state[106..110].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Secured::from_state(&state).is_err());
}

#[test]
fn strangers_do_not_meet() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let host = host_of(ours.path(), "h");
    let good = guest_of(ours.path(), seconds_from_now(600));
    let foreign = guest_of(theirs.path(), seconds_from_now(600));
    let expired = tempfile::tempdir().unwrap();
    std::fs::copy(&host.ca, expired.path().join("ca.pem")).unwrap();
    std::fs::copy(ours.path().join("ca.key"), expired.path().join("ca.key")).unwrap();
    let expired = guest_of(expired.path(), seconds_from_now(-60));
    let server = |own: &Issued| credentials(own, &good.ca, KeyLifetime::Replaceable);
    let client = |own: &Issued| credentials(own, &host.ca, KeyLifetime::Replaceable);
    let refused = |guest: &Issued, host: &Issued, name: &str, why: &str| {
        let ((guest, host), _) = meet(&client(guest), &server(host), name);
        assert!(guest.is_err() && host.is_err(), "{why}");
    };
    refused(&foreign, &host, "h", "another authority's guest");
    refused(&expired, &host, "h", "a guest whose certificate expired");
    refused(&good, &host, "other", "a host of another name");
    refused(&good, &good, "h", "a guest that poses as a host");
    refused(&good, &foreign, "h", "another authority's host");
    let ((guest, end), _) = meet(&client(&good), &server(&host), "h");
    assert!(guest.is_ok() && end.is_ok());
}

#[test]
fn a_long_chain_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let guest = guest_of(directory.path(), seconds_from_now(600));
    let host = host_of(directory.path(), "h");
    let server = credentials(&host, &guest.ca, KeyLifetime::Replaceable);
    let ca = std::fs::read_to_string(&guest.ca).unwrap();
    for beside in 0..6 {
        let certificate = std::fs::read_to_string(&guest.certificate).unwrap();
        let chain = Issued {
            certificate: directory.path().join("chain.pem"),
            ..guest.clone()
        };
        std::fs::write(&chain.certificate, certificate + &ca.repeat(beside)).unwrap();
        let client = credentials(&chain, &host.ca, KeyLifetime::Replaceable);
        let ((_, met), _) = meet(&client, &server, "h");
        assert_eq!(met.is_ok(), beside <= 4, "{beside}: {met:?}");
    }
}

#[test]
fn what_is_no_tls_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let host = host_of(directory.path(), "h");
    let server = credentials(&host, &host.ca, KeyLifetime::Replaceable);
    let (near, far) = pair();
    send(
        &near,
        b"\x01\x00\x10\x00 a frame of ours",
        SendFlags::empty(),
    )
    .unwrap();
    let mut handshake = Handshake::new(server.server().unwrap());
    wait_readable(&far);
    let read = handshake.read(&far, 16, &mut Vec::new());
    assert!(matches!(read, Err(Error::Plain)), "{read:?}");
}
