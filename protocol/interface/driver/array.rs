//! Arrays and mipmapped arrays (CUDA Driver API, Memory Management).

/// Creates a 1D or 2D array.
#[since(3020)]
fn cuArrayCreate_v2(array: Out<CUarray>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>);

/// Creates an array of one to three dimensions, layered or cubemap arrays included.
#[since(3020)]
#[host]
fn cuArray3DCreate_v2(array: Out<CUarray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>);

/// Returns the extent and format of a 1D or 2D array.
#[since(3020)]
fn cuArrayGetDescriptor_v2(descriptor: Out<CUDA_ARRAY_DESCRIPTOR>, array: CUarray);

/// Returns the extent, format and flags of an array.
#[since(3020)]
#[through(descriptor = describe(array))]
fn cuArray3DGetDescriptor_v2(descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>, array: CUarray);

/// Destroys an array.
#[since(2000)]
#[host]
fn cuArrayDestroy(array: CUarray);

/// Creates a mipmapped array.
#[since(5000)]
#[host]
fn cuMipmappedArrayCreate(
    array: Out<CUmipmappedArray>,
    descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>,
    levels: c_uint,
);

/// Returns one level of a mipmapped array as an array.
#[since(5000)]
#[runtime(cudaGetMipmappedArrayLevel)]
#[host]
fn cuMipmappedArrayGetLevel(level_array: Out<CUarray>, array: CUmipmappedArray, level: c_uint);

/// Destroys a mipmapped array and the arrays of its levels.
#[since(5000)]
#[host]
fn cuMipmappedArrayDestroy(array: CUmipmappedArray);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuArray3DCreate(handle: Out<CUarray>, allocate_array: In<CUDA_ARRAY3D_DESCRIPTOR_v1>);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuArray3DGetDescriptor(array_descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR_v1>, array: CUarray);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuArrayCreate(handle: Out<CUarray>, allocate_array: In<CUDA_ARRAY_DESCRIPTOR_v1>);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuArrayGetDescriptor(array_descriptor: Out<CUDA_ARRAY_DESCRIPTOR_v1>, array: CUarray);

/// Fails: there are no deferred-mapping arrays, the only ones with requirements.
#[since(11060)]
fn cuArrayGetMemoryRequirements(
    memory_requirements: Out<cudaArrayMemoryRequirements>,
    array: CUarray,
    device: CUdevice,
);

/// Fails: there are no multi-planar arrays.
#[since(11020)]
fn cuArrayGetPlane(plane_array: Out<CUarray>, array: CUarray, plane_idx: c_uint);

/// Fails: there are no sparse arrays.
#[since(11010)]
fn cuArrayGetSparseProperties(sparse_properties: *mut c_void, array: CUarray);

/// Fails: there are no deferred-mapping arrays, the only ones with requirements.
#[since(11060)]
fn cuMipmappedArrayGetMemoryRequirements(
    memory_requirements: Out<cudaArrayMemoryRequirements>,
    mipmap: CUmipmappedArray,
    device: CUdevice,
);

/// Fails: there are no sparse arrays.
#[since(11010)]
fn cuMipmappedArrayGetSparseProperties(sparse_properties: *mut c_void, mipmap: CUmipmappedArray);
