//! Occupancy (CUDA Driver API, Occupancy). What the device says is asked once
//! for the same arguments; the rest is computed here.

/// Blocks that fit on a multiprocessor.
#[since(6050)]
fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    number: *mut c_int,
    function: CUfunction,
    block_size: c_int,
    shared: usize,
);

/// Blocks that fit on a multiprocessor.
#[since(7000)]
fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    number: *mut c_int,
    function: CUfunction,
    block_size: c_int,
    shared: usize,
    flags: c_uint,
);

/// A good size of blocks and grid.
#[since(6050)]
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
fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: *mut usize,
    function: CUfunction,
    number: c_int,
    block_size: c_int,
);

/// Clusters of a launch that fit on the device at once.
#[since(11070)]
fn cuOccupancyMaxActiveClusters(
    num_clusters: Out<c_int>,
    func: CUfunction,
    config: In<CUlaunchConfig>,
);

/// The largest cluster that a launch may have.
#[since(11070)]
fn cuOccupancyMaxPotentialClusterSize(
    cluster_size: Out<c_int>,
    func: CUfunction,
    config: In<CUlaunchConfig>,
);
