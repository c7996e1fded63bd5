//! Two- and three-dimensional copies, and copies of arrays (CUDA Driver API,
//! Memory Management).

use std::ffi::{c_uint, c_void};

use paragpu_abi::{
    CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED,
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUarray, CUdeviceptr, CUstream,
};
use paragpu_client::Session;
use paragpu_client::copy::RectEnd;
use paragpu_client::objects::graph::CopyWork;
use paragpu_client::texture::ArrayLevel;
use paragpu_protocol::status::Status;
use std::ptr;
use std::sync::Arc;

use super::{Result, array, copy, get, host, memory, pointer};
use crate::address::is_device_only;
use crate::staging::{self, Part};
use crate::{current, named_stream};

/// One end of a copy, as the program describes it.
struct Side {
    kind: c_uint,
    host: *mut c_void,
    device: u64,
    array: CUarray,
    /// Byte in the row, row, slice.
    origin: [usize; 3],
    pitch: usize,
    rows: usize,
}

/// A side whose handles were looked up.
enum ResolvedEnd {
    Device(u64),
    Host(*mut c_void),
    Array(Arc<ArrayLevel>, &'static Session),
}

impl ResolvedEnd {
    /// 0 if it is an array.
    fn address(&self) -> u64 {
        match self {
            Self::Device(address) => *address,
            Self::Host(address) => address.addr() as u64,
            Self::Array(..) => 0,
        }
    }

    /// The session whose device memory or array it is.
    fn owner(&self) -> Option<&'static Session> {
        match self {
            Self::Device(address) => memory::owner(*address).ok(),
            Self::Host(_) => None,
            Self::Array(_, session) => Some(session),
        }
    }

    /// The session that copies it: the stream's, unless its device does not reach the memory
    /// and another's has it.
    fn session(&self, stream: &'static Session) -> &'static Session {
        match self {
            Self::Host(_) => stream,
            Self::Device(address) => {
                memory::owner_out_of_reach(stream, *address, 1).unwrap_or(stream)
            }
            Self::Array(_, session) => session,
        }
    }
}

impl Side {
    fn look(&self) -> Result<ResolvedEnd> {
        Ok(match self.kind.cast_signed() {
            CU_MEMORYTYPE_HOST if is_device_only(self.host.addr() as u64) => {
                ResolvedEnd::Device(self.host.addr() as u64)
            }
            CU_MEMORYTYPE_HOST if !self.host.is_null() => ResolvedEnd::Host(self.host),
            CU_MEMORYTYPE_DEVICE if self.device != 0 => ResolvedEnd::Device(self.device),
            CU_MEMORYTYPE_UNIFIED if self.device != 0 => {
                if copy::is_host(self.device)? {
                    ResolvedEnd::Host(copy::pointer(self.device))
                } else {
                    ResolvedEnd::Device(self.device)
                }
            }
            CU_MEMORYTYPE_ARRAY if !self.array.is_null() => {
                let found = array::find(self.array)?;
                let inner = array::inner(&found)?;
                ResolvedEnd::Array(Arc::clone(&inner.object), inner.session)
            }
            _ => return Err(Status::INVALID_VALUE),
        })
    }

    /// Pitch and rows of a slice. A pitch or height of 0 means rows or slices without gaps.
    fn layout(&self, [width, height, _]: [usize; 3]) -> (usize, usize) {
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        let rows = if self.rows == 0 { height } else { self.rows };
        (pitch, rows)
    }

    /// The side, moved to byte, row and slice `at` of a copy of `extent`.
    fn moved(&self, at: [usize; 3], extent: [usize; 3]) -> Self {
        // They do not follow from the extent of a part.
        let (pitch, rows) = self.layout(extent);
        Self {
            pitch,
            rows,
            origin: std::array::from_fn(|axis| self.origin[axis].saturating_add(at[axis])),
            ..*self
        }
    }

    fn end<'a>(&self, looked: &'a ResolvedEnd, extent: [usize; 3]) -> Result<RectEnd<'a>> {
        let [x, y, z] = self.origin;
        let (pitch, rows) = self.layout(extent);
        let offset = z
            .checked_mul(rows)
            .and_then(|above| above.checked_add(y))
            .and_then(|rows| rows.checked_mul(pitch))
            .and_then(|bytes| bytes.checked_add(x))
            .ok_or(Status::INVALID_VALUE)?;
        Ok(match looked {
            ResolvedEnd::Device(address) => RectEnd::Device {
                address: address
                    .checked_add(offset as u64)
                    .ok_or(Status::INVALID_VALUE)?,
                pitch: pitch as u64,
                rows: rows as u64,
            },
            ResolvedEnd::Host(address) => RectEnd::Host {
                address: address.wrapping_byte_add(offset),
                pitch: pitch as u64,
                rows: rows as u64,
            },
            ResolvedEnd::Array(array, _) => RectEnd::Array {
                array,
                origin: [x as u64, y as u64, z as u64],
            },
        })
    }
}

/// Copies between two sides.
///
/// # Safety
/// The rows of a side in the program's memory are there for `extent`, until the
/// copy is complete (cuMemcpy2D, cuMemcpy3D).
unsafe fn run(to: &Side, from: &Side, extent: [usize; 3], stream: CUstream, wait: bool) -> Result {
    let named = named_stream::named(stream)?;
    let (session, found) = named.both()?;
    if extent.contains(&0) {
        return session.check();
    }
    let (to_looked, from_looked) = (to.look()?, from.look()?);
    let ends = [
        Located::new(to, &to_looked, session),
        Located::new(from, &from_looked, session),
    ];
    if !ends.iter().all(|end| ptr::eq(session, end.session)) {
        // Nothing orders the copies of another device behind this stream.
        session.streams().synchronize(found)?;
        // SAFETY: the caller upholds the contract of `elsewhere`.
        return unsafe { elsewhere(&ends, extent) };
    }
    if let (ResolvedEnd::Host(source), false) = (&from_looked, wait) {
        host::await_writes(session, found, source.cast_const())?;
    }
    let mut is_across = false;
    if wait {
        for end in [&to_looked, &from_looked] {
            // Nothing orders work of the device that has the memory before the copy, or after it.
            if let Some(owner) = end.owner().filter(|owner| !ptr::eq(*owner, session)) {
                owner.synchronize()?;
                is_across = true;
            }
        }
    }
    // SAFETY: the caller upholds the contract of `Copies>::rect`.
    unsafe {
        session.copies().rect(
            to.end(&to_looked, extent)?,
            from.end(&from_looked, extent)?,
            extent.map(|n| n as u64),
            found,
            wait,
        )
    }?;
    match wait {
        true if is_across => session.streams().synchronize(found),
        true => pointer::finish(&[to_looked.address(), from_looked.address()], stream),
        false => Ok(()),
    }
}

/// A resolved side with the session that copies it.
struct Located<'a> {
    side: &'a Side,
    end: &'a ResolvedEnd,
    session: &'static Session,
}

impl<'a> Located<'a> {
    fn new(side: &'a Side, end: &'a ResolvedEnd, stream: &'static Session) -> Self {
        let session = end.session(stream);
        Self { side, end, session }
    }

    fn is_host(&self) -> bool {
        matches!(self.end, ResolvedEnd::Host(_))
    }

    /// Copies a part of a copy of `extent` into its place in the buffer, or from there.
    ///
    /// # Safety
    /// The part is in the buffer, which nothing else uses until the call returns.
    unsafe fn through(&self, part: &Part, extent: [usize; 3], is_read: bool) -> Result {
        let device = self
            .side
            .moved(part.at, extent)
            .end(self.end, part.extent)?;
        let buffer = RectEnd::Host {
            address: part.buffer,
            pitch: part.pitch as u64,
            rows: part.extent[1] as u64,
        };
        let (to, from) = match is_read {
            true => (buffer, device),
            false => (device, buffer),
        };
        let size = part.extent.map(|n| n as u64);
        let session = self.session;
        // SAFETY: the caller upholds the contract of `Copies::rect`; the call waits.
        unsafe {
            session
                .copies()
                .rect(to, from, size, session.legacy(), true)
        }
    }
}

/// Copies from the second end to the first where the stream's device does not reach both.
/// Between two devices the bytes go through the program.
///
/// # Safety
/// As for [`run`].
unsafe fn elsewhere([to, from]: &[Located<'_>; 2], extent: [usize; 3]) -> Result {
    let one = if to.is_host() { from } else { to };
    if to.is_host() || from.is_host() || ptr::eq(to.session, from.session) {
        let (into, out) = (
            to.side.end(to.end, extent)?,
            from.side.end(from.end, extent)?,
        );
        let extent = extent.map(|n| n as u64);
        let session = one.session;
        // SAFETY: the caller upholds the contract of `Copies>::rect`.
        return unsafe {
            session
                .copies()
                .rect(into, out, extent, session.legacy(), true)
        };
    }
    staging::copy(
        extent,
        from.session,
        to.session,
        // SAFETY: as `Located::through` requires, of the buffer.
        |part| unsafe { from.through(part, extent, true) },
        // SAFETY: likewise.
        |part| unsafe { to.through(part, extent, false) },
    )
}

/// One two-dimensional copy.
///
/// # Safety
/// `copy` is null or describes a copy as CUDA documents for `cuMemcpy2D`.
pub(super) unsafe fn flat(copy: *const CUDA_MEMCPY2D, stream: CUstream, wait: bool) -> Result {
    // SAFETY: `copy` is null or readable, as the caller promises.
    let copy = unsafe { get(copy) }?;
    let to = Side {
        kind: copy.dstMemoryType,
        host: copy.dstHost,
        device: copy.dstDevice,
        array: copy.dstArray,
        origin: [copy.dstXInBytes, copy.dstY, 0],
        pitch: copy.dstPitch,
        rows: 0,
    };
    let from = Side {
        kind: copy.srcMemoryType,
        host: copy.srcHost.cast_mut(),
        device: copy.srcDevice,
        array: copy.srcArray,
        origin: [copy.srcXInBytes, copy.srcY, 0],
        pitch: copy.srcPitch,
        rows: 0,
    };
    let extent = [copy.WidthInBytes, copy.Height, 1];
    check_rows([&to, &from], extent)?;
    // Unified memory is named by the device field. SAFETY: the caller upholds the contract
    // of `run`.
    unsafe { run(&to, &from, extent, stream, wait) }
}

/// Refuses rows that reach past their pitch, also a single one.
fn check_rows(sides: [&Side; 2], extent: [usize; 3]) -> Result {
    let is_narrow = |side: &&Side| {
        let is_linear = side.kind.cast_signed() != CU_MEMORYTYPE_ARRAY;
        let end = side.origin[0].saturating_add(extent[0]);
        is_linear && side.pitch != 0 && side.pitch < end
    };
    match !extent.contains(&0) && sides.iter().any(is_narrow) {
        true => Err(Status::INVALID_VALUE),
        false => Ok(()),
    }
}

/// Both ends of a copy and its extent.
fn sides(copy: &CUDA_MEMCPY3D) -> Result<(Side, Side, [usize; 3])> {
    if copy.srcLOD != 0 || copy.dstLOD != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let to = Side {
        kind: copy.dstMemoryType,
        host: copy.dstHost,
        device: copy.dstDevice,
        array: copy.dstArray,
        origin: [copy.dstXInBytes, copy.dstY, copy.dstZ],
        pitch: copy.dstPitch,
        rows: copy.dstHeight,
    };
    let from = Side {
        kind: copy.srcMemoryType,
        host: copy.srcHost.cast_mut(),
        device: copy.srcDevice,
        array: copy.srcArray,
        origin: [copy.srcXInBytes, copy.srcY, copy.srcZ],
        pitch: copy.srcPitch,
        rows: copy.srcHeight,
    };
    let extent = [copy.WidthInBytes, copy.Height, copy.Depth];
    check_rows([&to, &from], extent)?;
    let reaches_past = |side: &Side| {
        let is_linear = side.kind.cast_signed() != CU_MEMORYTYPE_ARRAY;
        let end = side.origin[1].saturating_add(extent[1]);
        is_linear && extent[2] > 1 && side.rows != 0 && side.rows < end
    };
    match reaches_past(&to) || reaches_past(&from) {
        true => Err(Status::INVALID_VALUE),
        false => Ok((to, from, extent)),
    }
}

/// One three-dimensional copy.
///
/// # Safety
/// `copy` is null or describes a copy as CUDA documents for `cuMemcpy3D`.
pub unsafe fn volume(copy: *const CUDA_MEMCPY3D, stream: CUstream, wait: bool) -> Result {
    // SAFETY: `copy` is null or readable, as the caller promises.
    let (to, from, extent) = sides(unsafe { get(copy) }?)?;
    // SAFETY: the caller upholds the contract of `run`.
    unsafe { run(&to, &from, extent, stream, wait) }
}

/// A copy as a node of a graph has it.
///
/// # Safety
/// `copy` is null or describes a copy as CUDA documents for
/// cuGraphAddMemcpyNode.
pub unsafe fn node(session: &Session, copy: *const CUDA_MEMCPY3D) -> Result<CopyWork> {
    // SAFETY: `copy` is null or readable, as the caller promises.
    let (to, from, extent) = sides(unsafe { get(copy) }?)?;
    let (to_looked, from_looked) = (to.look()?, from.look()?);
    session.copies().node(
        to.end(&to_looked, extent)?,
        from.end(&from_looked, extent)?,
        extent.map(|n| n as u64),
    )
}

/// Between the devices of two contexts. The addresses and arrays say which devices have
/// them.
///
/// # Safety
/// `copy` is null or describes a copy as CUDA documents for `cuMemcpy3DPeer`.
pub(super) unsafe fn peer(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream, wait: bool) -> Result {
    // SAFETY: `copy` is null or readable, as the caller promises.
    let copy = unsafe { get(copy) }?;
    current::find_or_current(copy.dstContext)?;
    current::find_or_current(copy.srcContext)?;
    let same = CUDA_MEMCPY3D {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcZ: copy.srcZ,
        srcLOD: copy.srcLOD,
        srcMemoryType: copy.srcMemoryType,
        srcHost: copy.srcHost,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        reserved0: ptr::null_mut(),
        srcPitch: copy.srcPitch,
        srcHeight: copy.srcHeight,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstZ: copy.dstZ,
        dstLOD: copy.dstLOD,
        dstMemoryType: copy.dstMemoryType,
        dstHost: copy.dstHost,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        reserved1: ptr::null_mut(),
        dstPitch: copy.dstPitch,
        dstHeight: copy.dstHeight,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: copy.Depth,
    };
    // SAFETY: the caller upholds the contract of `volume`.
    unsafe { volume(&raw const same, stream, wait) }
}

/// An end of a copy of one row.
pub(super) enum RowEnd {
    Host(*mut c_void),
    Device(CUdeviceptr),
    /// From this byte of the array's first row.
    Array(CUarray, usize),
}

impl From<RowEnd> for Side {
    fn from(end: RowEnd) -> Self {
        let mut side = Self {
            kind: CU_MEMORYTYPE_ARRAY.cast_unsigned(),
            host: ptr::null_mut(),
            device: 0,
            array: ptr::null_mut(),
            origin: [0; 3],
            pitch: 0,
            rows: 0,
        };
        match end {
            RowEnd::Host(host) => {
                side.kind = CU_MEMORYTYPE_HOST.cast_unsigned();
                side.host = host;
            }
            RowEnd::Device(device) => {
                side.kind = CU_MEMORYTYPE_DEVICE.cast_unsigned();
                side.device = device;
            }
            RowEnd::Array(array, offset) => {
                side.array = array;
                side.origin = [offset, 0, 0];
            }
        }
        side
    }
}

/// Copies one row.
///
/// # Safety
/// As for [`run`], of `size` bytes.
pub(super) unsafe fn row(
    to: RowEnd,
    from: RowEnd,
    size: usize,
    stream: CUstream,
    wait: bool,
) -> Result {
    // SAFETY: the caller upholds the contract of `run`.
    unsafe { run(&to.into(), &from.into(), [size, 1, 1], stream, wait) }
}
