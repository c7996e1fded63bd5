//! Checkpoints (CUDA Driver API, CUDA Checkpointing), all refused.

#[since(12080)]
#[refused("the host's operator takes checkpoints: paragpu checkpoint")]
fn cuCheckpointProcessCheckpoint(pid: c_int, args: Out<CUcheckpointCheckpointArgs>);

#[since(12080)]
#[refused("the host's operator takes checkpoints: paragpu checkpoint")]
fn cuCheckpointProcessGetRestoreThreadId(pid: c_int, tid: Out<c_int>);

#[since(12080)]
#[refused("the host's operator takes checkpoints: paragpu checkpoint")]
fn cuCheckpointProcessGetState(pid: c_int, state: Out<c_int>);

#[since(12080)]
#[refused("the host's operator takes checkpoints: paragpu checkpoint")]
fn cuCheckpointProcessLock(pid: c_int, args: Out<CUcheckpointLockArgs>);

#[since(12080)]
#[refused("the host's operator takes checkpoints: paragpu checkpoint")]
fn cuCheckpointProcessRestore(pid: c_int, args: Out<CUcheckpointRestoreArgs>);

#[since(12080)]
#[refused("the host's operator takes checkpoints: paragpu checkpoint")]
fn cuCheckpointProcessUnlock(pid: c_int, args: Out<CUcheckpointUnlockArgs>);

#[since(13040)]
#[refused("the host's operator takes checkpoints: paragpu checkpoint")]
fn cuCheckpointOperationComplete();
