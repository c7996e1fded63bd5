//! Frames that were sent and may have to be resent.

use std::collections::VecDeque;

use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};

/// Frames in the order they were sent. What is small stands as on the wire,
/// back to back in one piece of memory that is used again and again; large
/// payloads can stay where they are, in memory `L` that was lent.
#[derive(Debug)]
pub struct Retained<L> {
    /// Frames, behind those that were dropped and lie there still.
    bytes: Vec<u8>,
    /// Where in `bytes` the first frame begins.
    start: usize,
    /// How many bytes were ever removed from the start of `bytes`.
    removed: u64,
    /// The ends of payloads that are not in `bytes`, by the position at which
    /// their frames begin, counted with those removed.
    lent: VecDeque<(u64, L)>,
    lent_bytes: usize,
}

impl<L> Default for Retained<L> {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl<L> Retained<L> {
    /// With memory for so many bytes.
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

    /// Keeps a frame.
    #[inline]
    pub fn push(&mut self, header: FrameHeader, payload: &[&[u8]]) {
        self.bytes.extend_from_slice(&header.to_bytes());
        for part in payload {
            self.bytes.extend_from_slice(part);
        }
    }

    /// Bytes kept, headers included, and those that were lent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start + self.lent_bytes
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Drops everything.
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

    /// Moves what is kept to the start of the memory, once that is no more
    /// than what is dropped: so each byte is moved once, on average.
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
    /// Keeps a frame whose payload is `start`, and then what was lent.
    pub fn push_lent(&mut self, header: FrameHeader, start: &[u8], end: L) {
        let place = self.removed + self.bytes.len() as u64;
        self.push(header, &[start]);
        self.lent_bytes += end.as_ref().len();
        self.lent.push_back((place, end));
    }

    /// Copies what was lent: it is given back.
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

    /// Drops frames from the first on for as long as `arrived` says.
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

    /// Visits every frame in order, its payload in two parts, until one
    /// fails.
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
