//! Splits a stream of bytes into frames.

use std::ops::Range;

use paragpu_communicator::Error;
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN, MAX_PAYLOAD};

/// A kind that no frame may have, because rings mark padding with it.
pub(crate) const RESERVED_KIND: u16 = 0xffff;

/// The kind of a heartbeat frame, which has no payload. Sending it lets the sender's kernel
/// find out whether the peer's still has the connection.
pub(crate) const HEARTBEAT: u16 = 0xfffe;

/// Bytes read at once if the next frame is small or unknown.
const READ: usize = 64 << 10;

/// Bytes read at once if a large frame is likely to follow: its header, and little of the
/// payload that lands elsewhere.
const SMALL_READ: usize = 128;

const CAPACITY: usize = 2 * (HEADER_LEN + MAX_PAYLOAD);

/// A buffer that bytes are read into and frames are taken from, without an
/// allocation or a copy per frame.
#[derive(Debug)]
pub(crate) struct Parser {
    buffer: Box<[u8]>,
    /// The offset of the first byte that is not consumed.
    start: usize,
    end: usize,
}

impl Parser {
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; CAPACITY].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// Whether the buffer contains a part of a frame.
    pub(crate) fn is_inside_frame(&self) -> bool {
        self.start != self.end
    }

    /// Begins with bytes that another parser has read.
    pub(crate) fn begin_with(&mut self, bytes: &[u8]) -> bool {
        let fits = self.buffer.get_mut(..bytes.len());
        let Some(start) = fits.filter(|_| self.start == self.end) else {
            return false;
        };
        start.copy_from_slice(bytes);
        (self.start, self.end) = (0, bytes.len());
        true
    }

    pub(crate) fn unread(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or(&[])
    }

    /// Returns the next frame, if it is complete; `place` returns its payload.
    pub(crate) fn next(&mut self) -> Result<Option<(FrameHeader, Range<usize>)>, Error> {
        let Some(header) = self.header()? else {
            return Ok(None);
        };
        let length = header.payload_len();
        if self.end - self.start < HEADER_LEN + length {
            return Ok(None);
        }
        let payload = self.start + HEADER_LEN;
        self.start = payload + length;
        Ok(Some((header, payload..payload + length)))
    }

    fn header(&self) -> Result<Option<FrameHeader>, Error> {
        let Some(bytes) = self.unread().first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let header =
            FrameHeader::from_bytes(bytes).map_err(|error| Error::protocol(error.to_string()))?;
        if header.kind == RESERVED_KIND {
            return Err(Error::protocol("kind 0xffff is reserved"));
        }
        Ok(Some(header))
    }

    /// The payload of the frame that `next` returned last. Valid until more is read.
    pub(crate) fn place(&self, payload: Range<usize>) -> &[u8] {
        self.buffer.get(payload).unwrap_or(&[])
    }

    /// The header of an incomplete frame, and the part of its payload that has arrived.
    pub(crate) fn begun(&self) -> Result<Option<(FrameHeader, &[u8])>, Error> {
        let payload = self.unread().get(HEADER_LEN..).unwrap_or(&[]);
        Ok(self.header()?.map(|header| (header, payload)))
    }

    /// Drops the part of a frame whose rest is received elsewhere.
    pub(crate) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// A small space to read into, for a frame that may be received elsewhere.
    pub(crate) fn small_space(&mut self) -> Result<&mut [u8], Error> {
        let space = self.space()?;
        let most = space.len().min(SMALL_READ);
        Ok(space.get_mut(..most).unwrap_or(&mut []))
    }

    /// The space to read into; not empty unless a complete frame is available. Moves an
    /// incomplete frame to the start of the buffer if its rest would not fit.
    pub(crate) fn space(&mut self) -> Result<&mut [u8], Error> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
        let have = self.end - self.start;
        let need = match self.header()? {
            Some(header) => HEADER_LEN + header.payload_len(),
            None => HEADER_LEN,
        };
        // Little more than the frame, so that few bytes must be moved later.
        let wanted = need.max(have) + READ;
        if self.start + wanted > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.start = 0;
            self.end = have;
        }
        let limit = (self.start + wanted).min(self.buffer.len());
        Ok(self.buffer.get_mut(self.end..limit).unwrap_or(&mut []))
    }

    /// Records that `count` bytes were read into `space`.
    pub(crate) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buffer.len());
    }
}
