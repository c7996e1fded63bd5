//! Error handling (CUDA Runtime API, chapter "Error Handling").

#[by_hand]
fn cudaGetLastError() -> cudaError_t;

#[by_hand]
fn cudaPeekAtLastError() -> cudaError_t;

#[by_hand]
fn cudaGetErrorName(error: cudaError_t) -> *const c_char;

#[by_hand]
fn cudaGetErrorString(error: cudaError_t) -> *const c_char;
