//! Streams.

/// cuStreamCreateWithPriority.
#[call(0x0601, posted, creates(Stream = stream))]
fn StreamCreate(
    /// Its name from now on.
    stream: StreamHandle,
    /// CUstream_flags: 1 does not wait for the legacy default stream.
    flags: u32,
    /// Lower numbers go first.
    priority: i32,
);

/// cuStreamDestroy: work already in it still runs.
#[call(0x0602, posted, destroys(Stream = stream))]
fn StreamDestroy(
    /// The stream.
    stream: StreamHandle,
);

/// cuStreamSynchronize.
#[call(0x0603, synchronous, idempotent, reports, waits)]
fn StreamSynchronize(
    /// The stream.
    stream: StreamHandle,
);

/// cuStreamQuery: success or CUDA_ERROR_NOT_READY.
#[call(0x0604, synchronous, idempotent, reports)]
fn StreamQuery(
    /// The stream.
    stream: StreamHandle,
);

/// cuStreamWaitEvent.
#[call(0x0605, posted, node)]
fn StreamWaitEvent(
    /// The stream that waits.
    stream: StreamHandle,
    /// For what.
    event: EventHandle,
);
