//! Streams, capture and host callbacks (CUDA Runtime API, chapter "Stream
//! Management"; `cudaLaunchHostFunc` from "Execution Control").

use super::boundary::{Out, own_default};
use super::runtime::context;
use super::{fail, present};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{CUdeviceptr, CUstream, cudaLaunchAttributeValue};
use std::ffi::{c_int, c_uint, c_void};

/// # Safety
/// As documented by CUDA for `cudaStreamDestroy`.
pub(crate) unsafe fn cudaStreamDestroy(stream: CUstream) -> Result {
    let runtime = context()?;
    if stream.addr() <= abi::CU_STREAM_PER_THREAD.addr() {
        return fail(abi::cudaErrorInvalidResourceHandle);
    }
    // SAFETY: the caller upholds the contract of `cuStreamDestroy`.
    unsafe { runtime.driver.cuStreamDestroy(stream) }
}

/// # Safety
/// As documented by CUDA for `cudaStreamAttachMemAsync`.
pub(crate) unsafe fn cudaStreamAttachMemAsync(
    stream: CUstream,
    address: *mut c_void,
    length: usize,
    flags: c_uint,
) -> Result {
    let address = address.addr() as CUdeviceptr;
    // SAFETY: the caller upholds the contract of `cuStreamAttachMemAsync`.
    unsafe {
        context()?
            .driver
            .cuStreamAttachMemAsync(stream, address, length, flags)
    }
}

/// # Safety
/// As documented by CUDA for `cudaStreamGetDevice`.
pub(crate) unsafe fn cudaStreamGetDevice(stream: CUstream, device: Out<'_, c_int>) -> Result {
    device.present()?;
    let runtime = context()?;
    let mut number = 0;
    // SAFETY: the caller upholds the contract of `cuStreamGetDevice`.
    unsafe { runtime.driver.cuStreamGetDevice(stream, &mut number) }?;
    device.put(runtime.ordinal(number))
}

/// # Safety
/// As documented by CUDA for `cudaStreamSetAttribute`.
pub(crate) unsafe fn cudaStreamSetAttribute(
    stream: CUstream,
    attribute: c_int,
    value: *const cudaLaunchAttributeValue,
) -> Result {
    present(value)?;
    // SAFETY: the caller upholds the contract of `cuStreamSetAttribute`.
    unsafe {
        context()?
            .driver
            .cuStreamSetAttribute(stream, attribute, value)
    }
}

/// # Safety
/// As documented by CUDA for `cudaStreamCopyAttributes_ptsz`.
pub(crate) unsafe fn cudaStreamCopyAttributes_ptsz(
    destination: CUstream,
    source: CUstream,
) -> Result {
    let (destination, source) = (own_default(destination), own_default(source));
    // SAFETY: the caller upholds the contract of `cuStreamCopyAttributes`.
    unsafe {
        context()?
            .driver
            .cuStreamCopyAttributes(destination, source)
    }
}
