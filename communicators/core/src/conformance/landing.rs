//! Payloads that are received into the receiver's own memory.

use paragpu_protocol::frame::{FrameHeader, HEADER_LEN, MAX_PAYLOAD};

use super::{Factory, expect_closed, pattern, soon};
use crate::{Error, Frame, Landing, Receiver, Wait};

/// Kind of the frames that land.
const LANDS: u16 = 2;
/// Bytes of the head of these frames.
const HEAD: usize = 12;
const ROUNDS: u64 = 400;

/// The destination of one frame at a time, handed out in pieces.
#[derive(Default)]
struct Memory {
    bytes: Vec<u8>,
    /// Maximum size of a piece; 0 for no destination.
    piece: usize,
    /// There is no destination from this offset on.
    end: usize,
    asked: u64,
}

impl Landing for Memory {
    fn head(&self, header: &FrameHeader) -> Option<usize> {
        (header.kind == LANDS).then_some(HEAD)
    }

    fn land(
        &mut self,
        header: &FrameHeader,
        head: &[u8],
        at: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        self.asked += 1;
        let length = header.payload_len() - HEAD;
        assert_eq!(head, &pattern(header.sequence, HEAD)[..]);
        assert!(at < length);
        if at == 0 {
            self.bytes = vec![0xee; length];
        }
        if self.piece == 0 || at >= self.end {
            return false;
        }
        let to = at.saturating_add(self.piece).min(length);
        let count = read(&mut self.bytes[at..to]);
        assert!(count <= to - at);
        true
    }

    fn landed(&self, count: usize) -> &[u8] {
        &self.bytes[..count]
    }
}

impl Memory {
    /// Checks that the frame is the expected one, wherever its bytes are.
    fn check(&self, frame: &Frame<'_>, sequence: u64, length: usize) {
        assert_eq!(frame.header.sequence, sequence);
        assert_eq!(frame.header.payload_len(), length);
        assert_eq!(frame.payload.len() + frame.landed, length);
        let wanted = pattern(sequence, length);
        assert!(
            frame.payload == &wanted[..frame.payload.len()],
            "{sequence}"
        );
        if frame.landed > 0 {
            assert_eq!((frame.header.kind, frame.payload.len()), (LANDS, HEAD));
            let kept = self.end.min(frame.landed);
            assert!(
                self.bytes[..kept] == wanted[HEAD..HEAD + kept],
                "{sequence}"
            );
        }
    }
}

/// Kind and length of a frame. Some of the large ones may land.
fn shape(sequence: u64) -> (u16, usize) {
    let mixed = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    let length = match mixed % 5 {
        0 => mixed as usize % 200,
        1 => MAX_PAYLOAD,
        _ => mixed as usize % MAX_PAYLOAD,
    };
    (1 + (mixed >> 7) as u16 % 2, length.max(HEAD))
}

/// Frames arrive unchanged whether they land whole, in pieces, in part or not at all, or
/// are recalled.
pub fn landing_changes_nothing(factory: &dyn Factory) {
    let (guest, mut host) = factory.connect();
    let mut memory = Memory::default();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let guest = guest;
            for sequence in 1..=ROUNDS {
                let (kind, length) = shape(sequence);
                let payload = pattern(sequence, length);
                guest.sender.send(kind, 0, None, &[&payload]).unwrap();
            }
            guest.sender.flush().unwrap();
        });
        for sequence in 1..=ROUNDS {
            memory.piece = [usize::MAX, 100_000, 4096, 0][sequence as usize % 4];
            memory.end = if sequence % 6 == 0 {
                70_000
            } else {
                usize::MAX
            };
            let (_, length) = shape(sequence);
            if sequence % 5 == 0 {
                // Receives what is available into the destination, and the rest without
                // one.
                let first = host.receiver.receive_into(Wait::Poll, &mut memory).unwrap();
                if let Some(frame) = first {
                    memory.check(&frame, sequence, length);
                    continue;
                }
                if memory.end == usize::MAX {
                    host.receiver.recall(&memory);
                    let frame = host.receiver.receive(soon()).unwrap().unwrap();
                    assert_eq!(frame.landed, 0);
                    memory.check(&frame, sequence, length);
                    continue;
                }
            }
            let frame = host.receiver.receive_into(soon(), &mut memory);
            memory.check(&frame.unwrap().unwrap(), sequence, length);
        }
    });
    let receiver: &mut dyn Receiver = &mut *host.receiver;
    assert!(matches!(
        receiver.receive_into(soon(), &mut memory),
        Err(Error::Closed)
    ));
    expect_closed(receiver);
}

/// Recalled bytes are among those with which the next receiver begins.
pub fn recalled_bytes_are_unfinished(factory: &dyn Factory) {
    let (mut guest, mut host) = factory.connect_raw();
    let header = FrameHeader::new(LANDS, 0, 9, MAX_PAYLOAD).unwrap();
    let payload = pattern(9, MAX_PAYLOAD);
    let mut memory = Memory {
        piece: usize::MAX,
        end: usize::MAX,
        ..Memory::default()
    };
    let writer = std::thread::spawn(move || {
        guest.write(header.to_bytes(), &payload[..100_000]);
        guest
    });
    let guest = writer.join().unwrap();
    while matches!(
        host.receiver.receive_into(Wait::Poll, &mut memory),
        Ok(None)
    ) {
        host.receiver.recall(&memory);
        let unfinished = host.receiver.hand_over();
        if unfinished.len() == HEADER_LEN + 100_000 {
            let (first, rest) = unfinished.split_at(HEADER_LEN);
            assert_eq!(first, header.to_bytes());
            assert!(rest == &pattern(9, MAX_PAYLOAD)[..100_000]);
            break;
        }
        // Rings receive whole records only.
        if unfinished.is_empty() && memory.asked == 0 {
            break;
        }
    }
    drop(guest);
}

/// A frame whose sender dies while it lands is not delivered.
pub fn frame_cut_while_it_lands_is_no_frame(factory: &dyn Factory) {
    let (mut guest, mut host) = factory.connect_raw();
    let header = FrameHeader::new(LANDS, 0, 1, MAX_PAYLOAD).unwrap();
    guest.write(header.to_bytes(), &pattern(1, MAX_PAYLOAD)[..100_000]);
    guest.die();
    let mut memory = Memory {
        piece: 5000,
        end: usize::MAX,
        ..Memory::default()
    };
    let cut = host.receiver.receive_into(soon(), &mut memory);
    assert!(cut.is_err(), "{cut:?}");
    let again = host.receiver.receive_into(Wait::Poll, &mut memory);
    assert!(again.is_err(), "{again:?}");
}
