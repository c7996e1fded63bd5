//! Lookup of functions (CUDA Driver API, Driver Entry Point Access), and the driver's
//! private tables.

/// Returns the address of a driver function by its name.
#[since(11030)]
#[before_init]
fn cuGetProcAddress(name: Text, place: Out<*mut c_void>, version: c_int, flags: u64);

/// Returns the address of a driver function by its name, or why there is none.
#[since(12000)]
#[before_init]
fn cuGetProcAddress_v2(
    name: Text,
    place: Out<*mut c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_int>,
);

/// As cuGetProcAddress_v2, but returns per-thread default stream functions by default.
#[since(12000)]
#[before_init]
fn cuGetProcAddress_v2_ptsz(
    name: Text,
    place: Out<*mut c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_int>,
);

/// Returns the private tables of which some functions are served. NVIDIA's own runtime requests
/// one that is not, and fails without it.
#[since(3000)]
#[before_init]
#[host]
fn cuGetExportTable(place: Out<*const c_void>, id: *const c_void);

/// Does nothing: no profiler is attached.
#[since(4000)]
#[through(context::require_current())]
fn cuProfilerStart();

/// Does nothing: no profiler is attached.
#[since(4000)]
#[through(context::require_current())]
fn cuProfilerStop();
