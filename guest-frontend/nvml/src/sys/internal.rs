//! By what a worker knows this library from NVIDIA's.

/// Nobody calls it: a worker on a machine that is host and guest looks for its name,
/// and does not ask itself about GPUs.
#[unsafe(no_mangle)]
pub extern "C" fn paragpu_nvml() {}
