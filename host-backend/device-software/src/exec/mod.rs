//! Execution of decoded programs: warps of 32 lanes in lockstep.

pub mod alu;
mod apart;
mod asynchronous;
mod atomics;
pub mod block;
mod calls;
pub mod cluster;
mod control;
mod fp8;
pub mod fragment;
pub mod frame;
mod half;
mod lanes;
pub mod matrix;
mod memory;
pub mod printf;
pub mod reach;
mod runtime_call;
mod runtime_query;
mod shuffle;
pub mod soft;
mod space;
pub mod sparse;
mod stack;
mod tensor;
mod texture;
#[allow(unsafe_code)]
pub mod variants_unsafe;
pub mod video;
pub mod warp;
