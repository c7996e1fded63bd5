//! Batches of copies (CUDA Driver API, Memory Management).

/// Executes a batch of 3D copies, ordered by a stream. Location hints and the overlap flag have
/// no effect.
#[since(12080)]
#[per_thread(ptsz)]
fn cuMemcpy3DBatchAsync(
    num_ops: usize,
    op_list: *mut CUDA_MEMCPY3D_BATCH_OP,
    fail_idx: Out<usize>,
    flags: u64,
    stream: DefaultStream,
);

/// Executes a batch of 3D copies, ordered by a stream. Location hints and the overlap flag have
/// no effect.
#[since(13000)]
#[per_thread(ptsz)]
fn cuMemcpy3DBatchAsync_v2(
    num_ops: usize,
    op_list: *mut CUDA_MEMCPY3D_BATCH_OP,
    flags: u64,
    stream: DefaultStream,
);

/// Executes a batch of linear copies, ordered by a stream. Location hints and the overlap flag
/// have no effect.
#[since(12080)]
#[per_thread(ptsz)]
fn cuMemcpyBatchAsync(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attrs: *mut CUmemcpyAttributes,
    attrs_idxs: *mut usize,
    num_attrs: usize,
    fail_idx: Out<usize>,
    stream: DefaultStream,
);

/// Executes a batch of linear copies, ordered by a stream. Location hints and the overlap flag
/// have no effect.
#[since(13000)]
#[per_thread(ptsz)]
fn cuMemcpyBatchAsync_v2(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attrs: *mut CUmemcpyAttributes,
    attrs_idxs: *mut usize,
    num_attrs: usize,
    stream: DefaultStream,
);

/// Copies with extents, ordered by a stream. Location hints and the overlap flag have no
/// effect.
#[since(13020)]
#[per_thread(ptsz)]
#[runtime(cudaMemcpy3DWithAttributesAsync)]
#[cuda12()]
fn cuMemcpy3DWithAttributesAsync(
    operation: In<CUDA_MEMCPY3D_BATCH_OP>,
    flags: u64,
    stream: DefaultStream,
);

/// Copies linear memory, ordered by a stream. Location hints and the overlap flag have no
/// effect.
#[since(13020)]
#[per_thread(ptsz)]
fn cuMemcpyWithAttributesAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    size: usize,
    attributes: In<CUmemcpyAttributes>,
    stream: DefaultStream,
);
