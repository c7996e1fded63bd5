//! `libcudart.so.13`: the CUDA 13.0 runtime interface on the driver interface;
//! with `cfg(cuda12)`, in the package `paragpu-cudart12`, `libcudart.so.12`
//! with the interface of CUDA 12.9.
//!
//! A program's `cuda*` call is answered here or passed on to the `cu*`
//! functions of `libcuda.so.1`, which is opened at the first call that needs
//! it. On a guest that library is paragpu's own; over NVIDIA's it works the
//! same way. Semantics follow NVIDIA's "CUDA Runtime API" reference manual.
//!
//! The functions are described in `protocol/interface/runtime`, one file per
//! chapter of the manual, or with the driver's function that does the same. The
//! build script derives every exported symbol from the description; the code
//! of a function has the function's name and lies in the file of its chapter's
//! name under `sys`. A function that is not served says so once and returns
//! `cudaErrorNotSupported`.
#![deny(unsafe_code)]
// Code of functions that only CUDA 13 has.
#![cfg_attr(cuda12, allow(dead_code))]
#![recursion_limit = "512"]

pub mod channel;
pub mod error;
pub mod thread;

#[allow(unsafe_code)]
mod sys;
