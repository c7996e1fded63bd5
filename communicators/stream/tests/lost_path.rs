//! A path that is lost while data is on its way. The kernel's keepalive does not notice it,
//! because it probes only idle connections.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paragpu_communicator::conformance::drop_packets;
use paragpu_communicator::{Connection, Error, Silence, Wait};
use paragpu_communicator_stream::{Options, over};
use rustix::net::sockopt;

const KIND: u16 = 1;
/// Keepalive: three seconds in all.
const INTERVAL: Duration = Duration::from_secs(1);
const PROBES: u32 = 2;
/// Much more than both kernels buffer.
const FRAMES: usize = 400;
static FRAME: [u8; 64 << 10] = [0; 64 << 10];

/// Two ends of a connection, the first with the short keepalive.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    sockopt::set_socket_keepalive(&near, true).unwrap();
    sockopt::set_tcp_keepidle(&near, INTERVAL).unwrap();
    sockopt::set_tcp_keepintvl(&near, INTERVAL).unwrap();
    sockopt::set_tcp_keepcnt(&near, PROBES).unwrap();
    (near, far)
}

/// A connection that has sent a frame which its peer never gets, and the peer's end.
fn sent_into_a_lost_path() -> (Connection, TcpStream) {
    let (near, far) = pair();
    let connection = over(OwnedFd::from(near), Options::default()).unwrap();
    drop_packets(&far);
    connection.sender.send(KIND, 1, None, &[b"lost"]).unwrap();
    connection.sender.flush().unwrap();
    (connection, far)
}

fn is_timeout(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::TimedOut)
}

#[test]
fn a_thread_that_waits_for_an_answer_notices_it() {
    let (mut connection, _far) = sent_into_a_lost_path();
    let error = connection.receiver.receive(Wait::Forever).unwrap_err();
    assert!(is_timeout(&error), "{error:?}");
}

/// Other threads end its waits all the time.
#[test]
fn a_thread_that_is_woken_notices_it() {
    let (mut connection, _far) = sent_into_a_lost_path();
    let (waker, over) = (connection.receiver.waker(), AtomicBool::new(false));
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                waker.wake();
                std::thread::sleep(INTERVAL / 10);
            }
        });
        let error = loop {
            if let Err(error) = connection.receiver.receive(Wait::Forever) {
                break error;
            }
        };
        over.store(true, Ordering::Relaxed);
        error
    });
    assert!(is_timeout(&error), "{error:?}");
}

#[test]
fn a_thread_that_waits_for_room_notices_it() {
    let (near, far) = pair();
    let connection = over(OwnedFd::from(near), Options::default()).unwrap();
    drop_packets(&far);
    let mut sent = (0..FRAMES).map(|_| connection.sender.send(KIND, 0, None, &[&FRAME]));
    let error = sent.find_map(Result::err).unwrap();
    assert!(is_timeout(&error), "{error:?}");
    // Later calls report the same reason: a host waits longer for a silent guest than for one
    // that closed the connection.
    let error = connection.sender.flush().unwrap_err();
    assert!(is_timeout(&error), "{error:?}");
}

/// Its kernel answers probes, at growing intervals.
#[test]
fn a_peer_that_does_not_read_stays_connected() {
    let (near, mut far) = pair();
    let watched = near.try_clone().unwrap();
    let connection = over(OwnedFd::from(near), Options::default()).unwrap();
    let sender = std::thread::spawn(move || {
        for _ in 0..FRAMES {
            connection.sender.send(KIND, 0, None, &[&FRAME]).unwrap();
        }
        connection.sender.flush().unwrap();
        connection
    });
    // The next probe comes after the limit, and so would the first answer to it.
    while Silence::of(&watched).unwrap().since < INTERVAL * (1 + PROBES) + INTERVAL {
        std::thread::sleep(INTERVAL / 10);
    }
    let mut bytes = vec![0; FRAMES * (FRAME.len() + 16)];
    far.read_exact(&mut bytes).unwrap();
    drop(sender.join().unwrap());
}
