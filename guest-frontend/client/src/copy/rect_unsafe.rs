//! Two- and three-dimensional copies, and copies of arrays (CUDA Driver API, Memory
//! Management). The rules in `copy/mod.rs` apply here as well.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::frame::MAX_PAYLOAD;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{CopyRect, CopyRectFromDevice, CopyRectToDevice};
use paragpu_protocol::types::{ArrayEnd, CopyEnd, LinearEnd};

use super::Copies;
use crate::error::Result;
use crate::objects::array::ArrayLevel;
use crate::objects::graph::{CopyNodeEnd, CopyWork};
use crate::objects::stream::Stream;
use crate::statistics;
use crate::sys::memory::{HostRows, HostSlice};

/// Bytes of a copy in one call; a multiple of every element's size.
const PART: u64 = (MAX_PAYLOAD - 256) as u64;

/// One end of a rectangular copy.
#[derive(Debug, Clone, Copy)]
pub enum RectEnd<'a> {
    /// Memory of the device, or pinned memory by its device address: address
    /// of the first byte of the copy, bytes from row to row, rows from slice
    /// to slice.
    Device {
        /// First byte of the copy.
        address: u64,
        /// Bytes from one row to the next.
        pitch: u64,
        /// Rows from one slice to the next.
        rows: u64,
    },
    /// Memory of the program.
    Host {
        /// First byte of the copy.
        address: *mut c_void,
        /// Bytes from one row to the next.
        pitch: u64,
        /// Rows from one slice to the next.
        rows: u64,
    },
    /// An array.
    Array {
        /// The array.
        array: &'a ArrayLevel,
        /// Byte in the row, row, slice.
        origin: [u64; 3],
    },
}

/// Bytes of a copy.
///
/// # Errors
/// `INVALID_VALUE` if the number exceeds 64 bits.
pub(crate) fn volume(extent: [u64; 3]) -> Result<u64> {
    extent
        .iter()
        .try_fold(1_u64, |product, n| product.checked_mul(*n))
        .ok_or(Status::INVALID_VALUE)
}

/// Bytes between the first and the last byte of a linear end.
pub(crate) fn span([width, height, depth]: [u64; 3], pitch: u64, rows: u64) -> Result<u64> {
    let slices = (depth - 1).checked_mul(rows.max(height));
    slices
        .and_then(|above| above.checked_add(height - 1))
        .and_then(|rows| rows.checked_mul(pitch))
        .and_then(|bytes| bytes.checked_add(width))
        .ok_or(Status::INVALID_VALUE)
}

impl RectEnd<'_> {
    fn is_host(&self) -> bool {
        matches!(self, Self::Host { .. })
    }

    /// Refuses an end that is smaller than the extent.
    fn check(&self, extent @ [width, height, depth]: [u64; 3]) -> Result<()> {
        match self {
            Self::Device { pitch, rows, .. } | Self::Host { pitch, rows, .. } => {
                if (height > 1 || depth > 1) && *pitch < width {
                    return Err(Status::INVALID_VALUE);
                }
                if depth > 1 && *rows < height {
                    return Err(Status::INVALID_VALUE);
                }
                span(extent, *pitch, *rows).map(|_| ())
            }
            Self::Array { array, origin } => {
                let element = u64::from(array.array.element());
                let [columns, lines, slices] = array.extent();
                let [x, y, z] = *origin;
                let fits = |at: u64, count: u64, most: u64| {
                    at.checked_add(count).is_some_and(|end| end <= most)
                };
                let inside = fits(x, width, columns * element)
                    && fits(y, height, lines)
                    && fits(z, depth, slices)
                    && x % element == 0;
                if inside {
                    Ok(())
                } else {
                    Err(Status::INVALID_VALUE)
                }
            }
        }
    }

    /// The end, advanced by bytes, whole rows and slices.
    fn moved(&self, column: u64, row: u64, slice: u64) -> Self {
        match *self {
            Self::Device {
                address,
                pitch,
                rows,
            } => Self::Device {
                address: address + (slice * rows + row) * pitch + column,
                pitch,
                rows,
            },
            Self::Host {
                address,
                pitch,
                rows,
            } => Self::Host {
                address: address.wrapping_byte_add(
                    usize::try_from((slice * rows + row) * pitch + column).unwrap_or(0),
                ),
                pitch,
                rows,
            },
            Self::Array {
                array,
                origin: [x, y, z],
            } => Self::Array {
                array,
                origin: [x + column, y + row, z + slice],
            },
        }
    }

    /// The end as the next work finds it. `host` and `device` get the address and the bytes of
    /// linear memory; the device itself accesses the program's where `host` returns an address.
    fn reached(
        self,
        extent: [u64; 3],
        host: impl FnOnce(u64, u64) -> Result<Option<u64>>,
        device: impl FnOnce(u64, u64) -> Result<u64>,
    ) -> Result<Self> {
        let (address, pitch, rows) = match self {
            Self::Host {
                address,
                pitch,
                rows,
            } => (
                host(address as u64, span(extent, pitch, rows)?)?,
                pitch,
                rows,
            ),
            Self::Device {
                address,
                pitch,
                rows,
            } => (
                Some(device(address, span(extent, pitch, rows)?)?),
                pitch,
                rows,
            ),
            Self::Array { .. } => return Ok(self),
        };
        Ok(address.map_or(self, |address| Self::Device {
            address,
            pitch,
            rows,
        }))
    }

    /// The end in a graph node's form.
    fn of_node(&self) -> CopyNodeEnd {
        match *self {
            Self::Device {
                address,
                pitch,
                rows,
            } => CopyNodeEnd::Device {
                address,
                pitch,
                rows,
            },
            Self::Host {
                address,
                pitch,
                rows,
            } => CopyNodeEnd::Host {
                address: address.expose_provenance() as u64,
                pitch,
                rows,
            },
            Self::Array { array, origin } => CopyNodeEnd::Array {
                array: Arc::new(array.clone()),
                origin,
            },
        }
    }

    /// The end in the wire's form; `None` for memory of the program.
    fn wire(&self) -> Option<CopyEnd> {
        match *self {
            Self::Device {
                address,
                pitch,
                rows,
            } => Some(CopyEnd::Linear(LinearEnd {
                address,
                pitch,
                rows,
            })),
            Self::Array { array, origin } => Some(CopyEnd::Array(ArrayEnd {
                array: array.array.handle(),
                level: array.level,
                origin,
            })),
            Self::Host { .. } => None,
        }
    }
}

impl Copies {
    /// A copy in a graph node's form.
    ///
    /// # Errors
    /// `INVALID_VALUE` if an end is smaller than the extent or not allocated, or the extent is
    /// empty.
    pub fn node(
        &self,
        destination: RectEnd<'_>,
        source: RectEnd<'_>,
        extent: [u64; 3],
    ) -> Result<CopyWork> {
        if extent.contains(&0) {
            return Err(Status::INVALID_VALUE);
        }
        destination.check(extent)?;
        source.check(extent)?;
        let (destination, source) = (destination.of_node(), source.of_node());
        self.check_end(&destination, extent)?;
        self.check_end(&source, extent)?;
        Ok(CopyWork {
            ordinal: self.ordinal,
            destination,
            source,
            extent,
        })
    }

    /// cuMemcpy3D (with `wait`), cuMemcpy3DAsync and their simpler variants. `extent`:
    /// bytes in a row, rows, slices.
    ///
    /// # Errors
    /// `INVALID_VALUE`; the error of failed work.
    ///
    /// # Safety
    /// The rows of an [`RectEnd::Host`] must be readable or writable for as long
    /// as the call lasts, and pinned memory until the copy is complete.
    pub unsafe fn rect(
        &self,
        destination: RectEnd<'_>,
        source: RectEnd<'_>,
        extent: [u64; 3],
        stream: &Stream,
        wait: bool,
    ) -> Result<()> {
        if extent.contains(&0) {
            return self.link.check();
        }
        destination.check(extent)?;
        source.check(extent)?;
        if stream.is_capturing() {
            if wait {
                return stream.cannot_capture();
            }
            return self.capture(stream, destination.of_node(), source.of_node(), extent);
        }
        let bytes = volume(extent)?;
        if source.is_host() && !destination.is_host() {
            statistics::count_to_device(bytes);
        } else if destination.is_host() && !source.is_host() {
            statistics::count_from_device(bytes);
        }
        let from_host = source.is_host();
        let to_host = destination.is_host();
        let source = source.reached(
            extent,
            |address, size| self.source_of(address, size, stream),
            |address, size| self.access.before_read(address, size, stream),
        )?;
        let destination = destination.reached(
            extent,
            |address, size| self.destination_of(address, size, wait),
            |address, size| self.access.before(address, size),
        )?;
        match (destination.wire(), source.wire()) {
            (Some(to), Some(from)) => {
                let position = self.streams.post_work(
                    stream,
                    &CopyRect {
                        destination: to,
                        source: from,
                        extent,
                        stream: stream.handle(),
                        token: 0,
                    },
                )?;
                if let RectEnd::Device {
                    address,
                    pitch,
                    rows,
                } = destination
                {
                    let size = span(extent, pitch, rows)?;
                    self.access.after_write(address, size, stream, position);
                }
                if wait && (from_host || to_host) {
                    self.streams.synchronize(stream)?;
                }
                Ok(())
            }
            (Some(_), None) => {
                if wait {
                    self.streams.before_taking(stream)?;
                }
                self.rect_to_device(&destination, &source, extent, stream)?;
                match wait {
                    true => self.streams.after_taking(stream),
                    false => Ok(()),
                }
            }
            (None, Some(_)) => self.rect_from_device(&destination, &source, extent, stream),
            (None, None) => {
                self.streams.synchronize(stream)?;
                host_rect(&destination, &source, extent);
                Ok(())
            }
        }
    }

    /// Sends the rows in calls, as many whole rows in each as fit.
    fn rect_to_device(
        &self,
        destination: &RectEnd<'_>,
        source: &RectEnd<'_>,
        extent: [u64; 3],
        stream: &Stream,
    ) -> Result<()> {
        let mut data = Vec::new();
        for_pieces(extent, |[column, row, slice], [width, count]| {
            data.clear();
            for at in row..row + count {
                if let RectEnd::Host { address, .. } = source.moved(column, at, slice) {
                    let width = usize::try_from(width).unwrap_or(0);
                    // SAFETY: a row of a host end, readable by [`Copies::rect`]'s contract.
                    let row = unsafe { HostSlice::new(address, width) };
                    data.extend_from_slice(row.part(0, row.len()));
                }
            }
            let destination = destination.moved(column, row, slice);
            let Some(to) = destination.wire() else {
                return Err(Status::UNKNOWN);
            };
            let position = self.streams.post_work(
                stream,
                &CopyRectToDevice {
                    destination: to,
                    extent: [width, count, 1],
                    stream: stream.handle(),
                    data: Bytes(&data),
                },
            )?;
            if let RectEnd::Device { address, pitch, .. } = destination {
                self.access
                    .after_write(address, (count - 1) * pitch + width, stream, position);
            }
            Ok(())
        })
    }

    fn rect_from_device(
        &self,
        destination: &RectEnd<'_>,
        source: &RectEnd<'_>,
        extent: [u64; 3],
        stream: &Stream,
    ) -> Result<()> {
        let RectEnd::Host {
            address,
            pitch,
            rows,
        } = *destination
        else {
            return Err(Status::UNKNOWN);
        };
        let size = |n: u64| usize::try_from(n).map_err(|_| Status::INVALID_VALUE);
        let [width, height, depth] = extent;
        let extents = [size(width)?, size(height)?, size(depth)?];
        let slice = pitch.checked_mul(rows).ok_or(Status::INVALID_VALUE)?;
        let (pitch, slice) = (size(pitch)?, size(slice)?);
        // SAFETY: the rows of a host end, writable by [`Copies::rect`]'s contract.
        let place = unsafe { HostRows::rows(address, extents, pitch, slice) };
        let Some(source) = source.wire() else {
            return Err(Status::UNKNOWN);
        };
        let copy = CopyRectFromDevice {
            source,
            extent,
            stream: stream.handle(),
        };
        self.streams.copy_out(stream, &copy, place)
    }
}

/// Splits an extent into pieces that fit a call: runs of whole rows of a slice, or parts
/// of rows that are too long. `send` receives column, row and slice, then bytes in a row
/// and the number of rows.
fn for_pieces(
    [width, height, depth]: [u64; 3],
    mut send: impl FnMut([u64; 3], [u64; 2]) -> Result<()>,
) -> Result<()> {
    let part = width.min(PART);
    let rows = PART / part;
    for slice in 0..depth {
        let mut row = 0;
        while row < height {
            let count = rows.min(height - row);
            let mut column = 0;
            while column < width {
                let length = part.min(width - column);
                send([column, row, slice], [length, count])?;
                column += length;
            }
            row += count;
        }
    }
    Ok(())
}

/// Copies between two ends in the program's memory, for a graph node. Ignores other ends.
/// The program keeps the memory until the graph's last launch is complete, as CUDA
/// demands.
pub(crate) fn host_copy(destination: &CopyNodeEnd, source: &CopyNodeEnd, extent: [u64; 3]) {
    let end = |place: &CopyNodeEnd| match *place {
        CopyNodeEnd::Host {
            address,
            pitch,
            rows,
        } => Some(RectEnd::Host {
            address: std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0)),
            pitch,
            rows,
        }),
        _ => None,
    };
    if let (Some(destination), Some(source)) = (end(destination), end(source)) {
        host_rect(&destination, &source, extent);
    }
}

/// Copies between two ends in the program's memory.
fn host_rect(destination: &RectEnd<'_>, source: &RectEnd<'_>, [width, height, depth]: [u64; 3]) {
    for slice in 0..depth {
        for row in 0..height {
            let (RectEnd::Host { address: to, .. }, RectEnd::Host { address: from, .. }) = (
                destination.moved(0, row, slice),
                source.moved(0, row, slice),
            ) else {
                return;
            };
            let width = usize::try_from(width).unwrap_or(0);
            // SAFETY: rows of host ends, by [`Copies::rect`]'s contract.
            unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), width) };
        }
    }
}
