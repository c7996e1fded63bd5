//! `libnvidia-ml.so.1`: NVML, answered by the host of the VM's GPUs.
//!
//! The functions are described in `protocol/interface/nvml`. Most are figures: the guest
//! forwards the query, and the host asks its own NVML. Other functions have code in the
//! file of their chapter under `sys`. A function that is not served returns
//! `NVML_ERROR_NOT_SUPPORTED` and prints nothing, because programs probe for functions;
//! one that a guest may not use returns `NVML_ERROR_NO_PERMISSION`.
//!
//! The first query about a device opens a connection. It is closed when idle, because
//! it occupies a worker on the host.

mod code;
mod devices;
pub mod symbols;
pub mod types;

#[allow(unsafe_code)]
pub mod sys;

pub use code::Code;
