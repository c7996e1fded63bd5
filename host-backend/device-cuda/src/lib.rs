//! NVIDIA GPUs through NVIDIA's driver, loaded at run time.
//!
//! `sys/` contains all unsafe code: the driver's functions, and thin wrappers whose
//! argument types rule out invalid use. The rest implements
//! [`paragpu_device::Device`]: memory at fixed addresses with the virtual memory
//! management functions, and polling where CUDA would block.
//!
//! The thread that opens a device must be the one that uses it: CUDA's
//! current context belongs to a thread.

mod device;
mod doubt;
mod graph;
mod habit;
mod hash;
mod imported;
mod management;
mod memory;
mod platform;
mod retired;
mod sys;
mod table;
mod watchers;

pub use platform::CudaPlatform;
pub use sys::reservations::are_placed as reservations_are_placed;
