//! Malformed frames.

use paragpu_protocol::frame::{FrameHeader, MAX_PAYLOAD};

use super::{Factory, expect_frame, soon};
use crate::{Connection, Error, Wait};

/// The connection must end without a frame, and stay so.
fn expect_broken(mut host: Connection, exactly_protocol: bool) {
    match host.receiver.receive(soon()) {
        Err(Error::Protocol(_)) => {}
        Err(Error::Closed | Error::Io { .. }) if !exactly_protocol => {}
        other => panic!("taken for a frame: {other:?}"),
    }
    for _ in 0..3 {
        let again = host.receiver.receive(Wait::Poll);
        assert!(again.is_err(), "{again:?}");
    }
    assert!(host.sender.try_send(1, 0, None, &[]).is_err());
}

/// A truncated frame is not delivered, whether or not its sender had read all frames.
pub fn truncated_frame_is_no_frame(factory: &dyn Factory) {
    for unread in [false, true] {
        for (promised, sent) in [(100, 0), (100, 50), (MAX_PAYLOAD, 100_000)] {
            let (mut guest, host) = factory.connect_raw();
            if unread {
                host.sender.try_send(1, 0, None, &[&[3; 10]]).unwrap();
                host.sender.flush().unwrap();
            }
            let header = FrameHeader::new(1, 1, 1, promised).unwrap();
            guest.write(header.to_bytes(), &vec![1; sent]);
            guest.die();
            expect_broken(host, false);
        }
    }
}

/// A length over the limit ends the connection at once.
pub fn oversized_frame_is_refused(factory: &dyn Factory) {
    for length in [MAX_PAYLOAD as u32 + 1, 1 << 31, u32::MAX] {
        let (mut guest, host) = factory.connect_raw();
        let header = FrameHeader {
            length,
            kind: 1,
            slot: 1,
            sequence: 1,
        };
        guest.write(header.to_bytes(), &[1; 64]);
        expect_broken(host, true);
    }
}

/// Kind 0xffff ends the connection.
pub fn reserved_kind_from_the_peer_is_refused(factory: &dyn Factory) {
    let (mut guest, host) = factory.connect_raw();
    let header = FrameHeader::new(0xffff, 0, 0, 16).unwrap();
    guest.write(header.to_bytes(), &[0; 16]);
    expect_broken(host, true);
}

/// Valid frames before an invalid one arrive, and none after it.
pub fn good_frames_before_a_bad_one_arrive(factory: &dyn Factory) {
    let (mut guest, mut host) = factory.connect_raw();
    for sequence in 1..=3 {
        let header = FrameHeader::new(7, 0, sequence, 10).unwrap();
        guest.write(header.to_bytes(), &[2; 10]);
    }
    let bad = FrameHeader {
        length: u32::MAX,
        ..FrameHeader::default()
    };
    guest.write(bad.to_bytes(), &[]);
    for sequence in 1..=3 {
        assert_eq!(expect_frame(&mut *host.receiver).0.sequence, sequence);
    }
    expect_broken(host, true);
}
