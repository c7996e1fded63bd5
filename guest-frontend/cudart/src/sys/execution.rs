//! Execution contexts (CUDA Runtime API, chapter "Execution Context Management").

use super::boundary::Out;
use super::fail;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{CUcontext, CUdevResourceDesc, CUgreenCtx, CUstream};
use parking_lot::Mutex;
use std::ffi::{c_int, c_uint};
use std::ptr;

/// The green context of each execution context that the program created, as addresses.
static GREEN: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

pub(crate) fn cudaDeviceGetExecutionCtx(out: Out<'_, CUcontext>, device: c_int) -> Result {
    let out = out.present()?;
    out.put(context()?.primary(device)?)
}

pub(crate) fn cudaGreenCtxCreate(
    out: Out<'_, CUcontext>,
    description: CUdevResourceDesc,
    device: c_int,
    flags: c_uint,
) -> Result {
    let out = out.present()?;
    let runtime = context()?;
    let number = runtime.device(device)?.number;
    let (mut green, mut made) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: a description is checked by the driver, and the places are locals.
    unsafe {
        // CU_GREEN_CTX_DEFAULT_STREAM, which the driver requires.
        runtime
            .driver
            .cuGreenCtxCreate(&mut green, description, number, flags | 1)?;
        runtime.driver.cuCtxFromGreenCtx(&mut made, green)?;
    }
    GREEN.lock().push((made.addr(), green.expose_provenance()));
    out.put(made)
}

pub(crate) fn cudaExecutionCtxDestroy(destroyed: CUcontext) -> Result {
    let runtime = context()?;
    let green: CUgreenCtx = {
        let mut known = GREEN.lock();
        let Some(at) = known.iter().position(|(made, _)| *made == destroyed.addr()) else {
            // A device's own context cannot be destroyed.
            return fail(abi::cudaErrorInvalidValue);
        };
        ptr::with_exposed_provenance_mut(known.swap_remove(at).1)
    };
    // SAFETY: the driver created it, and only this call removed it from the list.
    unsafe { runtime.driver.cuGreenCtxDestroy(green) }
}

pub(crate) fn cudaExecutionCtxStreamCreate(
    stream: Out<'_, CUstream>,
    of: CUcontext,
    flags: c_uint,
    priority: c_int,
) -> Result {
    let stream = stream.present()?;
    let driver = &context()?.driver;
    let (mut made, mut popped) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the driver checks the context, and the places are locals.
    unsafe {
        driver.cuCtxPushCurrent(of)?;
        let created = driver.cuStreamCreateWithPriority(&mut made, flags, priority);
        driver.cuCtxPopCurrent(&mut popped)?;
        created?;
    }
    stream.put(made)
}
