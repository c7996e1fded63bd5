//! Frames that were sent and may have to be sent again.

use std::collections::VecDeque;

use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};

/// Frames in the order they were sent. What is small stands as on the wire,
/// back to back in one piece of memory that is used again and again; large
/// payloads can stay where they are, in memory `L` that was lent.
#[derive(Debug)]
pub struct Retained<L> {
    bytes: VecDeque<u8>,
    /// How many bytes were ever dropped from the begin of `bytes`.
    dropped: u64,
    /// The ends of payloads that are not in `bytes`, by the position at which
    /// their frames begin, counted with those dropped.
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
            bytes: VecDeque::with_capacity(bytes),
            dropped: 0,
            lent: VecDeque::new(),
            lent_bytes: 0,
        }
    }

    /// Keeps a frame.
    pub fn push(&mut self, header: FrameHeader, payload: &[&[u8]]) {
        self.bytes.extend(&header.to_bytes());
        for part in payload {
            self.bytes.extend(*part);
        }
    }

    /// Bytes kept, headers included, and those that were lent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.lent_bytes
    }

    /// Is nothing kept?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lent.clear();
        self.lent_bytes = 0;
    }

    fn header_at(&self, at: usize) -> Option<FrameHeader> {
        let mut header = [0; HEADER_LEN];
        for (index, place) in header.iter_mut().enumerate() {
            *place = *self.bytes.get(at + index)?;
        }
        FrameHeader::from_bytes(&header).ok()
    }
}

impl<L: AsRef<[u8]>> Retained<L> {
    /// Keeps a frame whose payload is `start`, and then what was lent.
    pub fn push_lent(&mut self, header: FrameHeader, start: &[u8], end: L) {
        let place = self.dropped + self.bytes.len() as u64;
        self.push(header, &[start]);
        self.lent_bytes += end.as_ref().len();
        self.lent.push_back((place, end));
    }

    /// Copies what was lent: it is given back.
    pub fn own(&mut self) {
        if self.lent.is_empty() {
            return;
        }
        let mut owned = VecDeque::with_capacity(self.len().max(self.bytes.capacity()));
        let copied = self.each(|header, payload| {
            owned.extend(&header.to_bytes());
            payload.iter().for_each(|part| owned.extend(*part));
            Ok::<(), std::convert::Infallible>(())
        });
        copied.unwrap_or_else(|never| match never {});
        self.clear();
        self.bytes = owned;
    }

    /// Drops frames from the first on for as long as `arrived` says.
    pub fn trim(&mut self, mut arrived: impl FnMut(&FrameHeader) -> bool) {
        while let Some(header) = self.header_at(0) {
            if !arrived(&header) {
                return;
            }
            let mut whole = HEADER_LEN + header.payload_len();
            let is_here = |(place, _): &(u64, L)| *place == self.dropped;
            if self.lent.front().is_some_and(is_here)
                && let Some((_, lent)) = self.lent.pop_front()
            {
                whole -= lent.as_ref().len();
                self.lent_bytes -= lent.as_ref().len();
            }
            let whole = whole.min(self.bytes.len());
            self.bytes.drain(..whole);
            self.dropped += whole as u64;
        }
    }

    /// Visits every frame in order, its payload in three parts, until one
    /// fails.
    ///
    /// # Errors
    /// As `visit`.
    pub fn each<E>(
        &self,
        mut visit: impl FnMut(FrameHeader, [&[u8]; 3]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (front, back) = self.bytes.as_slices();
        let mut lent = self.lent.iter().peekable();
        let mut at = 0;
        while let Some(header) = self.header_at(at) {
            let is_here = |(place, _): &&(u64, L)| *place == self.dropped + at as u64;
            let end = lent
                .next_if(is_here)
                .map_or(&[][..], |(_, lent)| lent.as_ref());
            let start = at + HEADER_LEN;
            at = start + header.payload_len() - end.len();
            let part = |slice: &'_ [u8], base: usize| {
                let from = start.saturating_sub(base).min(slice.len());
                let to = at.saturating_sub(base).min(slice.len());
                from..to
            };
            visit(
                header,
                [
                    front.get(part(front, 0)).unwrap_or(&[]),
                    back.get(part(back, front.len())).unwrap_or(&[]),
                    end,
                ],
            )?;
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
    fn frames_come_back_as_they_were_around_the_ring() {
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
