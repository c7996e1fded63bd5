//! Streams.

/// cuStreamCreateWithPriority.
#[call(0x0601, posted, creates(Stream = stream), part(objects, streams))]
fn StreamCreate(
    /// Its handle, chosen by the guest.
    stream: StreamHandle,
    /// CUstream_flags: 1 for a non-blocking stream, which does not wait for the legacy default stream.
    flags: u32,
    /// The priority; lower numbers run first.
    priority: i32,
);

/// cuStreamBatchMemOp: writes words and waits for words, in order.
#[call(0x0606, posted, node, part(objects))]
fn StreamMemory(
    /// The stream.
    stream: StreamHandle,
    /// A sequence of at most 256 [`MemoryOperation`](crate::types::MemoryOperation).
    operations: Bytes<'a>,
);

/// cuStreamSetAttribute of an attribute that affects performance but not results: an access policy window, or memory synchronization domains. Attributes that the GPU refuses have no effect.
#[call(0x0608, posted, idempotent, changes(Stream = stream), key(attribute), part(objects, streams))]
fn StreamSetAttribute(
    /// The stream; not the legacy default stream.
    stream: StreamHandle,
    /// CUstreamAttrID.
    attribute: u32,
    /// CUstreamAttrValue.
    value: [u8; 64],
);

/// Clears a bulk token once all work submitted to the stream so far is complete: a wait without a reply. Failed work, and an error that is still to be reported, set the word to [`BULK_TOKEN_FAILED`](crate::layout::BULK_TOKEN_FAILED); a StreamSynchronize then returns the error.
#[call(0x0607, posted, replies, token(token), part(objects), with(copies, replies))]
fn StreamSignal(
    /// The stream.
    stream: StreamHandle,
    /// The token, from 1.
    token: u32,
);
