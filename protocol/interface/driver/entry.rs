//! Looking functions up (CUDA Driver API, Driver Entry Point Access), and the
//! private tables that this library does not have.

/// The function that a name means.
#[since(11030)]
#[before_init]
fn cuGetProcAddress(name: Text, place: Out<*mut c_void>, version: c_int, flags: u64);

/// The function that a name means, and why not.
#[since(12000)]
#[before_init]
fn cuGetProcAddress_v2(
    name: Text,
    place: Out<*mut c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_int>,
);

/// As cuGetProcAddress_v2; by default the functions of per-thread streams.
#[since(12000)]
#[before_init]
fn cuGetProcAddress_v2_ptsz(
    name: Text,
    place: Out<*mut c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_int>,
);

/// The private tables of which some functions are served. NVIDIA's own runtime
/// asks for one that is not, and fails without it.
#[since(3000)]
#[before_init]
#[host]
fn cuGetExportTable(place: Out<*const c_void>, id: *const c_void);

/// No profiler is attached, which is no error.
#[since(4000)]
#[through(context::require_current())]
fn cuProfilerStart();

/// No profiler is attached, which is no error.
#[since(4000)]
#[through(context::require_current())]
fn cuProfilerStop();
