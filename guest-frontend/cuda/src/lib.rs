//! `libcuda.so.1`: the CUDA 13.0 driver interface over a session with a host.
//!
//! The functions are described in `protocol/interface/driver`, one file per chapter of
//! NVIDIA's "CUDA Driver API" reference manual, whose semantics apply. The build script
//! derives every exported symbol from the description. The code of a served function has
//! the function's name and is in the file of its chapter under `sys`. `paragpu-client`
//! implements the semantics. A function that is not served prints its name once and
//! returns `CUDA_ERROR_NOT_SUPPORTED`.
#![recursion_limit = "1024"]

pub mod address;
pub mod batch;
pub mod compile_cache;
pub mod coredump;
pub mod crossing;
pub mod current;
pub mod dot;
pub mod eager_loading;
pub mod kernel;
pub mod location;
pub mod log;
pub mod managed;
pub mod named_stream;
pub mod objects;
pub mod settings;
pub mod shared_handle;
mod staging;
pub mod versions;
pub mod visible;

#[allow(unsafe_code)]
pub mod sys;
