//! Launches.

/// cuLaunchKernel, cuLaunchCooperativeKernel, cuLaunchKernelEx.
#[call(0x0501, posted, node)]
fn Launch(
    /// The kernel.
    function: FunctionHandle,
    /// In whose order.
    stream: StreamHandle,
    /// Blocks.
    grid: [u32; 3],
    /// Threads in a block.
    block: [u32; 3],
    /// Bytes of dynamic shared memory.
    dynamic_shared: u32,
    /// `Launch::COOPERATIVE` and, outside of graphs, `Launch::PROGRAMMATIC`.
    flags: u32,
    /// Thread blocks of a cluster; zeros for none.
    cluster: [u32; 3],
    /// The kernel's parameter bytes, laid out as [`FunctionInfo::parameters`] says.
    parameters: Bytes<'a>,
);
