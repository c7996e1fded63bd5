//! Single frames with descriptors.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use paragpu_communicator::{Error, Wait};
use rustix::net::{self, AddressFamily, SocketType};

use crate::handshake::{MAX_FDS, receive_exact_frame, receive_with_fds, send_frame, send_with_fds};
use crate::sockets::{connect_at_once, connect_tcp, connect_unix, listen_unix, set_access};
use crate::{Options, over};

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(60))
}

#[test]
fn exactly_one_frame_is_read() {
    let (guest, host) = UnixStream::pair().unwrap();
    send_frame(&guest, 0x7f00, 1, 0, b"hello", soon()).unwrap();
    let guest = over(guest, Options::default()).unwrap();
    guest.sender.send(5, 2, None, &[b"next"]).unwrap();
    guest.sender.flush().unwrap();
    let (header, payload) = receive_exact_frame(&host, 100, soon()).unwrap();
    assert_eq!((header.kind, header.slot), (0x7f00, 1));
    assert_eq!(payload, b"hello");
    // The next owner of the socket finds the rest.
    let mut host = over(host, Options::default()).unwrap();
    let frame = host.receiver.receive(Wait::Forever).unwrap().unwrap();
    assert_eq!((frame.header.kind, frame.payload), (5, &b"next"[..]));
}

#[test]
fn descriptors_travel_with_a_frame() {
    let (guest, host) = UnixStream::pair().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let fds = [writer.as_fd(), writer.as_fd(), writer.as_fd()];
    let payload = vec![8; 100_000];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_with_fds(&host, 0x7f01, 0, 9, &payload, &fds, soon()).unwrap();
            send_frame(&host, 1, 0, 0, b"plain", soon()).unwrap();
        });
        let received = receive_with_fds(&guest, 1 << 20, soon()).unwrap();
        assert_eq!(
            (received.header.kind, received.header.sequence),
            (0x7f01, 9)
        );
        assert!(received.payload == payload);
        assert_eq!(received.fds.len(), 3);
        let plain = receive_with_fds(&guest, 1 << 20, soon()).unwrap();
        assert_eq!(plain.payload, b"plain");
        assert!(plain.fds.is_empty());
        for fd in received.fds {
            File::from(fd).write_all(b"x").unwrap();
        }
    });
    drop(writer);
    let mut through = Vec::new();
    reader.read_to_end(&mut through).unwrap();
    assert_eq!(through, b"xxx");
}

#[test]
fn bad_first_frames_are_refused() {
    let (guest, host) = UnixStream::pair().unwrap();
    let past = Some(Instant::now());
    assert!(matches!(
        receive_exact_frame(&host, 10, past),
        Err(Error::Io { .. })
    ));
    send_frame(&guest, 1, 0, 0, &[0; 11], soon()).unwrap();
    assert!(matches!(
        receive_exact_frame(&host, 10, soon()),
        Err(Error::Protocol(_))
    ));
    let (mut guest2, host2) = UnixStream::pair().unwrap();
    guest2.write_all(&[1; 7]).unwrap();
    drop(guest2);
    assert!(matches!(
        receive_exact_frame(&host2, 10, soon()),
        Err(Error::Io { .. })
    ));
    let (guest3, host3) = UnixStream::pair().unwrap();
    drop(guest3);
    assert!(matches!(
        receive_exact_frame(&host3, 10, soon()),
        Err(Error::Closed)
    ));
    assert!(matches!(
        send_frame(&host3, 1, 0, 0, b"x", soon()),
        Err(Error::Closed)
    ));
    let many = vec![host.as_fd(); MAX_FDS + 1];
    assert!(send_with_fds(&guest, 1, 0, 0, &[], &many, soon()).is_err());
}

#[test]
fn only_an_own_socket_becomes_accessible() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mode = |name| path(name).metadata().unwrap().permissions().mode() & 0o777;
    let _listener = listen_unix(&path("socket"), 0o600).unwrap();
    assert_eq!(mode("socket"), 0o600);
    set_access(&path("socket"), None, 0o660).unwrap();
    assert_eq!(mode("socket"), 0o660);
    std::fs::write(path("secret"), "text").unwrap();
    let before = mode("secret");
    std::os::unix::fs::symlink(path("secret"), path("link")).unwrap();
    std::os::unix::fs::symlink(path("socket"), path("link to socket")).unwrap();
    for name in ["secret", "link", "link to socket", "missing"] {
        assert!(set_access(&path(name), None, 0o777).is_err(), "{name}");
    }
    std::fs::hard_link(path("socket"), path("second name")).unwrap();
    assert!(set_access(&path("second name"), None, 0o777).is_err());
    assert_eq!((mode("secret"), mode("socket")), (before, 0o660));
}

#[test]
fn a_process_that_accepts_nothing_is_not_awaited() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = listen_unix(&path, 0o600).unwrap();
    net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    while let Ok(connection) = connect_at_once(&path) {
        waiting.push(connection);
    }
    let full = connect_at_once(&path).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    assert!(listen_unix(&path, 0o600).is_err(), "somebody listens");
}

#[test]
fn sockets_listen_and_connect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = listen_unix(&path, 0o600).unwrap();
    assert!(listen_unix(&path, 0o600).is_err(), "somebody listens");
    // The check connected to the socket.
    drop(listener.accept().unwrap());
    let guest = connect_unix(&path).unwrap();
    let (host, _) = listener.accept().unwrap();
    send_frame(&guest, 1, 0, 0, b"hi", soon()).unwrap();
    assert_eq!(receive_exact_frame(&host, 9, soon()).unwrap().1, b"hi");
    drop(listener);
    assert!(connect_unix(&path).is_err());
    let listener = listen_unix(&path, 0o600).unwrap();
    drop(connect_unix(&path).unwrap());
    drop(listener);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let guest = connect_tcp(&address.to_string(), Duration::from_secs(10)).unwrap();
    let (host, _) = listener.accept().unwrap();
    send_frame(&guest, 1, 0, 0, b"hi", soon()).unwrap();
    assert_eq!(receive_exact_frame(&host, 9, soon()).unwrap().1, b"hi");
    // Bound and not listening, so that no other test listens there meanwhile.
    let unheard = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&unheard, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(net::getsockname(&unheard).unwrap()).unwrap();
    assert!(connect_tcp(&address.to_string(), Duration::from_secs(10)).is_err());
}
