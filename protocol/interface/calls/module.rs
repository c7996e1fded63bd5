//! Images, modules, kernels and variables.

/// Whether the host has the image with this BLAKE3 hash.
#[call(0x0401, synchronous, idempotent, survives, part(objects, modules))]
fn ImageQuery(
    /// BLAKE3 of the whole image.
    hash: [u8; 32],
    /// Size of the image in bytes, at most 1 GiB.
    size: u64,
) -> bool;

/// A part of an image that the host lacks. Parts are sent in order, those of one image at a time. A part that does not follow the last one is dropped, which happens when the session has moved in between; the guest sends the image again if `ModuleLoad` or `ImageLink` says `NOT_FOUND`.
#[call(0x0402, posted, part(objects, modules))]
fn ImageWrite(
    /// BLAKE3 of the whole image.
    hash: [u8; 32],
    /// Size of the whole image in bytes.
    size: u64,
    /// The part's offset in the image.
    offset: u64,
    /// The part.
    data: Bytes<'a>,
);

/// cuModuleLoadData, cuLibraryLoadData of an image that the host has.
#[call(0x0403, synchronous, replies, creates(Module = module), part(objects), with(memory, replies))]
fn ModuleLoad(
    /// Its handle, chosen by the guest.
    module: ModuleHandle,
    /// BLAKE3 of the image.
    hash: [u8; 32],
    /// The numeric options (`jit`): pairs of `u32` CUjit_option and `u32` value. Any other option is refused.
    options: Bytes<'a>,
) -> Text<'r>;

/// cuModuleGetFunction, cuLibraryGetKernel, cuFuncGetAttribute, cuFuncGetParamInfo: the constant facts about a kernel.
#[call(0x0405, cached, replies, creates(Function = function), inside(Module = module), part(objects), with(replies))]
fn FunctionGet(
    /// Its handle, chosen by the guest.
    function: FunctionHandle,
    /// The module that contains it.
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

/// cuLibraryGetManaged: a managed variable; `NOT_FOUND` for any other.
#[call(0x0411, cached, idempotent, part(objects, modules))]
fn ManagedGet(
    /// The module.
    module: ModuleHandle,
    /// The variable's mangled name.
    name: Text<'a>,
) -> GlobalInfo;

/// cuOccupancyMaxActiveClusters: the driver's answer for this launch.
#[call(0x040b, cached, idempotent, part(objects))]
fn OccupancyClusters(
    /// The kernel.
    function: FunctionHandle,
    /// Blocks.
    grid: [u32; 3],
    /// Threads per block.
    block: [u32; 3],
    /// Bytes of dynamic shared memory.
    dynamic_shared: u32,
    /// Blocks per cluster.
    cluster: [u32; 3],
) -> i32;

/// cuModuleEnumerateFunctions: names of a module's kernels, in the driver's order.
#[call(0x040c, cached, idempotent, replies, part(objects), with(replies))]
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
    /// Threads per block.
    block: [u32; 3],
    /// Bytes of dynamic shared memory.
    dynamic_shared: u32,
) -> i32;

/// cuLinkComplete: links images that the host holds into one, which it keeps.
#[call(0x040f, synchronous, idempotent, replies, part(objects), with(replies))]
fn ImageLink(
    /// The numeric options (`jit`): pairs of `u32` CUjit_option and `u32` value. Any other option is refused.
    options: Bytes<'a>,
    /// Each input, in order: [`LinkInput`], one after the other.
    inputs: Bytes<'a>,
) -> LinkedImage<'r>;

/// A part of an image that the host has.
#[call(0x0410, synchronous, idempotent, replies, part(objects), with(replies))]
fn ImageRead(
    /// BLAKE3 of the whole image.
    hash: [u8; 32],
    /// The part's offset in the image.
    offset: u64,
) -> Bytes<'r>;
