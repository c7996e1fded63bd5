//! ECC and memory errors.

#[refused("is for maintenance of the host's memory")]
fn nvmlDeviceGetRepairStatus(device: nvmlDevice_t, repair_status: Out<nvmlRepairStatus_t>);

/// Returns whether ECC is enabled, now and after the next reboot.
#[figure(58)]
fn nvmlDeviceGetEccMode(device: nvmlDevice_t, current: Out<c_uint>, pending: Out<c_uint>);

/// Returns whether ECC is enabled by default.
#[figure(59)]
fn nvmlDeviceGetDefaultEccMode(device: nvmlDevice_t, default_mode: Out<c_uint>);

/// Returns the total number of memory errors.
#[figure(60, 2, 2)]
fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    error_type: c_uint,
    counter_type: c_uint,
    ecc_counts: Out<c_ulonglong>,
);

/// Returns the number of memory errors by location.
#[figure(61, 2, 2)]
fn nvmlDeviceGetDetailedEccErrors(
    device: nvmlDevice_t,
    error_type: c_uint,
    counter_type: c_uint,
    ecc_counts: Out<[c_ulonglong; 4]>,
);

/// Returns the number of memory errors at one location.
#[figure(62, 2, 2, 8)]
fn nvmlDeviceGetMemoryErrorCounter(
    device: nvmlDevice_t,
    error_type: c_uint,
    counter_type: c_uint,
    location_type: c_uint,
    count: Out<c_ulonglong>,
);

#[refused("is for maintenance of the host's memory")]
fn nvmlDeviceGetSramEccErrorStatus(device: nvmlDevice_t, status: Out<nvmlEccSramErrorStatus_t>);

#[refused("is for maintenance of the host's memory")]
fn nvmlDeviceGetRetiredPages(
    device: nvmlDevice_t,
    cause: c_uint,
    page_count: Out<c_uint>,
    addresses: *mut c_ulonglong,
);

#[refused("is for maintenance of the host's memory")]
fn nvmlDeviceGetRetiredPages_v2(
    device: nvmlDevice_t,
    cause: c_uint,
    page_count: Out<c_uint>,
    addresses: *mut c_ulonglong,
    timestamps: *mut c_ulonglong,
);

/// Returns whether pages await retirement.
#[figure(63)]
fn nvmlDeviceGetRetiredPagesPendingStatus(device: nvmlDevice_t, is_pending: Out<c_uint>);

/// Returns the numbers of remapped memory rows.
#[figure(64)]
fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    corr_rows: Out<c_uint>,
    unc_rows: Out<c_uint>,
    is_pending: Out<c_uint>,
    failure_occurred: Out<c_uint>,
);

/// Returns the number of memory banks for each level of spare rows.
#[figure(65)]
fn nvmlDeviceGetRowRemapperHistogram(device: nvmlDevice_t, values: Out<[c_uint; 5]>);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceSetEccMode(device: nvmlDevice_t, ecc: c_uint);

#[denied("changes the host's GPU, which others share")]
fn nvmlDeviceClearEccErrorCounts(device: nvmlDevice_t, counter_type: c_uint);

#[refused("is for maintenance of the host's memory")]
fn nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(
    device: nvmlDevice_t,
    error_counts: Out<nvmlEccSramUniqueUncorrectedErrorCounts_t>,
);
