//! Arrays and mipmapped arrays (CUDA Driver API, Memory Management).

/// A 1D or 2D array.
#[since(3020)]
fn cuArrayCreate_v2(array: Out<CUarray>, descriptor: In<CUDA_ARRAY_DESCRIPTOR>);

/// Any array.
#[since(3020)]
#[host]
fn cuArray3DCreate_v2(array: Out<CUarray>, descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>);

/// Its shape.
#[since(3020)]
fn cuArrayGetDescriptor_v2(descriptor: Out<CUDA_ARRAY_DESCRIPTOR>, array: CUarray);

/// Its shape.
#[since(3020)]
#[through(descriptor = describe(array))]
fn cuArray3DGetDescriptor_v2(descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>, array: CUarray);

/// Ends an array.
#[since(2000)]
#[host]
fn cuArrayDestroy(array: CUarray);

/// An array with mipmap levels.
#[since(5000)]
#[host]
fn cuMipmappedArrayCreate(
    array: Out<CUmipmappedArray>,
    descriptor: In<CUDA_ARRAY3D_DESCRIPTOR>,
    levels: c_uint,
);

/// One level, as an array.
#[since(5000)]
#[runtime(cudaGetMipmappedArrayLevel)]
#[host]
fn cuMipmappedArrayGetLevel(level_array: Out<CUarray>, array: CUmipmappedArray, level: c_uint);

/// Ends it and the arrays of its levels.
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

/// No array has its memory mapped later, so none has requirements.
#[since(11060)]
fn cuArrayGetMemoryRequirements(
    memory_requirements: Out<cudaArrayMemoryRequirements>,
    array: CUarray,
    device: CUdevice,
);

/// No array has several planes.
#[since(11020)]
fn cuArrayGetPlane(plane_array: Out<CUarray>, array: CUarray, plane_idx: c_uint);

/// No array is sparse.
#[since(11010)]
fn cuArrayGetSparseProperties(sparse_properties: *mut c_void, array: CUarray);

/// No array has its memory mapped later, so none has requirements.
#[since(11060)]
fn cuMipmappedArrayGetMemoryRequirements(
    memory_requirements: Out<cudaArrayMemoryRequirements>,
    mipmap: CUmipmappedArray,
    device: CUdevice,
);

/// No array is sparse.
#[since(11010)]
fn cuMipmappedArrayGetSparseProperties(sparse_properties: *mut c_void, mipmap: CUmipmappedArray);
