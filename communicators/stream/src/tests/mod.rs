//! The conformance suite over unix, TCP and vsock, with and without polling.

mod handshake;
mod properties;
mod secured;
mod vsock;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use paragpu_communicator::conformance::{Factory, RawGuest};
use paragpu_communicator::{Connection, Polling};
use paragpu_communicator_secure::KeyLifetime;
use paragpu_communicator_secure::testing::secured;

use crate::{Options, over, over_secured};

#[derive(Clone, Copy)]
enum Socket {
    Unix,
    Tcp,
    Vsock,
}

/// TCP under TLS.
struct Secure(KeyLifetime, Options);

impl Factory for Secure {
    fn connect(&self) -> (Connection, Connection) {
        let (guest, host) = pair(Socket::Tcp);
        let (near, far) = secured(&guest, &host, self.0);
        (
            over_secured(guest, self.1, near).unwrap(),
            over_secured(host, self.1, far).unwrap(),
        )
    }

    fn connect_raw(&self) -> (Box<dyn RawGuest>, Connection) {
        let (guest, host) = pair(Socket::Tcp);
        let (near, far) = secured(&guest, &host, self.0);
        let raw = RawSecure(guest, near);
        (Box::new(raw), over_secured(host, self.1, far).unwrap())
    }
}

/// A socket, and the keys of its TLS connection.
struct RawSecure(OwnedFd, paragpu_communicator_secure::Secured);

impl RawGuest for RawSecure {
    fn write(&mut self, header: [u8; 16], payload: &[u8]) {
        let mut records = Vec::new();
        self.1
            .sealer
            .seal(&[&header, payload], &mut records)
            .unwrap();
        let mut file = std::fs::File::from(self.0.try_clone().unwrap());
        file.write_all(&records).unwrap();
    }

    fn die(self: Box<Self>) {}
}

struct Streams {
    socket: Socket,
    options: Options,
}

fn pair(socket: Socket) -> (OwnedFd, OwnedFd) {
    match socket {
        Socket::Unix => {
            let (guest, host) = UnixStream::pair().unwrap();
            (guest.into(), host.into())
        }
        Socket::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let guest = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (host, _) = listener.accept().unwrap();
            (guest.into(), host.into())
        }
        Socket::Vsock => vsock::pair(),
    }
}

impl Factory for Streams {
    fn connect(&self) -> (Connection, Connection) {
        let (guest, host) = pair(self.socket);
        let open = |socket| over(socket, self.options).unwrap();
        (open(guest), open(host))
    }

    fn connect_raw(&self) -> (Box<dyn RawGuest>, Connection) {
        let (guest, host) = pair(self.socket);
        (Box::new(Raw(guest)), over(host, self.options).unwrap())
    }
}

/// A bare socket.
struct Raw(OwnedFd);

impl RawGuest for Raw {
    fn write(&mut self, header: [u8; 16], payload: &[u8]) {
        // Any stream socket can be written as a file.
        let mut file = std::fs::File::from(self.0.try_clone().unwrap());
        file.write_all(&header).unwrap();
        file.write_all(payload).unwrap();
    }

    fn die(self: Box<Self>) {}
}

fn streams(socket: Socket, spin: Duration) -> Streams {
    Streams {
        socket,
        options: Options {
            polling: Polling { spin },
            ..Options::default()
        },
    }
}

mod unix_polling {
    use super::*;
    paragpu_communicator::conformance_tests!(streams(Socket::Unix, Duration::from_micros(50)));
}

mod unix_sleeping {
    use super::*;
    paragpu_communicator::conformance_tests!(streams(Socket::Unix, Duration::ZERO));
}

mod tcp_polling {
    use super::*;
    paragpu_communicator::conformance_tests!(streams(Socket::Tcp, Duration::from_micros(50)));
}

mod tcp_sleeping {
    use super::*;
    paragpu_communicator::conformance_tests!(streams(Socket::Tcp, Duration::ZERO));
}

mod unix_with_heartbeats {
    use super::*;
    paragpu_communicator::conformance_tests!(Streams {
        socket: Socket::Unix,
        options: Options {
            heartbeat: Some(Duration::from_millis(1)),
            ..Options::default()
        },
    });
}

/// Both kernels probe a silent TCP peer, so that its loss ends the connection without
/// traffic: at the guest within 11 s, at the host within 135 s.
#[test]
fn silent_tcp_peers_are_probed() {
    use rustix::net::sockopt;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let guest = crate::sockets::connect_tcp(&address, Duration::from_secs(5)).unwrap();
    let (host, _) = listener.accept().unwrap();
    let watched = host.try_clone().unwrap();
    let _connection = over(OwnedFd::from(host), Options::default()).unwrap();
    for (end, longest) in [(guest, 11), (watched, 135)] {
        assert!(sockopt::socket_keepalive(&end).unwrap());
        let silence = sockopt::tcp_keepidle(&end).unwrap()
            + sockopt::tcp_keepintvl(&end).unwrap() * sockopt::tcp_keepcnt(&end).unwrap();
        assert_eq!(silence, Duration::from_secs(longest));
    }
}

/// A silent connection gets heartbeat frames, which receivers do not return.
#[test]
fn silence_is_broken_by_heartbeats() {
    use std::io::Read;
    let (guest, host) = pair(Socket::Unix);
    let options = Options {
        heartbeat: Some(Duration::from_millis(1)),
        ..Options::default()
    };
    let mut connection = over(host, options).unwrap();
    let mut guest = std::fs::File::from(guest);
    for _ in 0..3 {
        let mut header = [0; 16];
        guest.read_exact(&mut header).unwrap();
        assert_eq!(
            header,
            [0, 0, 0, 0, 0xfe, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        guest.write_all(&header).unwrap();
    }
    let soon = std::time::Instant::now() + Duration::from_millis(20);
    let wait = paragpu_communicator::Wait::Until(soon);
    assert!(connection.receiver.receive(wait).unwrap().is_none());
    drop(guest);
    // The end is detected even if neither side sends or receives.
    while connection.sender.flush().is_ok() {
        std::thread::yield_now();
    }
}

mod tls_polling {
    use super::*;
    paragpu_communicator::conformance_tests!(Secure(KeyLifetime::Replaceable, Options::default()));
}

mod tls_small_writes {
    use super::*;
    paragpu_communicator::conformance_tests!(Secure(
        KeyLifetime::Lasting,
        Options {
            polling: Polling {
                spin: Duration::ZERO
            },
            largest_write: 999,
            buffer: 0,
            heartbeat: None,
        }
    ));
}

mod unix_small_writes {
    use super::*;
    paragpu_communicator::conformance_tests!(Streams {
        socket: Socket::Unix,
        options: Options {
            largest_write: 999,
            buffer: 0,
            ..Options::default()
        },
    });
}
