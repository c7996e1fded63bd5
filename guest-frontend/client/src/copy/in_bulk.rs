//! Copies of the library's own between device memory and managed memory, which wait for
//! no work of the program.

use super::Copies;
use crate::error::Result;
use crate::objects::stream::Stream;
use crate::staging::StagedCopy;
use crate::sys::memory::HostSlice;

/// Minimum size for which a copy through staging slots is worthwhile.
const SHORTEST: usize = 512 << 10;

impl Copies {
    /// The slots for a copy of this size. `None` if the bytes must be sent in another way: few
    /// bytes, no slots, or host functions, behind which calls and slots may wait.
    fn bulk(&self, size: usize) -> Result<Option<StagedCopy<'_>>> {
        let is_worthwhile = size >= SHORTEST && self.host_functions.outstanding() == 0;
        match self.staging().filter(|_| is_worthwhile) {
            Some(staging) => staging.begin(&self.link),
            None => Ok(None),
        }
    }

    /// Copies to device memory through staging slots, in a stream of the library's own.
    /// [`Streams::finish_own`](crate::stream::Streams::finish_own) waits for the end of the
    /// copy. Returns false if the bytes must be sent in another way.
    ///
    /// # Errors
    /// The error of failed work.
    pub(crate) fn send_in_bulk(
        &self,
        destination: u64,
        source: &HostSlice,
        stream: &Stream,
    ) -> Result<bool> {
        let Some(staging) = self.bulk(source.len())? else {
            return Ok(false);
        };
        self.stage_in(&staging, destination, source, |to, from, size, token| {
            self.post_only(to, from, size, stream, token).map(drop)
        })?;
        Ok(true)
    }

    /// Copies from device memory through staging slots, in a stream of the library's own.
    /// `take` gets pieces in ascending order, with their offsets. Returns false if the bytes,
    /// or the rest of them, must be fetched in another way.
    ///
    /// # Errors
    /// The error of failed work, or of `take`.
    pub(crate) fn fetch_in_bulk(
        &self,
        source: u64,
        size: usize,
        stream: &Stream,
        mut take: impl FnMut(usize, HostSlice) -> Result<()>,
    ) -> Result<bool> {
        let Some(staging) = self.bulk(size)? else {
            return Ok(false);
        };
        let mut is_whole = true;
        self.stage_out_part(
            &staging,
            (source, size),
            stream,
            (0, 1),
            |slot, at, length| {
                // The device's host no longer shares the slots.
                is_whole &= !slot.is_apart();
                match is_whole {
                    true => take(at, slot.bytes(length)?),
                    false => Ok(()),
                }
            },
        )?;
        // All copies are complete. Recorded, or the stream would seem to have work in flight.
        self.streams.finish_own(stream)?;
        Ok(is_whole)
    }
}
