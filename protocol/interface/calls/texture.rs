//! Arrays, textures and surfaces.

/// cuArray3DCreate, cuMipmappedArrayCreate.
#[call(0x0301, synchronous, creates(Array = array), part(objects, textures), with(memory))]
fn ArrayCreate(
    /// Its handle, chosen by the guest.
    array: ArrayHandle,
    /// Extent, format, flags, levels.
    shape: ArrayShape,
);

/// cuArrayDestroy, cuMipmappedArrayDestroy.
#[call(0x0302, posted, destroys(Array = array), part(objects, textures), with(memory))]
fn ArrayDestroy(
    /// The array.
    array: ArrayHandle,
);

/// cuTexObjectCreate. The reply is the value that kernels receive.
#[call(0x0303, synchronous, creates(Texture = texture), part(objects, textures))]
fn TextureCreate(
    /// Its handle, chosen by the guest.
    texture: TextureHandle,
    /// The resource and how it is read.
    spec: TextureSpec,
) -> u64;

/// cuTexObjectDestroy.
#[call(0x0304, posted, destroys(Texture = texture), part(objects, textures))]
fn TextureDestroy(
    /// The texture object.
    texture: TextureHandle,
);

/// cuSurfObjectCreate. The reply is the value that kernels receive.
#[call(0x0305, synchronous, creates(Surface = surface), part(objects, textures))]
fn SurfaceCreate(
    /// Its handle, chosen by the guest.
    surface: SurfaceHandle,
    /// The array behind it.
    array: ArrayHandle,
    /// The level of a mipmapped array; 0 for others.
    level: u32,
) -> u64;

/// cuSurfObjectDestroy.
#[call(0x0306, posted, destroys(Surface = surface), part(objects, textures))]
fn SurfaceDestroy(
    /// The surface object.
    surface: SurfaceHandle,
);

/// cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col, cuTensorMapEncodeIm2colWide: the descriptor that a kernel receives.
#[call(0x0307, synchronous, idempotent, part(gpu))]
fn TensorMapEncode(
    /// The tensor's description.
    map: TensorMap,
) -> [u8; 128];

/// cuTensorMapReplaceAddress: the same descriptor with another address.
#[call(0x0308, synchronous, idempotent, part(gpu))]
fn TensorMapReplace(
    /// The descriptor from [`TensorMapEncode`].
    map: [u8; 128],
    /// The tensor's address.
    address: u64,
) -> [u8; 128];
