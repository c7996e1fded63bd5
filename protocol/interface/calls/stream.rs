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

/// cuStreamBatchMemOp: writes words and waits for words, one after the other.
#[call(0x0606, posted, node)]
fn StreamMemory(
    /// The stream.
    stream: StreamHandle,
    /// [`MemoryOperation`](crate::types::MemoryOperation), one after the other; at most 256.
    operations: Bytes<'a>,
);
