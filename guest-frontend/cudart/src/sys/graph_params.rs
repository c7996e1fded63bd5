//! Graph nodes by their general record (`cudaGraphNodeParams`), and copies read
//! back from nodes (CUDA Runtime API, chapter "Graph Management").

use super::array::element_bytes;
use super::boundary::Out;
use super::copy3d::driver_copy;
use super::graph_node::kernel_parameters;
use super::memory::pointer;
use super::runtime::{Runtime, context};
use super::{fail, present, zeroed};
use crate::error::Result;
use paragpu_abi as abi;
use paragpu_abi::{
    CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS_v2,
    CUarray, CUgraph, CUgraphNode, cudaExtent, cudaGraphEdgeData, cudaGraphNodeParams,
    cudaKernelNodeParams, cudaMemcpy3DParms, cudaMemcpyNodeParams, cudaMemsetParams,
    cudaPitchedPtr, cudaPos,
};
use std::ffi::{c_int, c_void};

/// Index of the context in the driver's record of a conditional node, in words of eight
/// bytes. The runtime's record ends before it.
const CONDITIONAL_CONTEXT: usize = 3;

pub(crate) unsafe fn cudaGraphAddNode(
    node: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const cudaGraphEdgeData,
    count: usize,
    parameters: *mut cudaGraphNodeParams,
) -> Result {
    present(node)?;
    let runtime = context()?;
    // SAFETY: the caller upholds the contract of `driver_parameters`.
    let mut given = unsafe { driver_parameters(runtime, parameters) }?;
    // SAFETY: the caller upholds the contract of `cuGraphAddNode_v2`.
    unsafe {
        runtime
            .driver
            .cuGraphAddNode_v2(node, graph, after, edges, count, &mut given)
    }?;
    // SAFETY: `parameters` is valid, as the caller promises.
    give_back(&given, unsafe { &mut *parameters });
    Ok(())
}

#[cfg(not(cuda12))]
pub(crate) unsafe fn cudaGraphNodeGetParams(
    node: CUgraphNode,
    parameters: Out<'_, cudaGraphNodeParams>,
) -> Result {
    use super::boundary::Boundary;
    use super::graph_node::cudaGraphKernelNodeGetParams;

    parameters.present()?;
    let driver = &context()?.driver;
    // SAFETY: all zeros are the parameters of an empty kernel node.
    let mut found: cudaGraphNodeParams = unsafe { zeroed() };
    // SAFETY: the caller upholds the contract of `cuGraphNodeGetParams`.
    unsafe { driver.cuGraphNodeGetParams(node, &mut found) }?;
    let place = (&raw mut found.reserved1).cast::<c_void>();
    // SAFETY: the union has room for the parameters of the node's type.
    unsafe {
        match found.r#type {
            abi::cudaGraphNodeTypeKernel => {
                found.reserved1 = [0; 29];
                cudaGraphKernelNodeGetParams(node, Out::take(place.cast()))?;
            }
            abi::cudaGraphNodeTypeMemcpy => {
                found.reserved1 = [0; 29];
                let place = place.cast::<cudaMemcpyNodeParams>();
                cudaGraphMemcpyNodeGetParams(node, Out::take(&raw mut (*place).copyParams))?;
            }
            // The driver's record is one context longer.
            abi::cudaGraphNodeTypeMemset | abi::cudaGraphNodeTypeConditional => {
                let length = match found.r#type {
                    abi::cudaGraphNodeTypeMemset => size_of::<cudaMemsetParams>() / 8,
                    _ => CONDITIONAL_CONTEXT,
                };
                found.reserved1[length] = 0;
            }
            _ => {}
        }
    }
    parameters.put(found)
}

pub(crate) unsafe fn cudaGraphMemcpyNodeGetParams(
    node: CUgraphNode,
    parameters: Out<'_, cudaMemcpy3DParms>,
) -> Result {
    parameters.present()?;
    let runtime = context()?;
    // SAFETY: the record has integers, pointers and optional functions.
    let mut found: CUDA_MEMCPY3D = unsafe { zeroed() };
    // SAFETY: the caller upholds the contract of `cuGraphMemcpyNodeGetParams`.
    unsafe { runtime.driver.cuGraphMemcpyNodeGetParams(node, &mut found) }?;
    // SAFETY: the caller upholds the contract of `runtime_copy`.
    parameters.put(unsafe { runtime_copy(runtime, &found) }?)
}

/// The driver's form of a node's record. Size and union have the same layout as in the
/// runtime's; the union's kernels, copies, memsets and conditions differ.
///
/// # Safety
/// `parameters` is null or a record that its `type` describes
/// (cudaGraphAddNode).
pub(super) unsafe fn driver_parameters(
    runtime: &Runtime,
    parameters: *const cudaGraphNodeParams,
) -> Result<cudaGraphNodeParams> {
    present(parameters)?;
    // SAFETY: `parameters` is valid, as the caller promises.
    let given = unsafe { &*parameters };
    if given.reserved2 != 0 {
        return fail(abi::cudaErrorInvalidValue);
    }
    let from = (&raw const given.reserved1).cast::<c_void>();
    let mut made = *given;
    let to = (&raw mut made.reserved1).cast::<c_void>();
    let current = runtime.current()?;
    match given.r#type {
        abi::cudaGraphNodeTypeKernel => {
            // SAFETY: the caller upholds the contract of `kernel_parameters`.
            let kernel =
                unsafe { kernel_parameters(runtime, from.cast::<cudaKernelNodeParams>()) }?;
            // SAFETY: `to` is writable here, as the caller promises.
            unsafe { to.cast::<CUDA_KERNEL_NODE_PARAMS_v2>().write(kernel) };
        }
        abi::cudaGraphNodeTypeMemcpy => {
            // SAFETY: `from` is readable here, as the caller promises.
            let copy = unsafe { from.cast::<cudaMemcpyNodeParams>().read() };
            // SAFETY: the pointer is writable here, as the caller promises.
            unsafe {
                to.cast::<CUDA_MEMCPY_NODE_PARAMS>()
                    .write(CUDA_MEMCPY_NODE_PARAMS {
                        flags: copy.flags,
                        reserved: 0,
                        copyCtx: current,
                        copyParams: driver_copy(runtime, &copy.copyParams)?,
                    })
            };
        }
        abi::cudaGraphNodeTypeMemset => {
            // SAFETY: `from` is readable here, as the caller promises.
            let set = unsafe { from.cast::<cudaMemsetParams>().read() };
            // SAFETY: the pointer is writable here, as the caller promises.
            unsafe {
                to.cast::<CUDA_MEMSET_NODE_PARAMS_v2>()
                    .write(CUDA_MEMSET_NODE_PARAMS_v2 {
                        dst: super::memory::device(set.dst),
                        pitch: set.pitch,
                        value: set.value,
                        elementSize: set.elementSize,
                        width: set.width,
                        height: set.height,
                        ctx: current,
                    })
            };
        }
        abi::cudaGraphNodeTypeConditional => {
            made.reserved1[CONDITIONAL_CONTEXT] = current.expose_provenance() as i64;
        }
        _ => {}
    }
    Ok(made)
}

/// Copies the driver's results to the caller: an allocation's address, the graphs of a
/// conditional node.
fn give_back(made: &cudaGraphNodeParams, given: &mut cudaGraphNodeParams) {
    match made.r#type {
        abi::cudaGraphNodeTypeMemAlloc => given.reserved1 = made.reserved1,
        abi::cudaGraphNodeTypeConditional => {
            for (place, word) in given
                .reserved1
                .iter_mut()
                .zip(made.reserved1)
                .take(CONDITIONAL_CONTEXT)
            {
                *place = word;
            }
        }
        _ => {}
    }
}

/// One end of a driver's 3D copy.
struct NodeCopyEnd {
    kind: c_int,
    array: CUarray,
    memory: *mut c_void,
    pitch: usize,
    height: usize,
    x: usize,
    y: usize,
    z: usize,
}

impl NodeCopyEnd {
    fn is_array(&self) -> bool {
        self.kind == abi::CU_MEMORYTYPE_ARRAY
    }

    fn is_on_host(&self) -> bool {
        self.kind == abi::CU_MEMORYTYPE_HOST
    }

    /// The runtime's form of the end, for a copy `width` bytes wide with elements of `unit`
    /// bytes.
    fn in_runtime(&self, width: usize, unit: usize) -> Result<(CUarray, cudaPos, cudaPitchedPtr)> {
        let mut array = std::ptr::null_mut();
        let mut memory = cudaPitchedPtr {
            ptr: self.memory,
            pitch: self.pitch,
            xsize: width,
            ysize: self.height,
        };
        if self.is_array() {
            array = self.array;
            memory = cudaPitchedPtr {
                ptr: std::ptr::null_mut(),
                pitch: 0,
                xsize: 0,
                ysize: 0,
            };
        }
        let Some(x) = self.x.checked_div(unit) else {
            return fail(abi::cudaErrorUnknown);
        };
        let position = cudaPos {
            x,
            y: self.y,
            z: self.z,
        };
        Ok((array, position, memory))
    }
}

/// The runtime's form of a driver's 3D copy.
///
/// # Safety
/// The arrays of `copy` are null or live.
unsafe fn runtime_copy(runtime: &Runtime, copy: &CUDA_MEMCPY3D) -> Result<cudaMemcpy3DParms> {
    let memory = |kind: u32, host: *mut c_void, address: u64| {
        if kind == abi::CU_MEMORYTYPE_HOST.unsigned_abs() {
            host
        } else {
            pointer(address)
        }
    };
    let from = NodeCopyEnd {
        kind: c_int::try_from(copy.srcMemoryType).unwrap_or(0),
        array: copy.srcArray,
        memory: memory(copy.srcMemoryType, copy.srcHost.cast_mut(), copy.srcDevice),
        pitch: copy.srcPitch,
        height: copy.srcHeight,
        x: copy.srcXInBytes,
        y: copy.srcY,
        z: copy.srcZ,
    };
    let to = NodeCopyEnd {
        kind: c_int::try_from(copy.dstMemoryType).unwrap_or(0),
        array: copy.dstArray,
        memory: memory(copy.dstMemoryType, copy.dstHost, copy.dstDevice),
        pitch: copy.dstPitch,
        height: copy.dstHeight,
        x: copy.dstXInBytes,
        y: copy.dstY,
        z: copy.dstZ,
    };
    let unit = match [&from, &to].into_iter().find(|end| end.is_array()) {
        // SAFETY: the caller upholds the contract of `element_bytes`.
        Some(end) => unsafe { element_bytes(runtime, end.array) }?,
        None => 1,
    };
    let unified = abi::CU_MEMORYTYPE_UNIFIED;
    let kind = match (from.is_on_host(), to.is_on_host()) {
        _ if from.kind == unified || to.kind == unified => abi::cudaMemcpyDefault,
        (true, true) => abi::cudaMemcpyHostToHost,
        (true, false) => abi::cudaMemcpyHostToDevice,
        (false, true) => abi::cudaMemcpyDeviceToHost,
        (false, false) => abi::cudaMemcpyDeviceToDevice,
    };
    let (srcArray, srcPos, srcPtr) = from.in_runtime(copy.WidthInBytes, unit)?;
    let (dstArray, dstPos, dstPtr) = to.in_runtime(copy.WidthInBytes, unit)?;
    Ok(cudaMemcpy3DParms {
        srcArray,
        srcPos,
        srcPtr,
        dstArray,
        dstPos,
        dstPtr,
        extent: cudaExtent {
            width: copy.WidthInBytes.checked_div(unit).unwrap_or(0),
            height: copy.Height,
            depth: copy.Depth,
        },
        kind,
    })
}
