//! Events (CUDA Runtime API, chapter "Event Management"; inter-process events
//! from "Device Management").

use super::present;
use super::runtime::context;
use paragpu_abi::{CUevent, CUstream, cudaIpcEventHandle_t};
use std::ffi::c_uint;

api! {
    fn cudaEventCreate(event: *mut CUevent) {
        present(event)?;
        context()?.driver.cuEventCreate(event, 0)
    }

    fn cudaEventCreateWithFlags(event: *mut CUevent, flags: c_uint) {
        present(event)?;
        context()?.driver.cuEventCreate(event, flags)
    }

    fn cudaEventDestroy(event: CUevent) {
        context()?.driver.cuEventDestroy(event)
    }

    fn cudaEventRecord | cudaEventRecord_ptsz(event: CUevent, stream: CUstream) on stream {
        context()?.driver.cuEventRecord(event, stream)
    }

    fn cudaEventRecordWithFlags | cudaEventRecordWithFlags_ptsz(
        event: CUevent, stream: CUstream, flags: c_uint,
    ) on stream {
        context()?.driver.cuEventRecordWithFlags(event, stream, flags)
    }

    fn cudaEventQuery(event: CUevent) {
        context()?.driver.cuEventQuery(event)
    }

    fn cudaEventSynchronize(event: CUevent) {
        context()?.driver.cuEventSynchronize(event)
    }

    fn cudaEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) {
        present(milliseconds)?;
        context()?.driver.cuEventElapsedTime(milliseconds, start, end)
    }

    fn cudaIpcGetEventHandle(handle: *mut cudaIpcEventHandle_t, event: CUevent) {
        present(handle)?;
        context()?.driver.cuIpcGetEventHandle(handle, event)
    }

    fn cudaIpcOpenEventHandle(event: *mut CUevent, handle: cudaIpcEventHandle_t) {
        present(event)?;
        context()?.driver.cuIpcOpenEventHandle(event, handle)
    }
}
