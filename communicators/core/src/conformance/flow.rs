//! Delivery: order, batches, sizes, backpressure, threads.

use std::collections::HashMap;
use std::sync::Mutex;

use paragpu_protocol::frame::MAX_PAYLOAD;

use super::{FILLER, Factory, expect_closed, expect_frame, fill, pattern, soon};
use crate::{Connection, Error, Wait};

const MANY: u64 = 5000;

/// Frames of all small sizes arrive unchanged, in order, both ways.
pub fn ordering_both_ways(factory: &dyn Factory) {
    let (guest, host) = factory.connect();
    let mut kept = Vec::new();
    std::thread::scope(|scope| {
        let mut receivers = Vec::new();
        for (from, mut to) in [(guest.sender, host.receiver), (host.sender, guest.receiver)] {
            scope.spawn(move || {
                for position in 1..=MANY {
                    let payload = pattern(position, (position % 601) as usize);
                    let kind = (position % 1000) as u16 + 1;
                    let slot = (position % 7) as u16;
                    let sent = from.send(kind, slot, None, &[&payload]).unwrap();
                    assert_eq!(sent, position);
                }
                from.flush().unwrap();
            });
            receivers.push(scope.spawn(move || {
                for position in 1..=MANY {
                    let (header, payload) = expect_frame(&mut *to);
                    assert_eq!(header.sequence, position);
                    assert_eq!(header.kind, (position % 1000) as u16 + 1);
                    assert_eq!(header.slot, (position % 7) as u16);
                    assert_eq!(payload, pattern(position, (position % 601) as usize));
                }
                // Not dropped while the other direction may continue.
                to
            }));
        }
        for receiver in receivers {
            kept.push(receiver.join().unwrap());
        }
    });
}

/// A given sequence number is carried and does not count.
pub fn sequence_given_by_the_host(factory: &dyn Factory) {
    let (mut guest, host) = factory.connect();
    assert_eq!(host.sender.send(1, 1, Some(77), &[]).unwrap(), 77);
    assert_eq!(host.sender.send(2, 1, Some(0), &[]).unwrap(), 0);
    assert_eq!(host.sender.send(3, 1, None, &[]).unwrap(), 1);
    host.sender.flush().unwrap();
    for sequence in [77, 0, 1] {
        assert_eq!(expect_frame(&mut *guest.receiver).0.sequence, sequence);
    }
}

/// A posted frame (slot 0) needs no flush.
pub fn posted_frames_leave_by_themselves(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    for round in 1..=50 {
        guest.sender.try_send(1, 0, None, &[b"posted"]).unwrap();
        assert_eq!(expect_frame(&mut *host.receiver).0.sequence, round);
    }
}

/// Frames enqueued before a flush arrive, in batches of any length.
pub fn batches_arrive_with_a_flush(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    let mut position = 0;
    for batch in [1, 2, 10, 100, 500] {
        for _ in 0..batch {
            guest.sender.try_send(1, 3, None, &[&[7; 100]]).unwrap();
        }
        guest.sender.flush().unwrap();
        for _ in 0..batch {
            position += 1;
            let (header, payload) = expect_frame(&mut *host.receiver);
            assert_eq!(header.sequence, position);
            assert_eq!(payload, [7; 100]);
        }
    }
    guest.sender.flush().unwrap();
    assert!(host.receiver.receive(Wait::Poll).unwrap().is_none());
}

/// Payload parts are joined.
pub fn gathered_payload(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    let big = pattern(1, 100_000);
    let parts: [&[u8]; 5] = [b"a", b"", b"bcd", &big, b"e"];
    let joined = parts.concat();
    let many = vec![b"x".as_slice(); 40_000];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 {
                guest.sender.send(1, 1, None, &parts).unwrap();
                guest.sender.flush().unwrap();
            }
            guest.sender.send(2, 1, None, &many).unwrap();
            guest.sender.flush().unwrap();
        });
        for _ in 0..3 {
            assert!(expect_frame(&mut *host.receiver).1 == joined);
        }
        assert!(expect_frame(&mut *host.receiver).1 == vec![b'x'; 40_000]);
    });
    guest.sender.try_send(3, 1, None, &parts).unwrap();
    guest.sender.flush().unwrap();
    assert!(expect_frame(&mut *host.receiver).1 == joined);
}

/// A frame may have no payload.
pub fn zero_length_payload(factory: &dyn Factory) {
    let (mut guest, mut host) = factory.connect();
    for (from, to) in [
        (&guest.sender, &mut host.receiver),
        (&host.sender, &mut guest.receiver),
    ] {
        from.send(5, 2, None, &[]).unwrap();
        from.send(6, 2, None, &[b"", b""]).unwrap();
        from.flush().unwrap();
        for kind in [5, 6] {
            let (header, payload) = expect_frame(&mut **to);
            assert_eq!((header.kind, header.length, payload.len()), (kind, 0, 0));
        }
    }
}

/// Frames of the largest size, of one byte less, and small ones in between, in both
/// directions at once.
pub fn largest_frames_both_ways_at_once(factory: &dyn Factory) {
    let (guest, host) = factory.connect();
    let sizes = [
        MAX_PAYLOAD,
        MAX_PAYLOAD - 1,
        1,
        40_000,
        MAX_PAYLOAD - 15,
        17,
    ];
    let rounds = 6;
    let mut kept = Vec::new();
    std::thread::scope(|scope| {
        let mut receivers = Vec::new();
        for (from, mut to) in [(guest.sender, host.receiver), (host.sender, guest.receiver)] {
            scope.spawn(move || {
                for round in 0..rounds {
                    for size in sizes {
                        let payload = pattern(round, size);
                        from.send(1, 1, None, &[&payload]).unwrap();
                    }
                }
                from.flush().unwrap();
            });
            receivers.push(scope.spawn(move || {
                for round in 0..rounds {
                    for size in sizes {
                        let (_, payload) = expect_frame(&mut *to);
                        assert!(payload == pattern(round, size), "{size} bytes changed");
                    }
                }
                to
            }));
        }
        for receiver in receivers {
            kept.push(receiver.join().unwrap());
        }
    });
}

/// Threads send concurrently. All frames arrive, ordered by sequence number, and each
/// thread's frames in its own order.
pub fn many_threads_send(factory: &dyn Factory) {
    const THREADS: u16 = 8;
    const EACH: u64 = 1500;
    let (guest, mut host) = factory.connect();
    let numbers = Mutex::new(HashMap::new());
    let arrived = std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (sender, numbers) = (&guest.sender, &numbers);
            scope.spawn(move || {
                let mut mine = Vec::new();
                for index in 0..EACH {
                    let length = (index as usize * 37 + thread as usize) % 3000;
                    let payload = [&index.to_le_bytes()[..], &pattern(index, length)].concat();
                    let sent = sender.send(thread + 1, 0, None, &[&payload]).unwrap();
                    mine.push((sent, (thread, index)));
                    if index % 16 == 0 {
                        sender.flush().unwrap();
                    }
                }
                sender.flush().unwrap();
                numbers.lock().unwrap().extend(mine);
            });
        }
        let mut arrived = HashMap::new();
        let mut next = [0_u64; THREADS as usize];
        for position in 1..=u64::from(THREADS) * EACH {
            let (header, payload) = expect_frame(&mut *host.receiver);
            assert_eq!(header.sequence, position);
            let thread = header.kind - 1;
            let index = &mut next[usize::from(thread)];
            let length = (*index as usize * 37 + thread as usize) % 3000;
            assert_eq!(payload[..8], index.to_le_bytes());
            assert!(payload[8..] == pattern(*index, length));
            arrived.insert(position, (thread, *index));
            *index += 1;
        }
        arrived
    });
    assert_eq!(arrived, numbers.into_inner().unwrap());
}

/// A full connection refuses frames and accepts them again once the peer receives. Nothing
/// is lost or numbered twice.
pub fn back_pressure_then_room(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    let mut total = 0;
    for _ in 0..3 {
        let sent = fill(&*guest.sender);
        assert!(sent > 0);
        total += sent;
        // The next number shows that refused frames got none.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                guest.sender.wait_for_room(MAX_PAYLOAD).unwrap();
                guest.sender.send(8, 1, None, &[b"after"]).unwrap();
                guest.sender.flush().unwrap();
            });
            for position in total - sent + 1..=total {
                let (header, payload) = expect_frame(&mut *host.receiver);
                assert_eq!((header.kind, header.sequence), (9, position));
                assert_eq!(payload.len(), FILLER);
            }
            let (header, payload) = expect_frame(&mut *host.receiver);
            assert_eq!((header.kind, header.sequence), (8, total + 1));
            assert_eq!(payload, b"after");
            waiting.join().unwrap();
        });
        total += 1;
    }
}

/// A slow peer receives everything.
pub fn slow_peer_loses_nothing(factory: &dyn Factory) {
    const FRAMES: u64 = 400;
    let (guest, mut host) = factory.connect();
    std::thread::scope(|scope| {
        let sender = guest.sender;
        scope.spawn(move || {
            for position in 1..=FRAMES {
                let payload = pattern(position, (position as usize * 977) % 50_000);
                sender.send(1, 0, None, &[&payload]).unwrap();
            }
            sender.flush().unwrap();
        });
        for position in 1..=FRAMES {
            // Slow enough that the sender fills all buffers in between.
            for _ in 0..50 {
                std::thread::yield_now();
            }
            let (header, payload) = expect_frame(&mut *host.receiver);
            assert_eq!(header.sequence, position);
            assert!(payload == pattern(position, (position as usize * 977) % 50_000));
        }
    });
    drop(guest.receiver);
    expect_closed(&mut *host.receiver);
}

/// Requests and replies, while each side sleeps or polls.
pub fn ping_pong(factory: &dyn Factory) {
    const ROUNDS: u64 = 2000;
    let (mut guest, host) = factory.connect();
    std::thread::scope(|scope| {
        scope.spawn(move || serve(host));
        for round in 1..=ROUNDS {
            let payload = pattern(round, (round % 100) as usize);
            guest.sender.send(4, 1, None, &[&payload]).unwrap();
            guest.sender.flush().unwrap();
            let (header, reply) = expect_frame(&mut *guest.receiver);
            assert_eq!(header.replied_call(), Some(4));
            assert_eq!((header.slot, header.sequence), (1, round));
            assert_eq!(reply, payload);
        }
        drop(guest);
    });
}

/// Echoes frames until the connection ends.
fn serve(mut host: Connection) {
    loop {
        match host.receiver.receive(soon()) {
            Ok(Some(frame)) => {
                let (kind, slot) = (frame.header.kind | 0x8000, frame.header.slot);
                let sequence = Some(frame.header.sequence);
                let sent = host.sender.send(kind, slot, sequence, &[frame.payload]);
                // The guest may close the connection as soon as it has the last reply.
                match sent.and_then(|_| host.sender.flush()) {
                    Ok(()) | Err(Error::Closed) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Ok(None) => panic!("nothing came"),
            Err(Error::Closed) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A payload over the limit is refused, and the connection continues.
pub fn oversized_payload_is_refused(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    let half = vec![0; MAX_PAYLOAD / 2];
    let parts: [&[u8]; 3] = [&half, &half, b"x"];
    for sent in [
        guest.sender.try_send(1, 0, None, &parts),
        guest.sender.send(1, 0, None, &parts),
    ] {
        assert!(matches!(sent, Err(Error::Protocol(_))), "{sent:?}");
    }
    assert!(guest.sender.wait_for_room(MAX_PAYLOAD + 1).is_err());
    assert_eq!(guest.sender.send(2, 0, None, &[b"fine"]).unwrap(), 1);
    guest.sender.flush().unwrap();
    assert_eq!(expect_frame(&mut *host.receiver).0.kind, 2);
}

/// Kind 0xffff cannot be sent. (0xfffe is for the communicators themselves.)
pub fn reserved_kind_is_refused(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    for sent in [
        guest.sender.try_send(0xffff, 0, None, &[]),
        guest.sender.send(0xffff, 0, None, &[]),
    ] {
        assert!(matches!(sent, Err(Error::Protocol(_))), "{sent:?}");
    }
    guest.sender.send(0xfffd, 0, None, &[]).unwrap();
    guest.sender.flush().unwrap();
    assert_eq!(expect_frame(&mut *host.receiver).0.kind, 0xfffd);
}
