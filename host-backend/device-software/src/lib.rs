//! A GPU in software: executes PTX on the CPU.
//!
//! [`paragpu_fatbin`] finds the PTX in what a program carries, [`ptx`] parses it, [`decode`] turns it into a
//! [`program::Program`] whose operands are resolved, and [`exec`] runs that: blocks on all cores, each as warps of
//! 32 lanes in lockstep. [`scheduler`] keeps streams in order; [`device`] puts it all behind
//! [`paragpu_device::Device`].
//!
//! It is a reference: bit-exact where IEEE 754 defines the result, and whatever it does not do is refused when a
//! module is loaded, by name and line.
#![deny(unsafe_code)]

pub mod attributes;
pub mod copy;
pub mod decode;
pub mod device;
pub mod error;
pub mod exec;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod graph;
pub mod launch;
mod management;
#[allow(unsafe_code)]
pub mod memory_unsafe;
pub mod module;
mod objects;
mod platform;
pub mod program;
pub mod ptx;
pub mod scheduler;
mod shared;
pub mod texture;
pub mod written;

pub use attributes::Options;
#[cfg(feature = "fuzzing")]
pub use fuzz::{fuzz_fatbin, fuzz_ptx};
pub use platform::SoftwarePlatform;
