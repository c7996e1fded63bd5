//! Events.

/// Returns the reasons that currently limit clocks, as bits.
#[figure(38)]
fn nvmlDeviceGetCurrentClocksEventReasons(
    device: nvmlDevice_t,
    clocks_event_reasons: Out<c_ulonglong>,
);

/// Returns the reasons that the GPU supports, as bits.
#[figure(40)]
fn nvmlDeviceGetSupportedClocksEventReasons(
    device: nvmlDevice_t,
    supported_clocks_event_reasons: Out<c_ulonglong>,
);

/// Creates an event set.
fn nvmlEventSetCreate(set: Out<nvmlEventSet_t>);

/// Adds events to a set.
fn nvmlDeviceRegisterEvents(device: nvmlDevice_t, event_types: c_ulonglong, set: nvmlEventSet_t);

/// Returns no types: a guest cannot wait for events.
fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, event_types: Out<c_ulonglong>);

/// Waits for an event of a set.
#[also(nvmlEventSetWait = 0)]
fn nvmlEventSetWait_v2(set: nvmlEventSet_t, data: Out<nvmlEventData_t>, timeoutms: c_uint);

/// Frees an event set.
fn nvmlEventSetFree(set: nvmlEventSet_t);

#[refused("no event of a GPU is forwarded")]
fn nvmlSystemEventSetCreate(request: Out<nvmlSystemEventSetCreateRequest_t>);

#[refused("no event of a GPU is forwarded")]
fn nvmlSystemEventSetFree(request: Out<nvmlSystemEventSetFreeRequest_t>);

#[refused("no event of a GPU is forwarded")]
fn nvmlSystemRegisterEvents(request: Out<nvmlSystemRegisterEventRequest_t>);

#[refused("no event of a GPU is forwarded")]
fn nvmlSystemEventSetWait(request: Out<nvmlSystemEventSetWaitRequest_t>);
