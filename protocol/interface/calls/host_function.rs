//! Host functions.

/// cuLaunchHostFunc, cuStreamAddCallback: when the stream reaches it, the host sends a host-function frame, and the stream waits for [`HostFuncDone`].
#[call(0x0901, posted, node, part(objects))]
fn HostFuncLaunch(
    /// The stream that orders it.
    stream: StreamHandle,
    /// The guest's number for the function and its argument.
    id: u64,
);

/// The guest has run the host function.
#[call(0x0902, posted, survives, early, part(objects))]
fn HostFuncDone(
    /// The number from the host-function frame.
    id: u64,
);
