//! Frames that were sent and may have to be sent again.

use std::collections::VecDeque;

use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};

/// Frames in the order they were sent, as they stand on the wire, back to
/// back in one piece of memory that is used again and again.
#[derive(Debug, Default)]
pub struct Retained {
    bytes: VecDeque<u8>,
}

impl Retained {
    /// With memory for so many bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: VecDeque::with_capacity(bytes),
        }
    }

    /// Keeps a frame.
    pub fn push(&mut self, header: FrameHeader, payload: &[&[u8]]) {
        self.bytes.extend(&header.to_bytes());
        for part in payload {
            self.bytes.extend(*part);
        }
    }

    /// Bytes kept, headers included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Is nothing kept?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Drops frames from the first on for as long as `arrived` says.
    pub fn trim(&mut self, mut arrived: impl FnMut(&FrameHeader) -> bool) {
        while let Some(header) = self.header_at(0) {
            if !arrived(&header) {
                return;
            }
            let whole = HEADER_LEN + header.payload_len();
            self.bytes.drain(..whole.min(self.bytes.len()));
        }
    }

    fn header_at(&self, at: usize) -> Option<FrameHeader> {
        let mut header = [0; HEADER_LEN];
        for (index, place) in header.iter_mut().enumerate() {
            *place = *self.bytes.get(at + index)?;
        }
        FrameHeader::from_bytes(&header).ok()
    }

    /// Visits every frame in order, its payload in two parts, until one fails.
    ///
    /// # Errors
    /// As `visit`.
    pub fn each<E>(
        &self,
        mut visit: impl FnMut(FrameHeader, [&[u8]; 2]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (front, back) = self.bytes.as_slices();
        let mut at = 0;
        while let Some(header) = self.header_at(at) {
            let start = at + HEADER_LEN;
            let end = start + header.payload_len();
            let part = |slice: &'_ [u8], base: usize| {
                let from = start.saturating_sub(base).min(slice.len());
                let to = end.saturating_sub(base).min(slice.len());
                from..to
            };
            visit(
                header,
                [
                    front.get(part(front, 0)).unwrap_or(&[]),
                    back.get(part(back, front.len())).unwrap_or(&[]),
                ],
            )?;
            at = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(retained: &Retained) -> Vec<(u64, Vec<u8>)> {
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
            retained.push(header, &[head, tail]);
            model.push_back((sequence, payload));
            if sequence % 11 == 0 {
                let to = sequence - sequence % 23;
                retained.trim(|header| header.sequence <= to);
                model.retain(|(sequence, _)| *sequence > to);
            }
            if sequence % 97 == 0 {
                assert_eq!(frames(&retained), Vec::from(model.clone()));
            }
        }
        retained.trim(|_| true);
        assert!(retained.is_empty() && frames(&retained).is_empty());
    }
}
