//! Filling memory (CUDA Driver API, Memory Management).

use paragpu_protocol::status::Status;
use paragpu_protocol::table::Memset;

use super::Copies;
use crate::error::Result;
use crate::objects::graph::{Fill, Work};
use crate::objects::stream::Stream;

impl Copies {
    /// cuMemsetD8Async, D16, D32 and their 2D forms: `height` rows of `width`
    /// elements of `element` bytes (1, 2, 4).
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    #[allow(clippy::too_many_arguments)]
    pub fn memset(
        &self,
        destination: u64,
        pitch: u64,
        value: u32,
        element: u8,
        width: u64,
        height: u64,
        stream: &Stream,
    ) -> Result<()> {
        if width == 0 || height == 0 {
            return self.link.check();
        }
        let row = width
            .checked_mul(element.into())
            .ok_or(Status::INVALID_VALUE)?;
        if !destination.is_multiple_of(element.into())
            || (height > 1 && (pitch < row || !pitch.is_multiple_of(element.into())))
        {
            return Err(Status::INVALID_VALUE);
        }
        let size = (height - 1)
            .checked_mul(pitch)
            .and_then(|above| above.checked_add(row))
            .ok_or(Status::INVALID_VALUE)?;
        if stream.is_capturing() {
            return stream.note(Work::Memset(Fill {
                ordinal: self.ordinal,
                destination,
                pitch,
                value,
                element,
                width,
                height,
            }));
        }
        let destination = self.access.before(destination, size)?;
        let position = self.streams.post_work(
            stream,
            &Memset {
                destination,
                pitch,
                value,
                element,
                width,
                height,
                stream: stream.handle(),
            },
        )?;
        self.access.after_write(destination, size, stream, position);
        Ok(())
    }
}
