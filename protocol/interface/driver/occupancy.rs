//! Occupancy (CUDA Driver API, Occupancy). The device's answers are cached by their
//! arguments; the rest is computed in the guest.

/// Returns the maximum number of blocks of a kernel on one multiprocessor.
#[since(6050)]
#[through(number = blocks(function, block_size, shared, 0))]
fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    number: Out<c_int>,
    function: CUfunction,
    block_size: c_int,
    shared: usize,
);

/// Returns the maximum number of blocks of a kernel on one multiprocessor.
#[since(7000)]
#[call(0x0409, cached, idempotent, code(guest))]
fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    number: Out<c_int>,
    function: CUfunction,
    block_size: c_int,
    dynamic_shared: usize,
    flags: c_uint,
);

/// Returns the block size with the highest occupancy, and the grid size that it needs.
#[since(6050)]
#[through(put_potential(grid, block, function, shared_of, shared, limit, 0))]
fn cuOccupancyMaxPotentialBlockSize(
    grid: Out<c_int>,
    block: Out<c_int>,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
);

/// Returns the block size with the highest occupancy, and the grid size that it needs.
#[since(7000)]
#[through(put_potential(grid, block, function, shared_of, shared, limit, flags))]
fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: Out<c_int>,
    block: Out<c_int>,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
    flags: c_uint,
);

/// Returns the dynamic shared memory available to each of a number of blocks.
#[since(10020)]
#[call(0x040a, cached, idempotent, code(guest))]
#[required(function)]
fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: Out<usize>,
    function: CUfunction,
    blocks: c_int,
    block_size: c_int,
);

/// Returns the maximum number of clusters of a launch that run at the same time.
#[since(11070)]
#[host]
#[required(func)]
fn cuOccupancyMaxActiveClusters(
    num_clusters: Out<c_int>,
    func: CUfunction,
    config: In<CUlaunchConfig>,
);

/// Returns the maximum cluster size of a launch.
#[since(11070)]
#[host]
fn cuOccupancyMaxPotentialClusterSize(
    cluster_size: Out<c_int>,
    func: CUfunction,
    config: In<CUlaunchConfig>,
);
