//! Sent frames that may have to be resent.

use std::collections::VecDeque;

use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};

/// Frames in the order in which they were sent. Small ones are stored as on the wire, back
/// to back in one reused buffer. Large payloads can stay where they are, in borrowed memory
/// `L`.
#[derive(Debug)]
pub struct Retained<L> {
    /// The frames, after dropped ones that have not been removed yet.
    bytes: Vec<u8>,
    /// The offset of the first frame in `bytes`.
    start: usize,
    /// Total number of bytes removed from the start of `bytes`.
    removed: u64,
    /// The borrowed ends of payloads, with the position of their frames, counted from the
    /// first byte ever stored.
    lent: VecDeque<(u64, L)>,
    lent_bytes: usize,
}

impl<L> Default for Retained<L> {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl<L> Retained<L> {
    /// Creates a buffer with this capacity in bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
            start: 0,
            removed: 0,
            lent: VecDeque::new(),
            lent_bytes: 0,
        }
    }

    /// Adds a frame.
    #[inline]
    pub fn push(&mut self, header: FrameHeader, payload: &[&[u8]]) {
        self.bytes.extend_from_slice(&header.to_bytes());
        for part in payload {
            self.bytes.extend_from_slice(part);
        }
    }

    /// Number of bytes of all frames, including headers and borrowed ends.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start + self.lent_bytes
    }

    /// Whether there are no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Drops all frames.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
        self.lent.clear();
        self.lent_bytes = 0;
    }

    fn header_at(&self, at: usize) -> Option<FrameHeader> {
        let header = self.bytes.get(at..)?.first_chunk()?;
        FrameHeader::from_bytes(header).ok()
    }

    /// Moves the frames to the start of the buffer once they take no more space than the
    /// dropped ones. So each byte is moved once on average.
    fn compact(&mut self) {
        let kept = self.bytes.len() - self.start;
        if kept <= self.start {
            self.bytes.copy_within(self.start.., 0);
            self.bytes.truncate(kept);
            self.removed += self.start as u64;
            self.start = 0;
        }
    }
}

impl<L: AsRef<[u8]>> Retained<L> {
    /// Adds a frame whose payload is `start`, followed by borrowed memory.
    pub fn push_lent(&mut self, header: FrameHeader, start: &[u8], end: L) {
        let place = self.removed + self.bytes.len() as u64;
        self.push(header, &[start]);
        self.lent_bytes += end.as_ref().len();
        self.lent.push_back((place, end));
    }

    /// Copies all borrowed memory, and drops the borrows.
    pub fn own(&mut self) {
        if self.lent.is_empty() {
            return;
        }
        let mut owned = Self::with_capacity(self.len().max(self.bytes.capacity()));
        let copied = self.each(|header, payload| {
            owned.push(header, &payload);
            Ok::<(), std::convert::Infallible>(())
        });
        copied.unwrap_or_else(|never| match never {});
        *self = owned;
    }

    /// Drops frames, oldest first, as long as `arrived` returns true for their headers.
    pub fn trim(&mut self, mut arrived: impl FnMut(&FrameHeader) -> bool) {
        while let Some(header) = self.header_at(self.start) {
            if !arrived(&header) {
                break;
            }
            let mut whole = HEADER_LEN + header.payload_len();
            let here = self.removed + self.start as u64;
            if self.lent.front().is_some_and(|(place, _)| *place == here)
                && let Some((_, lent)) = self.lent.pop_front()
            {
                whole -= lent.as_ref().len();
                self.lent_bytes -= lent.as_ref().len();
            }
            self.start = self.bytes.len().min(self.start + whole);
        }
        self.compact();
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
        let mut at = self.start;
        while let Some(header) = self.header_at(at) {
            let is_here = |(place, _): &&(u64, L)| *place == self.removed + at as u64;
            let end = lent
                .next_if(is_here)
                .map_or(&[][..], |(_, lent)| lent.as_ref());
            let start = at + HEADER_LEN;
            at = start + header.payload_len() - end.len();
            visit(header, [self.bytes.get(start..at).unwrap_or(&[]), end])?;
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
}
