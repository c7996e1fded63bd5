//! A GPU in software: executes PTX on the CPU.
//!
//! [`paragpu_fatbin`] finds the PTX in a program's images, [`ptx`] parses it, [`decode`]
//! turns it into a [`program::Program`] whose operands are resolved, and [`exec`] runs
//! that: blocks on all cores, each as warps of 32 lanes in lockstep. [`scheduler`] keeps
//! streams in order; [`device`] puts it all behind [`paragpu_device::Device`].
//!
//! It is a reference: bit-exact where IEEE 754 defines the result. [`exec::matrix`]
//! describes the arithmetic of matrices.
//!
//! A function with an unsupported instruction is refused by name and line, with every
//! kernel that calls it, when the program requests that kernel. The module's other kernels
//! run. Not supported are: `wgmma`, `tcgen05`, `mma` of sparse matrices and of Volta's m8n8k4,
//! `redux` of floats, `multimem`, tensor copies other than in tile mode or with `.cta_group`,
//! `ldmatrix.m16n16` and `stmatrix.m16n8`, multicasts of `clusterlaunchcontrol`, `st.async`
//! and `red.async` without a barrier object, `st.bulk`,
//! `fma.oob`, texture references, texture offsets, textures read as `f16x2`, gradients of
//! cubes, `txq`, `suq`, `sured`, `sust.p`, the special register `%pm`, and
//! launches of graphs from kernels. `examples/accepts.rs` counts what a library needs of
//! these.

mod attributes;
mod children;
mod conditional;
mod conditions;
mod copy;
pub mod decode;
pub mod device;
mod device_runtime;
pub mod error;
pub mod exec;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod graph;
pub mod heap;
pub mod kernel;
mod kernel_memory;
pub mod launch;
mod launched;
mod link;
mod management;
#[allow(unsafe_code)]
pub mod memory_unsafe;
mod module;
mod objects;
mod platform;
pub mod program;
pub mod ptx;
mod scheduler;
mod shared;
mod tensor;
mod texture;
mod written;

pub use attributes::Options;
#[cfg(feature = "fuzzing")]
pub use fuzz::{fuzz_fatbin, fuzz_ptx};
pub use platform::SoftwarePlatform;
