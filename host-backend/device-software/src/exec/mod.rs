//! Execution of decoded programs: warps of 32 lanes in lockstep.

pub mod alu;
mod atomics;
pub mod block;
mod control;
mod half;
mod lanes;
mod memory;
pub mod printf;
mod shuffle;
pub mod soft;
mod texture;
#[allow(unsafe_code)]
pub mod variants_unsafe;
pub mod warp;
