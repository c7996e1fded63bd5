//! Copies of the library's own to device memory, which wait for no work of the program.

use super::Copies;
use crate::error::Result;
use crate::objects::stream::Stream;
use crate::sys::memory::HostSlice;

/// Minimum size for which a copy through staging slots is worthwhile.
const SHORTEST: usize = 1 << 20;

impl Copies {
    /// Copies to device memory through staging slots, in a stream of the library's own.
    /// [`Streams::finish_own`](crate::stream::Streams::finish_own) waits for the end of the
    /// copy. Returns false if the bytes must be sent in another way: few bytes, no slots, or
    /// host functions, behind which calls and slots may wait.
    ///
    /// # Errors
    /// The error of failed work.
    pub(crate) fn to_device_in_bulk(
        &self,
        destination: u64,
        source: &HostSlice,
        stream: &Stream,
    ) -> Result<bool> {
        let Some(staging) = self.staging() else {
            return Ok(false);
        };
        if source.len() < SHORTEST || self.host_functions.outstanding() > 0 {
            return Ok(false);
        }
        self.stage_in(staging, destination, source, stream)?;
        Ok(true)
    }
}
