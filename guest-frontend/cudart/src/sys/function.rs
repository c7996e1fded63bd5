//! Attributes of kernels (CUDA Runtime API, chapters "Execution Control" and
//! "Interactions with the CUDA Driver API").

use super::boundary::Out;
use super::launch::kernel;
use super::registry::{self, Entry};
use super::runtime::{Runtime, context};
use super::{fail, zeroed};
use crate::error::{Error, Result};
use paragpu_abi as abi;
use paragpu_abi::{CUfunction, CUkernel, cudaFuncAttributes};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

pub(crate) unsafe fn cudaFuncGetAttributes(
    attributes: Out<'_, cudaFuncAttributes>,
    function: *const c_void,
) -> Result {
    attributes.present()?;
    // SAFETY: the caller upholds the contract of `attributes_of`.
    attributes.put(unsafe { attributes_of(context()?, function) }?)
}

pub(crate) unsafe fn cudaFuncSetAttribute(
    function: *const c_void,
    attribute: c_int,
    value: c_int,
) -> Result {
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `in_context`.
    let handle = unsafe { in_context(runtime, function) }.map_err(|error| match error.code() {
        abi::cudaErrorInvalidResourceHandle | abi::cudaErrorInvalidDeviceFunction => {
            Error::new(abi::cudaErrorInvalidValue)
        }
        _ => error,
    })?;
    let attribute = settable(attribute)?;
    // SAFETY: the caller upholds the contract of `cuFuncSetAttribute`.
    unsafe { runtime.driver.cuFuncSetAttribute(handle, attribute, value) }
}

pub(crate) unsafe fn cudaFuncGetName(
    name: Out<'_, *const c_char>,
    function: *const c_void,
) -> Result {
    name.present()?;
    if let Some(Entry::Symbol(symbol)) = registry::lookup(function) {
        return name.put(symbol.name());
    }
    let runtime = context()?;
    let mut found = ptr::null();
    // SAFETY: the caller upholds the contracts of `kernel` and `cuKernelGetName`.
    unsafe {
        let handle = kernel(runtime, function)?;
        runtime.driver.cuKernelGetName(&mut found, handle)
    }?;
    name.put(found)
}

pub(crate) unsafe fn cudaGetFuncBySymbol(
    handle: Out<'_, CUfunction>,
    function: *const c_void,
) -> Result {
    // SAFETY: the caller upholds the contract of `known`.
    handle.put(unsafe { known(context()?, function) }?)
}

pub(crate) unsafe fn cudaGetKernel(handle: Out<'_, CUkernel>, function: *const c_void) -> Result {
    handle.present()?;
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `known`.
    unsafe { known(runtime, function) }?;
    // SAFETY: the caller upholds the contract of `kernel`.
    handle.put(unsafe { kernel(runtime, function) }?)
}

/// As [`in_context`], for functions that report an unknown kernel differently.
///
/// # Safety
/// As for [`in_context`].
unsafe fn known(runtime: &Runtime, function: *const c_void) -> Result<CUfunction> {
    // SAFETY: the caller upholds the contract of `in_context`.
    unsafe { in_context(runtime, function) }.map_err(|error| match error.code() {
        abi::cudaErrorInvalidResourceHandle => Error::new(abi::cudaErrorInvalidDeviceFunction),
        _ => error,
    })
}

/// The kernel's function in the current context.
///
/// # Safety
/// `function` is a stub's address or a live kernel's handle.
pub unsafe fn in_context(runtime: &Runtime, function: *const c_void) -> Result<CUfunction> {
    // SAFETY: the caller upholds the contract of `kernel`.
    let handle = unsafe { kernel(runtime, function) }?;
    let mut found = ptr::null_mut();
    // SAFETY: the caller upholds the contract of `cuKernelGetFunction`.
    unsafe { runtime.driver.cuKernelGetFunction(&mut found, handle) }?;
    Ok(found)
}

/// Refuses attributes that the runtime has no name for.
pub(super) fn settable(attribute: c_int) -> Result<c_int> {
    let first = abi::cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (first..abi::cudaFuncAttributeMax).contains(&attribute) {
        Ok(attribute)
    } else {
        fail(abi::cudaErrorInvalidValue)
    }
}

/// The results of cudaFuncGetAttributes.
///
/// # Safety
/// `function` is a stub's address or a live kernel's handle.
unsafe fn attributes_of(runtime: &Runtime, function: *const c_void) -> Result<cudaFuncAttributes> {
    // SAFETY: the caller upholds the contract of `in_context`.
    let handle = unsafe { in_context(runtime, function) }?;
    let ask = |attribute: c_int| -> Result<c_int> {
        let mut value = 0;
        // SAFETY: the caller upholds the contract of `cuFuncGetAttribute`.
        match unsafe {
            runtime
                .driver
                .cuFuncGetAttribute(&mut value, attribute, handle)
        } {
            // An older driver does not know the attribute.
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
