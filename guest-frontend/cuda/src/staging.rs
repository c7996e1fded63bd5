//! Copies between two devices of which neither reaches the other's memory.

use std::ffi::c_void;

use paragpu_client::Session;

use crate::sys::Result;

/// Maximum size of the buffer in bytes; a multiple of every array element's size.
const BUFFER: usize = 4 << 20;

/// A part of a copy, and its place in the buffer.
pub(crate) struct Part {
    /// Where it begins: byte in the row, row, slice.
    pub at: [usize; 3],
    /// Bytes in a row, rows, slices.
    pub extent: [usize; 3],
    /// Its first byte in the buffer.
    pub buffer: *mut c_void,
    /// Bytes from one row of the buffer to the next.
    pub pitch: usize,
}

/// Copies `extent` (bytes in a row, rows, slices) part by part through a buffer: `read`
/// fills the buffer from the device `from`, and `write` sends its contents to `to`. Both
/// return once the buffer may be reused.
pub(crate) fn copy(
    extent: [usize; 3],
    from: &Session,
    to: &Session,
    read: impl Fn(&Part) -> Result,
    write: impl Fn(&Part) -> Result,
) -> Result {
    from.synchronize()?;
    let [width, height, depth] = extent;
    // Whole rows, or parts of longer ones.
    let columns = width.min(BUFFER);
    let rows = (BUFFER / columns).min(height);
    let mut buffer = vec![0_u8; columns * rows];
    for slice in 0..depth {
        for row in (0..height).step_by(rows) {
            for column in (0..width).step_by(columns) {
                let part = Part {
                    at: [column, row, slice],
                    extent: [columns.min(width - column), rows.min(height - row), 1],
                    buffer: buffer.as_mut_ptr().cast(),
                    pitch: columns,
                };
                read(&part)?;
                write(&part)?;
            }
        }
    }
    to.synchronize()
}
