//! Nodes of graphs and their parameters (CUDA Driver API, Graph Management).

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use paragpu_abi::{
    CU_GRAPH_COND_ASSIGN_DEFAULT, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CU_GRAPH_NODE_TYPE_CONDITIONAL,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEM_FREE,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_CONDITIONAL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1,
    CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS_v2,
    CUcontext, CUevent, CUgraph, CUgraphNode, cudaGraphEdgeData, cudaGraphNodeParams,
    cudaHostNodeParams, cudaLaunchAttributeValue, cudaMemsetParams, dim3,
};
use paragpu_client::graph_exec::KernelChange;
use paragpu_client::launch::Shape;
use paragpu_client::objects::edge::Dependency;
use paragpu_client::objects::graph::{Fill, Graph, Kernel, Marked, Work};
use paragpu_client::objects::preference;
use paragpu_protocol::status::Status;

use super::boundary::{In, Out};
use super::graph::{add_after, find, find_node, handle, work_of};
use super::graph_copy::describe;
use super::host_call::host_call;
use super::module::callable_in;
use super::{
    Result, copy_rect, device, event, get, graph_child, graph_memory, host, launch, stream,
    stream_memory, unsupported_use,
};
use crate::{current, objects};

/// A kernel node's work.
///
/// # Safety
/// As for [`kernel_change`].
pub unsafe fn kernel(given: *const CUDA_KERNEL_NODE_PARAMS_v2, had: Option<&Work>) -> Result<Work> {
    // SAFETY: `given` is null or readable, as the caller promises.
    unsafe { get(given) }?;
    let had = match had {
        None => None,
        Some(Work::Kernel(had)) => Some(&**had),
        Some(_) => return Err(Status::INVALID_VALUE),
    };
    // SAFETY: the caller upholds the contract of `kernel_change`.
    unsafe {
        kernel_change(given, |new| {
            let kernel = new.to_kernel(had);
            device::session(new.ordinal)?
                .launches()
                .check_node(&kernel)?;
            Ok(Work::Kernel(Arc::new(kernel)))
        })
    }
}

/// Passes the parameters of a kernel node on.
///
/// # Safety
/// `given` is null or a record whose `kernelParams` or `extra` are as CUDA's
/// documentation of `cuLaunchKernel` requires.
pub unsafe fn kernel_change<R>(
    given: *const CUDA_KERNEL_NODE_PARAMS_v2,
    take: impl FnOnce(&KernelChange<'_>) -> Result<R>,
) -> Result<R> {
    // SAFETY: `given` is null or readable, as the caller promises.
    let given = unsafe { get(given) }?;
    let named = if given.func.is_null() {
        given.kern
    } else {
        given.func
    };
    let callable = callable_in(named, || current::find_or_current(given.ctx))?;
    let function = callable.function()?;
    let context = callable.context().ok_or(Status::INVALID_HANDLE)?;
    let pass_on = |parameters: &[u8]| {
        host::adopt_named(callable.session, parameters)?;
        take(&KernelChange {
            ordinal: callable.session.ordinal(),
            context,
            function,
            handle: named as u64,
            grid: [given.gridDimX, given.gridDimY, given.gridDimZ],
            block: [given.blockDimX, given.blockDimY, given.blockDimZ],
            dynamic_shared: given.sharedMemBytes,
            parameters,
        })
    };
    // SAFETY: the caller upholds the contract of `with_parameters`.
    unsafe { launch::with_parameters(function, given.kernelParams, given.extra, pass_on) }
}

/// A copy node's work, in a context.
///
/// # Safety
/// `given` is null or describes a copy as CUDA documents for
/// cuGraphAddMemcpyNode.
pub unsafe fn copy(given: *const CUDA_MEMCPY3D, context: CUcontext) -> Result<Work> {
    let session = session_of(context)?;
    // SAFETY: the caller upholds the contract of `node`.
    unsafe { copy_rect::node(session, given) }.map(|copy| Work::Copy(Arc::new(copy)))
}

/// The session of a context that a node names; null is the current one.
pub fn session_of(context: CUcontext) -> Result<&'static paragpu_client::Session> {
    if context.is_null() {
        return Ok(current::current()?.session);
    }
    Ok(current::find_or_current(context)?.session)
}

/// A memset node's work, in a context.
///
/// # Safety
/// `given` is null or readable.
pub unsafe fn fill(given: *const cudaMemsetParams, context: CUcontext) -> Result<Work> {
    // SAFETY: `given` is null or readable, as the caller promises.
    let given = unsafe { get(given) }?;
    if !matches!(given.elementSize, 1 | 2 | 4) {
        return Err(Status::INVALID_VALUE);
    }
    let session = session_of(context)?;
    let fill = Fill {
        ordinal: session.ordinal(),
        destination: given.dst as u64,
        pitch: given.pitch as u64,
        value: given.value,
        element: u8::try_from(given.elementSize).map_err(|_| Status::INVALID_VALUE)?,
        width: given.width as u64,
        height: given.height as u64,
    };
    session.graphs().check_fill(&fill)?;
    Ok(Work::Memset(fill))
}

/// A host function's work.
///
/// # Safety
/// `given` is null or a record whose function may be called with its argument,
/// from any thread, whenever the graph runs.
pub unsafe fn host(given: *const cudaHostNodeParams) -> Result<Work> {
    // SAFETY: `given` is null or readable, as the caller promises.
    let given = unsafe { get(given) }?;
    // SAFETY: the caller upholds the contract of `host_call`.
    Ok(Work::Host(unsafe {
        host_call(given.r#fn, given.userData)
    }?))
}

/// The work that a general record describes.
///
/// # Safety
/// `given` is null or a record that its `type` describes, as CUDA documents
/// for cuGraphAddNode.
pub unsafe fn general(given: *const cudaGraphNodeParams, had: Option<&Work>) -> Result<Work> {
    // SAFETY: `given` is null or readable, as the caller promises.
    let given = unsafe { get(given) }?;
    if given.reserved2 != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let inside = (&raw const given.reserved1).cast::<c_void>();
    match given.r#type {
        // SAFETY: the caller upholds the contract of `kernel`.
        paragpu_abi::cudaGraphNodeTypeKernel => unsafe { kernel(inside.cast(), had) },
        paragpu_abi::cudaGraphNodeTypeMemcpy => {
            // SAFETY: the record's type selects this field, as the caller promises.
            let record = unsafe { &*inside.cast::<CUDA_MEMCPY_NODE_PARAMS>() };
            // SAFETY: the caller upholds the contract of `copy`.
            unsafe { copy(&raw const record.copyParams, record.copyCtx) }
        }
        paragpu_abi::cudaGraphNodeTypeMemset => {
            // SAFETY: the record's type selects this field, as the caller promises.
            let record = unsafe { &*inside.cast::<CUDA_MEMSET_NODE_PARAMS_v2>() };
            // SAFETY: the caller upholds the contract of `fill`.
            unsafe { fill(inside.cast(), record.ctx) }
        }
        // SAFETY: the caller upholds the contract of `host`.
        paragpu_abi::cudaGraphNodeTypeHost => unsafe { host(inside.cast()) },
        paragpu_abi::cudaGraphNodeTypeGraph => {
            // SAFETY: `inside` is readable here, as the caller promises.
            Ok(Work::Child(
                find(unsafe { inside.cast::<CUgraph>().read() })?.embed()?,
            ))
        }
        paragpu_abi::cudaGraphNodeTypeEmpty => Ok(Work::Empty),
        paragpu_abi::cudaGraphNodeTypeWaitEvent | paragpu_abi::cudaGraphNodeTypeEventRecord => {
            // SAFETY: `inside` is readable here, as the caller promises.
            let event = unsafe { inside.cast::<CUevent>().read() };
            if event.is_null() {
                return Err(Status::INVALID_VALUE);
            }
            let marked = event::marked(event)?;
            Ok(match given.r#type {
                paragpu_abi::cudaGraphNodeTypeWaitEvent => Work::EventWait(marked),
                _ => Work::EventRecord(marked),
            })
        }
        // SAFETY: the caller upholds the contract of `allocation`.
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => unsafe {
            graph_memory::allocation(inside.cast_mut().cast(), None)
        },
        CU_GRAPH_NODE_TYPE_MEM_FREE => {
            // SAFETY: `inside` is readable here, as the caller promises.
            graph_memory::release(unsafe { inside.cast::<u64>().read() })
        }
        // SAFETY: the caller upholds the contract of `node`.
        CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => unsafe { stream_memory::node(inside.cast()) },
        // The parameters of a conditional node cannot be changed.
        CU_GRAPH_NODE_TYPE_CONDITIONAL => Err(Status::INVALID_VALUE),
        // External semaphores, signalled and waited for.
        8 | 9 => Err(unsupported_use!(
            "cuGraphAddNode of this type",
            "external semaphores do not exist in the guest"
        )),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Adds a node of any kind.
///
/// # Safety
/// `node` is null or writable; both lists are null or have `count` records; `given` is as
/// [`general`] requires, and writable.
pub(super) unsafe fn add_general(
    node: *mut CUgraphNode,
    graph: CUgraph,
    lists: (*const CUgraphNode, *const cudaGraphEdgeData),
    count: usize,
    given: *mut cudaGraphNodeParams,
) -> Result {
    // SAFETY: `given` is null or readable, as the caller promises.
    let kind = unsafe { get(given.cast_const()) }?.r#type;
    // SAFETY: `given` is not null.
    let inside = unsafe { &raw mut (*given).reserved1 };
    if kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
        // SAFETY: the caller upholds the contract of `allocation`.
        let make = |graph: &Graph, after: &[Dependency]| unsafe {
            graph_memory::allocation(inside.cast(), Some((graph, after)))
        };
        // SAFETY: the caller upholds the contract of `add_after`.
        return unsafe { add_after(node, graph, lists, count, make) };
    }
    if kind == paragpu_abi::cudaGraphNodeTypeGraph {
        // SAFETY: the record's type selects this field, as the caller promises.
        let record = unsafe { &*inside.cast::<CUDA_CHILD_GRAPH_NODE_PARAMS>() };
        // SAFETY: the caller upholds the contract of `add`.
        return unsafe { graph_child::add(node, graph, lists, count, record) };
    }
    if kind != CU_GRAPH_NODE_TYPE_CONDITIONAL {
        // SAFETY: the caller upholds the contract of `general`.
        let work = unsafe { general(given, None) }?;
        // SAFETY: the caller upholds the contract of `add_after`.
        return unsafe { add_after(node, graph, lists, count, |_, _| Ok(work)) };
    }
    // SAFETY: a record of this type, as the caller promises.
    let record = unsafe { &mut *inside.cast::<CUDA_CONDITIONAL_NODE_PARAMS>() };
    session_of(record.ctx)?;
    super::present(node)?;
    let work = find(graph)?.conditional(record.handle, record.r#type, record.size)?;
    // SAFETY: the caller upholds the contract of `add_after`.
    unsafe { add_after(node, graph, lists, count, |_, _| Ok(work.clone())) }?;
    if let Work::Conditional(made) = &work {
        let handles = made.handles(|body| handle(body) as u64);
        record.phGraph_out = handles.as_ptr().cast_mut().cast();
    }
    Ok(())
}

pub(crate) fn cuGraphConditionalHandleCreate(
    place: Out<'_, u64>,
    graph: CUgraph,
    context: CUcontext,
    value: c_uint,
    flags: c_uint,
) -> Result {
    if flags & !CU_GRAPH_COND_ASSIGN_DEFAULT != 0 {
        return Err(Status::INVALID_VALUE);
    }
    place.present()?;
    if context.is_null() {
        return Err(Status::INVALID_CONTEXT);
    }
    let ordinal = session_of(context)?.ordinal();
    let made = find(graph)?.create_condition(ordinal, value, flags != 0);
    place.put(made.handle())
}

/// Replaces the work of a node.
pub fn set(node: CUgraphNode, make: impl FnOnce(&Work) -> Result<Work>) -> Result {
    let (graph, number) = find_node(node)?;
    let work = make(&graph.work(number)?)?;
    graph.set_work(number, work)
}

fn kernel_of(node: CUgraphNode) -> Result<Arc<Kernel>> {
    match work_of(node)? {
        Work::Kernel(kernel) => Ok(kernel),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn child_of(node: CUgraphNode) -> Result<Arc<Graph>> {
    match work_of(node)? {
        Work::Child(child) => Ok(child),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Changes the shape of a kernel node's launch.
fn reshape(node: CUgraphNode, change: impl FnOnce(&mut Shape)) -> Result {
    let (graph, number) = find_node(node)?;
    let had = kernel_of(node)?;
    let mut shape = had.shape.clone();
    change(&mut shape);
    let kernel = Kernel::new(
        had.ordinal,
        had.context,
        Arc::clone(&had.function),
        had.handle,
        shape,
        had.parameters.clone(),
    );
    graph.set_work(number, Work::Kernel(Arc::new(kernel)))
}

/// The parameters of a kernel node.
fn kernel_parameters(node: CUgraphNode) -> Result<CUDA_KERNEL_NODE_PARAMS_v2> {
    let kernel = kernel_of(node)?;
    let [grid_x, grid_y, grid_z] = kernel.shape.grid;
    let [block_x, block_y, block_z] = kernel.shape.block;
    let pointers = match kernel.pointers() {
        [] => std::ptr::null_mut(),
        pointers => pointers.as_ptr().cast_mut().cast::<*mut c_void>(),
    };
    Ok(CUDA_KERNEL_NODE_PARAMS_v2 {
        func: objects::as_handle(kernel.handle),
        gridDimX: grid_x,
        gridDimY: grid_y,
        gridDimZ: grid_z,
        blockDimX: block_x,
        blockDimY: block_y,
        blockDimZ: block_z,
        sharedMemBytes: kernel.shape.dynamic_shared,
        kernelParams: pointers,
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    })
}

/// Parameters of the first version in the form of the second.
///
/// # Safety
/// `given` is null or readable.
pub(super) unsafe fn second_version(
    given: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Result<CUDA_KERNEL_NODE_PARAMS_v2> {
    // SAFETY: `given` is null or readable, as the caller promises.
    let given = unsafe { get(given) }?;
    Ok(CUDA_KERNEL_NODE_PARAMS_v2 {
        func: given.func,
        gridDimX: given.gridDimX,
        gridDimY: given.gridDimY,
        gridDimZ: given.gridDimZ,
        blockDimX: given.blockDimX,
        blockDimY: given.blockDimY,
        blockDimZ: given.blockDimZ,
        sharedMemBytes: given.sharedMemBytes,
        kernelParams: given.kernelParams,
        extra: given.extra,
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    })
}

pub(crate) fn cuGraphKernelNodeGetParams(
    node: CUgraphNode,
    place: Out<'_, CUDA_KERNEL_NODE_PARAMS_v1>,
) -> Result {
    let found = kernel_parameters(node)?;
    place.put(CUDA_KERNEL_NODE_PARAMS_v1 {
        func: found.func,
        gridDimX: found.gridDimX,
        gridDimY: found.gridDimY,
        gridDimZ: found.gridDimZ,
        blockDimX: found.blockDimX,
        blockDimY: found.blockDimY,
        blockDimZ: found.blockDimZ,
        sharedMemBytes: found.sharedMemBytes,
        kernelParams: found.kernelParams,
        extra: found.extra,
    })
}

/// # Safety
/// As documented by CUDA 11 for `cuGraphKernelNodeSetParams`.
pub(crate) unsafe fn cuGraphKernelNodeSetParams(
    node: CUgraphNode,
    given: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Result {
    // SAFETY: the caller upholds the contracts of both.
    unsafe { cuGraphKernelNodeSetParams_v2(node, &second_version(given)?) }
}

pub(crate) fn cuGraphKernelNodeGetParams_v2(
    node: CUgraphNode,
    place: Out<'_, CUDA_KERNEL_NODE_PARAMS_v2>,
) -> Result {
    place.put(kernel_parameters(node)?)
}

pub(crate) unsafe fn cuGraphKernelNodeSetParams_v2(
    node: CUgraphNode,
    given: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> Result {
    // SAFETY: the caller upholds the contract of `kernel`.
    set(node, |had| unsafe { kernel(given, Some(had)) })
}

pub(crate) fn cuGraphKernelNodeGetAttribute(
    node: CUgraphNode,
    attribute: c_int,
    value: Out<'_, cudaLaunchAttributeValue>,
) -> Result {
    let shape = &kernel_of(node)?.shape;
    let mut found = cudaLaunchAttributeValue { pad: [0; 8] };
    match attribute {
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE => found.cooperative = shape.cooperative.into(),
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
            let [x, y, z] = shape.cluster;
            found.clusterDim = dim3 { x, y, z };
        }
        _ if preference::is_of_launch(attribute) => {
            found.pad = shape.preferences.get(attribute)?;
        }
        _ if !preference::is_defined(attribute) => return Err(Status::INVALID_VALUE),
        _ => {
            return Err(unsupported_use!(
                "cuGraphKernelNodeGetAttribute of this attribute",
                "it is not passed on to the host"
            ));
        }
    }
    value.put(found)
}

pub(crate) unsafe fn cuGraphKernelNodeSetAttribute(
    node: CUgraphNode,
    attribute: c_int,
    value: In<'_, cudaLaunchAttributeValue>,
) -> Result {
    let value = value.get()?;
    match attribute {
        // SAFETY: every field of the union is numbers; `attribute` says which is set.
        CU_LAUNCH_ATTRIBUTE_COOPERATIVE => reshape(node, |shape| {
            // SAFETY: every field of the union is numbers.
            shape.cooperative = unsafe { value.cooperative } != 0
        }),
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
            // SAFETY: every field of the union is numbers; `attribute` says which is set.
            let dim3 { x, y, z } = unsafe { value.clusterDim };
            reshape(node, |shape| shape.cluster = [x, y, z])
        }
        _ if preference::is_of_launch(attribute) => {
            let limits = stream::limits(current::current()?.session)?;
            let mut preferences = kernel_of(node)?.shape.preferences.clone();
            // SAFETY: every field of the union is numbers.
            preferences.set(attribute, unsafe { value.pad }, limits)?;
            reshape(node, |shape| shape.preferences = preferences)
        }
        _ if !preference::is_defined(attribute) => Err(Status::INVALID_VALUE),
        _ => Err(unsupported_use!(
            "cuGraphKernelNodeSetAttribute of this attribute",
            "it is not passed on to the host"
        )),
    }
}

pub(crate) fn cuGraphKernelNodeCopyAttributes(to: CUgraphNode, from: CUgraphNode) -> Result {
    let from = kernel_of(from)?;
    reshape(to, |shape| shape.take_attributes(&from.shape))
}

pub(crate) fn cuGraphMemcpyNodeGetParams(
    node: CUgraphNode,
    place: Out<'_, CUDA_MEMCPY3D>,
) -> Result {
    match work_of(node)? {
        Work::Copy(copy) => place.put(describe(&copy)),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuGraphMemcpyNodeSetParams(
    node: CUgraphNode,
    given: *const CUDA_MEMCPY3D,
) -> Result {
    // SAFETY: the caller upholds the contract of `copy`.
    set(node, |_| unsafe { copy(given, std::ptr::null_mut()) })
}

pub(crate) fn cuGraphMemsetNodeGetParams(
    node: CUgraphNode,
    place: Out<'_, cudaMemsetParams>,
) -> Result {
    let Work::Memset(fill) = work_of(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    place.put(cudaMemsetParams {
        dst: std::ptr::without_provenance_mut(size(fill.destination)),
        pitch: size(fill.pitch),
        value: fill.value,
        elementSize: fill.element.into(),
        width: size(fill.width),
        height: size(fill.height),
    })
}

pub(crate) unsafe fn cuGraphMemsetNodeSetParams(
    node: CUgraphNode,
    given: *const cudaMemsetParams,
) -> Result {
    // SAFETY: the caller upholds the contract of `fill`.
    set(node, |_| unsafe { fill(given, std::ptr::null_mut()) })
}

pub(crate) unsafe fn cuGraphHostNodeGetParams(
    node: CUgraphNode,
    place: Out<'_, cudaHostNodeParams>,
) -> Result {
    let Work::Host(call) = work_of(node)? else {
        return Err(Status::INVALID_VALUE);
    };
    place.put(cudaHostNodeParams {
        // The program's own function, as it was given.
        // SAFETY: a function pointer that may be null is a number of this size
        r#fn: unsafe {
            std::mem::transmute::<usize, paragpu_abi::CUhostFn>(
                usize::try_from(call.function).unwrap_or(0),
            )
        },
        userData: super::copy::pointer(call.argument),
    })
}

pub(crate) unsafe fn cuGraphHostNodeSetParams(
    node: CUgraphNode,
    given: *const cudaHostNodeParams,
) -> Result {
    // SAFETY: the caller upholds the contract of `host`.
    set(node, |_| unsafe { host(given) })
}

pub(crate) fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: Out<'_, CUgraph>) -> Result {
    graph.put(handle(&child_of(node)?))
}

/// The program's handle of a node's event.
pub(super) fn event_of(marked: &Marked) -> CUevent {
    objects::as_handle(marked.handle)
}

pub(crate) fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event: Out<'_, CUevent>) -> Result {
    match work_of(node)? {
        Work::EventRecord(marked) => event.put(event_of(&marked)),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) -> Result {
    set(node, |_| Ok(Work::EventRecord(event::marked(event)?)))
}

pub(crate) fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event: Out<'_, CUevent>) -> Result {
    match work_of(node)? {
        Work::EventWait(marked) => event.put(event_of(&marked)),
        _ => Err(Status::INVALID_VALUE),
    }
}

pub(crate) fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) -> Result {
    set(node, |_| Ok(Work::EventWait(event::marked(event)?)))
}

pub(crate) unsafe fn cuGraphNodeSetParams(
    node: CUgraphNode,
    given: *mut cudaGraphNodeParams,
) -> Result {
    // SAFETY: the caller upholds the contract of `general`.
    set(node, |had| unsafe { general(given, Some(had)) })
}
