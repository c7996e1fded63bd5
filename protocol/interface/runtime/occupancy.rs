//! Occupancy (CUDA Runtime API, chapter "Occupancy").

#[required(blocks)]
#[direct(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, in_context(runtime, function)?, block_size, shared, 0))]
fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: *const c_void,
    block_size: c_int,
    shared: usize,
);

#[required(blocks)]
#[direct(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, in_context(runtime, function)?, block_size, shared, flags))]
fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    function: *const c_void,
    block_size: c_int,
    shared: usize,
    flags: c_uint,
);

#[required(shared)]
#[direct(cuOccupancyAvailableDynamicSMemPerBlock(shared, in_context(runtime, function)?, blocks, block_size))]
fn cudaOccupancyAvailableDynamicSMemPerBlock(
    shared: *mut usize,
    function: *const c_void,
    blocks: c_int,
    block_size: c_int,
);

#[required(clusters, config)]
#[direct(cuOccupancyMaxActiveClusters(clusters, in_context(runtime, function)?, &driver_config(&*config)?))]
fn cudaOccupancyMaxActiveClusters(
    clusters: Out<c_int>,
    function: *const c_void,
    config: In<cudaLaunchConfig_t>,
);

#[required(size, config)]
#[direct(cuOccupancyMaxPotentialClusterSize(size, in_context(runtime, function)?, &driver_config(&*config)?))]
fn cudaOccupancyMaxPotentialClusterSize(
    size: Out<c_int>,
    function: *const c_void,
    config: In<cudaLaunchConfig_t>,
);
