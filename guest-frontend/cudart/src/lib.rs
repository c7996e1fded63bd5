//! `libcudart.so.13`: the CUDA 13.0 runtime interface on the driver interface;
//! with `cfg(cuda12)`, in the package `paragpu-cudart12`, `libcudart.so.12`
//! with the interface of CUDA 12.9.
//!
//! A program's `cuda*` call is answered here or forwarded to the `cu*` functions of
//! `libcuda.so.1`, which is opened by the first call that needs it. In a guest that
//! library is paragpu's own; NVIDIA's works too. Semantics follow NVIDIA's "CUDA
//! Runtime API" reference manual.
//!
//! The functions are described in `protocol/interface/runtime`, one file per
//! chapter of the manual, or with the driver's function that does the same. The
//! build script derives every exported symbol from the description. A function's code
//! has the function's name, in the file of its chapter under `sys`. A function that is
//! not served prints its name once and returns `cudaErrorNotSupported`.
#![recursion_limit = "512"]

pub mod channel;
pub mod error;
pub mod thread;

#[allow(unsafe_code)]
mod records_unsafe;
#[allow(unsafe_code)]
mod sys;
