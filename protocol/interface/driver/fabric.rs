//! Fabrics that link GPUs of several hosts (CUDA Driver API, Device Management, Logical
//! Endpoints), all refused.

#[since(13040)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuDeviceGetCliqueCount();

#[since(13040)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuDeviceGetCliqueInfo();

#[since(13040)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuDeviceGetFabricClusterUuid();

#[since(13050)]
#[per_thread(ptsz)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuFabricCpyBatchAsync();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointAddDevice();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointBindAddr();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointBindMem();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointCreate();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointDestroy();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointExport();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointGetLimits();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointIdRelease();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointIdReserve();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointImport();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointQuery();

#[since(13030)]
#[refused("a VM's GPUs belong to no fabric")]
fn cuLogicalEndpointUnbind();
