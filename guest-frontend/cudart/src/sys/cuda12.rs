//! Differences of CUDA 12 from CUDA 13: functions with the same name but other
//! parameters, records of another length, and functions that CUDA 13 dropped.

use super::boundary::{Boundary, Out};
use super::memory::attributes_of;
use super::runtime::{context, runtime};
use super::{present, texture, zeroed};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{CUsurfObject, CUtexObject, cuda12, cudaTextureDesc};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;

// Devices.

/// The function of CUDA 11, whose record lacks the fields that 12 appended.
pub(crate) unsafe fn cudaGetDeviceProperties_v1(
    properties: *mut cuda12::cudaDeviceProp,
    device: c_int,
) -> Result {
    present(properties)?;
    // SAFETY: the caller upholds the contract of `device_properties`.
    let known = unsafe { device_properties(device) }?;
    let told = offset_of!(cuda12::cudaDeviceProp, hostRegisterSupported);
    // SAFETY: `properties` holds a record of its version, which ends no sooner.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(&known).cast::<u8>(), properties.cast(), told)
    };
    Ok(())
}

pub(crate) unsafe fn cudaGetDeviceProperties_v2(
    properties: Out<'_, cuda12::cudaDeviceProp>,
    device: c_int,
) -> Result {
    properties.present()?;
    // SAFETY: the caller upholds the contract of `device_properties`.
    properties.put(unsafe { device_properties(device) }?)
}

pub(crate) unsafe fn cudaChooseDevice(
    device: Out<'_, c_int>,
    wanted: *const cuda12::cudaDeviceProp,
) -> Result {
    present(wanted)?;
    // SAFETY: `wanted` is valid, as the caller promises.
    let wanted = unsafe { &*wanted };
    let capability = (wanted.major, wanted.minor);
    super::device::choose(
        device,
        capability,
        wanted.totalGlobalMem,
        wanted.multiProcessorCount,
    )
}

/// Copies the fields that both generations have, and sets the others.
macro_rules! with_dropped {
    ($known:ident: $( $same:ident ),*; $( $dropped:ident: $value:expr ),*) => {
        cuda12::cudaDeviceProp { $( $same: $known.$same, )* $( $dropped: $value, )* }
    };
}

/// A device's properties as CUDA 12's record.
///
/// # Safety
/// None beyond those of the driver's function.
unsafe fn device_properties(ordinal: c_int) -> Result<cuda12::cudaDeviceProp> {
    let runtime = runtime()?;
    let number = runtime.device(ordinal)?.number;
    let known = super::device::cached_properties(runtime, ordinal)?;
    let ask = |attribute: c_int| -> Result<c_int> {
        let mut value = 0;
        // SAFETY: the caller upholds the contract of `cuDeviceGetAttribute`.
        unsafe {
            runtime
                .driver
                .cuDeviceGetAttribute(&mut value, attribute, number)
        }?;
        Ok(value)
    };
    Ok(with_dropped! { known:
        name, uuid, luid, luidDeviceNodeMask, totalGlobalMem, sharedMemPerBlock, regsPerBlock,
        warpSize, memPitch, maxThreadsPerBlock, maxThreadsDim, maxGridSize, totalConstMem,
        major, minor, textureAlignment, texturePitchAlignment, multiProcessorCount, integrated,
        canMapHostMemory, maxTexture1D, maxTexture1DMipmap, maxTexture2D, maxTexture2DMipmap,
        maxTexture2DLinear, maxTexture2DGather, maxTexture3D, maxTexture3DAlt,
        maxTextureCubemap, maxTexture1DLayered, maxTexture2DLayered, maxTextureCubemapLayered,
        maxSurface1D, maxSurface2D, maxSurface3D, maxSurface1DLayered, maxSurface2DLayered,
        maxSurfaceCubemap, maxSurfaceCubemapLayered, surfaceAlignment, concurrentKernels,
        ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount,
        unifiedAddressing, memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize,
        maxThreadsPerMultiProcessor, streamPrioritiesSupported, globalL1CacheSupported,
        localL1CacheSupported, sharedMemPerMultiprocessor, regsPerMultiprocessor, managedMemory,
        isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported, pageableMemoryAccess,
        concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem,
        cooperativeLaunch, sharedMemPerBlockOptin, pageableMemoryAccessUsesHostPageTables,
        directManagedMemAccessFromHost, maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize,
        reservedSharedMemPerBlock, hostRegisterSupported, sparseCudaArraySupported,
        hostRegisterReadOnlySupported, timelineSemaphoreInteropSupported, memoryPoolsSupported,
        gpuDirectRDMASupported, gpuDirectRDMAFlushWritesOptions, gpuDirectRDMAWritesOrdering,
        memoryPoolSupportedHandleTypes, deferredMappingCudaArraySupported, ipcEventSupported,
        clusterLaunch, unifiedFunctionPointers;
        clockRate: ask(abi::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        deviceOverlap: ask(abi::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP)?,
        kernelExecTimeoutEnabled: ask(abi::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT)?,
        computeMode: ask(abi::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?,
        maxTexture1DLinear: ask(abi::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH)?,
        memoryClockRate: ask(abi::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        singleToDoublePrecisionPerfRatio:
            ask(abi::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO)?,
        // Cooperative launches over several devices are not served.
        cooperativeMultiDeviceLaunch: 0,
        reserved: [0; 63]
    })
}

pub(crate) unsafe fn cudaSetDoubleForDevice(number: *mut f64) -> Result {
    present(number)
}

pub(crate) unsafe fn cudaSetDoubleForHost(number: *mut f64) -> Result {
    present(number)
}

// Memory.

pub(crate) unsafe fn cudaPointerGetAttributes(
    attributes: Out<'_, cuda12::cudaPointerAttributes>,
    address: *const c_void,
) -> Result {
    attributes.present()?;
    let found = attributes_of(address)?;
    attributes.put(cuda12::cudaPointerAttributes {
        r#type: found.r#type,
        device: found.device,
        devicePointer: found.devicePointer,
        hostPointer: found.hostPointer,
    })
}

/// The driver's number of a device, or -1 for the CPU in both interfaces.
pub(super) fn number_or_cpu(ordinal: c_int) -> Result<c_int> {
    match ordinal {
        abi::cudaCpuDeviceId => Ok(ordinal),
        _ => super::device::number(ordinal),
    }
}

// Textures and surfaces.

pub(crate) unsafe fn cudaCreateTextureObject(
    object: *mut CUtexObject,
    resource: *const cuda12::cudaResourceDesc,
    description: *const cudaTextureDesc,
    view: *const cuda12::cudaResourceViewDesc,
) -> Result {
    present(resource)?;
    // SAFETY: the caller upholds the contract of `longer`.
    let resource: abi::cudaResourceDesc = unsafe { longer(resource) };
    let longer_view: abi::cudaResourceViewDesc;
    let view = if view.is_null() {
        ptr::null()
    } else {
        // SAFETY: the caller upholds the contract of `longer`.
        longer_view = unsafe { longer(view) };
        &raw const longer_view
    };
    // SAFETY: the caller upholds the contract of `cudaCreateTextureObject`.
    unsafe { texture::cudaCreateTextureObject(object, &resource, description, view) }
}

pub(crate) unsafe fn cudaGetTextureObjectResourceDesc(
    resource: *mut cuda12::cudaResourceDesc,
    object: CUtexObject,
) -> Result {
    // SAFETY: the caller upholds the contract of `shortened`.
    unsafe {
        shortened(resource, |found| {
            texture::cudaGetTextureObjectResourceDesc(Boundary::take(ptr::from_mut(found)), object)
        })
    }
}

pub(crate) unsafe fn cudaGetTextureObjectResourceViewDesc(
    view: *mut cuda12::cudaResourceViewDesc,
    object: CUtexObject,
) -> Result {
    // SAFETY: the caller upholds the contract of `shortened`.
    unsafe {
        shortened(view, |found: &mut abi::cudaResourceViewDesc| {
            context()?
                .driver
                .cuTexObjectGetResourceViewDesc(ptr::from_mut(found).cast(), object)
        })
    }
}

pub(crate) unsafe fn cudaCreateSurfaceObject(
    object: *mut CUsurfObject,
    resource: *const cuda12::cudaResourceDesc,
) -> Result {
    present(resource)?;
    // SAFETY: the caller upholds the contract of `longer`.
    let resource: abi::cudaResourceDesc = unsafe { longer(resource) };
    // SAFETY: the caller upholds the contract of `cudaCreateSurfaceObject`.
    unsafe { texture::cudaCreateSurfaceObject(object, &resource) }
}

pub(crate) unsafe fn cudaGetSurfaceObjectResourceDesc(
    resource: *mut cuda12::cudaResourceDesc,
    object: CUsurfObject,
) -> Result {
    // SAFETY: the caller upholds the contract of `shortened`.
    unsafe {
        shortened(resource, |found| {
            texture::cudaGetSurfaceObjectResourceDesc(Boundary::take(ptr::from_mut(found)), object)
        })
    }
}

/// Extends a record of CUDA 12 with zeros to that of CUDA 13, which begins with the
/// same fields.
///
/// # Safety
/// `given` is readable; `Long` begins with the fields of `Short` and is of
/// integers, raw pointers and unions of them.
unsafe fn longer<Short, Long>(given: *const Short) -> Long {
    const { assert!(size_of::<Short>() <= size_of::<Long>()) };
    // SAFETY: the record has integers, pointers and optional functions.
    let mut long: Long = unsafe { zeroed() };
    // SAFETY: `given` holds a `Short`, as the caller promises; `long` is no shorter.
    unsafe {
        ptr::copy_nonoverlapping(
            given.cast::<u8>(),
            (&raw mut long).cast::<u8>(),
            size_of::<Short>(),
        )
    };
    long
}

/// Calls `ask` with CUDA 13's longer record and writes the common fields to `place`.
///
/// # Safety
/// `place` is null or writable; the records are as [`longer`] asks.
unsafe fn shortened<Short, Long>(
    place: *mut Short,
    ask: impl FnOnce(&mut Long) -> Result,
) -> Result {
    const { assert!(size_of::<Short>() <= size_of::<Long>()) };
    present(place)?;
    // SAFETY: the record has integers, pointers and optional functions.
    let mut found: Long = unsafe { zeroed() };
    ask(&mut found)?;
    // SAFETY: `place` holds a `Short`, as the caller promises; `found` is no shorter.
    unsafe {
        ptr::copy_nonoverlapping(
            (&raw const found).cast::<u8>(),
            place.cast::<u8>(),
            size_of::<Short>(),
        )
    };
    Ok(())
}
