//! Versions, driver entry points and the profiler (CUDA Runtime API, chapters
//! "Version Management", "Driver Entry Point Access", "Profiler Control").

fn cudaRuntimeGetVersion(version: Out<c_int>);

/// 0 if there is no driver.
fn cudaDriverGetVersion(version: Out<c_int>);

fn cudaGetDriverEntryPoint(
    symbol: Text,
    function: Out<*mut c_void>,
    flags: u64,
    status: Out<c_int>,
);

fn cudaGetDriverEntryPoint_ptsz(
    symbol: Text,
    function: Out<*mut c_void>,
    flags: u64,
    status: Out<c_int>,
);

fn cudaGetDriverEntryPointByVersion(
    symbol: Text,
    function: Out<*mut c_void>,
    version: c_uint,
    flags: u64,
    status: Out<c_int>,
);

fn cudaGetDriverEntryPointByVersion_ptsz(
    symbol: Text,
    function: Out<*mut c_void>,
    version: c_uint,
    flags: u64,
    status: Out<c_int>,
);

/// The driver's tables; the runtime has none of its own.
#[direct_without_context(cuGetExportTable(table, identifier))]
fn cudaGetExportTable(table: Out<*const c_void>, identifier: *const c_void);

/// No profiler is attached, and without one this does nothing.
#[through(runtime::require_context())]
fn cudaProfilerStart();

/// As `cudaProfilerStart`.
#[through(runtime::require_context())]
fn cudaProfilerStop();
