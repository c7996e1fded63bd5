//! The marker by which a worker distinguishes this library from NVIDIA's.

/// Never called. A worker on a machine that is both host and guest looks for this symbol,
/// so that it does not query itself about GPUs.
#[unsafe(no_mangle)]
pub extern "C" fn paragpu_nvml() {}
