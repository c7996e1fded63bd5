//! Calls: of the module's functions, of the system's, and of CUDA's device runtime.

/// The target of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallTarget {
    /// Function of this module by index.
    Function(usize),
    /// Address in a 64-bit row.
    Indirect(u32),
    /// `vprintf(format, arguments)`.
    Printf,
    /// `__assertfail(message, file, line, function, charSize)`.
    AssertFail,
    /// `malloc(size)`.
    Malloc,
    /// `__nv_aligned_device_malloc(size, alignment)`.
    AlignedMalloc,
    /// `free(address)`.
    Free,
    /// `cudaGraphSetConditional(handle, value)`.
    SetConditional,
    /// A function of CUDA's device runtime.
    Runtime(RuntimeCall),
}

/// The functions of CUDA's device runtime (cuda_device_runtime_api.h), whose names begin
/// with `__cudaCDP2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeCall {
    /// `GetParameterBuffer(alignment, size)`, for [`Self::LaunchDevice`].
    GetParameterBuffer,
    /// `LaunchDevice(kernel, buffer, grid, block, shared, stream)`, as libraries call it.
    LaunchDevice,
    /// `GetParameterBufferV2(kernel, grid, block, shared)`, for [`Self::LaunchDeviceV2`].
    GetParameterBufferV2,
    /// `LaunchDeviceV2(buffer, stream)`: what the compiler writes for `<<<>>>`.
    LaunchDeviceV2,
    /// `MemcpyAsync(to, from, size, kind, stream)`.
    Copy,
    /// `MemsetAsync(to, value, size, stream)`.
    Fill,
    /// `Memcpy2DAsync(to, pitch, from, pitch, width, rows, kind, stream)`.
    CopyRows,
    /// `Memset2DAsync(to, pitch, value, width, rows, stream)`.
    FillRows,
    /// `GetLastError()`.
    GetLastError,
    /// `PeekAtLastError()`.
    PeekAtLastError,
    /// `Malloc(address, size)`.
    Malloc,
    /// `Free(address)`.
    Free,
    /// `GetDevice(number)`.
    GetDevice,
    /// `GetDeviceCount(count)`.
    GetDeviceCount,
    /// `DeviceGetAttribute(value, attribute, device)`.
    DeviceGetAttribute,
    /// `DeviceGetLimit(value, limit)`.
    DeviceGetLimit,
    /// `DeviceGetCacheConfig(value)`.
    DeviceGetCacheConfig,
    /// `DeviceGetSharedMemConfig(value)`.
    DeviceGetSharedMemConfig,
    /// `FuncGetAttributes(attributes, kernel)`.
    FuncGetAttributes,
    /// `OccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared)`, whose
    /// flags, if any, follow.
    Occupancy,
    /// `RuntimeGetVersion(version)`.
    RuntimeGetVersion,
    /// `StreamCreateWithFlags(stream, flags)`, `EventCreateWithFlags(event, flags)`.
    Create,
    /// Other functions of streams and events, which do nothing: a block's launches run one
    /// after another, whatever the stream.
    Nothing,
}

impl RuntimeCall {
    /// The function with this name, with the sizes of its arguments and results.
    #[must_use]
    pub fn of(name: &str) -> Option<(Self, &'static [u32], &'static [u32])> {
        let name = name.strip_prefix("__cudaCDP2")?;
        let name = name.strip_suffix("_ptsz").unwrap_or(name);
        let (call, takes): (Self, &'static [u32]) = match name {
            "GetParameterBuffer" => return Some((Self::GetParameterBuffer, &[8, 8], &[8])),
            "GetParameterBufferV2" => {
                return Some((Self::GetParameterBufferV2, &[8, 12, 12, 4], &[8]));
            }
            "LaunchDevice" => (Self::LaunchDevice, &[8, 8, 12, 12, 4, 8]),
            "LaunchDeviceV2" => (Self::LaunchDeviceV2, &[8, 8]),
            "MemcpyAsync" => (Self::Copy, &[8, 8, 8, 4, 8]),
            "MemsetAsync" => (Self::Fill, &[8, 4, 8, 8]),
            "Memcpy2DAsync" => (Self::CopyRows, &[8, 8, 8, 8, 8, 8, 4, 8]),
            "Memset2DAsync" => (Self::FillRows, &[8, 8, 4, 8, 8, 8]),
            "GetLastError" => (Self::GetLastError, &[]),
            "PeekAtLastError" => (Self::PeekAtLastError, &[]),
            "Malloc" => (Self::Malloc, &[8, 8]),
            "Free" => (Self::Free, &[8]),
            "GetDevice" => (Self::GetDevice, &[8]),
            "GetDeviceCount" => (Self::GetDeviceCount, &[8]),
            "DeviceGetAttribute" => (Self::DeviceGetAttribute, &[8, 4, 4]),
            "DeviceGetLimit" => (Self::DeviceGetLimit, &[8, 4]),
            "DeviceGetCacheConfig" => (Self::DeviceGetCacheConfig, &[8]),
            "DeviceGetSharedMemConfig" => (Self::DeviceGetSharedMemConfig, &[8]),
            "FuncGetAttributes" => (Self::FuncGetAttributes, &[8, 8]),
            "OccupancyMaxActiveBlocksPerMultiprocessor" => (Self::Occupancy, &[8, 8, 4, 8]),
            "OccupancyMaxActiveBlocksPerMultiprocessorWithFlags" => {
                (Self::Occupancy, &[8, 8, 4, 8, 4])
            }
            "RuntimeGetVersion" => (Self::RuntimeGetVersion, &[8]),
            "StreamCreateWithFlags" | "EventCreateWithFlags" => (Self::Create, &[8, 4]),
            "StreamDestroy" | "EventDestroy" => (Self::Nothing, &[8]),
            "StreamWaitEvent" | "EventRecordWithFlags" => (Self::Nothing, &[8, 8, 4]),
            "EventRecord" => (Self::Nothing, &[8, 8]),
            _ => return None,
        };
        Some((call, takes, &[4]))
    }

    /// Whether it launches further work.
    #[must_use]
    pub fn launches(self) -> bool {
        matches!(
            self,
            Self::LaunchDevice
                | Self::LaunchDeviceV2
                | Self::Copy
                | Self::Fill
                | Self::CopyRows
                | Self::FillRows
        )
    }

    /// Whether it uses the module's heap.
    #[must_use]
    pub fn uses_heap(self) -> bool {
        matches!(
            self,
            Self::GetParameterBuffer | Self::GetParameterBufferV2 | Self::Malloc | Self::Free
        )
    }
}

/// A call: copies of parameters are byte ranges of local memory, relative to the frames.
#[derive(Debug, Clone)]
pub struct Call {
    /// The target.
    pub target: CallTarget,
    /// Offset in the caller's frame and size of each argument.
    pub args: Vec<(u32, u32)>,
    /// Offset in the caller's frame and size of each returned value.
    pub returns: Vec<(u32, u32)>,
}
