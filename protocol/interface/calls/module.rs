//! Images, modules, kernels and variables.

/// Whether the host has the image with this BLAKE3 hash.
#[call(0x0401, synchronous, idempotent, survives, part(objects, modules))]
fn ImageQuery(
    /// BLAKE3 of the whole image.
    hash: [u8; 32],
    /// Bytes of the image, at most 1 GiB.
    size: u64,
) -> bool;

/// Part of an image that the host did not hold; parts come in order.
#[call(0x0402, posted, part(objects, modules))]
fn ImageWrite(
    /// BLAKE3 of the whole image.
    hash: [u8; 32],
    /// Bytes of the whole image.
    size: u64,
    /// Where this part belongs.
    offset: u64,
    /// The part.
    data: Bytes<'a>,
);

/// cuModuleLoadData, cuLibraryLoadData of an image that the host holds.
#[call(0x0403, synchronous, replies, creates(Module = module))]
fn ModuleLoad(
    /// Its name from now on.
    module: ModuleHandle,
    /// BLAKE3 of the image.
    hash: [u8; 32],
    /// Pairs of `u32` CUjit_option and `u32` value, for the options that are numbers.
    options: Bytes<'a>,
) -> Text<'r>;

/// cuModuleGetFunction, cuLibraryGetKernel, cuFuncGetAttribute, cuFuncGetParamInfo: all that is constant about a kernel.
#[call(0x0405, cached, replies, creates(Function = function), inside(Module = module))]
fn FunctionGet(
    /// Its name from now on.
    function: FunctionHandle,
    /// The module it is in.
    module: ModuleHandle,
    /// Its mangled name.
    name: Text<'a>,
) -> FunctionInfo<'r>;

/// cuModuleGetGlobal, cuLibraryGetGlobal.
#[call(0x0408, cached, idempotent, part(objects, modules))]
fn GlobalGet(
    /// The module.
    module: ModuleHandle,
    /// The variable's mangled name.
    name: Text<'a>,
) -> GlobalInfo;

/// cuLibraryGetManaged: a variable that is in managed memory; `NOT_FOUND` for any other.
#[call(0x0411, cached, idempotent, part(objects, modules))]
fn ManagedGet(
    /// The module.
    module: ModuleHandle,
    /// The variable's mangled name.
    name: Text<'a>,
) -> GlobalInfo;

/// cuOccupancyMaxActiveClusters: exactly what the driver says of this launch.
#[call(0x040b, cached, idempotent, part(objects))]
fn OccupancyClusters(
    /// The kernel.
    function: FunctionHandle,
    /// Blocks.
    grid: [u32; 3],
    /// Threads in a block.
    block: [u32; 3],
    /// Bytes of dynamic shared memory.
    dynamic_shared: u32,
    /// Blocks of a cluster.
    cluster: [u32; 3],
) -> i32;

/// cuModuleEnumerateFunctions: names of a module's kernels, in the driver's order.
#[call(0x040c, cached, idempotent, replies)]
fn ModuleFunctions(
    /// The module.
    module: ModuleHandle,
    /// The names from this one on.
    first: u32,
) -> FunctionNames<'r>;

/// cuOccupancyMaxPotentialClusterSize: the largest cluster that this launch may have.
#[call(0x040e, cached, idempotent, part(objects))]
fn OccupancyClusterSize(
    /// The kernel.
    function: FunctionHandle,
    /// Blocks.
    grid: [u32; 3],
    /// Threads in a block.
    block: [u32; 3],
    /// Bytes of dynamic shared memory.
    dynamic_shared: u32,
) -> i32;

/// cuLinkComplete: links images that the host holds into one, which it keeps.
#[call(0x040f, synchronous, idempotent, replies)]
fn ImageLink(
    /// Pairs of `u32` CUjit_option and `u32` value, for the options that are numbers.
    options: Bytes<'a>,
    /// Each input, in order: [`LinkInput`], one after the other.
    inputs: Bytes<'a>,
) -> LinkedImage<'r>;

/// Part of an image that the host holds.
#[call(0x0410, synchronous, idempotent, replies)]
fn ImageRead(
    /// BLAKE3 of the whole image.
    hash: [u8; 32],
    /// Where the part begins.
    offset: u64,
) -> Bytes<'r>;
