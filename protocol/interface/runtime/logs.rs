//! Logs.

#[refused("not built yet")]
fn cudaLogsCurrent();

#[refused("not built yet")]
fn cudaLogsDumpToFile();

#[refused("not built yet")]
fn cudaLogsDumpToMemory();

#[refused("not built yet")]
fn cudaLogsRegisterCallback();

#[refused("not built yet")]
fn cudaLogsUnregisterCallback();
