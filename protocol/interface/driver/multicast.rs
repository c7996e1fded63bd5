//! Multicast objects (CUDA Driver API, Multicast Object Management), all refused.

#[since(12010)]
#[refused("a VM's GPUs are not linked for multicast: MULTICAST_SUPPORTED is 0")]
fn cuMulticastAddDevice(mc_handle: CUmemGenericAllocationHandle, dev: CUdevice);

#[since(12010)]
#[refused("a VM's GPUs are not linked for multicast: MULTICAST_SUPPORTED is 0")]
fn cuMulticastBindAddr(
    mc_handle: CUmemGenericAllocationHandle,
    mc_offset: usize,
    memptr: CUdeviceptr,
    size: usize,
    flags: u64,
);

#[since(12010)]
#[refused("a VM's GPUs are not linked for multicast: MULTICAST_SUPPORTED is 0")]
fn cuMulticastBindMem(
    mc_handle: CUmemGenericAllocationHandle,
    mc_offset: usize,
    mem_handle: CUmemGenericAllocationHandle,
    mem_offset: usize,
    size: usize,
    flags: u64,
);

#[since(12010)]
#[refused("a VM's GPUs are not linked for multicast: MULTICAST_SUPPORTED is 0")]
fn cuMulticastCreate(mc_handle: Out<CUmemGenericAllocationHandle>, prop: In<CUmulticastObjectProp>);

#[since(12010)]
#[refused("a VM's GPUs are not linked for multicast: MULTICAST_SUPPORTED is 0")]
fn cuMulticastGetGranularity(
    granularity: Out<usize>,
    prop: In<CUmulticastObjectProp>,
    option: c_int,
);

#[since(12010)]
#[refused("a VM's GPUs are not linked for multicast: MULTICAST_SUPPORTED is 0")]
fn cuMulticastUnbind(
    mc_handle: CUmemGenericAllocationHandle,
    dev: CUdevice,
    mc_offset: usize,
    size: usize,
);

#[since(13010)]
#[refused("a VM's GPUs are not linked for multicast: MULTICAST_SUPPORTED is 0")]
fn cuMulticastBindAddr_v2();

#[since(13010)]
#[refused("a VM's GPUs are not linked for multicast: MULTICAST_SUPPORTED is 0")]
fn cuMulticastBindMem_v2();
