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
    cudaKernelNodeParams, cudaMemcpy3DParms, cudaPitchedPtr, dim3,
};
use std::ffi::{c_int, c_void};

// Kernels.

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

// Copies.

/// What a copy node copies.
pub(super) enum Copied {
    /// As a record says.
    Volume(*const cudaMemcpy3DParms),
    /// Bytes in a row: to, from, size, kind.
    Row(*mut c_void, *const c_void, usize, c_int),
    /// Bytes of the program to a variable: symbol, from, size and offset, kind.
    ToSymbol(*const c_void, *const c_void, (usize, usize), c_int),
    /// Bytes of a variable to the program: to, symbol, size and offset, kind.
    FromSymbol(*mut c_void, *const c_void, (usize, usize), c_int),
}

impl Copied {
    /// The driver's form.
    ///
    /// # Safety
    /// Its record is null or readable; both ends have all bytes, on the sides that the kind says,
    /// whenever the node runs; nvcc's code registered its symbol, if that is known.
    unsafe fn in_driver(self) -> Result<CUDA_MEMCPY3D> {
        let (to, from, size, kind) = match self {
            Self::Volume(parameters) => {
                present(parameters)?;
                // SAFETY: the caller upholds the contract of `driver_copy`.
                return unsafe { driver_copy(context()?, &*parameters) };
            }
            Self::Row(to, from, size, kind) => (to, from, size, kind),
            Self::ToSymbol(symbol, from, (size, offset), kind) => {
                // SAFETY: the caller upholds the contract of `part`.
                let to = unsafe { part(context()?, symbol, size, offset) }?;
                direction(kind, TO_DEVICE)?;
                (to, from, size, kind)
            }
            Self::FromSymbol(to, symbol, (size, offset), kind) => {
                // SAFETY: the caller upholds the contract of `part`.
                let from = unsafe { part(context()?, symbol, size, offset) }?;
                direction(kind, FROM_DEVICE)?;
                (to, from.cast_const(), size, kind)
            }
        };
        let runtime = context()?;
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
}

/// Adds a copy node.
///
/// # Safety
/// `node` is null or writable, `after` null or of `count` nodes, `graph` live; `copied` is as for
/// [`Copied::in_driver`].
pub(super) unsafe fn add_copy(
    node: *mut CUgraphNode,
    graph: CUgraph,
    (after, count): (*const CUgraphNode, usize),
    copied: Copied,
) -> Result {
    // SAFETY: the caller upholds the contract of `in_driver`.
    let copy = unsafe { copied.in_driver() }?;
    present(node)?;
    let runtime = context()?;
    let current = runtime.current()?;
    // SAFETY: the caller upholds the contract of `cuGraphAddMemcpyNode`.
    unsafe {
        runtime
            .driver
            .cuGraphAddMemcpyNode(node, graph, after, count, &copy, current)
    }
}

/// Replaces the copy of a node.
///
/// # Safety
/// `node` is live; `copied` is as for [`Copied::in_driver`].
pub(super) unsafe fn set_copy(node: CUgraphNode, copied: Copied) -> Result {
    // SAFETY: the caller upholds the contract of `in_driver`.
    let copy = unsafe { copied.in_driver() }?;
    // SAFETY: the caller upholds the contract of `cuGraphMemcpyNodeSetParams`.
    unsafe { context()?.driver.cuGraphMemcpyNodeSetParams(node, &copy) }
}

/// Replaces the copy of an executable graph's node.
///
/// # Safety
/// `executable` is live; the rest is as for [`set_copy`].
pub(super) unsafe fn set_copy_of(
    executable: CUgraphExec,
    node: CUgraphNode,
    copied: Copied,
) -> Result {
    // SAFETY: the caller upholds the contract of `in_driver`.
    let copy = unsafe { copied.in_driver() }?;
    let runtime = context()?;
    let current = runtime.current()?;
    // SAFETY: the caller upholds the contract of `cuGraphExecMemcpyNodeSetParams`.
    unsafe {
        runtime
            .driver
            .cuGraphExecMemcpyNodeSetParams(executable, node, &copy, current)
    }
}
