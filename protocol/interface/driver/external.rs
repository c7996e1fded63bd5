//! External memory and semaphores (CUDA Driver API, External Resource Interoperability), all
//! refused.

#[since(10000)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuDestroyExternalMemory(ext_mem: CUexternalMemory);

#[since(10000)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuDestroyExternalSemaphore(ext_sem: CUexternalSemaphore);

#[since(10020)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuDeviceGetNvSciSyncAttributes(nv_sci_sync_attr_list: *mut c_void, dev: CUdevice, flags: c_int);

#[since(10000)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuExternalMemoryGetMappedBuffer(
    dev_ptr: Out<CUdeviceptr>,
    ext_mem: CUexternalMemory,
    buffer_desc: *const c_void,
);

#[since(10000)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuExternalMemoryGetMappedMipmappedArray(
    mipmap: Out<CUmipmappedArray>,
    ext_mem: CUexternalMemory,
    mipmap_desc: In<CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC>,
);

#[since(11020)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuGraphAddExternalSemaphoresSignalNode(
    graph_node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    num_dependencies: usize,
    node_params: *const c_void,
);

#[since(11020)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuGraphAddExternalSemaphoresWaitNode(
    graph_node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    num_dependencies: usize,
    node_params: *const c_void,
);

#[since(11020)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuGraphExecExternalSemaphoresSignalNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    node_params: *const c_void,
);

#[since(11020)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuGraphExecExternalSemaphoresWaitNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    node_params: *const c_void,
);

#[since(11020)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuGraphExternalSemaphoresSignalNodeGetParams(node: CUgraphNode, params_out: *mut c_void);

#[since(11020)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuGraphExternalSemaphoresSignalNodeSetParams(node: CUgraphNode, node_params: *const c_void);

#[since(11020)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuGraphExternalSemaphoresWaitNodeGetParams(node: CUgraphNode, params_out: *mut c_void);

#[since(11020)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuGraphExternalSemaphoresWaitNodeSetParams(node: CUgraphNode, node_params: *const c_void);

#[since(10000)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuImportExternalMemory(ext_mem_out: Out<CUexternalMemory>, mem_handle_desc: *const c_void);

#[since(10000)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuImportExternalSemaphore(ext_sem_out: Out<CUexternalSemaphore>, sem_handle_desc: *const c_void);

#[since(10000)]
#[per_thread(ptsz)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuSignalExternalSemaphoresAsync(
    ext_sem_array: *const CUexternalSemaphore,
    params_array: *const c_void,
    num_ext_sems: c_uint,
    stream: CUstream,
);

#[since(10000)]
#[per_thread(ptsz)]
#[refused("memory and semaphores of other interfaces do not exist in the guest")]
fn cuWaitExternalSemaphoresAsync(
    ext_sem_array: *const CUexternalSemaphore,
    params_array: *const c_void,
    num_ext_sems: c_uint,
    stream: CUstream,
);
