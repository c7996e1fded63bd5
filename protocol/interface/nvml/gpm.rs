//! GPU performance metrics (GPM).

#[refused("needs performance counters of the whole GPU")]
fn nvmlGpmMetricsGet(metrics_get: Out<nvmlGpmMetricsGet_t>);

#[refused("needs performance counters of the whole GPU")]
fn nvmlGpmSampleFree(gpm_sample: nvmlGpmSample_t);

#[refused("needs performance counters of the whole GPU")]
fn nvmlGpmSampleAlloc(gpm_sample: Out<nvmlGpmSample_t>);

#[refused("needs performance counters of the whole GPU")]
fn nvmlGpmSampleGet(device: nvmlDevice_t, gpm_sample: nvmlGpmSample_t);

#[refused("needs performance counters of the whole GPU")]
fn nvmlGpmQueryDeviceSupport(device: nvmlDevice_t, gpm_support: Out<nvmlGpmSupport_t>);

#[refused("needs performance counters of the whole GPU")]
fn nvmlGpmQueryIfStreamingEnabled(device: nvmlDevice_t, state: Out<c_uint>);

#[denied("changes the host's GPU, which others share")]
fn nvmlGpmSetStreamingEnabled(device: nvmlDevice_t, state: c_uint);
