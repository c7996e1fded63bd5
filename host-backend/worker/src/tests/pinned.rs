//! Pinned memory that a guest sends to a host that lacks it.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use paragpu_communicator::{Connection, Receiver, Window};
use paragpu_communicator_ring::shm;
use paragpu_communicator_stream as stream;
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::{ObjectKind, ShadowAddress, WindowOffset};
use paragpu_protocol::table::{HostMap, HostUnmap, ShadowDestroy, ShadowJoin};

use crate::error::SessionEnd;
use crate::live::Recorded;
use crate::session::Session;
use crate::testing::device::TestDevice;
use crate::testing::guest::setup;
use crate::transfer::replay::Item;

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
    assert!(!session.host.sharing().wants_pinned);
    let map = HostMap {
        offset: WindowOffset(4096),
        size: PINNED,
    };
    let items = [Item::new(Recorded::of(&map))];
    session.leave_window(&items).unwrap();
    assert!(session.host.sharing().wants_pinned);
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
    assert!(!session.host.sharing().wants_pinned);
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
    assert!(session.host.sharing().wants_pinned);
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

/// A window of a new connection.
fn window() -> Arc<Window> {
    let (host, _) = UnixStream::pair().unwrap();
    let options = shm::Options::default();
    let (connection, _, _) = shm::create(64 << 20, 1 << 20, host.into(), options).unwrap();
    connection.window.unwrap()
}

fn pin(offset: u64) -> Recorded {
    Recorded::of(&HostMap {
        offset: WindowOffset(offset),
        size: PINNED,
    })
}

#[test]
fn what_a_window_held_is_a_shadow_like_any_other() {
    let (mut session, mut receiver, guest, address) = came();
    send(&guest, Control::Pinned.kind(), &[&[0; 8]]);
    session.await_pinned(receiver.as_mut()).unwrap();
    let names = |session: &Session, kind| session.objects.live.names(kind).collect::<Vec<_>>();
    assert_eq!(names(&session, ObjectKind::Shadow), [address]);
    assert!(names(&session, ObjectKind::HostMemory).is_empty());
    assert!(session.perform(&pin(1 << 20)).is_err(), "it has no window");
    let address = ShadowAddress(address);
    session
        .perform(&Recorded::of(&ShadowDestroy { address }))
        .unwrap();
    assert!(names(&session, ObjectKind::Shadow).is_empty());
}

#[test]
fn the_next_window_lies_behind_the_last_one() {
    const NEXT: u64 = 1 << 30;
    let (mut session, mut receiver, guest, address) = came();
    send(&guest, Control::Pinned.kind(), &[&[0; 8]]);
    session.await_pinned(receiver.as_mut()).unwrap();
    assert!(!session.host.sharing().window);
    let received = session.intake.received();
    session.adopt_window(&window(), NEXT, Some(received));
    assert!(!session.host.forget_window(received, Some(NEXT)));
    assert!(session.host.sharing().window);
    // The connection broke before its guest knew the window.
    assert!(session.host.forget_window(received, None));
    assert!(!session.host.sharing().window);
    session.adopt_window(&window(), NEXT, Some(received));
    assert!(session.host.forget_window(received, Some(0)));
    session.adopt_window(&window(), NEXT, Some(received));
    // It has used it since, or came with it from another worker.
    assert!(!session.host.forget_window(received + 1, None));
    session.adopt_window(&window(), NEXT, None);
    assert!(!session.host.forget_window(received, None));
    for outside in [0, 4096, NEXT - 4096, NEXT, NEXT + (64 << 20)] {
        assert!(session.perform(&pin(outside)).is_err(), "{outside:#x}");
    }
    session.perform(&pin(NEXT + 4096)).unwrap();
    let join = |offset| {
        Recorded::of(&ShadowJoin {
            address: ShadowAddress(address),
            offset: WindowOffset(offset),
        })
    };
    assert!(session.perform(&join(1 << 20)).is_err(), "of the last one");
    session.perform(&join(NEXT + (1 << 20))).unwrap();
    let offset = WindowOffset(NEXT + 4096);
    session
        .perform(&Recorded::of(&HostUnmap { offset }))
        .unwrap();
}

#[test]
fn a_part_of_the_window_that_is_left_has_zeros_until_the_contents_come() {
    let (host, guest) = UnixStream::pair().unwrap();
    let host = stream::over(host, stream::Options::default()).unwrap();
    let mut session = Session::new(setup(&TestDevice::default()), host.sender, None);
    let shadow = ShadowAddress(session.gpu.regions().shadow);
    let create = Recorded::of(&paragpu_protocol::table::ShadowCreate {
        address: shadow,
        size: PINNED,
    });
    session.perform(&create).unwrap();
    session.host.write_shadow(shadow.0, b"sent before").unwrap();
    let join = Recorded::of(&ShadowJoin {
        address: shadow,
        offset: WindowOffset(4096),
    });
    session
        .leave_window(&[Item::new(create), Item::new(join)])
        .unwrap();
    assert_eq!(session.host.agreed(shadow.0, 0, 11).unwrap(), [0; 11]);
    drop(guest);
}
