//! Libraries and kernels (CUDA Driver API, Library Management): images that
//! are loaded into each session that uses them.

/// Loads an image.
#[since(12000)]
fn cuLibraryLoadData(
    library: *mut CUlibrary,
    image: *const c_void,
    options: *mut c_int,
    values: *mut *mut c_void,
    number: c_uint,
    library_options: *mut c_int,
    library_values: *mut *mut c_void,
    library_number: c_uint,
);

/// Loads a file.
#[since(12000)]
fn cuLibraryLoadFromFile(
    library: *mut CUlibrary,
    name: Text,
    options: *mut c_int,
    values: *mut *mut c_void,
    number: c_uint,
    library_options: *mut c_int,
    library_values: *mut *mut c_void,
    library_number: c_uint,
);

/// Unloads, from every context.
#[since(12000)]
#[runtime(cudaLibraryUnload)]
fn cuLibraryUnload(library: CUlibrary);

/// A kernel by its name.
#[since(12000)]
#[runtime(cudaLibraryGetKernel)]
fn cuLibraryGetKernel(place: Out<CUkernel>, library: CUlibrary, name: Text);

/// The module in the current context.
#[since(12000)]
fn cuLibraryGetModule(place: Out<CUmodule>, library: CUlibrary);

/// A variable by its name, in the current context.
#[since(12000)]
fn cuLibraryGetGlobal(address: Out<CUdeviceptr>, size: Out<usize>, library: CUlibrary, name: Text);

/// The kernel as a function of the current context.
#[since(12000)]
fn cuKernelGetFunction(function: Out<CUfunction>, kernel: CUkernel);

/// The library of a kernel.
#[since(12050)]
fn cuKernelGetLibrary(library: Out<CUlibrary>, kernel: CUkernel);

/// Its mangled name.
#[since(12030)]
#[required(kernel)]
#[through(module::name_of(name, kernel))]
fn cuKernelGetName(name: Out<*const c_char>, kernel: CUkernel);

/// An attribute of a kernel.
#[since(12000)]
fn cuKernelGetAttribute(value: Out<c_int>, which: c_int, kernel: CUkernel, device: CUdevice);

/// Changes an attribute of a kernel.
#[since(12000)]
fn cuKernelSetAttribute(which: c_int, value: c_int, kernel: CUkernel, device: CUdevice);

/// Offset and size of a parameter.
#[since(12040)]
#[required(kernel)]
#[through(module::parameter(kernel, index, offset, size))]
fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: Out<usize>, size: Out<usize>);

/// The kernels of a library, in the driver's order.
#[since(12040)]
fn cuLibraryEnumerateKernels(kernels: *mut CUkernel, number: c_uint, library: CUlibrary);

/// How many kernels a library has.
#[since(12040)]
fn cuLibraryGetKernelCount(count: Out<c_uint>, library: CUlibrary);

/// A `__managed__` variable by its name.
#[since(12000)]
fn cuLibraryGetManaged(dptr: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: Text);

/// A function for host and device by its name: no device here has attribute
/// UNIFIED_FUNCTION_POINTERS, so no library has one.
#[since(12000)]
fn cuLibraryGetUnifiedFunction(function: Out<*mut c_void>, library: CUlibrary, symbol: Text);
