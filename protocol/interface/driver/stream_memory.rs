//! Stream memory.

#[since(8000)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuStreamBatchMemOp(
    stream: CUstream,
    count: c_uint,
    param_array: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
);

#[since(11070)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: c_uint,
    param_array: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
);

#[since(8000)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuStreamWaitValue32(stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint);

#[since(11070)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuStreamWaitValue32_v2(stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint);

#[since(9000)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuStreamWaitValue64(stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint);

#[since(11070)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuStreamWaitValue64_v2(stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint);

#[since(8000)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuStreamWriteValue32(stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint);

#[since(11070)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuStreamWriteValue32_v2(stream: CUstream, addr: CUdeviceptr, value: u32, flags: c_uint);

#[since(9000)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuStreamWriteValue64(stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint);

#[since(11070)]
#[per_thread(ptsz)]
#[refused("not built yet")]
fn cuStreamWriteValue64_v2(stream: CUstream, addr: CUdeviceptr, value: u64, flags: c_uint);
