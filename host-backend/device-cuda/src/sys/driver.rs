//! The functions of `libcuda.so.1` that the worker uses, found at run time.
//!
//! Enumerations are plain integers: a newer driver may return values that
//! this build does not know.

use core::ffi::{c_char, c_int, c_uint, c_void};

use paragpu_abi::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D, CUDA_RESOURCE_DESC,
    CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUlaunchConfig, CUuuid, cudaHostNodeParams,
    cudaLaunchAttributeValue, cudaMemsetParams,
};
use paragpu_device::{Error, Result};
use paragpu_protocol::status::Status;

/// CUmemAllocationProp (CUDA Driver API, Virtual Memory Management).
#[repr(C)]
pub struct MemAllocationProp {
    pub allocation_type: u32,
    pub handle_types: u32,
    pub location: MemLocation,
    pub win32: *mut c_void,
    pub flags: [u8; 8],
}

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemLocation {
    pub kind: u32,
    pub id: c_int,
}

/// CUmemAccessDesc.
#[repr(C)]
pub struct MemAccessDesc {
    pub location: MemLocation,
    pub flags: u32,
}

macro_rules! driver {
    ($( $field:ident = $symbol:literal ( $($type:ty),* ); )*) => {
        /// The driver's functions.
        pub struct Driver {
            $( pub(super) $field: unsafe extern "C" fn($($type),*) -> u32, )*
            _library: libloading::Library,
        }

        impl Driver {
            /// Finds `libcuda.so.1` and every function of it that is needed,
            /// and initialises it.
            ///
            /// # Errors
            /// `NO_DEVICE` where there is no driver, `SYSTEM_DRIVER_MISMATCH`
            /// where it lacks a function, or what cuInit says.
            pub fn load() -> Result<Self> {
                // SAFETY: NVIDIA's driver library may be loaded by any process.
                let library = unsafe { libloading::Library::new("libcuda.so.1") }
                    .map_err(|error| Error::new(Status::NO_DEVICE, error.to_string()))?;
                let driver = Self {
                    $(
                        // SAFETY: the types are those of cuda.h for this symbol.
                        $field: *unsafe {
                            library.get::<unsafe extern "C" fn($($type),*) -> u32>(
                                concat!($symbol, "\0").as_bytes(),
                            )
                        }
                        .map_err(|_| Error::new(
                            Status::SYSTEM_DRIVER_MISMATCH,
                            concat!("the NVIDIA driver lacks ", $symbol, ": CUDA 12.4 or newer is needed"),
                        ))?,
                    )*
                    _library: library,
                };
                // SAFETY: the one call that must come first.
                check(unsafe { (driver.init)(0) })?;
                Ok(driver)
            }
        }
    };
}

driver! {
    init = "cuInit"(c_uint);
    driver_version = "cuDriverGetVersion"(*mut c_int);
    device_count = "cuDeviceGetCount"(*mut c_int);
    device_get = "cuDeviceGet"(*mut c_int, c_int);
    device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_uuid = "cuDeviceGetUuid_v2"(*mut CUuuid, c_int);
    device_total_mem = "cuDeviceTotalMem_v2"(*mut usize, c_int);
    device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    device_pci_bus_id = "cuDeviceGetPCIBusId"(*mut c_char, c_int, c_int);
    primary_retain = "cuDevicePrimaryCtxRetain"(*mut *mut c_void, c_int);
    primary_release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    ctx_set_current = "cuCtxSetCurrent"(*mut c_void);
    ctx_synchronize = "cuCtxSynchronize"();
    ctx_set_limit = "cuCtxSetLimit"(c_int, usize);
    ctx_get_limit = "cuCtxGetLimit"(*mut usize, c_int);
    mem_get_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    mem_reserve = "cuMemAddressReserve"(*mut u64, usize, usize, u64, u64);
    mem_address_free = "cuMemAddressFree"(u64, usize);
    mem_create = "cuMemCreate"(*mut u64, usize, *const MemAllocationProp, u64);
    mem_release = "cuMemRelease"(u64);
    mem_export = "cuMemExportToShareableHandle"(*mut c_void, u64, c_uint, u64);
    mem_import = "cuMemImportFromShareableHandle"(*mut u64, *mut c_void, c_uint);
    mem_map = "cuMemMap"(u64, usize, usize, u64, u64);
    mem_unmap = "cuMemUnmap"(u64, usize);
    mem_set_access = "cuMemSetAccess"(u64, usize, *const MemAccessDesc, usize);
    host_register = "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    host_unregister = "cuMemHostUnregister"(*mut c_void);
    host_device_pointer = "cuMemHostGetDevicePointer_v2"(*mut u64, *mut c_void, c_uint);
    copy_async = "cuMemcpyAsync"(u64, u64, usize, *mut c_void);
    copy_3d_async = "cuMemcpy3DAsync_v2"(*const CUDA_MEMCPY3D, *mut c_void);
    set_d8_async = "cuMemsetD8Async"(u64, u8, usize, *mut c_void);
    set_d16_async = "cuMemsetD16Async"(u64, u16, usize, *mut c_void);
    set_d32_async = "cuMemsetD32Async"(u64, c_uint, usize, *mut c_void);
    set_2d8_async = "cuMemsetD2D8Async"(u64, usize, u8, usize, usize, *mut c_void);
    set_2d16_async = "cuMemsetD2D16Async"(u64, usize, u16, usize, usize, *mut c_void);
    set_2d32_async = "cuMemsetD2D32Async"(u64, usize, c_uint, usize, usize, *mut c_void);
    array_create = "cuArray3DCreate_v2"(*mut *mut c_void, *const CUDA_ARRAY3D_DESCRIPTOR);
    array_destroy = "cuArrayDestroy"(*mut c_void);
    mipmap_create = "cuMipmappedArrayCreate"(*mut *mut c_void, *const CUDA_ARRAY3D_DESCRIPTOR, c_uint);
    mipmap_level = "cuMipmappedArrayGetLevel"(*mut *mut c_void, *mut c_void, c_uint);
    mipmap_destroy = "cuMipmappedArrayDestroy"(*mut c_void);
    texture_create = "cuTexObjectCreate"(*mut u64, *const CUDA_RESOURCE_DESC, *const CUDA_TEXTURE_DESC, *const CUDA_RESOURCE_VIEW_DESC);
    texture_destroy = "cuTexObjectDestroy"(u64);
    surface_create = "cuSurfObjectCreate"(*mut u64, *const CUDA_RESOURCE_DESC);
    surface_destroy = "cuSurfObjectDestroy"(u64);
    module_load = "cuModuleLoadDataEx"(*mut *mut c_void, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    module_unload = "cuModuleUnload"(*mut c_void);
    module_function = "cuModuleGetFunction"(*mut *mut c_void, *mut c_void, *const c_char);
    module_global = "cuModuleGetGlobal_v2"(*mut u64, *mut usize, *mut c_void, *const c_char);
    function_attribute = "cuFuncGetAttribute"(*mut c_int, c_int, *mut c_void);
    function_set_attribute = "cuFuncSetAttribute"(*mut c_void, c_int, c_int);
    function_set_cache_config = "cuFuncSetCacheConfig"(*mut c_void, c_int);
    function_parameter = "cuFuncGetParamInfo"(*mut c_void, usize, *mut usize, *mut usize);
    occupancy_blocks = "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"(*mut c_int, *mut c_void, c_int, usize, c_uint);
    occupancy_shared = "cuOccupancyAvailableDynamicSMemPerBlock"(*mut usize, *mut c_void, c_int, c_int);
    launch = "cuLaunchKernelEx"(*const CUlaunchConfig, *mut c_void, *mut *mut c_void, *mut *mut c_void);
    launch_host = "cuLaunchHostFunc"(*mut c_void, unsafe extern "C" fn(*mut c_void), *mut c_void);
    stream_create = "cuStreamCreateWithPriority"(*mut *mut c_void, c_uint, c_int);
    stream_destroy = "cuStreamDestroy_v2"(*mut c_void);
    stream_query = "cuStreamQuery"(*mut c_void);
    stream_synchronize = "cuStreamSynchronize"(*mut c_void);
    stream_wait = "cuStreamWaitEvent"(*mut c_void, *mut c_void, c_uint);
    event_create = "cuEventCreate"(*mut *mut c_void, c_uint);
    event_destroy = "cuEventDestroy_v2"(*mut c_void);
    event_record = "cuEventRecord"(*mut c_void, *mut c_void);
    event_query = "cuEventQuery"(*mut c_void);
    event_elapsed = "cuEventElapsedTime"(*mut f32, *mut c_void, *mut c_void);
    graph_create = "cuGraphCreate"(*mut *mut c_void, c_uint);
    graph_destroy = "cuGraphDestroy"(*mut c_void);
    graph_add_empty = "cuGraphAddEmptyNode"(*mut *mut c_void, *mut c_void, *const *mut c_void, usize);
    graph_add_kernel = "cuGraphAddKernelNode_v2"(*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *const CUDA_KERNEL_NODE_PARAMS_v2);
    graph_add_copy = "cuGraphAddMemcpyNode"(*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *const CUDA_MEMCPY3D, *mut c_void);
    graph_add_set = "cuGraphAddMemsetNode"(*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *const cudaMemsetParams, *mut c_void);
    graph_add_host = "cuGraphAddHostNode"(*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *const cudaHostNodeParams);
    graph_add_record = "cuGraphAddEventRecordNode"(*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *mut c_void);
    graph_add_wait = "cuGraphAddEventWaitNode"(*mut *mut c_void, *mut c_void, *const *mut c_void, usize, *mut c_void);
    graph_kernel_attribute = "cuGraphKernelNodeSetAttribute"(*mut c_void, c_int, *const cudaLaunchAttributeValue);
    graph_set_kernel = "cuGraphKernelNodeSetParams_v2"(*mut c_void, *const CUDA_KERNEL_NODE_PARAMS_v2);
    graph_set_copy = "cuGraphMemcpyNodeSetParams"(*mut c_void, *const CUDA_MEMCPY3D);
    graph_set_set = "cuGraphMemsetNodeSetParams"(*mut c_void, *const cudaMemsetParams);
    graph_set_host = "cuGraphHostNodeSetParams"(*mut c_void, *const cudaHostNodeParams);
    graph_set_record = "cuGraphEventRecordNodeSetEvent"(*mut c_void, *mut c_void);
    graph_set_wait = "cuGraphEventWaitNodeSetEvent"(*mut c_void, *mut c_void);
    graph_instantiate = "cuGraphInstantiateWithFlags"(*mut *mut c_void, *mut c_void, u64);
    graph_exec_destroy = "cuGraphExecDestroy"(*mut c_void);
    graph_exec_kernel = "cuGraphExecKernelNodeSetParams_v2"(*mut c_void, *mut c_void, *const CUDA_KERNEL_NODE_PARAMS_v2);
    graph_exec_copy = "cuGraphExecMemcpyNodeSetParams"(*mut c_void, *mut c_void, *const CUDA_MEMCPY3D, *mut c_void);
    graph_exec_set = "cuGraphExecMemsetNodeSetParams"(*mut c_void, *mut c_void, *const cudaMemsetParams, *mut c_void);
    graph_exec_host = "cuGraphExecHostNodeSetParams"(*mut c_void, *mut c_void, *const cudaHostNodeParams);
    graph_exec_record = "cuGraphExecEventRecordNodeSetEvent"(*mut c_void, *mut c_void, *mut c_void);
    graph_exec_wait = "cuGraphExecEventWaitNodeSetEvent"(*mut c_void, *mut c_void, *mut c_void);
    graph_enable = "cuGraphNodeSetEnabled"(*mut c_void, *mut c_void, c_uint);
    graph_launch = "cuGraphLaunch"(*mut c_void, *mut c_void);
}

/// A driver's answer as a result.
pub fn check(code: u32) -> Result<()> {
    Status(code).ok().map_err(Error::from)
}

/// The answer to a query: over, not yet, or an error.
pub fn check_query(code: u32) -> Result<bool> {
    match Status(code) {
        Status::SUCCESS => Ok(true),
        Status::NOT_READY => Ok(false),
        other => Err(other.into()),
    }
}

/// The text before the first NUL.
pub fn text_of(buffer: &[u8]) -> String {
    let end = buffer
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(buffer.len());
    String::from_utf8_lossy(buffer.get(..end).unwrap_or_default()).into_owned()
}
