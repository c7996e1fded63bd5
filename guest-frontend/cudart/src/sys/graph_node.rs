//! Graph nodes and their parameters (CUDA Runtime API, chapter "Graph
//! Management"). Kernels and copies are converted to the driver's form.

use super::boundary::Out;
use super::copy::{ANY, FROM_DEVICE, TO_DEVICE, direction};
use super::copy3d::driver_copy;
use super::launch::kernel;
use super::registry;
use super::runtime::{Runtime, context};
use super::symbol::part;
use super::{fail, present, zeroed};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{
    CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D, CUgraph, CUgraphExec, CUgraphNode, cudaExtent,
    cudaKernelNodeParams, cudaMemcpy3DParms, cudaMemsetParams, cudaPitchedPtr, dim3,
};
use std::ffi::{c_int, c_void};

// Kernels.

/// # Safety
/// As documented by CUDA for `cudaGraphAddKernelNode`.
pub(crate) unsafe fn cudaGraphAddKernelNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaKernelNodeParams,
) -> Result {
    present(node)?;
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `kernel_parameters`.
    let parameters = unsafe { kernel_parameters(runtime, parameters) }?;
    // SAFETY: the caller upholds the contract of `cuGraphAddKernelNode_v2`.
    unsafe {
        runtime
            .driver
            .cuGraphAddKernelNode_v2(node, graph, after, count, &parameters)
    }
}

/// # Safety
/// As documented by CUDA for `cudaGraphKernelNodeGetParams`.
pub(crate) unsafe fn cudaGraphKernelNodeGetParams(
    node: CUgraphNode,
    parameters: Out<'_, cudaKernelNodeParams>,
) -> Result {
    parameters.present()?;
    // SAFETY: the record has integers, pointers and optional functions.
    let mut found: CUDA_KERNEL_NODE_PARAMS_v2 = unsafe { zeroed() };
    // SAFETY: the caller upholds the contract of `cuGraphKernelNodeGetParams_v2`.
    unsafe {
        context()?
            .driver
            .cuGraphKernelNodeGetParams_v2(node, &mut found)
    }?;
    parameters.put(cudaKernelNodeParams {
        // Programs compare this with the address of their kernel.
        func: registry::stub_of(if found.kern.is_null() {
            found.func
        } else {
            found.kern
        }),
        gridDim: dim3 {
            x: found.gridDimX,
            y: found.gridDimY,
            z: found.gridDimZ,
        },
        blockDim: dim3 {
            x: found.blockDimX,
            y: found.blockDimY,
            z: found.blockDimZ,
        },
        sharedMemBytes: found.sharedMemBytes,
        kernelParams: found.kernelParams,
        extra: found.extra,
    })
}

/// # Safety
/// As documented by CUDA for `cudaGraphKernelNodeSetParams`.
pub(crate) unsafe fn cudaGraphKernelNodeSetParams(
    node: CUgraphNode,
    parameters: *const cudaKernelNodeParams,
) -> Result {
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `kernel_parameters`.
    let parameters = unsafe { kernel_parameters(runtime, parameters) }?;
    // SAFETY: the caller upholds the contract of `cuGraphKernelNodeSetParams_v2`.
    unsafe {
        runtime
            .driver
            .cuGraphKernelNodeSetParams_v2(node, &parameters)
    }
}

/// # Safety
/// As documented by CUDA for `cudaGraphExecKernelNodeSetParams`.
pub(crate) unsafe fn cudaGraphExecKernelNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: *const cudaKernelNodeParams,
) -> Result {
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `kernel_parameters`.
    let parameters = unsafe { kernel_parameters(runtime, parameters) }?;
    // SAFETY: the caller upholds the contract of `cuGraphExecKernelNodeSetParams_v2`.
    unsafe {
        runtime
            .driver
            .cuGraphExecKernelNodeSetParams_v2(executable, node, &parameters)
    }
}

// Copies.

/// # Safety
/// As documented by CUDA for `cudaGraphAddMemcpyNode`.
pub(crate) unsafe fn cudaGraphAddMemcpyNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaMemcpy3DParms,
) -> Result {
    present(parameters)?;
    // SAFETY: the caller upholds the contract of `driver_copy`.
    let copy = unsafe { driver_copy(context()?, &*parameters) }?;
    // SAFETY: the caller upholds the contract of `add_copy`.
    unsafe { add_copy(node, graph, after, count, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphAddMemcpyNode1D`.
pub(crate) unsafe fn cudaGraphAddMemcpyNode1D(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `line`.
    let copy = unsafe { linear(context()?, to, from, size, kind) }?;
    // SAFETY: the caller upholds the contract of `add_copy`.
    unsafe { add_copy(node, graph, after, count, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphAddMemcpyNodeToSymbol`.
pub(crate) unsafe fn cudaGraphAddMemcpyNodeToSymbol(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `to_symbol`.
    let copy = unsafe { to_symbol(context()?, symbol, from, size, offset, kind) }?;
    // SAFETY: the caller upholds the contract of `add_copy`.
    unsafe { add_copy(node, graph, after, count, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphAddMemcpyNodeFromSymbol`.
pub(crate) unsafe fn cudaGraphAddMemcpyNodeFromSymbol(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `from_symbol`.
    let copy = unsafe { from_symbol(context()?, to, symbol, size, offset, kind) }?;
    // SAFETY: the caller upholds the contract of `add_copy`.
    unsafe { add_copy(node, graph, after, count, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphMemcpyNodeSetParams`.
pub(crate) unsafe fn cudaGraphMemcpyNodeSetParams(
    node: CUgraphNode,
    parameters: *const cudaMemcpy3DParms,
) -> Result {
    present(parameters)?;
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `driver_copy`.
    let copy = unsafe { driver_copy(runtime, &*parameters) }?;
    // SAFETY: the caller upholds the contract of `cuGraphMemcpyNodeSetParams`.
    unsafe { runtime.driver.cuGraphMemcpyNodeSetParams(node, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphMemcpyNodeSetParams1D`.
pub(crate) unsafe fn cudaGraphMemcpyNodeSetParams1D(
    node: CUgraphNode,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
) -> Result {
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `line`.
    let copy = unsafe { linear(runtime, to, from, size, kind) }?;
    // SAFETY: the caller upholds the contract of `cuGraphMemcpyNodeSetParams`.
    unsafe { runtime.driver.cuGraphMemcpyNodeSetParams(node, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphMemcpyNodeSetParamsToSymbol`.
pub(crate) unsafe fn cudaGraphMemcpyNodeSetParamsToSymbol(
    node: CUgraphNode,
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
) -> Result {
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `to_symbol`.
    let copy = unsafe { to_symbol(runtime, symbol, from, size, offset, kind) }?;
    // SAFETY: the caller upholds the contract of `cuGraphMemcpyNodeSetParams`.
    unsafe { runtime.driver.cuGraphMemcpyNodeSetParams(node, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphMemcpyNodeSetParamsFromSymbol`.
pub(crate) unsafe fn cudaGraphMemcpyNodeSetParamsFromSymbol(
    node: CUgraphNode,
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
) -> Result {
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `from_symbol`.
    let copy = unsafe { from_symbol(runtime, to, symbol, size, offset, kind) }?;
    // SAFETY: the caller upholds the contract of `cuGraphMemcpyNodeSetParams`.
    unsafe { runtime.driver.cuGraphMemcpyNodeSetParams(node, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphExecMemcpyNodeSetParams`.
pub(crate) unsafe fn cudaGraphExecMemcpyNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: *const cudaMemcpy3DParms,
) -> Result {
    present(parameters)?;
    // SAFETY: the caller upholds the contract of `driver_copy`.
    let copy = unsafe { driver_copy(context()?, &*parameters) }?;
    // SAFETY: the caller upholds the contract of `set_copy`.
    unsafe { set_copy(executable, node, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphExecMemcpyNodeSetParams1D`.
pub(crate) unsafe fn cudaGraphExecMemcpyNodeSetParams1D(
    executable: CUgraphExec,
    node: CUgraphNode,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `line`.
    let copy = unsafe { linear(context()?, to, from, size, kind) }?;
    // SAFETY: the caller upholds the contract of `set_copy`.
    unsafe { set_copy(executable, node, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphExecMemcpyNodeSetParamsToSymbol`.
pub(crate) unsafe fn cudaGraphExecMemcpyNodeSetParamsToSymbol(
    executable: CUgraphExec,
    node: CUgraphNode,
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `to_symbol`.
    let copy = unsafe { to_symbol(context()?, symbol, from, size, offset, kind) }?;
    // SAFETY: the caller upholds the contract of `set_copy`.
    unsafe { set_copy(executable, node, &copy) }
}

/// # Safety
/// As documented by CUDA for `cudaGraphExecMemcpyNodeSetParamsFromSymbol`.
pub(crate) unsafe fn cudaGraphExecMemcpyNodeSetParamsFromSymbol(
    executable: CUgraphExec,
    node: CUgraphNode,
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
) -> Result {
    // SAFETY: the caller upholds the contract of `from_symbol`.
    let copy = unsafe { from_symbol(context()?, to, symbol, size, offset, kind) }?;
    // SAFETY: the caller upholds the contract of `set_copy`.
    unsafe { set_copy(executable, node, &copy) }
}

// Memsets.

/// # Safety
/// As documented by CUDA for `cudaGraphAddMemsetNode`.
pub(crate) unsafe fn cudaGraphAddMemsetNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    parameters: *const cudaMemsetParams,
) -> Result {
    present(node)?;
    present(parameters)?;
    let runtime = context()?;
    let current = runtime.current()?;
    // SAFETY: the caller upholds the contract of `cuGraphAddMemsetNode`.
    unsafe {
        runtime
            .driver
            .cuGraphAddMemsetNode(node, graph, after, count, parameters, current)
    }
}

/// # Safety
/// As documented by CUDA for `cudaGraphExecMemsetNodeSetParams`.
pub(crate) unsafe fn cudaGraphExecMemsetNodeSetParams(
    executable: CUgraphExec,
    node: CUgraphNode,
    parameters: *const cudaMemsetParams,
) -> Result {
    present(parameters)?;
    let runtime = context()?;
    let current = runtime.current()?;
    // SAFETY: the caller upholds the contract of `cuGraphExecMemsetNodeSetParams`.
    unsafe {
        runtime
            .driver
            .cuGraphExecMemsetNodeSetParams(executable, node, parameters, current)
    }
}

// Conversions.

/// The driver's form of a kernel node.
///
/// # Safety
/// `parameters` is null or readable; its `func` is a stub's address or a live
/// kernel's handle.
pub unsafe fn kernel_parameters(
    runtime: &Runtime,
    parameters: *const cudaKernelNodeParams,
) -> Result<CUDA_KERNEL_NODE_PARAMS_v2> {
    present(parameters)?;
    // SAFETY: `parameters` is valid, as the caller promises.
    let p = unsafe { &*parameters };
    Ok(CUDA_KERNEL_NODE_PARAMS_v2 {
        // The handle leads back to the stub. That of its function in a context does not.
        // SAFETY: the caller upholds the contract of `kernel`.
        kern: unsafe { kernel(runtime, p.func) }?,
        gridDimX: p.gridDim.x,
        gridDimY: p.gridDim.y,
        gridDimZ: p.gridDim.z,
        blockDimX: p.blockDim.x,
        blockDimY: p.blockDim.y,
        blockDimZ: p.blockDim.z,
        sharedMemBytes: p.sharedMemBytes,
        kernelParams: p.kernelParams,
        extra: p.extra,
        // SAFETY: the record has integers, pointers and optional functions.
        ..unsafe { zeroed() }
    })
}

/// A copy of consecutive bytes as a 3D copy of one row.
///
/// # Safety
/// `to` and `from` have `size` bytes, on the side that `kind` says, whenever
/// the node runs.
unsafe fn linear(
    runtime: &Runtime,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    kind: c_int,
) -> Result<CUDA_MEMCPY3D> {
    direction(kind, ANY)?;
    if size == 0 {
        return fail(abi::cudaErrorInvalidValue);
    }
    let row = |ptr: *mut c_void| cudaPitchedPtr {
        ptr,
        pitch: size,
        xsize: size,
        ysize: 1,
    };
    let parameters = cudaMemcpy3DParms {
        srcPtr: row(from.cast_mut()),
        dstPtr: row(to),
        extent: cudaExtent {
            width: size,
            height: 1,
            depth: 1,
        },
        kind,
        // SAFETY: the record has integers, pointers and optional functions.
        ..unsafe { zeroed() }
    };
    // SAFETY: the caller upholds the contract of `driver_copy`.
    unsafe { driver_copy(runtime, &parameters) }
}

/// A copy to a variable.
///
/// # Safety
/// `from` has `size` bytes whenever the node runs; nvcc's code registered
/// `symbol`, if it is known.
unsafe fn to_symbol(
    runtime: &Runtime,
    symbol: *const c_void,
    from: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
) -> Result<CUDA_MEMCPY3D> {
    // SAFETY: the caller upholds the contract of `part`.
    let to = unsafe { part(runtime, symbol, size, offset) }?;
    direction(kind, TO_DEVICE)?;
    // SAFETY: the caller upholds the contract of `line`.
    unsafe { linear(runtime, to, from, size, kind) }
}

/// A copy from a variable.
///
/// # Safety
/// `to` has `size` bytes whenever the node runs; nvcc's code registered
/// `symbol`, if it is known.
unsafe fn from_symbol(
    runtime: &Runtime,
    to: *mut c_void,
    symbol: *const c_void,
    size: usize,
    offset: usize,
    kind: c_int,
) -> Result<CUDA_MEMCPY3D> {
    // SAFETY: the caller upholds the contract of `part`.
    let from = unsafe { part(runtime, symbol, size, offset) }?;
    direction(kind, FROM_DEVICE)?;
    // SAFETY: the caller upholds the contract of `line`.
    unsafe { linear(runtime, to, from, size, kind) }
}

/// Adds a copy node.
///
/// # Safety
/// `node` is null or writable, `after` null or of `count` nodes, `graph` live;
/// `copy` is as CUDA documents for `cuGraphAddMemcpyNode`.
unsafe fn add_copy(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    copy: &CUDA_MEMCPY3D,
) -> Result {
    present(node)?;
    let runtime = context()?;
    let current = runtime.current()?;
    // SAFETY: the caller upholds the contract of `cuGraphAddMemcpyNode`.
    unsafe {
        runtime
            .driver
            .cuGraphAddMemcpyNode(node, graph, after, count, copy, current)
    }
}

/// Replaces the copy of an executable graph's node.
///
/// # Safety
/// `executable` and `node` are live; `copy` is as CUDA documents for
/// cuGraphExecMemcpyNodeSetParams.
unsafe fn set_copy(executable: CUgraphExec, node: CUgraphNode, copy: &CUDA_MEMCPY3D) -> Result {
    let runtime = context()?;
    let current = runtime.current()?;
    // SAFETY: the caller upholds the contract of `cuGraphExecMemcpyNodeSetParams`.
    unsafe {
        runtime
            .driver
            .cuGraphExecMemcpyNodeSetParams(executable, node, copy, current)
    }
}
