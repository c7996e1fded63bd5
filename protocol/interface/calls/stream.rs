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
