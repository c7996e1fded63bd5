//! Libraries and kernels (CUDA Driver API, Library Management). A library's image is
//! loaded into each session that uses it.

/// Loads a library from an image in memory.
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

/// Loads a library from a file.
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

/// Unloads a library from all contexts.
#[since(12000)]
#[runtime(cudaLibraryUnload)]
fn cuLibraryUnload(library: CUlibrary);

/// Returns a kernel of a library by its name.
#[since(12000)]
#[runtime(cudaLibraryGetKernel)]
fn cuLibraryGetKernel(place: Out<CUkernel>, library: CUlibrary, name: Text);

/// Returns the module of a library in the current context.
#[since(12000)]
fn cuLibraryGetModule(place: Out<CUmodule>, library: CUlibrary);

/// Returns address and size of a library's variable in the current context.
#[since(12000)]
fn cuLibraryGetGlobal(address: Out<CUdeviceptr>, size: Out<usize>, library: CUlibrary, name: Text);

/// Returns a kernel as a function of the current context.
#[since(12000)]
fn cuKernelGetFunction(function: Out<CUfunction>, kernel: CUkernel);

/// Returns the library of a kernel.
#[since(12050)]
fn cuKernelGetLibrary(library: Out<CUlibrary>, kernel: CUkernel);

/// Returns the mangled name of a kernel.
#[since(12030)]
#[required(kernel)]
#[through(name = module::name_of(kernel))]
fn cuKernelGetName(name: Out<*const c_char>, kernel: CUkernel);

/// Returns an attribute of a kernel.
#[since(12000)]
fn cuKernelGetAttribute(value: Out<c_int>, which: c_int, kernel: CUkernel, device: CUdevice);

/// Sets an attribute of a kernel.
#[since(12000)]
fn cuKernelSetAttribute(which: c_int, value: c_int, kernel: CUkernel, device: CUdevice);

/// Returns offset and size of a kernel parameter.
#[since(12040)]
#[required(kernel)]
#[through(module::parameter(kernel, index, offset, size))]
fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: Out<usize>, size: Out<usize>);

/// Returns the kernels of a library, in the driver's order.
#[since(12040)]
fn cuLibraryEnumerateKernels(kernels: *mut CUkernel, number: c_uint, library: CUlibrary);

/// Returns the number of kernels in a library.
#[since(12040)]
fn cuLibraryGetKernelCount(count: Out<c_uint>, library: CUlibrary);

/// Returns address and size of a `__managed__` variable.
#[since(12000)]
fn cuLibraryGetManaged(dptr: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: Text);

/// Fails: the attribute UNIFIED_FUNCTION_POINTERS is 0 on all devices, so no library has a
/// function for both host and device.
#[since(12000)]
fn cuLibraryGetUnifiedFunction(function: Out<*mut c_void>, library: CUlibrary, symbol: Text);

/// Returns the number of parameters of a kernel.
#[since(13020)]
#[required(kernel)]
#[through(count = module::parameter_count(kernel))]
fn cuKernelGetParamCount(kernel: CUkernel, count: Out<usize>);
