//! Sent frames that may have to be resent.

use std::collections::VecDeque;

use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};

/// Bytes of a block.
const BLOCK: usize = 32 << 10;
/// Maximum number of empty blocks kept for later frames.
const MAX_SPARE: usize = 16;

/// Frames in the order in which they were sent. Small ones are stored as on the wire, back to
/// back in blocks that are reused. Large payloads can stay where they are, in borrowed memory
/// `L`.
///
/// Threads that send side by side add frames and drop them under the lock of the connection, so
/// neither may take long: frames never move, and [`drop_until`](Self::drop_until) looks only at
/// blocks.
#[derive(Debug)]
pub struct Retained<L> {
    /// Each but the last has frames.
    blocks: VecDeque<Block>,
    spare: Vec<Vec<u8>>,
    /// Bytes in the blocks.
    stored: usize,
    /// The borrowed ends of payloads, with the position of their frames.
    lent: VecDeque<(u64, L)>,
    lent_bytes: usize,
}

/// Consecutive frames.
#[derive(Debug)]
struct Block {
    /// The frames, after dropped ones.
    bytes: Vec<u8>,
    /// The offset of the first frame in `bytes`.
    start: usize,
    /// Position of the first byte.
    position: u64,
    /// Sequence number of the last frame.
    last: u64,
}

impl Block {
    fn has_room(&self, length: usize) -> bool {
        self.bytes.capacity() - self.bytes.len() >= length
    }

    fn push(&mut self, header: FrameHeader, payload: &[&[u8]]) {
        self.bytes.extend_from_slice(&header.to_bytes());
        for part in payload {
            self.bytes.extend_from_slice(part);
        }
        self.last = header.sequence;
    }

    /// Position of the byte behind the last.
    fn end(&self) -> u64 {
        self.position + self.bytes.len() as u64
    }

    fn header_at(&self, at: usize) -> Option<FrameHeader> {
        let header = self.bytes.get(at..)?.first_chunk()?;
        FrameHeader::from_bytes(header).ok()
    }
}

impl<L> Default for Retained<L> {
    fn default() -> Self {
        Self {
            blocks: VecDeque::new(),
            spare: Vec::new(),
            stored: 0,
            lent: VecDeque::new(),
            lent_bytes: 0,
        }
    }
}

impl<L> Retained<L> {
    /// Adds a frame.
    #[inline]
    pub fn push(&mut self, header: FrameHeader, payload: &[&[u8]]) {
        let length = HEADER_LEN + payload.iter().map(|part| part.len()).sum::<usize>();
        self.stored += length;
        match self.blocks.back_mut() {
            Some(block) if block.has_room(length) => block.push(header, payload),
            _ => self.push_to_new_block(length, header, payload),
        }
    }

    #[cold]
    fn push_to_new_block(&mut self, length: usize, header: FrameHeader, payload: &[&[u8]]) {
        let spare = (length <= BLOCK).then(|| self.spare.pop()).flatten();
        let mut block = Block {
            bytes: spare.unwrap_or_else(|| Vec::with_capacity(length.max(BLOCK))),
            start: 0,
            position: self.end(),
            last: 0,
        };
        block.push(header, payload);
        self.blocks.push_back(block);
    }

    /// Position of the next frame, counted from the first byte ever stored.
    fn end(&self) -> u64 {
        self.blocks.back().map_or(0, Block::end)
    }

    /// Number of bytes of all frames, including headers and borrowed ends.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stored + self.lent_bytes
    }

    /// Whether there are no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stored == 0
    }

    /// Drops all frames.
    pub fn clear(&mut self) {
        while self.blocks.len() > 1 {
            self.drop_block();
        }
        if let Some(block) = self.blocks.front_mut() {
            block.position = block.end();
            block.bytes.clear();
            block.start = 0;
        }
        self.stored = 0;
        self.lent.clear();
        self.lent_bytes = 0;
    }

    /// Drops the first block.
    fn drop_block(&mut self) {
        if let Some(Block {
            mut bytes, start, ..
        }) = self.blocks.pop_front()
        {
            self.stored -= bytes.len() - start;
            // Not those of large frames.
            if self.spare.len() < MAX_SPARE && bytes.capacity() <= 2 * BLOCK {
                bytes.clear();
                self.spare.push(bytes);
            }
        }
    }
}

impl<L: AsRef<[u8]>> Retained<L> {
    /// Adds a frame whose payload is `start`, followed by borrowed memory.
    pub fn push_lent(&mut self, header: FrameHeader, start: &[u8], end: L) {
        let position = self.end();
        self.push(header, &[start]);
        self.lent_bytes += end.as_ref().len();
        self.lent.push_back((position, end));
    }

    /// Copies all borrowed memory, and drops the borrows.
    pub fn own(&mut self) {
        if self.lent.is_empty() {
            return;
        }
        let mut owned = Self {
            spare: std::mem::take(&mut self.spare),
            ..Self::default()
        };
        let copied = self.each(|header, payload| {
            owned.push(header, &payload);
            Ok::<(), std::convert::Infallible>(())
        });
        copied.unwrap_or_else(|never| match never {});
        *self = owned;
    }

    /// Drops frames, oldest first, as long as `arrived` returns true for their headers.
    pub fn trim(&mut self, mut arrived: impl FnMut(&FrameHeader) -> bool) {
        while let Some(block) = self.blocks.front_mut() {
            let Some(header) = block.header_at(block.start) else {
                if self.blocks.len() == 1 {
                    return self.clear();
                }
                self.drop_block();
                continue;
            };
            if !arrived(&header) {
                return;
            }
            let position = block.position + block.start as u64;
            let mut whole = HEADER_LEN + header.payload_len();
            if self
                .lent
                .front()
                .is_some_and(|(place, _)| *place == position)
                && let Some((_, lent)) = self.lent.pop_front()
            {
                whole -= lent.as_ref().len();
                self.lent_bytes -= lent.as_ref().len();
            }
            block.start += whole;
            self.stored -= whole;
        }
    }

    /// Drops blocks whose frames all have sequence numbers up to `sequence`, if those of all
    /// frames rise. So a block of frames may stay that could be dropped.
    pub fn drop_until(&mut self, sequence: u64) {
        while let Some(block) = self.blocks.front()
            && block.last <= sequence
        {
            if self.blocks.len() == 1 {
                return self.clear();
            }
            self.drop_block();
            let first = self.blocks.front().map_or(u64::MAX, |block| block.position);
            while self.lent.front().is_some_and(|(place, _)| *place < first)
                && let Some((_, lent)) = self.lent.pop_front()
            {
                self.lent_bytes -= lent.as_ref().len();
            }
        }
    }

    /// Calls `visit` for each frame in order, with its payload in two parts, until it
    /// returns an error.
    ///
    /// # Errors
    /// As `visit`.
    pub fn each<E>(
        &self,
        mut visit: impl FnMut(FrameHeader, [&[u8]; 2]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut lent = self.lent.iter().peekable();
        for block in &self.blocks {
            let mut at = block.start;
            while let Some(header) = block.header_at(at) {
                let position = block.position + at as u64;
                let end = lent
                    .next_if(|(place, _)| *place == position)
                    .map_or(&[][..], |(_, lent)| lent.as_ref());
                let start = at + HEADER_LEN;
                at = start + header.payload_len() - end.len();
                visit(header, [block.bytes.get(start..at).unwrap_or(&[]), end])?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Frames = Vec<(u64, Vec<u8>)>;

    fn frames(retained: &Retained<Vec<u8>>) -> Frames {
        let mut all = Vec::new();
        retained
            .each(|header, payload| {
                all.push((header.sequence, payload.concat()));
                Ok::<(), ()>(())
            })
            .unwrap();
        all
    }

    #[test]
    fn frames_come_back_as_they_were() {
        let mut retained = Retained::default();
        let mut model: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
        for sequence in 1..5000_u64 {
            let length = (sequence * 7919 % 300) as usize;
            let payload = vec![sequence as u8; length];
            let (head, tail) = payload.split_at(length / 3);
            let header = FrameHeader::new(1, 0, sequence, length).unwrap();
            if sequence % 3 == 0 {
                retained.push_lent(header, head, tail.to_vec());
            } else {
                retained.push(header, &[head, tail]);
            }
            model.push_back((sequence, payload));
            if sequence % 11 == 0 {
                let to = sequence - sequence % 23;
                retained.trim(|header| header.sequence <= to);
                model.retain(|(sequence, _)| *sequence > to);
            }
            let whole = |(_, payload): &(u64, Vec<u8>)| HEADER_LEN + payload.len();
            assert_eq!(retained.len(), model.iter().map(whole).sum::<usize>());
            if sequence % 97 == 0 {
                assert_eq!(frames(&retained), Vec::from(model.clone()));
            }
            if sequence % 251 == 0 {
                retained.own();
                assert!(retained.lent.is_empty());
                assert_eq!(frames(&retained), Vec::from(model.clone()));
            }
        }
        retained.trim(|_| true);
        assert!(retained.is_empty() && frames(&retained).is_empty());
        assert_eq!((retained.len(), retained.lent.len()), (0, 0));
    }
    #[test]
    fn whole_blocks_are_dropped() {
        let mut retained = Retained::default();
        for sequence in 1..=2000_u64 {
            // Some are larger than a block.
            let length = if sequence % 700 == 0 { 2 * BLOCK } else { 90 };
            let header = FrameHeader::new(1, 0, sequence, 2 * length).unwrap();
            retained.push_lent(header, &vec![0; length], vec![1; length]);
        }
        let mut kept = retained.len();
        for sequence in [1, 500, 1000, 1700, 1999] {
            retained.drop_until(sequence);
            let left = frames(&retained);
            let first = left.first().unwrap().0;
            assert!(first <= sequence + 1, "{first} {sequence}");
            assert!(retained.len() <= kept && first + (BLOCK / 90) as u64 > sequence);
            assert!(left.iter().map(|(sequence, _)| *sequence).eq(first..=2000));
            assert_eq!(retained.lent.len(), left.len());
            kept = retained.len();
        }
        retained.drop_until(2000);
        assert!(retained.is_empty() && retained.lent.is_empty());
        assert_eq!(retained.len(), 0);
    }
}
