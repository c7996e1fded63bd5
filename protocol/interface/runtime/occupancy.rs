//! Occupancy (CUDA Runtime API, chapter "Occupancy").

#[through(active_blocks(blocks, function, block_size, shared, 0))]
fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: *const c_void,
    block_size: c_int,
    shared: usize,
);

#[through(active_blocks(blocks, function, block_size, shared, flags))]
fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    function: *const c_void,
    block_size: c_int,
    shared: usize,
    flags: c_uint,
);

fn cudaOccupancyAvailableDynamicSMemPerBlock(
    shared: *mut usize,
    function: *const c_void,
    blocks: c_int,
    block_size: c_int,
);

#[needs(cuOccupancyMaxActiveClusters)]
fn cudaOccupancyMaxActiveClusters(
    clusters: Out<c_int>,
    function: *const c_void,
    config: In<cudaLaunchConfig_t>,
);

#[needs(cuOccupancyMaxPotentialClusterSize)]
fn cudaOccupancyMaxPotentialClusterSize(
    size: Out<c_int>,
    function: *const c_void,
    config: In<cudaLaunchConfig_t>,
);
