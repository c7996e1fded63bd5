//! Memory and semaphores of other interfaces (CUDA Runtime API, chapter
//! "External Resource Interoperability"). The records have one layout in both
//! interfaces and are passed on as they are.

use super::memory::pointer;
use super::runtime::context;
use super::{present, put};
use paragpu_abi::{CUexternalMemory, CUexternalSemaphore, CUstream};
use std::ffi::{c_uint, c_void};

api! {
    fn cudaImportExternalMemory(memory: *mut CUexternalMemory, description: *const c_void) {
        present(memory)?;
        present(description)?;
        context()?.driver.cuImportExternalMemory(memory, description)
    }

    fn cudaExternalMemoryGetMappedBuffer(
        address: *mut *mut c_void, memory: CUexternalMemory, description: *const c_void,
    ) {
        present(address)?;
        let mut found = 0;
        context()?.driver.cuExternalMemoryGetMappedBuffer(&mut found, memory, description)?;
        put(address, pointer(found))
    }

    fn cudaDestroyExternalMemory(memory: CUexternalMemory) {
        context()?.driver.cuDestroyExternalMemory(memory)
    }

    fn cudaImportExternalSemaphore(
        semaphore: *mut CUexternalSemaphore, description: *const c_void,
    ) {
        present(semaphore)?;
        present(description)?;
        context()?.driver.cuImportExternalSemaphore(semaphore, description)
    }

    fn cudaSignalExternalSemaphoresAsync | cudaSignalExternalSemaphoresAsync_ptsz(
        semaphores: *const CUexternalSemaphore, parameters: *const c_void, count: c_uint,
        stream: CUstream,
    ) on stream {
        context()?
            .driver
            .cuSignalExternalSemaphoresAsync(semaphores, parameters, count, stream)
    }

    fn cudaWaitExternalSemaphoresAsync | cudaWaitExternalSemaphoresAsync_ptsz(
        semaphores: *const CUexternalSemaphore, parameters: *const c_void, count: c_uint,
        stream: CUstream,
    ) on stream {
        context()?
            .driver
            .cuWaitExternalSemaphoresAsync(semaphores, parameters, count, stream)
    }

    fn cudaDestroyExternalSemaphore(semaphore: CUexternalSemaphore) {
        context()?.driver.cuDestroyExternalSemaphore(semaphore)
    }
}
