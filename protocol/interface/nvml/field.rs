//! Fields.

/// Returns fields by their IDs.
fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    values_count: c_int,
    values: *mut nvmlFieldValue_t,
);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceClearFieldValues(
    device: nvmlDevice_t,
    values_count: c_int,
    values: *mut nvmlFieldValue_t,
);
