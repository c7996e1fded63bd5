//! Logs.

#[refused("not built yet")]
#[only(13)]
fn cudaLogsCurrent();

#[refused("not built yet")]
#[only(13)]
fn cudaLogsDumpToFile();

#[refused("not built yet")]
#[only(13)]
fn cudaLogsDumpToMemory();

#[refused("not built yet")]
#[only(13)]
fn cudaLogsRegisterCallback();

#[refused("not built yet")]
#[only(13)]
fn cudaLogsUnregisterCallback();
