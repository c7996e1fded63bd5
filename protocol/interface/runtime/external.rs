//! Memory and semaphores of other interfaces (CUDA Runtime API, chapter
//! "External Resource Interoperability"). The structures have one
//! layout in both APIs and are passed unchanged. The driver refuses all these functions.

#[required(memory, description)]
#[direct(cuImportExternalMemory(memory, description))]
fn cudaImportExternalMemory(memory: Out<CUexternalMemory>, description: *const c_void);

#[needs(cuExternalMemoryGetMappedBuffer)]
fn cudaExternalMemoryGetMappedBuffer(
    address: Out<*mut c_void>,
    memory: CUexternalMemory,
    description: *const c_void,
);

#[direct(cuDestroyExternalMemory(memory))]
fn cudaDestroyExternalMemory(memory: CUexternalMemory);

#[required(semaphore, description)]
#[direct(cuImportExternalSemaphore(semaphore, description))]
fn cudaImportExternalSemaphore(semaphore: Out<CUexternalSemaphore>, description: *const c_void);

#[per_thread(ptsz)]
#[direct(cuSignalExternalSemaphoresAsync(semaphores, parameters, count, stream))]
#[cuda12(cudaSignalExternalSemaphoresAsync_v2)]
fn cudaSignalExternalSemaphoresAsync(
    semaphores: *const CUexternalSemaphore,
    parameters: *const c_void,
    count: c_uint,
    stream: DefaultStream,
);

#[per_thread(ptsz)]
#[direct(cuWaitExternalSemaphoresAsync(semaphores, parameters, count, stream))]
#[cuda12(cudaWaitExternalSemaphoresAsync_v2)]
fn cudaWaitExternalSemaphoresAsync(
    semaphores: *const CUexternalSemaphore,
    parameters: *const c_void,
    count: c_uint,
    stream: DefaultStream,
);

#[direct(cuDestroyExternalSemaphore(semaphore))]
fn cudaDestroyExternalSemaphore(semaphore: CUexternalSemaphore);

#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cudaExternalMemoryGetMappedMipmappedArray();
