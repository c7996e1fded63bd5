//! `libcuda.so.1`: the CUDA 13.0 driver interface over a session with a host.
//!
//! The C boundary is the folder `sys`, one file per chapter of NVIDIA's "CUDA
//! Driver API" reference manual, whose semantics hold; each function is
//! declared with [`api!`](sys). What a function does is `paragpu-client`'s.
//! Every name that NVIDIA's library exports (`symbols.txt`) exists; the build
//! script writes a stub for those that are not served, which says so once and
//! returns `CUDA_ERROR_NOT_SUPPORTED`.
#![deny(unsafe_code)]
#![recursion_limit = "1024"]

pub mod objects;
pub mod versions;

#[allow(unsafe_code)]
pub mod sys;
