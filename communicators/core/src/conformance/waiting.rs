//! Waits that end without a frame.

use std::time::{Duration, Instant};

use super::{Factory, expect_closed, expect_frame, soon};
use crate::Wait;

/// `Poll` never waits.
pub fn poll_finds_only_what_is_there(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    for _ in 0..3000 {
        assert!(host.receiver.receive(Wait::Poll).unwrap().is_none());
    }
    guest.sender.send(1, 1, None, &[b"x"]).unwrap();
    guest.sender.flush().unwrap();
    let end = Instant::now() + super::HANG;
    loop {
        if let Some(frame) = host.receiver.receive(Wait::Poll).unwrap() {
            assert_eq!(frame.payload, b"x");
            return;
        }
        assert!(Instant::now() < end, "the frame never came");
        std::thread::yield_now();
    }
}

/// `Until` returns nothing, and not too early.
pub fn deadline_passes(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    let past = Instant::now();
    assert!(host.receiver.receive(Wait::Until(past)).unwrap().is_none());
    for wait in [1, 100, 5000] {
        let deadline = Instant::now() + Duration::from_micros(wait);
        let received = host.receiver.receive(Wait::Until(deadline));
        assert!(received.unwrap().is_none());
        assert!(Instant::now() >= deadline);
    }
    guest.sender.send(1, 1, None, &[]).unwrap();
    guest.sender.flush().unwrap();
    expect_frame(&mut *host.receiver);
}

/// A wake ends a wait in another thread, no matter when it happens.
pub fn wake_ends_a_wait(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    let waker = host.receiver.waker();
    std::thread::scope(|scope| {
        let (go, going) = std::sync::mpsc::channel();
        let (done, finished) = std::sync::mpsc::channel();
        scope.spawn(move || {
            for () in going {
                assert!(host.receiver.receive(Wait::Forever).unwrap().is_none());
                done.send(()).unwrap();
            }
        });
        for _ in 0..200 {
            go.send(()).unwrap();
            waker.wake();
            finished.recv().unwrap();
        }
        drop(go);
    });
    drop(guest);
}

/// Waits of equal length, whose ends a receiver may predict, end by frames and by wakes,
/// each of which ends one, and at their deadlines.
pub fn waits_that_repeat(factory: &dyn Factory) {
    const WAIT: Duration = Duration::from_micros(600);
    let (guest, mut host) = factory.connect();
    let waker = host.receiver.waker();
    std::thread::scope(|scope| {
        let (go, going) = std::sync::mpsc::channel();
        scope.spawn(move || {
            // All of it, so that the connection ends with this thread.
            let guest = guest;
            for by_frame in going {
                std::thread::sleep(WAIT);
                if by_frame {
                    guest.sender.send(1, 1, None, &[]).unwrap();
                    guest.sender.flush().unwrap();
                } else {
                    waker.wake();
                }
            }
        });
        for turn in 0..60 {
            let by_frame = turn % 5 != 4;
            go.send(by_frame).unwrap();
            let received = host.receiver.receive(Wait::Forever).unwrap();
            assert_eq!(received.is_some(), by_frame);
            if turn % 7 == 6 {
                let deadline = Instant::now() + WAIT * 2;
                assert!(
                    host.receiver
                        .receive(Wait::Until(deadline))
                        .unwrap()
                        .is_none()
                );
                assert!(Instant::now() >= deadline);
            }
        }
        drop(go);
        expect_closed(&mut *host.receiver);
    });
}

/// A wake before the wait ends it, once. `Poll` does not consume it.
pub fn wake_before_the_wait_counts(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    let waker = host.receiver.waker();
    waker.wake();
    waker.wake();
    assert!(host.receiver.receive(Wait::Poll).unwrap().is_none());
    assert!(host.receiver.receive(Wait::Forever).unwrap().is_none());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            guest.sender.send(1, 1, None, &[]).unwrap();
            guest.sender.flush().unwrap();
        });
        // The second wake does not end this one: both counted as one.
        assert!(host.receiver.receive(soon()).unwrap().is_some());
    });
}

/// An available frame is returned before a wake.
pub fn frames_go_before_wakes(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    guest.sender.send(1, 1, None, &[]).unwrap();
    guest.sender.send(2, 1, None, &[]).unwrap();
    guest.sender.flush().unwrap();
    expect_frame(&mut *host.receiver);
    host.receiver.waker().wake();
    expect_frame(&mut *host.receiver);
    assert!(host.receiver.receive(Wait::Forever).unwrap().is_none());
}

/// A waker outlives its receiver and does not keep the connection open.
pub fn wake_after_the_end_is_harmless(factory: &dyn Factory) {
    let (mut guest, host) = factory.connect();
    let waker = host.receiver.waker();
    drop(host);
    expect_closed(&mut *guest.receiver);
    waker.wake();
}
