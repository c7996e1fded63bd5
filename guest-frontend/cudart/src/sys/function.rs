//! Attributes of kernels (CUDA Runtime API, chapters "Execution Control" and
//! "Interactions with the CUDA Driver API").

use super::boundary::Out;
use super::launch::kernel;
use super::registry;
use super::runtime::{Runtime, context};
use super::{fail, present, put, zeroed};
use crate::error::{Error, Result};
use paragpu_abi as abi;
use paragpu_abi::{CUfunction, CUkernel, cudaFuncAttributes};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// # Safety
/// As CUDA's manual says for cudaFuncGetAttributes.
pub(crate) unsafe fn cudaFuncGetAttributes(
    attributes: Out<'_, cudaFuncAttributes>,
    function: *const c_void,
) -> Result {
    attributes.present()?;
    // SAFETY: the caller promises what `attributes_of` asks for.
    attributes.put(unsafe { attributes_of(context()?, function) }?)
}

/// # Safety
/// As CUDA's manual says for cudaFuncSetAttribute.
pub(crate) unsafe fn cudaFuncSetAttribute(
    function: *const c_void,
    attribute: c_int,
    value: c_int,
) -> Result {
    let runtime = context()?;
    // SAFETY: the caller promises what `known` asks for.
    let handle = unsafe { known(runtime, function) }.or(fail(abi::cudaErrorInvalidValue))?;
    settable(attribute)?;
    // SAFETY: `cuFuncSetAttribute` asks for what the caller promises.
    unsafe { runtime.driver.cuFuncSetAttribute(handle, attribute, value) }
}

/// # Safety
/// As CUDA's manual says for cudaFuncSetCacheConfig.
pub(crate) unsafe fn cudaFuncSetCacheConfig(function: *const c_void, config: c_int) -> Result {
    let runtime = context()?;
    // SAFETY: the caller promises what `in_context` asks for.
    let handle = unsafe { in_context(runtime, function) }?;
    // SAFETY: `cuFuncSetCacheConfig` asks for what the caller promises.
    unsafe { runtime.driver.cuFuncSetCacheConfig(handle, config) }
}

/// # Safety
/// As CUDA's manual says for cudaFuncSetSharedMemConfig.
pub(crate) unsafe fn cudaFuncSetSharedMemConfig(function: *const c_void, config: c_int) -> Result {
    let runtime = context()?;
    // SAFETY: the caller promises what `in_context` asks for.
    let handle = unsafe { in_context(runtime, function) }?;
    // SAFETY: `cuFuncSetSharedMemConfig` asks for what the caller promises.
    unsafe { runtime.driver.cuFuncSetSharedMemConfig(handle, config) }
}

/// # Safety
/// As CUDA's manual says for cudaFuncGetName.
pub(crate) unsafe fn cudaFuncGetName(name: *mut *const c_char, function: *const c_void) -> Result {
    present(name)?;
    match registry::lookup(function) {
        // SAFETY: `name` is null or writable, as the caller promises.
        Some(symbol) if !symbol.name().is_null() => unsafe { put(name, symbol.name()) },
        _ => {
            let runtime = context()?;
            // SAFETY: the caller promises what `kernel` asks for.
            let handle = unsafe { kernel(runtime, function) }?;
            // SAFETY: `cuKernelGetName` asks for what the caller promises.
            unsafe { runtime.driver.cuKernelGetName(name, handle) }
        }
    }
}

/// # Safety
/// As CUDA's manual says for cudaFuncGetParamInfo.
pub(crate) unsafe fn cudaFuncGetParamInfo(
    function: *const c_void,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Result {
    present(offset)?;
    let runtime = context()?;
    // SAFETY: the caller promises what `kernel` asks for.
    let handle = unsafe { kernel(runtime, function) }?;
    // SAFETY: `cuKernelGetParamInfo` asks for what the caller promises.
    unsafe {
        runtime
            .driver
            .cuKernelGetParamInfo(handle, index, offset, size)
    }
}

/// # Safety
/// As CUDA's manual says for cudaKernelSetAttributeForDevice.
pub(crate) unsafe fn cudaKernelSetAttributeForDevice(
    handle: CUkernel,
    attribute: c_int,
    value: c_int,
    device: c_int,
) -> Result {
    let runtime = context()?;
    settable(attribute)?;
    // SAFETY: the caller promises what `kernel` asks for.
    let handle = unsafe { kernel(runtime, handle) }?;
    let number = runtime.device(device)?.number;
    // SAFETY: `cuKernelSetAttribute` asks for what the caller promises.
    unsafe {
        runtime
            .driver
            .cuKernelSetAttribute(attribute, value, handle, number)
    }
}

/// # Safety
/// As CUDA's manual says for cudaGetFuncBySymbol.
pub(crate) unsafe fn cudaGetFuncBySymbol(
    handle: Out<'_, CUfunction>,
    function: *const c_void,
) -> Result {
    // SAFETY: the caller promises what `known` asks for.
    handle.put(unsafe { known(context()?, function) }?)
}

/// # Safety
/// As CUDA's manual says for cudaGetKernel.
pub(crate) unsafe fn cudaGetKernel(handle: Out<'_, CUkernel>, function: *const c_void) -> Result {
    handle.present()?;
    let runtime = context()?;
    // SAFETY: the caller promises what `known` asks for.
    unsafe { known(runtime, function) }?;
    // SAFETY: the caller promises what `kernel` asks for.
    handle.put(unsafe { kernel(runtime, function) }?)
}

/// [`in_context`] of functions that say so where a kernel is not one.
///
/// # Safety
/// As for [`in_context`].
unsafe fn known(runtime: &Runtime, function: *const c_void) -> Result<CUfunction> {
    // SAFETY: the caller promises what `in_context` asks for.
    unsafe { in_context(runtime, function) }.map_err(|error| match error.code() {
        abi::cudaErrorInvalidResourceHandle => Error::new(abi::cudaErrorInvalidDeviceFunction),
        _ => error,
    })
}

/// The kernel as a function of the current context.
///
/// # Safety
/// `function` is a stub's address or a live kernel's handle.
pub unsafe fn in_context(runtime: &Runtime, function: *const c_void) -> Result<CUfunction> {
    // SAFETY: the caller promises what `kernel` asks for.
    let handle = unsafe { kernel(runtime, function) }?;
    let mut found = ptr::null_mut();
    // SAFETY: `cuKernelGetFunction` asks for what the caller promises.
    unsafe { runtime.driver.cuKernelGetFunction(&mut found, handle) }?;
    Ok(found)
}

/// Refuses attributes that the runtime has no name for.
fn settable(attribute: c_int) -> Result {
    let first = abi::cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (first..abi::cudaFuncAttributeMax).contains(&attribute) {
        Ok(())
    } else {
        fail(abi::cudaErrorInvalidValue)
    }
}

/// The results of cudaFuncGetAttributes.
///
/// # Safety
/// `function` is a stub's address or a live kernel's handle.
unsafe fn attributes_of(runtime: &Runtime, function: *const c_void) -> Result<cudaFuncAttributes> {
    // SAFETY: the caller promises what `in_context` asks for.
    let handle = unsafe { in_context(runtime, function) }?;
    let ask = |attribute: c_int| -> Result<c_int> {
        let mut value = 0;
        // SAFETY: `cuFuncGetAttribute` asks for what the caller promises.
        match unsafe {
            runtime
                .driver
                .cuFuncGetAttribute(&mut value, attribute, handle)
        } {
            // A driver older than the attribute.
            Err(error) if error == Error::new(abi::cudaErrorInvalidValue) => Ok(0),
            Err(error) => Err(error),
            Ok(()) => Ok(value),
        }
    };
    let bytes =
        |attribute: c_int| -> Result<usize> { Ok(usize::try_from(ask(attribute)?).unwrap_or(0)) };
    Ok(cudaFuncAttributes {
        sharedSizeBytes: bytes(abi::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        constSizeBytes: bytes(abi::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)?,
        localSizeBytes: bytes(abi::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        maxThreadsPerBlock: ask(abi::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        numRegs: ask(abi::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
        ptxVersion: ask(abi::CU_FUNC_ATTRIBUTE_PTX_VERSION)?,
        binaryVersion: ask(abi::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
        cacheModeCA: ask(abi::CU_FUNC_ATTRIBUTE_CACHE_MODE_CA)?,
        maxDynamicSharedSizeBytes: ask(abi::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?,
        preferredShmemCarveout: ask(abi::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)?,
        clusterDimMustBeSet: ask(abi::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET)?,
        requiredClusterWidth: ask(abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH)?,
        requiredClusterHeight: ask(abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT)?,
        requiredClusterDepth: ask(abi::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH)?,
        clusterSchedulingPolicyPreference: ask(
            abi::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        )?,
        nonPortableClusterSizeAllowed: ask(
            abi::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        )?,
        // SAFETY: the record has integers, pointers and optional functions.
        ..unsafe { zeroed() }
    })
}
