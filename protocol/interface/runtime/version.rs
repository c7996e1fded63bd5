//! Versions, driver entry points and the profiler (CUDA Runtime API, chapters
//! "Version Management", "Driver Entry Point Access", "Profiler Control").

fn cudaRuntimeGetVersion(version: Out<c_int>);

/// Returns the CUDA version of the driver; 0 without one.
fn cudaDriverGetVersion(version: Out<c_int>);

#[through(entry_point(symbol, function, None, flags, status))]
fn cudaGetDriverEntryPoint(
    symbol: *const c_char,
    function: Out<*mut c_void>,
    flags: u64,
    status: Out<c_int>,
);

#[through(entry_point(symbol, function, None, own_flags(flags), status))]
fn cudaGetDriverEntryPoint_ptsz(
    symbol: *const c_char,
    function: Out<*mut c_void>,
    flags: u64,
    status: Out<c_int>,
);

#[through(entry_point(symbol, function, Some(version), flags, status))]
fn cudaGetDriverEntryPointByVersion(
    symbol: *const c_char,
    function: Out<*mut c_void>,
    version: c_uint,
    flags: u64,
    status: Out<c_int>,
);

#[through(entry_point(symbol, function, Some(version), own_flags(flags), status))]
fn cudaGetDriverEntryPointByVersion_ptsz(
    symbol: *const c_char,
    function: Out<*mut c_void>,
    version: c_uint,
    flags: u64,
    status: Out<c_int>,
);

/// Returns the driver's private tables; the runtime has none.
#[direct_without_context(cuGetExportTable(table, identifier))]
fn cudaGetExportTable(table: Out<*const c_void>, identifier: *const c_void);

/// Requires a context and does nothing: no profiler is attached.
#[through(runtime::require_context())]
fn cudaProfilerStart();

/// As `cudaProfilerStart`.
#[through(runtime::require_context())]
fn cudaProfilerStop();
