//! The context.

/// cuCtxSynchronize.
#[call(0x0801, synchronous, idempotent, reports, waits)]
fn ContextSynchronize();

/// cuCtxSetLimit.
#[call(0x0802, synchronous, idempotent)]
fn ContextSetLimit(
    /// A CUlimit.
    limit: u32,
    /// Its new value.
    value: u64,
);

/// cuCtxGetLimit.
#[call(0x0803, synchronous, idempotent)]
fn ContextGetLimit(
    /// A CUlimit.
    limit: u32,
) -> u64;
