//! The conformance suite over unix, TCP and vsock, with and without polling.

mod handshake;
mod properties;
mod vsock;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use paragpu_communicator::conformance::{Factory, RawGuest};
use paragpu_communicator::{Connection, Polling};

use crate::{Options, over};

#[derive(Clone, Copy)]
enum Socket {
    Unix,
    Tcp,
    Vsock,
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
