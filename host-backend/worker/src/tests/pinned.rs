//! Pinned memory that a guest sends to a host that lacks it.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use paragpu_communicator::{Connection, Receiver};
use paragpu_communicator_stream as stream;
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::WindowOffset;
use paragpu_protocol::table::HostMap;

use crate::error::SessionEnd;
use crate::live::Recorded;
use crate::session::Session;
use crate::session::host_memory::{Pinned, Sharing};
use crate::testing::device::TestDevice;
use crate::testing::guest::setup;

const PINNED: u64 = 8192;

/// A session that arrived without its window, the guest's end of its new connection, and
/// the start of its pinned memory.
fn came() -> (Session, Box<dyn Receiver>, Connection, u64) {
    let (host, guest) = UnixStream::pair().unwrap();
    let options = stream::Options::default();
    let host = stream::over(host, options).unwrap();
    let guest = stream::over(guest, options).unwrap();
    let setup = setup(&TestDevice::default());
    let address = setup.regions.window + 4096;
    let mut session = Session::new(setup, Arc::clone(&host.sender), None);
    assert_eq!(session.host.sharing(), Sharing::Nothing);
    session.leave_window(Pinned::Guest);
    assert_eq!(session.host.sharing(), Sharing::Wanting);
    let map = HostMap {
        offset: WindowOffset(4096),
        size: PINNED,
    };
    session.perform(&Recorded::of(&map)).unwrap();
    (session, host.receiver, guest, address)
}

fn send(guest: &Connection, kind: u16, payload: &[&[u8]]) {
    guest.sender.send(kind, 0, Some(0), payload).unwrap();
    guest.sender.flush().unwrap();
}

#[test]
fn all_contents_arrive_before_the_session_continues() {
    let (mut session, mut receiver, mut guest, address) = came();
    let kind = Control::Pinned.kind();
    send(&guest, kind, &[&(address + 100).to_le_bytes(), b"there"]);
    send(&guest, Control::Received.kind(), &[&[0; 8]]);
    send(&guest, kind, &[&address.to_le_bytes(), b"here"]);
    send(&guest, kind, &[&[0; 8]]);
    session.await_pinned(receiver.as_mut()).unwrap();
    assert_eq!(session.host.sharing(), Sharing::Copies);
    assert_eq!(session.host.agreed(address, 0, 5).unwrap(), b"here\0");
    assert_eq!(session.host.agreed(address, 100, 5).unwrap(), b"there");
    let wait = paragpu_communicator::Wait::Forever;
    let answer = guest.receiver.receive(wait).unwrap().unwrap();
    assert_eq!((answer.header.kind, answer.payload), (kind, &[][..]));
    // Nothing is requested twice.
    session.await_pinned(receiver.as_mut()).unwrap();
}

#[test]
fn a_broken_connection_leaves_contents_missing() {
    let (mut session, mut receiver, guest, address) = came();
    send(
        &guest,
        Control::Pinned.kind(),
        &[&address.to_le_bytes(), b"some"],
    );
    drop(guest);
    let end = session.await_pinned(receiver.as_mut()).unwrap_err();
    assert!(matches!(end, SessionEnd::Connection(error) if error.is_loss()));
    assert_eq!(session.host.sharing(), Sharing::Wanting);
}

#[test]
fn invalid_contents_end_the_session() {
    let kind = Control::Pinned.kind();
    let last = PINNED as i64 - 1;
    let ends: [(u16, i64, &[u8], &str); 6] = [
        (kind, -1, b"x", "Pinned"),
        (kind, last, b"xy", "Pinned"),
        (kind, i64::MAX, b"x", "Pinned"),
        (0x0001, 0, b"", "Kind"),
        (Control::Hello.kind(), 0, b"", "Kind"),
        (Control::Goodbye.kind(), 0, b"", "Goodbye"),
    ];
    for (kind, offset, bytes, expected) in ends {
        let (mut session, mut receiver, guest, address) = came();
        let address = address.wrapping_add_signed(offset).to_le_bytes();
        send(&guest, kind, &[&address, bytes]);
        let end = session.await_pinned(receiver.as_mut()).unwrap_err();
        assert!(format!("{end:?}").starts_with(expected), "{end:?}");
    }
    let (mut session, mut receiver, guest, _) = came();
    send(&guest, kind, &[&[1, 2, 3]]);
    let end = session.await_pinned(receiver.as_mut()).unwrap_err();
    assert!(matches!(end, SessionEnd::Malformed { .. }), "{end:?}");
}
