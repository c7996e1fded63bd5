//! Hosts that do not complete the handshake of TLS.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use paragpu_communicator_secure::testing::credentials;
use paragpu_communicator_secure::{Error as SecureError, Handshake, KeyLifetime};
use rustix::io::Errno;

use crate::secured::{ConnectError, exchange};

/// What a guest under TLS makes of a host that treats its connection like this.
fn unmet(host: impl FnOnce(TcpStream) + Send) -> ConnectError {
    let (guest, _) = credentials(KeyLifetime::Replaceable);
    unmet_by(Handshake::new(guest.client("localhost").unwrap()), host)
}

fn unmet_by(guest: Handshake, host: impl FnOnce(TcpStream) + Send) -> ConnectError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let deadline = Some(Instant::now() + Duration::from_secs(60));
    std::thread::scope(|scope| {
        scope.spawn(|| host(far));
        let unmet = exchange(&socket, guest, 0x7f00, b"hello", deadline).unwrap_err();
        drop(socket);
        unmet
    })
}

#[test]
fn a_host_without_tls_is_recognized() {
    // It resets the connection, because it leaves bytes unread.
    let reset = unmet(|mut socket| socket.read_exact(&mut [0]).unwrap());
    assert!(matches!(reset, ConnectError::NoTls), "{reset:?}");
    let ended = unmet(|mut socket| {
        let _ = socket.shutdown(Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    });
    assert!(matches!(ended, ConnectError::NoTls), "{ended:?}");
    let plain = unmet(|mut socket| {
        socket.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
        let _ = socket.shutdown(Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    });
    assert!(matches!(plain, ConnectError::NoTls), "{plain:?}");
}

#[test]
fn a_host_that_closes_the_connection_under_tls_speaks_it() {
    let (guest, host) = credentials(KeyLifetime::Replaceable);
    let guest = Handshake::new(guest.client("localhost").unwrap());
    let closed = unmet_by(guest, |socket| {
        socket.set_nonblocking(true).unwrap();
        let mut handshake = Handshake::new(host.server().unwrap());
        let mut hello = Vec::new();
        while hello.is_empty() {
            match handshake.read(&socket, 1, &mut hello) {
                Ok(_) => {}
                Err(SecureError::Io(Errno::AGAIN)) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    });
    assert!(matches!(closed, ConnectError::Closed), "{closed:?}");
}
