//! `libnvidia-ml.so.1`: NVML over questions to the host of the VM's GPUs.
//!
//! The functions are described in `protocol/interface/nvml`. Most are figures:
//! the guest passes the question on and the host asks its own NVML. The code of
//! a function that is not lies in the file of its chapter's name under `sys`. A
//! function that is not served returns `NVML_ERROR_NOT_SUPPORTED` without a
//! word, because programs try; one that a guest may not use returns
//! `NVML_ERROR_NO_PERMISSION`.
//!
//! A connection is opened at the first question about a device, and closed
//! once nobody asks for a while: it occupies a worker of the host.
#![deny(unsafe_code)]

mod code;
mod devices;
pub mod symbols;

#[allow(unsafe_code)]
pub mod sys;

pub use code::Code;
