//! `libcudart.so.13`: the CUDA 13.0 runtime interface on the driver interface.
//!
//! A program's `cuda*` call is answered here or passed on to the `cu*`
//! functions of `libcuda.so.1`, which is opened at the first call that needs
//! it. On a guest that library is paragpu's own; over NVIDIA's it works the
//! same way. Semantics follow NVIDIA's "CUDA Runtime API" reference manual.
//!
//! The C boundary is the folder `sys`: one file per chapter of the manual, each
//! function declared with [`api!`](sys). Every name that NVIDIA's library
//! exports (`symbols.txt`) exists; the build script writes a stub for those
//! that are not served, which says so once and returns
//! `cudaErrorNotSupported`.
#![deny(unsafe_code)]
#![recursion_limit = "512"]

pub mod channel;
pub mod error;
pub mod thread;

#[allow(unsafe_code)]
mod sys;
