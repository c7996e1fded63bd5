//! Memory and semaphores of other interfaces (CUDA Runtime API, chapter
//! "External Resource Interoperability"). The records have the same layout in both
//! interfaces and are passed through.

use super::boundary::Out;
use super::memory::pointer;
use super::present;
use super::runtime::context;
use crate::error::Result;
use paragpu_abi::{CUexternalMemory, CUexternalSemaphore};
use std::ffi::c_void;

/// # Safety
/// As documented by CUDA for `cudaImportExternalMemory`.
pub(crate) unsafe fn cudaImportExternalMemory(
    memory: *mut CUexternalMemory,
    description: *const c_void,
) -> Result {
    present(memory)?;
    present(description)?;
    // SAFETY: the caller upholds the contract of `cuImportExternalMemory`.
    unsafe {
        context()?
            .driver
            .cuImportExternalMemory(memory, description)
    }
}

/// # Safety
/// As documented by CUDA for `cudaExternalMemoryGetMappedBuffer`.
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

/// # Safety
/// As documented by CUDA for `cudaImportExternalSemaphore`.
pub(crate) unsafe fn cudaImportExternalSemaphore(
    semaphore: *mut CUexternalSemaphore,
    description: *const c_void,
) -> Result {
    present(semaphore)?;
    present(description)?;
    // SAFETY: the caller upholds the contract of `cuImportExternalSemaphore`.
    unsafe {
        context()?
            .driver
            .cuImportExternalSemaphore(semaphore, description)
    }
}
