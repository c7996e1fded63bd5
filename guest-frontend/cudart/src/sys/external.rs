//! Memory and semaphores of other interfaces (CUDA Runtime API, chapter
//! "External Resource Interoperability").

use super::boundary::Out;
use super::memory::pointer;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi::CUexternalMemory;
use std::ffi::c_void;

pub(crate) unsafe fn cudaExternalMemoryGetMappedBuffer(
    address: Out<'_, *mut c_void>,
    memory: CUexternalMemory,
    description: *const c_void,
) -> Result {
    address.present()?;
    let mut found = 0;
    // SAFETY: the caller upholds the contract of `cuExternalMemoryGetMappedBuffer`.
    unsafe {
        context()?
            .driver
            .cuExternalMemoryGetMappedBuffer(&mut found, memory, description)
    }?;
    address.put(pointer(found))
}
