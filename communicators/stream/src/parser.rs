//! Splits a stream of bytes into frames.

use std::ops::Range;

use paragpu_communicator::Error;
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN, MAX_PAYLOAD};

/// The kind that no frame may have: rings mark padding with it.
pub(crate) const RESERVED_KIND: u16 = 0xffff;

/// The kind of a frame that says nothing and has no payload: the sender's system
/// finds out with it whether the receiver's still knows of the connection.
pub(crate) const HEARTBEAT: u16 = 0xfffe;

/// Bytes read at once where the frame to come is small or unknown.
const READ: usize = 64 << 10;

/// Bytes read at once where a large frame is likely to follow: its header, and
/// little of what goes elsewhere.
const SIP: usize = 128;

const CAPACITY: usize = 2 * (HEADER_LEN + MAX_PAYLOAD);

/// A buffer that bytes are read into and frames are taken from, without an
/// allocation or a copy per frame.
#[derive(Debug)]
pub(crate) struct Parser {
    buffer: Box<[u8]>,
    /// The bytes read but not consumed.
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

    /// Whether bytes of an unfinished frame are there.
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

    /// The next frame, if all of it is there; `place` gives its payload.
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

    /// The payload of the frame that `next` gave last, until more is read.
    pub(crate) fn place(&self, payload: Range<usize>) -> &[u8] {
        self.buffer.get(payload).unwrap_or(&[])
    }

    /// The header and the rest of what is there of a frame that is not whole.
    pub(crate) fn begun(&self) -> Result<Option<(FrameHeader, &[u8])>, Error> {
        let payload = self.unread().get(HEADER_LEN..).unwrap_or(&[]);
        Ok(self.header()?.map(|header| (header, payload)))
    }

    /// Forgets what is there of a frame whose rest is received elsewhere.
    pub(crate) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Where to read a little to, for a frame that may be received elsewhere.
    pub(crate) fn sip(&mut self) -> Result<&mut [u8], Error> {
        let space = self.space()?;
        let most = space.len().min(SIP);
        Ok(space.get_mut(..most).unwrap_or(&mut []))
    }

    /// Where to read to; never empty while no whole frame is there. Moves an
    /// unfinished frame to the buffer's begin where its rest would not fit.
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
        // Little more than the frame, so that little is moved later.
        let wanted = need.max(have) + READ;
        if self.start + wanted > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.start = 0;
            self.end = have;
        }
        let limit = (self.start + wanted).min(self.buffer.len());
        Ok(self.buffer.get_mut(self.end..limit).unwrap_or(&mut []))
    }

    /// `count` bytes were read into `space`.
    pub(crate) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buffer.len());
    }
}
