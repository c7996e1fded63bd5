//! Structures that calls and replies carry.

use crate::codec::{Bytes, DecodeError, Field, Reader, Text};
use crate::handle::ArrayHandle;

crate::record! {
    /// All that is constant about a device.
    DeviceSnapshot<'a> {
        /// cuDriverGetVersion: 1000·major + 10·minor.
        driver_version: i32,
        /// cuDeviceTotalMem, in bytes.
        total_memory: u64,
        /// cuDeviceGetUuid.
        uuid: [u8; 16],
        /// cuDeviceGetName.
        name: Text<'a>,
        /// cuDeviceGetPCIBusId.
        pci_bus_id: Text<'a>,
        /// Pairs of `i32` CUdevice_attribute and `i32` value: every attribute
        /// that the device knows.
        attributes: Bytes<'a>,
    }

    /// The host's answer to an NVML query.
    DeviceAnswer<'a> {
        /// An nvmlReturn_t: 0 is success.
        code: u32,
        /// The numbers that come out, in order; zeros after them. A negative
        /// number is extended to 64 bits.
        values: [u64; 5],
        /// The text that comes out; empty if none does.
        text: Text<'a>,
    }

    /// The use of a device by a VM's sessions.
    DeviceUsage<'a> {
        /// Bytes of memory that they may have together.
        limit: u64,
        /// Bytes that they have.
        used: u64,
        /// Microseconds since 1970 at the end of the interval in which
        /// utilization was measured.
        time: u64,
        /// Each session with work: [`ProcessUsage`], one after the other.
        processes: Bytes<'a>,
    }

    /// A session's use of a device.
    ProcessUsage {
        /// Process id in the guest.
        pid: u32,
        /// Percent of the device's time; [`ProcessUsage::UNKNOWN`] where
        /// nothing measures it.
        utilization: u32,
        /// Bytes of memory.
        memory: u64,
    }

    /// cuMemGetInfo, in bytes.
    MemoryInfo {
        /// Can still be had.
        free: u64,
        /// All there is for this session.
        total: u64,
    }

    /// Memory that other sessions of the VM may take.
    MemoryOffer {
        /// First address of the mapping.
        base: u64,
        /// Its bytes.
        size: u64,
        /// Names it in the VM.
        token: [u8; 16],
    }

    /// Names a session's device for the VM's other sessions.
    PeerName {
        /// Names it in the VM, on this host.
        token: [u8; 16],
    }

    /// CU_DEVICE_P2P_ATTRIBUTE_*, 1 to 5, of one device's access to another.
    PeerAttributes {
        /// Their values.
        values: [u64; 5],
    }

    /// An operation on a word of memory in a stream.
    MemoryOperation {
        /// CUstreamBatchMemOpType: 1 waits for 32 bits, 2 writes them, 4 waits
        /// for 64, 5 writes them, 6 is a barrier.
        kind: u32,
        /// CUstreamWaitValue_flags, CUstreamWriteValue_flags or
        /// CUstreamMemoryBarrier_flags.
        flags: u32,
        /// Where the word is.
        address: u64,
        /// The value to write or to compare with.
        value: u64,
    }

    /// An attribute of one launch (CUlaunchAttribute).
    LaunchPreference {
        /// CUlaunchAttributeID.
        attribute: u32,
        /// CUlaunchAttributeValue.
        value: [u8; 64],
    }

    /// A resource of multiprocessors (CUdevSmResource).
    SmResource {
        /// How many.
        count: u32,
        /// The fewest that a part of it has.
        least: u32,
        /// A part has a multiple of this many.
        alignment: u32,
    }

    /// What cuDevSmResourceSplitByCount makes of a resource.
    SmGroups {
        /// How many groups.
        groups: u32,
        /// Each of them; zeros if there is none.
        group: SmResource,
        /// What is left; zeros if nothing is.
        remaining: SmResource,
    }

    /// A step from a resource to a part of it: it is split, and some of the
    /// parts are taken together.
    SmSplit {
        /// Groups that were asked for.
        groups: u32,
        /// CUdevSmResourceSplit_flags.
        flags: u32,
        /// Least multiprocessors of a group.
        least: u32,
        /// Bit N of byte N / 8, for each group taken; bit 255 for what is left.
        members: [u8; 32],
    }

    /// A tensor in memory (CUDA Driver API, Tensor Map Object Management);
    /// dimensions past its rank are 0.
    Tensor {
        /// CUtensorMapDataType.
        data_type: u32,
        /// Dimensions, 1 to 5.
        rank: u32,
        /// Where it begins.
        address: u64,
        /// Elements of each dimension.
        dimensions: [u64; 5],
        /// Bytes from one element to the next, of the second dimension on.
        strides: [u64; 4],
        /// The step in each dimension.
        element_strides: [u64; 5],
    }

    /// The part of a tensor that one copy moves.
    TensorBox {
        /// [`TILED`](Self::TILED), [`IM2COL`](Self::IM2COL) or [`IM2COL_WIDE`](Self::IM2COL_WIDE).
        kind: u32,
        /// Tiled: elements of each dimension.
        extent: [u64; 5],
        /// Im2col: the lower corner in each dimension of space, as i32; wide:
        /// the first alone.
        lower: [u64; 3],
        /// The upper corner likewise.
        upper: [u64; 3],
        /// Im2col: channels of a pixel.
        channels: u32,
        /// Im2col: pixels of a column.
        pixels: u32,
        /// Im2col wide: CUtensorMapIm2ColWideMode.
        mode: u32,
    }

    /// The parameters of a tensor map.
    TensorMap {
        /// The tensor.
        tensor: Tensor,
        /// What is copied of it.
        part: TensorBox,
        /// CUtensorMapInterleave.
        interleave: u32,
        /// CUtensorMapSwizzle.
        swizzle: u32,
        /// CUtensorMapL2promotion.
        promotion: u32,
        /// CUtensorMapFloatOOBfill.
        fill: u32,
    }

    /// All that is constant about a kernel.
    FunctionInfo<'a> {
        /// Pairs of `u32` CUfunction_attribute and `i32` value.
        attributes: Bytes<'a>,
        /// Pairs of `u32` offset and `u32` size in bytes, one a parameter, in
        /// order (cuFuncGetParamInfo).
        parameters: Bytes<'a>,
    }

    /// What the device changed in shadows.
    ChangedRuns<'a> {
        /// Whether these are all changes. If they are more than
        /// [`ShadowChanges::MOST_BYTES`](crate::table::ShadowChanges::MOST_BYTES), there are none.
        complete: bool,
        /// [`ChangedRun`]s in the order of the ranges and of addresses. They contain every byte
        /// that changed, and may contain others.
        runs: Bytes<'a>,
    }

    /// Bytes in a row that the device changed.
    ChangedRun<'a> {
        /// The address of the first.
        address: u64,
        /// The bytes.
        bytes: Bytes<'a>,
    }

    /// Names of a module's kernels.
    FunctionNames<'a> {
        /// Kernels of the whole module.
        total: u32,
        /// The names asked for, as many as one reply carries; a zero ends each.
        names: Bytes<'a>,
    }

    /// An input of a link.
    LinkInput<'a> {
        /// CUjitInputType.
        kind: u32,
        /// How the linker's messages call it.
        name: Text<'a>,
        /// Its options, as those of the link.
        options: Bytes<'a>,
        /// BLAKE3 of its image.
        hash: [u8; 32],
    }

    /// The result of linking.
    LinkedImage<'a> {
        /// BLAKE3 of the image.
        hash: [u8; 32],
        /// Bytes of the image.
        size: u64,
        /// The linker's messages.
        log: Text<'a>,
    }

    /// Where a module's variable lies.
    GlobalInfo {
        /// Its device address.
        address: u64,
        /// Its bytes.
        size: u64,
    }

    /// A CUDA array (CUDA_ARRAY3D_DESCRIPTOR).
    ArrayShape {
        /// Elements in a row.
        width: u64,
        /// Rows; 0 for a 1D array.
        height: u64,
        /// Slices or layers; 0 for 1D and 2D arrays.
        depth: u64,
        /// CUarray_format.
        format: u32,
        /// 1, 2 or 4.
        channels: u32,
        /// CUDA_ARRAY3D flags.
        flags: u32,
        /// Mipmap levels; 0 for an array without.
        levels: u32,
    }

    /// Position and pitch of a copy in linear memory.
    LinearEnd {
        /// Address of byte 0 of row 0 of slice 0 of the copy itself.
        address: u64,
        /// Bytes from one row to the next.
        pitch: u64,
        /// Rows from one slice to the next.
        rows: u64,
    }

    /// Position of a copy in an array.
    ArrayEnd {
        /// The array.
        array: ArrayHandle,
        /// Its mipmap level.
        level: u32,
        /// Byte in the row, row, slice.
        origin: [u64; 3],
    }

    /// One level of a mipmapped array.
    ArrayLevel {
        /// The mipmapped array.
        array: ArrayHandle,
        /// The level, from 0.
        level: u32,
    }

    /// How a texture is read (CUDA_TEXTURE_DESC).
    Sampling {
        /// CUaddress_mode of each dimension.
        address_modes: [u32; 3],
        /// CUfilter_mode.
        filter: u32,
        /// CU_TRSF flags.
        flags: u32,
        /// Greatest anisotropy, 0 to 16.
        anisotropy: u32,
        /// CUfilter_mode between mipmap levels.
        mipmap_filter: u32,
        /// Added to the level.
        mipmap_bias: f32,
        /// Least level.
        mipmap_min: f32,
        /// Greatest level.
        mipmap_max: f32,
        /// Colour of the border, bit patterns of four `f32`.
        border: [u8; 16],
    }

    /// Another view of an array (CUDA_RESOURCE_VIEW_DESC).
    ResourceView {
        /// CUresourceViewFormat.
        format: u32,
        /// Elements: width, height, depth.
        extent: [u64; 3],
        /// First and last mipmap level, first and last layer.
        levels_layers: LevelsLayers,
    }

    /// Ranges of a [`ResourceView`].
    LevelsLayers {
        /// First mipmap level.
        first_level: u32,
        /// Last mipmap level.
        last_level: u32,
        /// First layer.
        first_layer: u32,
        /// Last layer.
        last_layer: u32,
    }

    /// Linear memory behind a texture.
    LinearResource {
        /// Device address.
        address: u64,
        /// CUarray_format.
        format: u32,
        /// 1, 2 or 4.
        channels: u32,
        /// Bytes (1D), or elements in a row (2D).
        width: u64,
        /// Rows; 0 for 1D.
        height: u64,
        /// Bytes from one row to the next; 0 for 1D.
        pitch: u64,
    }

    /// A node of a graph.
    GraphNode<'a> {
        /// Number of the call whose effect the node has, one of those with
        /// [`crate::call::CallInfo::node`]; 0 for none.
        call: u16,
        /// The nodes before it, each a `u32`: [`Dependency::to_wire`](crate::edge::Dependency::to_wire).
        after: Bytes<'a>,
        /// The call's payload, with streams and tokens of 0.
        work: Bytes<'a>,
    }

    /// A texture object.
    TextureSpec {
        /// Its resource.
        resource: TextureResource,
        /// How.
        sampling: Sampling,
        /// Another view of the array; its format 0 with extent 0 means none.
        view: ResourceView,
    }
}

impl ProcessUsage {
    /// In [`utilization`](Self::utilization): nothing measures it.
    pub const UNKNOWN: u32 = u32::MAX;

    /// Reads what [`DeviceUsage::processes`] holds. A last incomplete one is
    /// left out.
    pub fn all(bytes: Bytes<'_>) -> impl Iterator<Item = Self> + '_ {
        let mut reader = Reader::new(bytes.0);
        std::iter::from_fn(move || reader.field().ok())
    }
}

impl Sampling {
    /// The nearest element of coordinates that wrap, as it is: a descriptor of zeros.
    pub const NEAREST: Self = Self {
        address_modes: [0; 3],
        filter: 0,
        flags: 0,
        anisotropy: 0,
        mipmap_filter: 0,
        mipmap_bias: 0.0,
        mipmap_min: 0.0,
        mipmap_max: 0.0,
        border: [0; 16],
    };
}

impl LinkInput<'_> {
    /// Reads what `ImageLink` lists.
    ///
    /// # Errors
    /// [`DecodeError`] where the bytes are no such list.
    pub fn all(bytes: Bytes<'_>) -> Result<Vec<LinkInput<'_>>, DecodeError> {
        let mut reader = Reader::new(bytes.0);
        let mut inputs = Vec::new();
        while reader.remaining() > 0 {
            inputs.push(reader.field()?);
        }
        Ok(inputs)
    }
}

macro_rules! tagged {
    ($( $(#[$meta:meta])* $name:ident, $field_name:literal { $( $(#[$case_meta:meta])* $tag:literal => $case:ident($type:ty) ),* $(,)? } )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum $name { $( $(#[$case_meta])* $case($type) ),* }

        impl Field<'_> for $name {
            fn encode<'s>(&'s self, out: &mut Vec<u8>) -> &'s [u8] {
                match self { $( Self::$case(value) => { out.push($tag); value.encode(out) } )* }
            }
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(match reader.field::<u8>()? {
                    $( $tag => Self::$case(reader.field()?), )*
                    other => return Err(DecodeError::BadValue { field: $field_name, value: other.into() }),
                })
            }
        }
    )*};
}

tagged! {
    /// One end of a copy: a `u8` tag, then what it names.
    CopyEnd, "end of a copy" {
        /// Device memory, pinned memory or a shadow.
        0 => Linear(LinearEnd),
        /// A CUDA array.
        1 => Array(ArrayEnd),
    }

    /// The resource of a texture: a `u8` tag, then the structure for that tag.
    TextureResource, "texture resource" {
        /// An array or a mipmapped array.
        0 => Array(ArrayHandle),
        /// Linear device memory, 1D or pitched 2D.
        1 => Linear(LinearResource),
        /// One level of a mipmapped array.
        2 => Level(ArrayLevel),
    }
}

impl TensorBox {
    /// Kind of a box of elements.
    pub const TILED: u32 = 0;
    /// Kind of a column of pixels.
    pub const IM2COL: u32 = 1;
    /// Kind of a column of pixels along the width.
    pub const IM2COL_WIDE: u32 = 2;
    /// A tile without elements.
    pub const EMPTY: Self = Self {
        kind: Self::TILED,
        extent: [0; 5],
        lower: [0; 3],
        upper: [0; 3],
        channels: 0,
        pixels: 0,
        mode: 0,
    };
}

/// Reads a byte run of pairs, as attributes and parameters are sent.
/// A last incomplete pair is left out.
pub fn pairs(bytes: Bytes<'_>) -> impl Iterator<Item = (u32, u32)> + '_ {
    bytes.0.chunks_exact(8).filter_map(|pair| {
        let (first, second) = pair.split_first_chunk::<4>()?;
        Some((
            u32::from_le_bytes(*first),
            u32::from_le_bytes(second.try_into().ok()?),
        ))
    })
}

/// Writes pairs as [`pairs`] reads them.
#[must_use]
pub fn encode_pairs(pairs: impl IntoIterator<Item = (u32, u32)>) -> Vec<u8> {
    pairs
        .into_iter()
        .flat_map(|(first, second)| [first.to_le_bytes(), second.to_le_bytes()].concat())
        .collect()
}
