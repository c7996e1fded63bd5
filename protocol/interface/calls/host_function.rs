//! Host functions.

/// cuLaunchHostFunc, cuStreamAddCallback: when the stream gets here, the host sends a host-function frame and the stream waits for [`HostFuncDone`].
#[call(0x0901, posted, node, part(objects))]
fn HostFuncLaunch(
    /// In whose order.
    stream: StreamHandle,
    /// The guest's name for the function and its argument.
    id: u64,
);

/// The guest has run the host function.
#[call(0x0902, posted, survives, early, part(objects))]
fn HostFuncDone(
    /// As it was asked for.
    id: u64,
);
