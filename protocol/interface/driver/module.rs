//! Modules and their functions (CUDA Driver API, Module Management).

/// Loads a file.
#[since(2000)]
fn cuModuleLoad(module: Out<CUmodule>, name: Text);

/// Loads an image.
#[since(2000)]
fn cuModuleLoadData(module: Out<CUmodule>, image: *const c_void);

/// Loads an image with options.
#[since(2010)]
#[host]
fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    number: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
);

/// Loads a fat binary.
#[since(2000)]
fn cuModuleLoadFatBinary(module: Out<CUmodule>, image: *const c_void);

/// Unloads.
#[since(2000)]
#[call(0x0404, posted, destroys(Module = module), code(guest, worker, device))]
#[host]
fn cuModuleUnload(module: CUmodule);

/// Images are loaded when asked for.
#[since(11070)]
fn cuModuleGetLoadingMode(mode: Out<c_int>);

/// A kernel by its name.
#[since(2000)]
#[host]
fn cuModuleGetFunction(function: Out<CUfunction>, module: CUmodule, name: Text);

/// A variable by its name.
#[since(3020)]
#[host]
#[clears(address, size)]
fn cuModuleGetGlobal_v2(address: Out<CUdeviceptr>, size: Out<usize>, module: CUmodule, name: Text);

/// An attribute of a kernel, from what is constant about it.
#[since(2020)]
#[host]
#[through(attribute(value, which, function))]
fn cuFuncGetAttribute(value: Out<c_int>, which: c_int, function: CUfunction);

/// Changes an attribute of a kernel.
#[since(9000)]
#[call(0x0406, synchronous, idempotent, changes(Function = function), key(attribute), code(guest))]
fn cuFuncSetAttribute(function: CUfunction, attribute: Enumeration, value: c_int);

/// A preference.
#[since(3000)]
#[call(0x0407, posted, idempotent, changes(Function = function), code(guest))]
fn cuFuncSetCacheConfig(function: CUfunction, config: Enumeration);

/// A preference without effect on devices of today.
#[since(4020)]
fn cuFuncSetSharedMemConfig(function: CUfunction, config: c_int);

/// The module of a kernel.
#[since(11000)]
#[required(function)]
fn cuFuncGetModule(module: Out<CUmodule>, function: CUfunction);

/// Its mangled name.
#[since(12030)]
#[host]
#[required(function)]
#[through(name_of(name, function))]
fn cuFuncGetName(name: Out<*const c_char>, function: CUfunction);

/// Offset and size of a parameter.
#[since(12040)]
#[host]
#[required(function)]
#[through(parameter(function, index, offset, size))]
fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>);

/// A function that has a handle is loaded.
#[since(12040)]
fn cuFuncIsLoaded(state: Out<c_int>, function: CUfunction);

/// A function that has a handle is loaded.
#[since(12040)]
fn cuFuncLoad(function: CUfunction);

/// A preference.
#[since(12000)]
fn cuKernelSetCacheConfig(kernel: CUfunction, config: c_int, device: c_int);

/// The kernels of a module, in the driver's order.
#[since(12040)]
#[host]
fn cuModuleEnumerateFunctions(functions: *mut CUfunction, number: c_uint, module: CUmodule);

/// How many kernels a module has.
#[since(12040)]
#[call(0x040d, synchronous, idempotent)]
fn cuModuleGetFunctionCount(count: Out<c_uint>, module: CUmodule);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuModuleGetGlobal(dptr: Out<c_uint>, bytes: Out<c_uint>, hmod: CUmodule, name: Text);
