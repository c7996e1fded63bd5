//! Utilization.

/// Returns the utilization of the GPU and of its memory, in percent; on the software GPU by
/// this VM's work.
#[figure(80)]
fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, utilization: Out<[c_uint; 2]>);

/// Returns the encoder's utilization in percent, and the sampling period in microseconds.
#[figure(66)]
fn nvmlDeviceGetEncoderUtilization(
    device: nvmlDevice_t,
    utilization: Out<c_uint>,
    sampling_period_us: Out<c_uint>,
);

/// Returns the free capacity of an encoder, in percent.
#[figure(67, 4)]
fn nvmlDeviceGetEncoderCapacity(
    device: nvmlDevice_t,
    encoder_query_type: c_uint,
    encoder_capacity: Out<c_uint>,
);

/// Returns statistics of the encoder: sessions, frames per second, latency.
#[figure(68)]
fn nvmlDeviceGetEncoderStats(
    device: nvmlDevice_t,
    session_count: Out<c_uint>,
    average_fps: Out<c_uint>,
    average_latency: Out<c_uint>,
);

#[refused("a virtual GPU has no graphics")]
fn nvmlDeviceGetEncoderSessions(
    device: nvmlDevice_t,
    session_count: Out<c_uint>,
    session_infos: *mut nvmlEncoderSessionInfo_t,
);

/// Returns the decoder's utilization in percent, and the sampling period in microseconds.
#[figure(69)]
fn nvmlDeviceGetDecoderUtilization(
    device: nvmlDevice_t,
    utilization: Out<c_uint>,
    sampling_period_us: Out<c_uint>,
);

/// Returns the JPEG decoder's utilization in percent, and the sampling period in microseconds.
#[figure(70)]
fn nvmlDeviceGetJpgUtilization(
    device: nvmlDevice_t,
    utilization: Out<c_uint>,
    sampling_period_us: Out<c_uint>,
);

/// Returns the optical flow engine's utilization in percent, and the sampling period in
/// microseconds.
#[figure(71)]
fn nvmlDeviceGetOfaUtilization(
    device: nvmlDevice_t,
    utilization: Out<c_uint>,
    sampling_period_us: Out<c_uint>,
);

/// Returns statistics of frame buffer capture: sessions, frames per second, latency.
#[figure(72)]
fn nvmlDeviceGetFBCStats(device: nvmlDevice_t, fbc_stats: Out<[c_uint; 3]>);

#[refused("a virtual GPU has no graphics")]
fn nvmlDeviceGetFBCSessions(
    device: nvmlDevice_t,
    session_count: Out<c_uint>,
    session_info: *mut nvmlFBCSessionInfo_t,
);

#[refused("the host's samples are of all VMs")]
fn nvmlDeviceGetSamples(
    device: nvmlDevice_t,
    kind: c_uint,
    last_seen_time_stamp: c_ulonglong,
    sample_val_type: Out<c_uint>,
    sample_count: Out<c_uint>,
    samples: *mut nvmlSample_t,
);
