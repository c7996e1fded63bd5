//! Streams, capture and host callbacks (CUDA Runtime API, chapter "Stream
//! Management"; `cudaLaunchHostFunc` from "Execution Control").

use super::boundary::Out;
use super::fail;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::CUstream;
use std::ffi::c_int;

pub(crate) unsafe fn cudaStreamDestroy(stream: CUstream) -> Result {
    let runtime = context()?;
    if stream.addr() <= abi::CU_STREAM_PER_THREAD.addr() {
        return fail(abi::cudaErrorInvalidResourceHandle);
    }
    // SAFETY: the caller upholds the contract of `cuStreamDestroy`.
    unsafe { runtime.driver.cuStreamDestroy(stream) }
}

pub(crate) unsafe fn cudaStreamGetDevice(stream: CUstream, device: Out<'_, c_int>) -> Result {
    device.present()?;
    let runtime = context()?;
    let mut number = 0;
    // SAFETY: the caller upholds the contract of `cuStreamGetDevice`.
    unsafe { runtime.driver.cuStreamGetDevice(stream, &mut number) }?;
    device.put(runtime.ordinal(number))
}
