//! Launches that are prepared in steps, as before cuLaunchKernel (CUDA Driver
//! API, Execution Control, deprecated).

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};

use paragpu_abi::{CUfunction, CUstream};
use paragpu_client::launch::Shape;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use super::module::callable;
use super::{Result, launch};
use crate::objects;

/// Maximum number of bytes of parameters (CUDA C++ Programming Guide: 32,764).
const MAX_PARAMETER_BYTES: usize = 32_764;
/// When this many functions have prepared launches, those of destroyed functions are
/// removed.
const SWEEP_THRESHOLD: usize = 256;

/// The configuration of a function's next launch.
#[derive(Debug, Clone)]
struct Prepared {
    block: [u32; 3],
    shared: u32,
    /// Bytes of all parameters, as set by cuParamSetSize.
    size: usize,
    parameters: Vec<u8>,
}

impl Default for Prepared {
    fn default() -> Self {
        Self {
            block: [1; 3],
            shared: 0,
            size: 0,
            parameters: Vec::new(),
        }
    }
}

static PREPARED: Mutex<Option<HashMap<u64, Prepared>>> = Mutex::new(None);

/// Changes the configuration of a function's next launch.
fn prepare(function: CUfunction, change: impl FnOnce(&mut Prepared)) -> Result {
    callable(function)?;
    let mut all = PREPARED.lock();
    let all = all.get_or_insert_default();
    if all.len() >= SWEEP_THRESHOLD {
        all.retain(|handle, _| {
            let handle = usize::try_from(*handle).unwrap_or(0);
            objects::find(std::ptr::without_provenance_mut(handle)).is_some()
        });
    }
    change(all.entry(function as u64).or_default());
    Ok(())
}

/// Sets bytes of a function's parameters.
pub(super) fn set(function: CUfunction, offset: c_int, bytes: &[u8]) -> Result {
    let offset = usize::try_from(offset).map_err(|_| Status::INVALID_VALUE)?;
    let end = offset
        .checked_add(bytes.len())
        .filter(|end| *end <= MAX_PARAMETER_BYTES);
    let end = end.ok_or(Status::INVALID_VALUE)?;
    prepare(function, |prepared| {
        if prepared.parameters.len() < end {
            prepared.parameters.resize(end, 0);
        }
        if let Some(place) = prepared.parameters.get_mut(offset..end) {
            place.copy_from_slice(bytes);
        }
    })
}

pub(super) fn run(function: CUfunction, grid: [c_int; 2], stream: CUstream) -> Result {
    callable(function)?;
    let blocks = |side: c_int| match u32::try_from(side) {
        Ok(side) if side > 0 => Ok(side),
        _ => Err(Status::INVALID_VALUE),
    };
    let [width, height] = grid;
    let grid = [blocks(width)?, blocks(height)?, 1];
    let prepared = PREPARED
        .lock()
        .as_ref()
        .and_then(|all| all.get(&(function as u64)).cloned());
    let mut prepared = prepared.unwrap_or_default();
    if prepared.size > MAX_PARAMETER_BYTES {
        return Err(Status::INVALID_VALUE);
    }
    prepared.parameters.resize(prepared.size, 0);
    let shape = Shape {
        grid,
        block: prepared.block,
        dynamic_shared: prepared.shared,
        ..Shape::default()
    };
    launch::launch_packed(function, &shape, stream, &mut prepared.parameters)
}

pub(crate) fn cuFuncSetBlockShape(function: CUfunction, x: c_int, y: c_int, z: c_int) -> Result {
    callable(function)?;
    let mut block = [0; 3];
    for (side, given) in block.iter_mut().zip([x, y, z]) {
        *side = u32::try_from(given).map_err(|_| Status::INVALID_VALUE)?;
    }
    if block.contains(&0) {
        return Err(Status::INVALID_VALUE);
    }
    prepare(function, |prepared| prepared.block = block)
}

pub(crate) fn cuFuncSetSharedSize(function: CUfunction, bytes: c_uint) -> Result {
    if c_int::try_from(bytes).is_err() {
        return Err(Status::INVALID_VALUE);
    }
    prepare(function, |prepared| prepared.shared = bytes)
}

pub(crate) fn cuParamSetSize(function: CUfunction, bytes: c_uint) -> Result {
    // As natively, only the launch refuses a size that is too large.
    prepare(function, |prepared| prepared.size = bytes as usize)
}

pub(crate) unsafe fn cuParamSetv(
    function: CUfunction,
    offset: c_int,
    value: *mut c_void,
    bytes: c_uint,
) -> Result {
    if value.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if bytes == 0 {
        return callable(function).map(|_| ());
    }
    super::present(value)?;
    let bytes = bytes as usize;
    if bytes > MAX_PARAMETER_BYTES {
        return Err(Status::INVALID_VALUE);
    }
    set(
        function,
        offset,
        // SAFETY: `value` holds `bytes`, as the caller promises
        unsafe { std::slice::from_raw_parts(value.cast(), bytes) },
    )
}
