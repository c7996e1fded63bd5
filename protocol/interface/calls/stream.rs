//! Streams.

/// cuStreamCreateWithPriority.
#[call(0x0601, posted, creates(Stream = stream), part(objects, streams))]
fn StreamCreate(
    /// Its name from now on.
    stream: StreamHandle,
    /// CUstream_flags: 1 does not wait for the legacy default stream.
    flags: u32,
    /// Lower numbers go first.
    priority: i32,
);

/// cuStreamBatchMemOp: writes words and waits for words, one after the other.
#[call(0x0606, posted, node, part(objects))]
fn StreamMemory(
    /// The stream.
    stream: StreamHandle,
    /// [`MemoryOperation`](crate::types::MemoryOperation), one after the other; at most 256.
    operations: Bytes<'a>,
);

/// cuStreamSetAttribute of an attribute that changes how the GPU works, not what it computes: an access policy window, or memory synchronization domains. Those that the GPU refuses have no effect.
#[call(0x0608, posted, idempotent, changes(Stream = stream), key(attribute), part(objects, streams))]
fn StreamSetAttribute(
    /// The stream; not the legacy default stream.
    stream: StreamHandle,
    /// CUstreamAttrID.
    attribute: u32,
    /// CUstreamAttrValue.
    value: [u8; 64],
);

/// Clears a bulk token once all work is over that the stream has been given so far: a wait without a reply. Work that failed, and an error that waits to be reported, set the word to [`BULK_TOKEN_FAILED`](crate::layout::BULK_TOKEN_FAILED): a StreamSynchronize tells why.
#[call(0x0607, posted, replies, token(token))]
fn StreamSignal(
    /// The stream.
    stream: StreamHandle,
    /// The token, from 1.
    token: u32,
);
