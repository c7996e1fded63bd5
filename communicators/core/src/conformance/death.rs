//! Connection loss at every stage.

use super::{FILLER, Factory, expect_closed, expect_frame, fill, soon};
use crate::{Connection, Error, Sender, Wait};

/// Waits for room until the connection ends, as a blocked sender does.
fn block_until_closed(sender: &dyn Sender) {
    loop {
        match sender.send(9, 0, None, &[&[0; FILLER]]) {
            Ok(_) => {}
            Err(Error::Closed) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The peer drops its connection while this side waits.
pub fn drop_ends_a_waiting_receive(factory: &dyn Factory) {
    let (guest, host) = factory.connect();
    ends_a_wait(guest, || drop(host));
    let (guest, host) = factory.connect();
    ends_a_wait(host, || drop(guest));
}

fn ends_a_wait(mut side: Connection, end: impl FnOnce()) {
    std::thread::scope(|scope| {
        let (ready, waits) = std::sync::mpsc::channel();
        scope.spawn(move || {
            ready.send(()).unwrap();
            expect_closed(&mut *side.receiver);
            let result = side.receiver.receive(Wait::Poll);
            assert!(matches!(result, Err(Error::Closed)));
        });
        waits.recv().unwrap();
        end();
    });
}

/// Frames flushed before the end still arrive.
pub fn last_frames_before_the_end_arrive(factory: &dyn Factory) {
    for close in [false, true] {
        let (mut guest, host) = factory.connect();
        for position in 1..=100 {
            let sent = host.sender.send(1, 1, None, &[&[3; 2000]]);
            assert_eq!(sent.unwrap(), position);
        }
        host.sender.flush().unwrap();
        if close {
            host.sender.close();
        }
        drop(host);
        for position in 1..=100 {
            let (header, payload) = expect_frame(&mut *guest.receiver);
            assert_eq!(header.sequence, position);
            assert_eq!(payload, [3; 2000]);
        }
        expect_closed(&mut *guest.receiver);
    }
}

/// The peer drops its connection while a sender waits for room.
pub fn drop_ends_a_blocked_sender(factory: &dyn Factory) {
    let (guest, host) = factory.connect();
    fill(&*guest.sender);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| block_until_closed(&*guest.sender));
        }
        drop(host);
    });
}

/// The peer's process dies while this side waits.
pub fn death_ends_a_waiting_receive(factory: &dyn Factory) {
    let (guest, host) = factory.connect_raw();
    ends_a_wait(host, || guest.die());
}

/// The peer's process dies while a sender waits for room.
pub fn death_ends_a_blocked_sender(factory: &dyn Factory) {
    let (guest, host) = factory.connect_raw();
    fill(&*host.sender);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| block_until_closed(&*host.sender));
        }
        guest.die();
    });
}

/// A receiver that only polls finds a dead peer too.
pub fn death_is_found_by_polling(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect_raw();
    guest.die();
    let end = std::time::Instant::now() + super::HANG;
    while std::time::Instant::now() < end {
        match host.receiver.receive(Wait::Poll) {
            Ok(None) => {}
            Err(Error::Closed) => return,
            other => panic!("{other:?}"),
        }
    }
    panic!("the peer's death was never found");
}

/// Data that a process sent before it died still arrives.
pub fn frames_before_death_arrive(factory: &dyn Factory) {
    let (mut guest, mut host) = factory.connect_raw();
    for sequence in 1..=20 {
        let header = paragpu_protocol::frame::FrameHeader::new(3, 1, sequence, 33).unwrap();
        guest.write(header.to_bytes(), &[9; 33]);
    }
    guest.die();
    for sequence in 1..=20 {
        let (header, payload) = expect_frame(&mut *host.receiver);
        assert_eq!((header.sequence, payload), (sequence, vec![9; 33]));
    }
    expect_closed(&mut *host.receiver);
}

/// `close` ends this side's own waiting calls.
pub fn close_ends_own_calls(factory: &dyn Factory) {
    let (mut guest, mut host) = factory.connect();
    fill(&*guest.sender);
    std::thread::scope(|scope| {
        let sender = &*guest.sender;
        scope.spawn(move || block_until_closed(sender));
        let receiver = &mut *guest.receiver;
        scope.spawn(move || expect_closed(receiver));
        guest.sender.close();
    });
    guest.sender.close();
    // The peer finds the end after the frames sent before.
    loop {
        match host.receiver.receive(soon()) {
            Ok(Some(_)) => {}
            Err(Error::Closed | Error::Protocol(_) | Error::Io { .. }) => return,
            other => panic!("{other:?}"),
        }
    }
}

/// A peer whose receiver was dropped accepts no more frames.
pub fn dropped_receiver_stops_the_peer(factory: &dyn Factory) {
    let (guest, host) = factory.connect();
    let Connection {
        sender, receiver, ..
    } = host;
    drop(receiver);
    block_until_closed(&*guest.sender);
    drop(sender);
}

/// After the end nothing can be sent.
pub fn sends_after_the_end_fail(factory: &dyn Factory) {
    let (mut guest, host) = factory.connect();
    drop(host);
    expect_closed(&mut *guest.receiver);
    block_until_closed(&*guest.sender);
    for _ in 0..3 {
        let sent = guest.sender.try_send(1, 0, None, &[b"x"]);
        assert!(matches!(sent, Err(Error::Closed)), "{sent:?}");
        assert!(matches!(guest.sender.flush(), Err(Error::Closed)));
        assert!(matches!(guest.sender.wait_for_room(1), Err(Error::Closed)));
    }
}
