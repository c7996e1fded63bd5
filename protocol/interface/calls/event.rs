//! Events.

/// cuEventCreate.
#[call(0x0701, posted, creates(Event = event))]
fn EventCreate(
    /// Its name from now on.
    event: EventHandle,
    /// CUevent_flags.
    flags: u32,
);

/// cuEventDestroy.
#[call(0x0702, posted, destroys(Event = event))]
fn EventDestroy(
    /// The event.
    event: EventHandle,
);

/// cuEventRecord.
#[call(0x0703, posted, node, changes(Event = event))]
fn EventRecord(
    /// The event.
    event: EventHandle,
    /// The stream whose work so far it stands for.
    stream: StreamHandle,
);

/// cuEventSynchronize.
#[call(0x0704, synchronous, idempotent, reports, waits)]
fn EventSynchronize(
    /// The event.
    event: EventHandle,
);

/// cuEventQuery: success or CUDA_ERROR_NOT_READY.
#[call(0x0705, synchronous, idempotent, reports)]
fn EventQuery(
    /// The event.
    event: EventHandle,
);

/// cuEventElapsedTime, in milliseconds.
#[call(0x0706, synchronous, idempotent, reports)]
fn EventElapsed(
    /// Where the time starts.
    start: EventHandle,
    /// Where it ends.
    end: EventHandle,
) -> f32;
