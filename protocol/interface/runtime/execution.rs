//! Execution contexts: a device or a part of its multiprocessors (CUDA Runtime API,
//! chapter "Execution Context Management").

#[only(13)]
#[refused("not built yet")]
fn cudaDevResourceGenerateDesc();

#[only(13)]
#[refused("not built yet")]
fn cudaDevSmResourceSplitByCount();

#[only(13)]
#[refused("not built yet")]
fn cudaDeviceGetDevResource();

#[only(13)]
#[refused("not built yet")]
fn cudaDeviceGetExecutionCtx();

#[only(13)]
#[refused("not built yet")]
fn cudaExecutionCtxDestroy();

#[only(13)]
#[refused("not built yet")]
fn cudaExecutionCtxGetDevResource();

#[only(13)]
#[refused("not built yet")]
fn cudaExecutionCtxGetDevice();

#[only(13)]
#[refused("not built yet")]
fn cudaExecutionCtxGetId();

#[only(13)]
#[refused("not built yet")]
fn cudaExecutionCtxRecordEvent();

#[only(13)]
#[refused("not built yet")]
fn cudaExecutionCtxStreamCreate();

#[only(13)]
#[refused("not built yet")]
fn cudaExecutionCtxSynchronize();

#[only(13)]
#[refused("not built yet")]
fn cudaExecutionCtxWaitEvent();

#[only(13)]
#[refused("not built yet")]
fn cudaGreenCtxCreate();

#[only(13)]
#[refused("multiprocessors are split by count alone, as NVIDIA's driver of CUDA 13.0 does")]
fn cudaDevSmResourceSplit();
