//! Registration by compiled code (crt/host_runtime.h), and libraries that the program
//! loads (CUDA Runtime API, chapter "Library Management").

#[required(library)]
#[direct(cuLibraryLoadData(
    library, code, jit_options, jit_values, jit_count, options, values, count
))]
fn cudaLibraryLoadData(
    library: *mut CUlibrary,
    code: *const c_void,
    jit_options: *mut c_int,
    jit_values: *mut *mut c_void,
    jit_count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
);

#[required(library)]
#[direct(cuLibraryLoadFromFile(
    library, path, jit_options, jit_values, jit_count, options, values, count
))]
fn cudaLibraryLoadFromFile(
    library: *mut CUlibrary,
    path: Text,
    jit_options: *mut c_int,
    jit_values: *mut *mut c_void,
    jit_count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
);

#[direct(cuLibraryGetKernelCount(count, library))]
fn cudaLibraryGetKernelCount(count: Out<c_uint>, library: CUlibrary);

#[direct(cuLibraryEnumerateKernels(kernels, count, library))]
fn cudaLibraryEnumerateKernels(kernels: *mut CUkernel, count: c_uint, library: CUlibrary);

fn cudaLibraryGetGlobal(
    address: Out<*mut c_void>,
    size: Out<usize>,
    library: CUlibrary,
    name: Text,
);

#[needs(cuLibraryGetManaged)]
fn cudaLibraryGetManaged(
    address: Out<*mut c_void>,
    size: Out<usize>,
    library: CUlibrary,
    name: Text,
);

#[direct(cuLibraryGetUnifiedFunction(function, library, symbol))]
fn cudaLibraryGetUnifiedFunction(function: Out<*mut c_void>, library: CUlibrary, symbol: Text);

#[by_hand]
fn __cudaRegisterFatBinary(wrapper: *mut c_void) -> Handle;

#[by_hand]
fn __cudaRegisterFatBinaryEnd(handle: *mut *mut c_void);

#[by_hand]
fn __cudaUnregisterFatBinary(handle: *mut *mut c_void);

#[by_hand]
fn __cudaRegisterFunction(
    handle: *mut *mut c_void,
    stub: *const c_char,
    device_function: *mut c_char,
    name: *const c_char,
    thread_limit: c_int,
    thread: *mut dim3,
    block: *mut dim3,
    block_size: *mut dim3,
    grid_size: *mut dim3,
    warp_size: *mut c_int,
);

#[by_hand]
fn __cudaRegisterVar(
    handle: *mut *mut c_void,
    stand_in: *mut c_char,
    device_address: *mut c_char,
    name: *const c_char,
    external: c_int,
    size: usize,
    constant: c_int,
    global: c_int,
);

#[by_hand]
fn __cudaRegisterManagedVar(
    handle: *mut *mut c_void,
    pointer: *mut *mut c_void,
    device_address: *mut c_char,
    name: *const c_char,
    external: c_int,
    size: usize,
    constant: c_int,
    global: c_int,
);

#[by_hand]
fn __cudaInitModule(handle: *mut *mut c_void) -> c_char;

#[only(13)]
#[refused("no header of CUDA declares it, and nvcc emits no call to it")]
fn __cudaGetProcAddress();

#[refused("no header of CUDA declares it, and nvcc emits no call to it")]
fn __cudaRegisterHostVar();

#[refused("no header of CUDA declares it, and nvcc emits no call to it")]
fn __cudaRegisterUnifiedTable();

#[only(13)]
#[refused("no header of CUDA declares it, and nvcc emits no call to it")]
fn cudaSubgridCreate();

#[only(13)]
#[refused("no header of CUDA declares it, and nvcc emits no call to it")]
fn cudaSubgridWorkerGridCreate();

#[only(13)]
#[refused("no header of CUDA declares it, and nvcc emits no call to it")]
fn cudaSubgridWorksetCreate();
