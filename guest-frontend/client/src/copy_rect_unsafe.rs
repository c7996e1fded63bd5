//! Two- and three-dimensional copies, and copies of arrays (CUDA Driver API,
//! Memory Management). What [`crate::copy`] says of linear memory holds here.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::frame::MAX_PAYLOAD;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{CopyRect, CopyRectFromDevice, CopyRectToDevice};
use paragpu_protocol::types::{ArrayEnd, CopyEnd, LinearEnd};

use crate::error::Result;
use crate::graph::{CopyWork, Place};
use crate::host::Reach;
use crate::session::Session;
use crate::statistics;
use crate::stream::Stream;
use crate::sys::memory::{Destination, Source};
use crate::texture::ArrayLevel;

/// Bytes of a copy in one call; a multiple of every element's size.
const PART: u64 = (MAX_PAYLOAD - 256) as u64;

/// One end of a rectangular copy.
#[derive(Debug, Clone, Copy)]
pub enum End<'a> {
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
    /// Memory of the program, likewise.
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

/// Bytes between the first and the last byte of a linear end.
pub(crate) fn span([width, height, depth]: [u64; 3], pitch: u64, rows: u64) -> Result<u64> {
    let slices = (depth - 1).checked_mul(rows.max(height));
    slices
        .and_then(|above| above.checked_add(height - 1))
        .and_then(|rows| rows.checked_mul(pitch))
        .and_then(|bytes| bytes.checked_add(width))
        .ok_or(Status::INVALID_VALUE)
}

impl End<'_> {
    fn is_host(&self) -> bool {
        matches!(self, Self::Host { .. })
    }

    /// Refuses what does not hold the extent.
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
                    && x % element == 0
                    && width % element == 0;
                if inside {
                    Ok(())
                } else {
                    Err(Status::INVALID_VALUE)
                }
            }
        }
    }

    /// The end, moved by bytes, whole rows and slices.
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

    /// The end as a node of a graph names it.
    fn place(&self) -> Place {
        match *self {
            Self::Device {
                address,
                pitch,
                rows,
            } => Place::Device {
                address,
                pitch,
                rows,
            },
            Self::Host {
                address,
                pitch,
                rows,
            } => Place::Host {
                address: address.expose_provenance() as u64,
                pitch,
                rows,
            },
            Self::Array { array, origin } => Place::Array {
                array: Arc::new(array.clone()),
                origin,
            },
        }
    }

    /// The end as the host is told; `None` for memory of the program.
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
                array: array.array.handle,
                level: array.level,
                origin,
            })),
            Self::Host { .. } => None,
        }
    }
}

impl Session {
    /// A copy as a node of a graph has it.
    ///
    /// # Errors
    /// `INVALID_VALUE` where an end does not hold the extent, or it is empty.
    pub fn copy_node(
        &self,
        destination: End<'_>,
        source: End<'_>,
        extent: [u64; 3],
    ) -> Result<CopyWork> {
        if extent.contains(&0) {
            return Err(Status::INVALID_VALUE);
        }
        destination.check(extent)?;
        source.check(extent)?;
        Ok(CopyWork {
            ordinal: self.ordinal,
            destination: destination.place(),
            source: source.place(),
            extent,
        })
    }

    /// cuMemcpy3D (with `wait`), cuMemcpy3DAsync and all that they include.
    /// `extent`: bytes in a row, rows, slices.
    ///
    /// # Errors
    /// `INVALID_VALUE`; of work that failed.
    ///
    /// # Safety
    /// The rows of an [`End::Host`] must be readable or writable for as long
    /// as the call lasts, and pinned memory until the copy is over.
    pub unsafe fn copy_rect(
        &self,
        destination: End<'_>,
        source: End<'_>,
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
            return self.capture_copy(stream, destination.place(), source.place(), extent);
        }
        let bytes = extent
            .iter()
            .try_fold(1_u64, |product, n| product.checked_mul(*n))
            .ok_or(Status::INVALID_VALUE)?;
        if source.is_host() && !destination.is_host() {
            statistics::count_to_device(bytes);
        } else if destination.is_host() && !source.is_host() {
            statistics::count_from_device(bytes);
        }
        let from_host = source.is_host();
        let to_host = destination.is_host();
        let source = self.reach_end(source, extent)?;
        let destination = self.reach_end(destination, extent)?;
        match (destination.wire(), source.wire()) {
            (Some(to), Some(from)) => {
                let position = self.post_work(
                    stream,
                    &CopyRect {
                        destination: to,
                        source: from,
                        extent,
                        stream: stream.handle(),
                        token: 0,
                    },
                )?;
                if let End::Device {
                    address,
                    pitch,
                    rows,
                } = destination
                {
                    let size = span(extent, pitch, rows)?;
                    self.device_writes(address, size, stream, position);
                }
                if wait && (from_host || to_host) {
                    self.stream_synchronize(stream)?;
                }
                Ok(())
            }
            (Some(_), None) => {
                if wait {
                    self.before_taking(stream)?;
                }
                self.rect_to_device(&destination, &source, extent, stream)?;
                if wait {
                    self.after_taking(stream);
                }
                Ok(())
            }
            (None, Some(_)) => self.rect_from_device(&destination, &source, extent, stream),
            (None, None) => {
                self.stream_synchronize(stream)?;
                host_rect(&destination, &source, extent);
                Ok(())
            }
        }
    }

    /// Pinned memory of the window is reached by the device itself; device
    /// memory must be allocated.
    fn reach_end<'a>(&self, end: End<'a>, extent: [u64; 3]) -> Result<End<'a>> {
        match end {
            End::Host {
                address,
                pitch,
                rows,
            } => {
                let size = span(extent, pitch, rows)?;
                match self.host.reach(address as u64, size) {
                    Reach::Direct(address) => Ok(End::Device {
                        address,
                        pitch,
                        rows,
                    }),
                    Reach::Shadow(region) => {
                        if region.has_writers() || self.callbacks.outstanding() > 0 {
                            self.synchronize()?;
                        }
                        Ok(end)
                    }
                    Reach::Pageable => Ok(end),
                }
            }
            End::Device {
                address,
                pitch,
                rows,
            } => Ok(End::Device {
                address: self.before_device_writes(address, span(extent, pitch, rows)?)?,
                pitch,
                rows,
            }),
            End::Array { .. } => Ok(end),
        }
    }

    /// The rows travel in calls, as many whole rows in one as fit.
    fn rect_to_device(
        &self,
        destination: &End<'_>,
        source: &End<'_>,
        extent: [u64; 3],
        stream: &Stream,
    ) -> Result<()> {
        let mut data = Vec::new();
        for_pieces(extent, |[column, row, slice], [width, count]| {
            data.clear();
            for at in row..row + count {
                if let End::Host { address, .. } = source.moved(column, at, slice) {
                    let row = row_source(address, width);
                    data.extend_from_slice(row.part(0, row.len()));
                }
            }
            let destination = destination.moved(column, row, slice);
            let Some(to) = destination.wire() else {
                return Err(Status::UNKNOWN);
            };
            let position = self.post_work(
                stream,
                &CopyRectToDevice {
                    destination: to,
                    extent: [width, count, 1],
                    stream: stream.handle(),
                    data: Bytes(&data),
                },
            )?;
            if let End::Device { address, pitch, .. } = destination {
                self.device_writes(address, (count - 1) * pitch + width, stream, position);
            }
            Ok(())
        })
    }

    fn rect_from_device(
        &self,
        destination: &End<'_>,
        source: &End<'_>,
        extent: [u64; 3],
        stream: &Stream,
    ) -> Result<()> {
        let End::Host {
            address,
            pitch,
            rows,
        } = *destination
        else {
            return Err(Status::UNKNOWN);
        };
        let size = |n: u64| usize::try_from(n).map_err(|_| Status::INVALID_VALUE);
        let [width, height, depth] = extent;
        let place = rows_destination(
            address,
            [size(width)?, size(height)?, size(depth)?],
            size(pitch)?,
            size(pitch.checked_mul(rows).ok_or(Status::INVALID_VALUE)?)?,
        );
        let Some(source) = source.wire() else {
            return Err(Status::UNKNOWN);
        };
        let before = self.before(stream);
        self.link.call_with(
            &CopyRectFromDevice {
                source,
                extent,
                stream: stream.handle(),
            },
            Some(place),
            |()| (),
        )?;
        self.finished(stream, before);
        self.pull()
    }
}

/// Pieces of an extent whose bytes fit a call: runs of whole rows of a slice,
/// or parts of rows that are too long. `send` is given column, row and slice,
/// then bytes in a row and rows.
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

fn row_source(address: *mut c_void, width: u64) -> Source {
    // SAFETY: a row of a host end, readable by `copy_rect`'s contract.
    unsafe { Source::new(address, usize::try_from(width).unwrap_or(0)) }
}

fn rows_destination(
    address: *mut c_void,
    extent: [usize; 3],
    pitch: usize,
    slice_pitch: usize,
) -> Destination {
    // SAFETY: the rows of a host end, writable by `copy_rect`'s contract.
    unsafe { Destination::rows(address, extent, pitch, slice_pitch) }
}

/// Copies between two ends of the program's memory, as a graph's node; other
/// ends are left alone. The program keeps the memory until the graph's last
/// launch is over, as CUDA demands.
pub(crate) fn host_copy(destination: &Place, source: &Place, extent: [u64; 3]) {
    let end = |place: &Place| match *place {
        Place::Host {
            address,
            pitch,
            rows,
        } => Some(End::Host {
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

/// Both ends are the program's own.
fn host_rect(destination: &End<'_>, source: &End<'_>, [width, height, depth]: [u64; 3]) {
    for slice in 0..depth {
        for row in 0..height {
            let (End::Host { address: to, .. }, End::Host { address: from, .. }) = (
                destination.moved(0, row, slice),
                source.moved(0, row, slice),
            ) else {
                return;
            };
            let width = usize::try_from(width).unwrap_or(0);
            // SAFETY: rows of host ends, by `copy_rect`'s contract.
            unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), width) };
        }
    }
}
