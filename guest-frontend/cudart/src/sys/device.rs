//! Devices (CUDA Runtime API, chapters "Device Management" and "Peer Device
//! Memory Access").

use super::boundary::Out;
use super::runtime::{Runtime, known, runtime};
use super::{fail, present, zeroed};
use crate::channel;
use crate::error::{Error, Result};
use crate::thread;
use paragpu_abi as abi;
use paragpu_abi::{CUdevice, CUuuid, cudaChannelFormatDesc, cudaDeviceProp};
use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

pub(crate) fn cudaGetDeviceCount(count: Out<'_, c_int>) -> Result {
    count.put(0)?;
    let devices = known()?.devices.len();
    count.put(c_int::try_from(devices).unwrap_or(c_int::MAX))
}

pub(crate) fn cudaGetDevice(device: Out<'_, c_int>) -> Result {
    device.present()?;
    device.put(runtime()?.current_device()?)
}

pub(crate) fn cudaSetDevice(device: c_int) -> Result {
    let runtime = runtime()?;
    let binding = thread::with(|thread| thread.binding.get());
    let current = runtime.current()?;
    if binding.device == device && !current.is_null() && current == binding.context {
        thread::with(|thread| thread.set_device(device));
        return Ok(());
    }
    runtime.bind(device)
}

pub(crate) unsafe fn cudaSetValidDevices(devices: *mut c_int, count: c_int) -> Result {
    let runtime = runtime()?;
    let Ok(count) = usize::try_from(count) else {
        return fail(abi::cudaErrorInvalidValue);
    };
    if count > runtime.devices.len() {
        return fail(abi::cudaErrorInvalidValue);
    }
    if count == 0 {
        thread::set_first(0);
        // As natively, the thread takes its context again at the next call.
        // SAFETY: a thread may have no current context.
        unsafe { runtime.driver.cuCtxSetCurrent(ptr::null_mut()) }?;
        return Ok(());
    }
    present(devices)?;
    // SAFETY: the caller passes `count` devices.
    let devices = unsafe { std::slice::from_raw_parts(devices, count) };
    for device in devices {
        runtime.device(*device)?;
    }
    // Every visible device is usable, so the first is chosen.
    devices.iter().take(1).copied().for_each(thread::set_first);
    Ok(())
}

pub(crate) unsafe fn cudaInitDevice(device: c_int, device_flags: c_uint, flags: c_uint) -> Result {
    let runtime = runtime()?;
    let number = runtime.device(device)?.number;
    if flags & abi::cudaInitDeviceFlagsAreValid as c_uint != 0 {
        // SAFETY: the caller upholds the contract of `cuDevicePrimaryCtxSetFlags_v2`.
        unsafe {
            runtime
                .driver
                .cuDevicePrimaryCtxSetFlags_v2(number, driver_flags(device_flags)?)
        }?;
    }
    runtime.primary(device).map(|_| ())
}

pub(crate) unsafe fn cudaGetDeviceFlags(flags: Out<'_, c_uint>) -> Result {
    flags.present()?;
    let runtime = runtime()?;
    let mut value = 0;
    if runtime.current()?.is_null() {
        let number = runtime.device(runtime.current_device()?)?.number;
        // SAFETY: the caller upholds the contract of `cuDevicePrimaryCtxGetState`.
        unsafe {
            runtime
                .driver
                .cuDevicePrimaryCtxGetState(number, &mut value, &mut 0)
        }?;
    } else {
        // SAFETY: the caller upholds the contract of `cuCtxGetFlags`.
        unsafe { runtime.driver.cuCtxGetFlags(&mut value) }?;
    }
    flags.put(value | abi::cudaDeviceMapHost as c_uint)
}

pub(crate) unsafe fn cudaDeviceReset() -> Result {
    let runtime = runtime()?;
    let device = runtime.current_device()?;
    // SAFETY: the caller upholds the contract of `Runtime::reset`.
    unsafe { runtime.reset(device) }
}

#[cfg(not(cuda12))]
pub(crate) unsafe fn cudaGetDeviceProperties(
    properties: *mut cudaDeviceProp,
    device: c_int,
) -> Result {
    present(properties)?;
    let runtime = runtime()?;
    let known = ptr::from_ref(cached_properties(runtime, device)?);
    // Reserved fields keep the caller's contents.
    let told = std::mem::offset_of!(cudaDeviceProp, reserved);
    // SAFETY: `properties` holds as many bytes, as the caller promises; `known` is longer.
    unsafe { ptr::copy_nonoverlapping(known.cast::<u8>(), properties.cast::<u8>(), told) };
    Ok(())
}

#[cfg(not(cuda12))]
pub(crate) unsafe fn cudaChooseDevice(
    device: Out<'_, c_int>,
    wanted: *const cudaDeviceProp,
) -> Result {
    present(wanted)?;
    // SAFETY: `wanted` is valid, as the caller promises.
    let wanted = unsafe { &*wanted };
    choose(
        device,
        (wanted.major, wanted.minor),
        wanted.totalGlobalMem,
        wanted.multiProcessorCount,
    )
}

/// The ordinal of the device that meets most of the requested properties; zeros do
/// not count.
pub(super) fn choose(
    device: Out<'_, c_int>,
    capability: (c_int, c_int),
    memory: usize,
    processors: c_int,
) -> Result {
    device.present()?;
    let runtime = runtime()?;
    let mut best = (0, -1);
    for ordinal in (0..).take(runtime.devices.len()) {
        let has = cached_properties(runtime, ordinal)?;
        let score = [
            capability.0 != 0 && (has.major, has.minor) >= capability,
            memory != 0 && has.totalGlobalMem >= memory,
            processors != 0 && has.multiProcessorCount >= processors,
        ]
        .into_iter()
        .filter(|met| *met)
        .count();
        let score = c_int::try_from(score).unwrap_or(0);
        if score > best.1 {
            best = (ordinal, score);
        }
    }
    device.put(best.0)
}

pub(crate) unsafe fn cudaDeviceGetByPCIBusId(
    device: Out<'_, c_int>,
    identifier: *const c_char,
) -> Result {
    device.present()?;
    present(identifier)?;
    let runtime = runtime()?;
    let mut number = 0;
    // SAFETY: the caller upholds the contract of `cuDeviceGetByPCIBusId`.
    unsafe {
        runtime
            .driver
            .cuDeviceGetByPCIBusId(&mut number, identifier)
    }?;
    device.put(runtime.ordinal(number))
}

pub(crate) unsafe fn cudaDeviceGetTexture1DLinearMaxWidth(
    width: *mut usize,
    desc: *const cudaChannelFormatDesc,
    device: c_int,
) -> Result {
    present(width)?;
    present(desc)?;
    let runtime = runtime()?;
    // SAFETY: `desc` is valid, as the caller promises.
    let format = channel::format(unsafe { &*desc })?;
    // SAFETY: the caller upholds the contract of `cuDeviceGetTexture1DLinearMaxWidth`.
    unsafe {
        runtime.driver.cuDeviceGetTexture1DLinearMaxWidth(
            width,
            format.format,
            format.channels,
            runtime.device(device)?.number,
        )
    }
}

/// The driver's number of a device.
///
/// # Errors
/// `cudaErrorInvalidDevice` if there is no such device; the error with which the driver started.
pub(super) fn number(ordinal: c_int) -> Result<CUdevice> {
    Ok(runtime()?.device(ordinal)?.number)
}

/// The driver's flags. The driver always maps host memory, so that flag is dropped.
pub(super) fn driver_flags(flags: c_uint) -> Result<c_uint> {
    let schedule = flags & abi::cudaDeviceScheduleMask as c_uint;
    if flags & !(abi::cudaDeviceMask as c_uint) != 0 || (schedule & (schedule.wrapping_sub(1))) != 0
    {
        return fail(abi::cudaErrorInvalidValue);
    }
    Ok(flags & !(abi::cudaDeviceMapHost as c_uint))
}

/// A device's properties, queried once.
pub(super) fn cached_properties(runtime: &Runtime, ordinal: c_int) -> Result<&cudaDeviceProp> {
    let device = runtime.device(ordinal)?;
    if let Some(known) = device.properties.get() {
        return Ok(known);
    }
    let found = properties(runtime, device.number)?;
    Ok(device.properties.get_or_init(|| Box::new(found)))
}

/// Assigns fields from the driver attributes with the same meaning.
macro_rules! fill {
    ($ask:ident; $( $( $place:ident ).+ $([$index:literal])? = $attribute:ident; )*) => {
        $( $( $place ).+ $([$index])? = $ask(abi::$attribute)?.try_into().unwrap_or(0); )*
    };
}

fn properties(runtime: &Runtime, number: c_int) -> Result<cudaDeviceProp> {
    let driver = runtime.driver;
    let ask = |attribute: c_int| -> Result<c_int> {
        let mut value = 0;
        // SAFETY: it writes one number, to a local variable.
        match unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, number) } {
            // An older driver that does not know an attribute lacks the feature.
            Err(error) if error == Error::new(abi::cudaErrorInvalidValue) => Ok(0),
            Err(error) => Err(error),
            Ok(()) => Ok(value),
        }
    };
    // SAFETY: a record of integers; its name has 256 bytes.
    let mut p: cudaDeviceProp = unsafe {
        let mut p: cudaDeviceProp = zeroed();
        driver.cuDeviceGetName(p.name.as_mut_ptr().cast(), 256, number)?;
        driver.cuDeviceGetUuid(ptr::from_mut::<CUuuid>(&mut p.uuid), number)?;
        driver.cuDeviceTotalMem_v2(&mut p.totalGlobalMem, number)?;
        p
    };
    fill! { ask;
        p.sharedMemPerBlock = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK;
        p.regsPerBlock = CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK;
        p.warpSize = CU_DEVICE_ATTRIBUTE_WARP_SIZE;
        p.memPitch = CU_DEVICE_ATTRIBUTE_MAX_PITCH;
        p.maxThreadsPerBlock = CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        p.maxThreadsDim[0] = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X;
        p.maxThreadsDim[1] = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y;
        p.maxThreadsDim[2] = CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z;
        p.maxGridSize[0] = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X;
        p.maxGridSize[1] = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y;
        p.maxGridSize[2] = CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z;
        p.totalConstMem = CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY;
        p.major = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        p.minor = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
        p.textureAlignment = CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT;
        p.texturePitchAlignment = CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT;
        p.multiProcessorCount = CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        p.integrated = CU_DEVICE_ATTRIBUTE_INTEGRATED;
        p.canMapHostMemory = CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY;
        p.maxTexture1D = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH;
        p.maxTexture1DMipmap = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH;
        p.maxTexture2D[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH;
        p.maxTexture2D[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT;
        p.maxTexture2DMipmap[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH;
        p.maxTexture2DMipmap[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT;
        p.maxTexture2DLinear[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH;
        p.maxTexture2DLinear[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT;
        p.maxTexture2DLinear[2] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH;
        p.maxTexture2DGather[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH;
        p.maxTexture2DGather[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT;
        p.maxTexture3D[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH;
        p.maxTexture3D[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT;
        p.maxTexture3D[2] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH;
        p.maxTexture3DAlt[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE;
        p.maxTexture3DAlt[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE;
        p.maxTexture3DAlt[2] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE;
        p.maxTextureCubemap = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH;
        p.maxTexture1DLayered[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH;
        p.maxTexture1DLayered[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS;
        p.maxTexture2DLayered[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH;
        p.maxTexture2DLayered[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT;
        p.maxTexture2DLayered[2] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS;
        p.maxTextureCubemapLayered[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH;
        p.maxTextureCubemapLayered[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS;
        p.maxSurface1D = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH;
        p.maxSurface2D[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH;
        p.maxSurface2D[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT;
        p.maxSurface3D[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH;
        p.maxSurface3D[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT;
        p.maxSurface3D[2] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH;
        p.maxSurface1DLayered[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH;
        p.maxSurface1DLayered[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS;
        p.maxSurface2DLayered[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH;
        p.maxSurface2DLayered[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT;
        p.maxSurface2DLayered[2] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS;
        p.maxSurfaceCubemap = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH;
        p.maxSurfaceCubemapLayered[0] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH;
        p.maxSurfaceCubemapLayered[1] = CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS;
        p.surfaceAlignment = CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT;
        p.concurrentKernels = CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS;
        p.ECCEnabled = CU_DEVICE_ATTRIBUTE_ECC_ENABLED;
        p.pciBusID = CU_DEVICE_ATTRIBUTE_PCI_BUS_ID;
        p.pciDeviceID = CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID;
        p.pciDomainID = CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID;
        p.tccDriver = CU_DEVICE_ATTRIBUTE_TCC_DRIVER;
        p.asyncEngineCount = CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT;
        p.unifiedAddressing = CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
        p.memoryBusWidth = CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH;
        p.l2CacheSize = CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
        p.persistingL2CacheMaxSize = CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE;
        p.maxThreadsPerMultiProcessor = CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR;
        p.streamPrioritiesSupported = CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED;
        p.globalL1CacheSupported = CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED;
        p.localL1CacheSupported = CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED;
        p.sharedMemPerMultiprocessor = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
        p.regsPerMultiprocessor = CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR;
        p.managedMemory = CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
        p.isMultiGpuBoard = CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD;
        p.multiGpuBoardGroupID = CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID;
        p.hostNativeAtomicSupported = CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED;
        p.pageableMemoryAccess = CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS;
        p.concurrentManagedAccess = CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        p.computePreemptionSupported = CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED;
        p.canUseHostPointerForRegisteredMem =
            CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        p.cooperativeLaunch = CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH;
        p.sharedMemPerBlockOptin = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        p.pageableMemoryAccessUsesHostPageTables =
            CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
        p.directManagedMemAccessFromHost = CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST;
        p.maxBlocksPerMultiProcessor = CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR;
        p.accessPolicyMaxWindowSize = CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE;
        p.reservedSharedMemPerBlock = CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK;
        p.hostRegisterSupported = CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED;
        p.sparseCudaArraySupported = CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED;
        p.hostRegisterReadOnlySupported = CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        p.timelineSemaphoreInteropSupported =
            CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED;
        p.memoryPoolsSupported = CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        p.gpuDirectRDMASupported = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED;
        p.gpuDirectRDMAFlushWritesOptions =
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS;
        p.gpuDirectRDMAWritesOrdering = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
        p.memoryPoolSupportedHandleTypes = CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES;
        p.deferredMappingCudaArraySupported =
            CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED;
        p.ipcEventSupported = CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED;
        p.clusterLaunch = CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH;
        p.unifiedFunctionPointers = CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS;
        p.deviceNumaConfig = CU_DEVICE_ATTRIBUTE_NUMA_CONFIG;
        p.deviceNumaId = CU_DEVICE_ATTRIBUTE_NUMA_ID;
        p.mpsEnabled = CU_DEVICE_ATTRIBUTE_MPS_ENABLED;
        p.hostNumaId = CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
        p.gpuPciDeviceID = CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID;
        p.gpuPciSubsystemID = CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID;
        p.hostNumaMultinodeIpcSupported =
            CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED;
    }
    Ok(p)
}
