//! Occupancy (CUDA Driver API, Occupancy). What the device says is asked once
//! for the same arguments; the rest is computed here.

/// Blocks that fit on a multiprocessor.
#[since(6050)]
#[through(number = blocks(function, block_size, shared, 0))]
fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    number: Out<c_int>,
    function: CUfunction,
    block_size: c_int,
    shared: usize,
);

/// Blocks that fit on a multiprocessor.
#[since(7000)]
#[call(0x0409, cached, idempotent, code(guest))]
fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    number: Out<c_int>,
    function: CUfunction,
    block_size: c_int,
    dynamic_shared: usize,
    flags: c_uint,
);

/// A good size of blocks and grid.
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

/// A good size of blocks and grid.
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

/// Dynamic shared memory left for each of a number of blocks.
#[since(10020)]
#[call(0x040a, cached, idempotent, code(guest))]
#[required(function)]
fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: Out<usize>,
    function: CUfunction,
    blocks: c_int,
    block_size: c_int,
);

/// Clusters of a launch that fit on the device at once.
#[since(11070)]
#[host]
#[required(func)]
fn cuOccupancyMaxActiveClusters(
    num_clusters: Out<c_int>,
    func: CUfunction,
    config: In<CUlaunchConfig>,
);

/// The largest cluster that a launch may have.
#[since(11070)]
#[host]
fn cuOccupancyMaxPotentialClusterSize(
    cluster_size: Out<c_int>,
    func: CUfunction,
    config: In<CUlaunchConfig>,
);
