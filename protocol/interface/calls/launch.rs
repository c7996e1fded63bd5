//! Launches.

/// cuLaunchKernel, cuLaunchCooperativeKernel, cuLaunchKernelEx.
#[call(0x0501, posted, node, part(objects), with(pacing, replies, copies, statistics))]
fn Launch(
    /// The kernel.
    function: FunctionHandle,
    /// The stream that orders it.
    stream: StreamHandle,
    /// Blocks.
    grid: [u32; 3],
    /// Threads per block.
    block: [u32; 3],
    /// Bytes of dynamic shared memory.
    dynamic_shared: u32,
    /// `Launch::COOPERATIVE` and, outside of graphs, `Launch::PROGRAMMATIC`,
    /// `Launch::by` and `Launch::KNOWS`, with a position in the upper half.
    flags: u32,
    /// Blocks per cluster; zeros for none.
    cluster: [u32; 3],
    /// Attributes that steer the GPU without changing results, as `LaunchPreference`s: those
    /// in `Launch::PREFERENCES`, each at most once.
    preferences: Bytes<'a>,
    /// The kernel's parameters, in the layout of [`FunctionInfo::parameters`].
    parameters: Bytes<'a>,
);
