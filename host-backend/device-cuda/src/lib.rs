//! NVIDIA GPUs through NVIDIA's driver, loaded at run time.
//!
//! `sys/` holds everything unsafe: the driver's functions and thin wrappers
//! whose arguments cannot be wrong. The rest gives [`paragpu_device::Device`]
//! its meaning: memory at fixed addresses by the virtual memory management
//! functions, and queries where CUDA would wait.
//!
//! The thread that opens a device must be the one that uses it: CUDA's
//! current context belongs to a thread.
#![deny(unsafe_code)]

mod device;
mod graph;
mod hash;
mod management;
mod memory;
mod platform;
mod retired;
mod sys;
mod table;

pub use platform::CudaPlatform;
pub use sys::reservations::are_placed as reservations_are_placed;
