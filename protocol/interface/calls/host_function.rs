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

/// As [`HostFuncLaunch`], but the GPU itself asks for the function and waits for its end, without the host: it writes `value` to the first of a pair of [words](crate::layout::host_function_word), and waits until the second is `value` or, counted around, later. The guest runs the function and writes the second. A host whose GPU cannot reach the words, or that computes itself, sends a host-function frame instead. Either way, [`HostFuncDone`] ends the function as well; the guest posts it where calls must be executed before the GPU continues.
#[call(0x0903, posted, part(objects), with(copies))]
fn HostFuncSignal(
    /// The stream that orders it.
    stream: StreamHandle,
    /// The guest's number for the function and its argument.
    id: u64,
    /// The number of the pair of words.
    pair: u32,
    /// The number of the function among those of the pair.
    value: u32,
);
