//! Graphs as a whole: building, instantiating, launching (CUDA Runtime API,
//! chapter "Graph Management"). Nodes with parameters are in `graph_node`.

use super::runtime::{context, runtime};
use super::{present, put};
use paragpu_abi::{
    CUgraph, CUgraphExec, CUgraphNode, CUhostFn, CUstream, CUuserObject, cudaGraphEdgeData,
    cudaGraphExecUpdateResultInfo, cudaGraphInstantiateParams,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

api! {
    fn cudaGraphCreate(graph: *mut CUgraph, flags: c_uint) {
        present(graph)?;
        context()?.driver.cuGraphCreate(graph, flags)
    }

    fn cudaGraphDestroy(graph: CUgraph) {
        context()?.driver.cuGraphDestroy(graph)
    }

    fn cudaGraphClone(clone: *mut CUgraph, graph: CUgraph) {
        present(clone)?;
        context()?.driver.cuGraphClone(clone, graph)
    }

    fn cudaGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        present(count)?;
        context()?.driver.cuGraphGetNodes(graph, nodes, count)
    }

    fn cudaGraphGetRootNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        present(count)?;
        context()?.driver.cuGraphGetRootNodes(graph, nodes, count)
    }

    fn cudaGraphGetEdges(
        graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode,
        edges: *mut cudaGraphEdgeData, count: *mut usize,
    ) {
        present(count)?;
        context()?.driver.cuGraphGetEdges(graph, from, to, edges, count)
    }

    fn cudaGraphAddDependencies(
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
        edges: *const cudaGraphEdgeData, count: usize,
    ) {
        context()?.driver.cuGraphAddDependencies(graph, from, to, edges, count)
    }

    fn cudaGraphRemoveDependencies(
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
        edges: *const cudaGraphEdgeData, count: usize,
    ) {
        context()?.driver.cuGraphRemoveDependencies(graph, from, to, edges, count)
    }

    fn cudaGraphNodeGetDependencies(
        node: CUgraphNode, dependencies: *mut CUgraphNode, edges: *mut cudaGraphEdgeData,
        count: *mut usize,
    ) {
        present(count)?;
        context()?.driver.cuGraphNodeGetDependencies(node, dependencies, edges, count)
    }

    fn cudaGraphNodeGetDependentNodes(
        node: CUgraphNode, dependents: *mut CUgraphNode, edges: *mut cudaGraphEdgeData,
        count: *mut usize,
    ) {
        present(count)?;
        context()?.driver.cuGraphNodeGetDependentNodes(node, dependents, edges, count)
    }

    fn cudaGraphNodeFindInClone(
        found: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph,
    ) {
        present(found)?;
        context()?.driver.cuGraphNodeFindInClone(found, original, clone)
    }

    fn cudaGraphNodeGetType(node: CUgraphNode, kind: *mut c_int) {
        present(kind)?;
        context()?.driver.cuGraphNodeGetType(node, kind)
    }

    fn cudaGraphNodeGetEnabled(graph: CUgraphExec, node: CUgraphNode, enabled: *mut c_uint) {
        present(enabled)?;
        context()?.driver.cuGraphNodeGetEnabled(graph, node, enabled)
    }

    fn cudaGraphNodeSetEnabled(graph: CUgraphExec, node: CUgraphNode, enabled: c_uint) {
        context()?.driver.cuGraphNodeSetEnabled(graph, node, enabled)
    }

    fn cudaGraphDestroyNode(node: CUgraphNode) {
        context()?.driver.cuGraphDestroyNode(node)
    }

    fn cudaGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: c_uint) {
        present(path)?;
        context()?.driver.cuGraphDebugDotPrint(graph, path, flags)
    }

    fn cudaGraphConditionalHandleCreate(
        handle: *mut u64, graph: CUgraph, value: c_uint, flags: c_uint,
    ) {
        present(handle)?;
        let runtime = context()?;
        let current = runtime.current()?;
        runtime.driver.cuGraphConditionalHandleCreate(handle, graph, current, value, flags)
    }

    fn cudaGraphInstantiate(executable: *mut CUgraphExec, graph: CUgraph, flags: u64) {
        present(executable)?;
        context()?.driver.cuGraphInstantiateWithFlags(executable, graph, flags)
    }

    fn cudaGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: u64) {
        present(executable)?;
        context()?.driver.cuGraphInstantiateWithFlags(executable, graph, flags)
    }

    fn cudaGraphInstantiateWithParams(
        executable: *mut CUgraphExec, graph: CUgraph, parameters: *mut cudaGraphInstantiateParams,
    ) {
        present(executable)?;
        present(parameters)?;
        context()?.driver.cuGraphInstantiateWithParams(executable, graph, parameters)
    }

    fn cudaGraphInstantiateWithParams_ptsz(
        executable: *mut CUgraphExec, graph: CUgraph, parameters: *mut cudaGraphInstantiateParams,
    ) {
        present(executable)?;
        present(parameters)?;
        let given = (*parameters).uploadStream;
        (*parameters).uploadStream = super::own_default(given);
        let outcome = context().and_then(|runtime| {
            runtime.driver.cuGraphInstantiateWithParams(executable, graph, parameters)
        });
        (*parameters).uploadStream = given;
        outcome
    }

    fn cudaGraphExecDestroy(executable: CUgraphExec) {
        context()?.driver.cuGraphExecDestroy(executable)
    }

    fn cudaGraphExecGetFlags(executable: CUgraphExec, flags: *mut u64) {
        present(flags)?;
        context()?.driver.cuGraphExecGetFlags(executable, flags)
    }

    fn cudaGraphExecUpdate(
        executable: CUgraphExec, graph: CUgraph, result: *mut cudaGraphExecUpdateResultInfo,
    ) {
        present(result)?;
        context()?.driver.cuGraphExecUpdate(executable, graph, result)
    }

    fn cudaGraphLaunch | cudaGraphLaunch_ptsz(
        executable: CUgraphExec, stream: CUstream,
    ) on stream {
        context()?.driver.cuGraphLaunch(executable, stream)
    }

    fn cudaGraphUpload | cudaGraphUpload_ptsz(
        executable: CUgraphExec, stream: CUstream,
    ) on stream {
        context()?.driver.cuGraphUpload(executable, stream)
    }

    fn cudaDeviceGraphMemTrim(device: c_int) {
        let runtime = runtime()?;
        let number = runtime.device(device)?.number;
        runtime.driver.cuDeviceGraphMemTrim(number)
    }

    fn cudaDeviceGetGraphMemAttribute(device: c_int, attribute: c_int, value: *mut c_void) {
        present(value)?;
        let runtime = runtime()?;
        let number = runtime.device(device)?.number;
        runtime.driver.cuDeviceGetGraphMemAttribute(number, attribute, value)
    }

    fn cudaDeviceSetGraphMemAttribute(device: c_int, attribute: c_int, value: *mut c_void) {
        present(value)?;
        let runtime = runtime()?;
        let number = runtime.device(device)?.number;
        runtime.driver.cuDeviceSetGraphMemAttribute(number, attribute, value)
    }

    fn cudaUserObjectCreate(
        object: *mut CUuserObject, data: *mut c_void, destroy: CUhostFn, references: c_uint,
        flags: c_uint,
    ) {
        put(object, ptr::null_mut())?;
        context()?.driver.cuUserObjectCreate(object, data, destroy, references, flags)
    }

    fn cudaUserObjectRetain(object: CUuserObject, count: c_uint) {
        context()?.driver.cuUserObjectRetain(object, count)
    }

    fn cudaUserObjectRelease(object: CUuserObject, count: c_uint) {
        context()?.driver.cuUserObjectRelease(object, count)
    }

    fn cudaGraphRetainUserObject(
        graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint,
    ) {
        context()?.driver.cuGraphRetainUserObject(graph, object, count, flags)
    }

    fn cudaGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint) {
        context()?.driver.cuGraphReleaseUserObject(graph, object, count)
    }
}
