//! The driver functions that the runtime calls, each declared once.
//!
//! A function's name is that of cuda.h without version suffix; the text after
//! `=` is the symbol (the newest version of CUDA 13.0), with an older one
//! after `|`. The table is filled at the first call that needs the driver.

use crate::error::{Error, Result};
use paragpu_abi::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

macro_rules! symbol {
    ($name:ident) => {
        symbol!(@ stringify!($name))
    };
    ($name:ident $symbol:literal) => {
        symbol!(@ $symbol)
    };
    (@ $symbol:expr) => {
        match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
            Ok(symbol) => symbol,
            Err(_) => c"",
        }
    };
}

macro_rules! driver {
    ($(
        fn $name:ident $(= $symbol:literal $(| $older:literal)?)?
        ( $( $parameter:ident : $kind:ty ),* $(,)? );
    )*) => {
        /// Addresses of the driver's functions.
        pub struct Driver {
            $( $name: unsafe extern "C" fn($( $kind ),*) -> CUresult, )*
        }

        impl Driver {
            /// Fills the table. A function that `lookup` does not know answers
            /// `CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER`.
            ///
            /// # Safety
            /// What `lookup` returns for a name is null or the address of the
            /// driver function of that name.
            pub unsafe fn resolve(lookup: &dyn Fn(&CStr) -> *mut c_void) -> Self {
                Self {
                    $( $name: {
                        /// # Safety
                        /// None is needed: it looks at no argument.
                        unsafe extern "C" fn absent($( _: $kind ),*) -> CUresult {
                            CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER
                        }
                        let address = lookup(symbol!($name $($symbol)?));
                        $( $( let address = if address.is_null() {
                            lookup(symbol!(@ $older))
                        } else {
                            address
                        }; )? )?
                        if address.is_null() {
                            absent
                        } else {
                            // SAFETY: the caller's promise; the declaration
                            // here is cuda.h's.
                            unsafe {
                                std::mem::transmute::<
                                    *mut c_void,
                                    unsafe extern "C" fn($( $kind ),*) -> CUresult,
                                >(address)
                            }
                        }
                    }, )*
                }
            }

            $(
                /// The driver function of this name.
                ///
                /// # Safety
                /// As CUDA's driver API manual says for the function.
                #[inline]
                #[allow(clippy::too_many_arguments)]
                pub unsafe fn $name(&self, $( $parameter: $kind ),*) -> Result {
                    // SAFETY: the caller's promise.
                    Error::check(unsafe { (self.$name)($( $parameter ),*) })
                }
            )*
        }
    };
}

driver! {
    // Start, devices and primary contexts
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(driver_version: *mut c_int);
    fn cuGetProcAddress = "cuGetProcAddress_v2"(
        symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: u64,
        symbol_status: *mut c_int,
    );
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice);
    fn cuDeviceGetUuid = "cuDeviceGetUuid_v2"(uuid: *mut CUuuid, dev: CUdevice);
    fn cuDeviceTotalMem = "cuDeviceTotalMem_v2"(bytes: *mut usize, dev: CUdevice);
    fn cuDeviceGetAttribute(pi: *mut c_int, attrib: c_int, dev: CUdevice);
    fn cuDeviceGetByPCIBusId(dev: *mut CUdevice, pci_bus_id: *const c_char);
    fn cuDeviceGetPCIBusId(pci_bus_id: *mut c_char, len: c_int, dev: CUdevice);
    fn cuDeviceCanAccessPeer(can_access_peer: *mut c_int, dev: CUdevice, peer_dev: CUdevice);
    fn cuDeviceGetP2PAttribute(
        value: *mut c_int, attrib: c_int, src_device: CUdevice, dst_device: CUdevice,
    );
    fn cuDeviceGetP2PAtomicCapabilities(
        capabilities: *mut c_uint, operations: *const c_int, count: c_uint, src_device: CUdevice,
        dst_device: CUdevice,
    );
    fn cuDeviceGetHostAtomicCapabilities(
        capabilities: *mut c_uint, operations: *const c_int, count: c_uint, dev: CUdevice,
    );
    fn cuDeviceGetTexture1DLinearMaxWidth(
        max_width_in_elements: *mut usize, format: c_int, num_channels: c_uint, dev: CUdevice,
    );
    fn cuDeviceGetNvSciSyncAttributes(
        nv_sci_sync_attr_list: *mut c_void, dev: CUdevice, flags: c_int,
    );
    fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice);
    fn cuDevicePrimaryCtxReset = "cuDevicePrimaryCtxReset_v2"(dev: CUdevice);
    fn cuDevicePrimaryCtxSetFlags = "cuDevicePrimaryCtxSetFlags_v2"(dev: CUdevice, flags: c_uint);
    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int);
    fn cuDeviceRegisterAsyncNotification(
        device: CUdevice, callback_func: *mut c_void, user_data: *mut c_void,
        callback: *mut *mut c_void,
    );
    fn cuDeviceUnregisterAsyncNotification(device: CUdevice, callback: *mut c_void);
    fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int);
    // Contexts
    fn cuCtxGetCurrent(pctx: *mut CUcontext);
    fn cuCtxSetCurrent(ctx: CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxGetFlags(flags: *mut c_uint);
    fn cuCtxSynchronize();
    fn cuCtxGetLimit(pvalue: *mut usize, limit: c_int);
    fn cuCtxSetLimit(limit: c_int, value: usize);
    fn cuCtxGetCacheConfig(pconfig: *mut c_int);
    fn cuCtxSetCacheConfig(config: c_int);
    fn cuCtxGetSharedMemConfig(config: *mut c_int);
    fn cuCtxSetSharedMemConfig(config: c_int);
    fn cuCtxGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int);
    fn cuCtxResetPersistingL2Cache();
    fn cuCtxEnablePeerAccess(peer_context: CUcontext, flags: c_uint);
    fn cuCtxDisablePeerAccess(peer_context: CUcontext);
    // Memory
    fn cuMemAlloc = "cuMemAlloc_v2"(dptr: *mut CUdeviceptr, bytesize: usize);
    fn cuMemAllocPitch = "cuMemAllocPitch_v2"(
        dptr: *mut CUdeviceptr, pitch: *mut usize, width_in_bytes: usize, height: usize,
        element_size_bytes: c_uint,
    );
    fn cuMemFree = "cuMemFree_v2"(dptr: CUdeviceptr);
    fn cuMemGetInfo = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    fn cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint);
    fn cuMemHostAlloc(pointer: *mut *mut c_void, bytesize: usize, flags: c_uint);
    fn cuMemFreeHost(pointer: *mut c_void);
    fn cuMemHostRegister = "cuMemHostRegister_v2"(
        pointer: *mut c_void, bytesize: usize, flags: c_uint,
    );
    fn cuMemHostUnregister(pointer: *mut c_void);
    fn cuMemHostGetDevicePointer = "cuMemHostGetDevicePointer_v2"(
        pdptr: *mut CUdeviceptr, pointer: *mut c_void, flags: c_uint,
    );
    fn cuMemHostGetFlags(flags: *mut c_uint, pointer: *mut c_void);
    fn cuPointerGetAttributes(
        num_attributes: c_uint, attributes: *mut c_int, data: *mut *mut c_void, ptr: CUdeviceptr,
    );
    fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, stream: CUstream);
    fn cuMemFreeAsync(dptr: CUdeviceptr, stream: CUstream);
    fn cuMemAllocFromPoolAsync(
        dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, stream: CUstream,
    );
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, pool_props: *const cudaMemPoolProps);
    fn cuMemPoolDestroy(pool: CUmemoryPool);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize);
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attr: c_int, value: *mut c_void);
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attr: c_int, value: *mut c_void);
    fn cuMemPoolSetAccess(pool: CUmemoryPool, map: *const cudaMemAccessDesc, count: usize);
    fn cuMemPoolGetAccess(
        flags: *mut c_int, mem_pool: CUmemoryPool, location: *mut cudaMemLocation,
    );
    fn cuMemPoolExportToShareableHandle(
        handle_out: *mut c_void, pool: CUmemoryPool, handle_type: c_int, flags: u64,
    );
    fn cuMemPoolImportFromShareableHandle(
        pool_out: *mut CUmemoryPool, handle: *mut c_void, handle_type: c_int, flags: u64,
    );
    fn cuMemPoolExportPointer(share_data_out: *mut c_void, ptr: CUdeviceptr);
    fn cuMemPoolImportPointer(
        ptr_out: *mut CUdeviceptr, pool: CUmemoryPool, share_data: *mut c_void,
    );
    fn cuDeviceGetDefaultMemPool(pool_out: *mut CUmemoryPool, dev: CUdevice);
    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice);
    fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool);
    fn cuMemGetDefaultMemPool(
        pool_out: *mut CUmemoryPool, location: *mut cudaMemLocation, kind: c_int,
    );
    fn cuMemGetMemPool(pool: *mut CUmemoryPool, location: *mut cudaMemLocation, kind: c_int);
    fn cuMemSetMemPool(location: *mut cudaMemLocation, kind: c_int, pool: CUmemoryPool);
    fn cuMemAdvise = "cuMemAdvise_v2"(
        dev_ptr: CUdeviceptr, count: usize, advice: c_int, location: cudaMemLocation,
    );
    fn cuMemPrefetchAsync = "cuMemPrefetchAsync_v2"(
        dev_ptr: CUdeviceptr, count: usize, location: cudaMemLocation, flags: c_uint,
        stream: CUstream,
    );
    fn cuMemPrefetchBatchAsync(
        dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
        prefetch_locs: *mut cudaMemLocation, prefetch_loc_idxs: *mut usize,
        num_prefetch_locs: usize, flags: u64, stream: CUstream,
    );
    fn cuMemDiscardBatchAsync(
        dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: u64, stream: CUstream,
    );
    fn cuMemDiscardAndPrefetchBatchAsync(
        dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
        prefetch_locs: *mut cudaMemLocation, prefetch_loc_idxs: *mut usize,
        num_prefetch_locs: usize, flags: u64, stream: CUstream,
    );
    fn cuMemRangeGetAttribute(
        data: *mut c_void, data_size: usize, attribute: c_int, dev_ptr: CUdeviceptr, count: usize,
    );
    fn cuMemRangeGetAttributes(
        data: *mut *mut c_void, data_sizes: *mut usize, attributes: *mut c_int,
        num_attributes: usize, dev_ptr: CUdeviceptr, count: usize,
    );
    fn cuIpcGetMemHandle(handle: *mut cudaIpcMemHandle_t, dptr: CUdeviceptr);
    fn cuIpcOpenMemHandle = "cuIpcOpenMemHandle_v2"(
        pdptr: *mut CUdeviceptr, handle: cudaIpcMemHandle_t, flags: c_uint,
    );
    fn cuIpcCloseMemHandle(dptr: CUdeviceptr);
    fn cuIpcGetEventHandle(handle: *mut cudaIpcEventHandle_t, event: CUevent);
    fn cuIpcOpenEventHandle(event: *mut CUevent, handle: cudaIpcEventHandle_t);
    // Arrays
    fn cuArray3DCreate = "cuArray3DCreate_v2"(
        handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR,
    );
    fn cuArray3DGetDescriptor = "cuArray3DGetDescriptor_v2"(
        array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray,
    );
    fn cuArrayDestroy(array: CUarray);
    fn cuArrayGetMemoryRequirements(
        memory_requirements: *mut cudaArrayMemoryRequirements, array: CUarray, device: CUdevice,
    );
    fn cuArrayGetSparseProperties(sparse_properties: *mut c_void, array: CUarray);
    fn cuArrayGetPlane(plane_array: *mut CUarray, array: CUarray, plane_idx: c_uint);
    fn cuMipmappedArrayCreate(
        handle: *mut CUmipmappedArray, mipmapped_array_desc: *const CUDA_ARRAY3D_DESCRIPTOR,
        num_mipmap_levels: c_uint,
    );
    fn cuMipmappedArrayDestroy(mipmapped_array: CUmipmappedArray);
    fn cuMipmappedArrayGetLevel(
        level_array: *mut CUarray, mipmapped_array: CUmipmappedArray, level: c_uint,
    );
    fn cuMipmappedArrayGetMemoryRequirements(
        memory_requirements: *mut cudaArrayMemoryRequirements, mipmap: CUmipmappedArray,
        device: CUdevice,
    );
    fn cuMipmappedArrayGetSparseProperties(
        sparse_properties: *mut c_void, mipmap: CUmipmappedArray,
    );
    // Copies and memsets
    fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize);
    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, stream: CUstream);
    fn cuMemcpyHtoD = "cuMemcpyHtoD_v2"(
        dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize,
    );
    fn cuMemcpyHtoDAsync = "cuMemcpyHtoDAsync_v2"(
        dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, stream: CUstream,
    );
    fn cuMemcpyDtoH = "cuMemcpyDtoH_v2"(
        dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize,
    );
    fn cuMemcpyDtoHAsync = "cuMemcpyDtoHAsync_v2"(
        dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, stream: CUstream,
    );
    fn cuMemcpyDtoD = "cuMemcpyDtoD_v2"(
        dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize,
    );
    fn cuMemcpyDtoDAsync = "cuMemcpyDtoDAsync_v2"(
        dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, stream: CUstream,
    );
    fn cuMemcpyPeer(
        dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr,
        src_context: CUcontext, byte_count: usize,
    );
    fn cuMemcpyPeerAsync(
        dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr,
        src_context: CUcontext, byte_count: usize, stream: CUstream,
    );
    fn cuMemcpy2DUnaligned = "cuMemcpy2DUnaligned_v2"(copy: *const CUDA_MEMCPY2D);
    fn cuMemcpy2DAsync = "cuMemcpy2DAsync_v2"(copy: *const CUDA_MEMCPY2D, stream: CUstream);
    fn cuMemcpy3D = "cuMemcpy3D_v2"(copy: *const CUDA_MEMCPY3D);
    fn cuMemcpy3DAsync = "cuMemcpy3DAsync_v2"(copy: *const CUDA_MEMCPY3D, stream: CUstream);
    fn cuMemcpy3DPeer(copy: *const CUDA_MEMCPY3D_PEER);
    fn cuMemcpy3DPeerAsync(copy: *const CUDA_MEMCPY3D_PEER, stream: CUstream);
    fn cuMemcpyBatchAsync = "cuMemcpyBatchAsync_v2"(
        dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize,
        attrs: *mut c_void, attrs_idxs: *mut usize, num_attrs: usize, stream: CUstream,
    );
    fn cuMemcpy3DBatchAsync = "cuMemcpy3DBatchAsync_v2"(
        num_ops: usize, op_list: *mut c_void, flags: u64, stream: CUstream,
    );
    fn cuMemsetD8 = "cuMemsetD8_v2"(dst_device: CUdeviceptr, uc: u8, n: usize);
    fn cuMemsetD8Async(dst_device: CUdeviceptr, uc: u8, n: usize, stream: CUstream);
    fn cuMemsetD2D8 = "cuMemsetD2D8_v2"(
        dst_device: CUdeviceptr, dst_pitch: usize, uc: u8, width: usize, height: usize,
    );
    fn cuMemsetD2D8Async(
        dst_device: CUdeviceptr, dst_pitch: usize, uc: u8, width: usize, height: usize,
        stream: CUstream,
    );
    // Streams, events and callbacks
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamDestroy = "cuStreamDestroy_v2"(stream: CUstream);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamAddCallback(
        stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint,
    );
    fn cuStreamAttachMemAsync(stream: CUstream, dptr: CUdeviceptr, length: usize, flags: c_uint);
    fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
    fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
    fn cuStreamGetId(stream: CUstream, stream_id: *mut u64);
    fn cuStreamGetDevice(stream: CUstream, device: *mut CUdevice);
    fn cuStreamGetAttribute(
        stream: CUstream, attr: c_int, value_out: *mut cudaLaunchAttributeValue,
    );
    fn cuStreamSetAttribute(stream: CUstream, attr: c_int, value: *const cudaLaunchAttributeValue);
    fn cuStreamCopyAttributes(dst: CUstream, src: CUstream);
    fn cuStreamBeginCapture = "cuStreamBeginCapture_v2"(stream: CUstream, mode: c_int);
    fn cuStreamBeginCaptureToGraph(
        stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const cudaGraphEdgeData, num_dependencies: usize, mode: c_int,
    );
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuStreamIsCapturing(stream: CUstream, capture_status: *mut c_int);
    fn cuStreamGetCaptureInfo = "cuStreamGetCaptureInfo_v3"(
        stream: CUstream, capture_status_out: *mut c_int, id_out: *mut u64, graph_out: *mut CUgraph,
        dependencies_out: *mut *const CUgraphNode, edge_data_out: *mut *const cudaGraphEdgeData,
        num_dependencies_out: *mut usize,
    );
    fn cuStreamUpdateCaptureDependencies = "cuStreamUpdateCaptureDependencies_v2"(
        stream: CUstream, dependencies: *mut CUgraphNode, dependency_data: *const cudaGraphEdgeData,
        num_dependencies: usize, flags: c_uint,
    );
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy = "cuEventDestroy_v2"(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventElapsedTime = "cuEventElapsedTime_v2" | "cuEventElapsedTime"(
        milliseconds: *mut f32, start: CUevent, end: CUevent,
    );
    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, user_data: *mut c_void);
    // Libraries, kernels and launches
    fn cuLibraryLoadData(
        library: *mut CUlibrary, code: *const c_void, jit_options: *mut c_int,
        jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut c_int,
        library_option_values: *mut *mut c_void, num_library_options: c_uint,
    );
    fn cuLibraryLoadFromFile(
        library: *mut CUlibrary, file_name: *const c_char, jit_options: *mut c_int,
        jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut c_int,
        library_option_values: *mut *mut c_void, num_library_options: c_uint,
    );
    fn cuLibraryUnload(library: CUlibrary);
    fn cuLibraryGetKernel(kernel: *mut CUkernel, library: CUlibrary, name: *const c_char);
    fn cuLibraryGetKernelCount(count: *mut c_uint, library: CUlibrary);
    fn cuLibraryEnumerateKernels(kernels: *mut CUkernel, num_kernels: c_uint, library: CUlibrary);
    fn cuLibraryGetGlobal(
        dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char,
    );
    fn cuLibraryGetManaged(
        dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char,
    );
    fn cuLibraryGetUnifiedFunction(
        fptr: *mut *mut c_void, library: CUlibrary, symbol: *const c_char,
    );
    fn cuKernelGetFunction(func: *mut CUfunction, kernel: CUkernel);
    fn cuKernelGetName(name: *mut *const c_char, hfunc: CUkernel);
    fn cuKernelSetAttribute(attrib: c_int, val: c_int, kernel: CUkernel, dev: CUdevice);
    fn cuFuncGetAttribute(pi: *mut c_int, attrib: c_int, hfunc: CUfunction);
    fn cuFuncSetAttribute(hfunc: CUfunction, attrib: c_int, value: c_int);
    fn cuFuncSetCacheConfig(hfunc: CUfunction, config: c_int);
    fn cuFuncSetSharedMemConfig(hfunc: CUfunction, config: c_int);
    fn cuKernelGetParamInfo(
        kernel: CUkernel, param_index: usize, param_offset: *mut usize, param_size: *mut usize,
    );
    fn cuLaunchKernel(
        function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
        block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint,
        stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void,
    );
    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig, function: CUfunction, kernel_params: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
    fn cuLaunchCooperativeKernel(
        function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
        block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint,
        stream: CUstream, kernel_params: *mut *mut c_void,
    );
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        num_blocks: *mut c_int, func: CUfunction, block_size: c_int, dynamic_s_mem_size: usize,
        flags: c_uint,
    );
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        dynamic_smem_size: *mut usize, func: CUfunction, num_blocks: c_int, block_size: c_int,
    );
    fn cuOccupancyMaxActiveClusters(
        num_clusters: *mut c_int, func: CUfunction, config: *const CUlaunchConfig,
    );
    fn cuOccupancyMaxPotentialClusterSize(
        cluster_size: *mut c_int, func: CUfunction, config: *const CUlaunchConfig,
    );
    // Textures, surfaces and other interfaces
    fn cuTexObjectCreate(
        tex_object: *mut CUtexObject, res_desc: *const CUDA_RESOURCE_DESC,
        tex_desc: *const CUDA_TEXTURE_DESC, res_view_desc: *const CUDA_RESOURCE_VIEW_DESC,
    );
    fn cuTexObjectDestroy(tex_object: CUtexObject);
    fn cuTexObjectGetResourceDesc(res_desc: *mut CUDA_RESOURCE_DESC, tex_object: CUtexObject);
    fn cuTexObjectGetTextureDesc(tex_desc: *mut CUDA_TEXTURE_DESC, tex_object: CUtexObject);
    fn cuTexObjectGetResourceViewDesc(
        res_view_desc: *mut CUDA_RESOURCE_VIEW_DESC, tex_object: CUtexObject,
    );
    fn cuSurfObjectCreate(surf_object: *mut CUsurfObject, res_desc: *const CUDA_RESOURCE_DESC);
    fn cuSurfObjectDestroy(surf_object: CUsurfObject);
    fn cuSurfObjectGetResourceDesc(res_desc: *mut CUDA_RESOURCE_DESC, surf_object: CUsurfObject);
    fn cuImportExternalMemory(ext_mem_out: *mut CUexternalMemory, mem_handle_desc: *const c_void);
    fn cuExternalMemoryGetMappedBuffer(
        dev_ptr: *mut CUdeviceptr, ext_mem: CUexternalMemory, buffer_desc: *const c_void,
    );
    fn cuDestroyExternalMemory(ext_mem: CUexternalMemory);
    fn cuImportExternalSemaphore(
        ext_sem_out: *mut CUexternalSemaphore, sem_handle_desc: *const c_void,
    );
    fn cuSignalExternalSemaphoresAsync(
        ext_sem_array: *const CUexternalSemaphore, params_array: *const c_void,
        num_ext_sems: c_uint, stream: CUstream,
    );
    fn cuWaitExternalSemaphoresAsync(
        ext_sem_array: *const CUexternalSemaphore, params_array: *const c_void,
        num_ext_sems: c_uint, stream: CUstream,
    );
    fn cuDestroyExternalSemaphore(ext_sem: CUexternalSemaphore);
    // Graphs
    fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
    fn cuGraphDestroy(graph: CUgraph);
    fn cuGraphClone(graph_clone: *mut CUgraph, original_graph: CUgraph);
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize);
    fn cuGraphGetRootNodes(
        graph: CUgraph, root_nodes: *mut CUgraphNode, num_root_nodes: *mut usize,
    );
    fn cuGraphGetEdges = "cuGraphGetEdges_v2"(
        graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode,
        edge_data: *mut cudaGraphEdgeData, num_edges: *mut usize,
    );
    fn cuGraphAddDependencies = "cuGraphAddDependencies_v2"(
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
        edge_data: *const cudaGraphEdgeData, num_dependencies: usize,
    );
    fn cuGraphRemoveDependencies = "cuGraphRemoveDependencies_v2"(
        graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode,
        edge_data: *const cudaGraphEdgeData, num_dependencies: usize,
    );
    fn cuGraphNodeGetDependencies = "cuGraphNodeGetDependencies_v2"(
        node: CUgraphNode, dependencies: *mut CUgraphNode, edge_data: *mut cudaGraphEdgeData,
        num_dependencies: *mut usize,
    );
    fn cuGraphNodeGetDependentNodes = "cuGraphNodeGetDependentNodes_v2"(
        node: CUgraphNode, dependent_nodes: *mut CUgraphNode, edge_data: *mut cudaGraphEdgeData,
        num_dependent_nodes: *mut usize,
    );
    fn cuGraphNodeFindInClone(
        node: *mut CUgraphNode, original_node: CUgraphNode, cloned_graph: CUgraph,
    );
    fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut c_int);
    fn cuGraphNodeGetEnabled(graph_exec: CUgraphExec, node: CUgraphNode, is_enabled: *mut c_uint);
    fn cuGraphNodeSetEnabled(graph_exec: CUgraphExec, node: CUgraphNode, is_enabled: c_uint);
    fn cuGraphDestroyNode(node: CUgraphNode);
    fn cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: c_uint);
    fn cuGraphAddKernelNode = "cuGraphAddKernelNode_v2"(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS_v2,
    );
    fn cuGraphKernelNodeGetParams = "cuGraphKernelNodeGetParams_v2"(
        node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS_v2,
    );
    fn cuGraphKernelNodeSetParams = "cuGraphKernelNodeSetParams_v2"(
        node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v2,
    );
    fn cuGraphKernelNodeGetAttribute(
        node: CUgraphNode, attr: c_int, value_out: *mut cudaLaunchAttributeValue,
    );
    fn cuGraphKernelNodeSetAttribute(
        node: CUgraphNode, attr: c_int, value: *const cudaLaunchAttributeValue,
    );
    fn cuGraphKernelNodeCopyAttributes(dst: CUgraphNode, src: CUgraphNode);
    fn cuGraphAddMemcpyNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext,
    );
    fn cuGraphAddNode = "cuGraphAddNode_v2"(
        node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const cudaGraphEdgeData, num_dependencies: usize,
        node_params: *mut cudaGraphNodeParams,
    );
    fn cuGraphNodeSetParams(node: CUgraphNode, node_params: *mut cudaGraphNodeParams);
    fn cuGraphExecNodeSetParams(
        graph_exec: CUgraphExec, node: CUgraphNode, node_params: *mut cudaGraphNodeParams,
    );
    fn cuGraphMemcpyNodeGetParams(node: CUgraphNode, node_params: *mut CUDA_MEMCPY3D);
    fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, node_params: *const CUDA_MEMCPY3D);
    fn cuGraphAddMemsetNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, memset_params: *const cudaMemsetParams, ctx: CUcontext,
    );
    fn cuGraphMemsetNodeGetParams(node: CUgraphNode, node_params: *mut cudaMemsetParams);
    fn cuGraphMemsetNodeSetParams(node: CUgraphNode, node_params: *const cudaMemsetParams);
    fn cuGraphAddHostNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, node_params: *const cudaHostNodeParams,
    );
    fn cuGraphHostNodeGetParams(node: CUgraphNode, node_params: *mut cudaHostNodeParams);
    fn cuGraphHostNodeSetParams(node: CUgraphNode, node_params: *const cudaHostNodeParams);
    fn cuGraphAddChildGraphNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, child_graph: CUgraph,
    );
    fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph);
    fn cuGraphAddEmptyNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize,
    );
    fn cuGraphAddEventRecordNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, event: CUevent,
    );
    fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, event_out: *mut CUevent);
    fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent);
    fn cuGraphAddEventWaitNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, event: CUevent,
    );
    fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, event_out: *mut CUevent);
    fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent);
    fn cuGraphAddExternalSemaphoresSignalNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, node_params: *const c_void,
    );
    fn cuGraphExternalSemaphoresSignalNodeGetParams(node: CUgraphNode, params_out: *mut c_void);
    fn cuGraphExternalSemaphoresSignalNodeSetParams(node: CUgraphNode, node_params: *const c_void);
    fn cuGraphAddExternalSemaphoresWaitNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, node_params: *const c_void,
    );
    fn cuGraphExternalSemaphoresWaitNodeGetParams(node: CUgraphNode, params_out: *mut c_void);
    fn cuGraphExternalSemaphoresWaitNodeSetParams(node: CUgraphNode, node_params: *const c_void);
    fn cuGraphAddMemAllocNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, node_params: *mut c_void,
    );
    fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, params_out: *mut c_void);
    fn cuGraphAddMemFreeNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, dptr: CUdeviceptr,
    );
    fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, dptr_out: *mut CUdeviceptr);
    fn cuGraphConditionalHandleCreate(
        handle_out: *mut u64, graph: CUgraph, ctx: CUcontext, default_launch_value: c_uint,
        flags: c_uint,
    );
    fn cuGraphInstantiateWithFlags(graph_exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
    fn cuGraphInstantiateWithParams(
        graph_exec: *mut CUgraphExec, graph: CUgraph,
        instantiate_params: *mut cudaGraphInstantiateParams,
    );
    fn cuGraphExecDestroy(graph_exec: CUgraphExec);
    fn cuGraphExecGetFlags(graph_exec: CUgraphExec, flags: *mut u64);
    fn cuGraphExecUpdate = "cuGraphExecUpdate_v2"(
        graph_exec: CUgraphExec, graph: CUgraph, result_info: *mut cudaGraphExecUpdateResultInfo,
    );
    fn cuGraphExecKernelNodeSetParams = "cuGraphExecKernelNodeSetParams_v2"(
        graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v2,
    );
    fn cuGraphExecMemcpyNodeSetParams(
        graph_exec: CUgraphExec, node: CUgraphNode, copy_params: *const CUDA_MEMCPY3D,
        ctx: CUcontext,
    );
    fn cuGraphExecMemsetNodeSetParams(
        graph_exec: CUgraphExec, node: CUgraphNode, memset_params: *const cudaMemsetParams,
        ctx: CUcontext,
    );
    fn cuGraphExecHostNodeSetParams(
        graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const cudaHostNodeParams,
    );
    fn cuGraphExecChildGraphNodeSetParams(
        graph_exec: CUgraphExec, node: CUgraphNode, child_graph: CUgraph,
    );
    fn cuGraphExecEventRecordNodeSetEvent(
        graph_exec: CUgraphExec, node: CUgraphNode, event: CUevent,
    );
    fn cuGraphExecEventWaitNodeSetEvent(graph_exec: CUgraphExec, node: CUgraphNode, event: CUevent);
    fn cuGraphExecExternalSemaphoresSignalNodeSetParams(
        graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const c_void,
    );
    fn cuGraphExecExternalSemaphoresWaitNodeSetParams(
        graph_exec: CUgraphExec, node: CUgraphNode, node_params: *const c_void,
    );
    fn cuGraphLaunch(graph_exec: CUgraphExec, stream: CUstream);
    fn cuGraphUpload(graph_exec: CUgraphExec, stream: CUstream);
    fn cuDeviceGraphMemTrim(device: CUdevice);
    fn cuDeviceGetGraphMemAttribute(device: CUdevice, attr: c_int, value: *mut c_void);
    fn cuDeviceSetGraphMemAttribute(device: CUdevice, attr: c_int, value: *mut c_void);
    fn cuUserObjectCreate(
        object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn,
        initial_refcount: c_uint, flags: c_uint,
    );
    fn cuUserObjectRetain(object: CUuserObject, count: c_uint);
    fn cuUserObjectRelease(object: CUuserObject, count: c_uint);
    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);
    fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint);
}
