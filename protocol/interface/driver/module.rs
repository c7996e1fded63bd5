//! Modules and their functions (CUDA Driver API, Module Management).

/// Loads a module from a file.
#[since(2000)]
fn cuModuleLoad(module: Out<CUmodule>, name: Text);

/// Loads a module from an image in memory.
#[since(2000)]
fn cuModuleLoadData(module: Out<CUmodule>, image: *const c_void);

/// Loads a module from an image in memory, with options.
#[since(2010)]
#[host]
fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    number: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
);

/// Loads a module from a fat binary in memory.
#[since(2000)]
fn cuModuleLoadFatBinary(module: Out<CUmodule>, image: *const c_void);

/// Unloads a module.
#[since(2000)]
#[call(0x0404, posted, destroys(Module = module), code(guest, worker, device), part(objects), with(memory))]
#[host]
fn cuModuleUnload(module: CUmodule);

/// Returns the loading mode: lazy, or eager if CUDA_MODULE_LOADING says so.
#[since(11070)]
fn cuModuleGetLoadingMode(mode: Out<c_int>);

/// Returns a kernel of a module by its name.
#[since(2000)]
#[host]
fn cuModuleGetFunction(function: Out<CUfunction>, module: CUmodule, name: Text);

/// Returns address and size of a module's variable.
#[since(3020)]
#[host]
#[clears(address, size)]
fn cuModuleGetGlobal_v2(address: Out<CUdeviceptr>, size: Out<usize>, module: CUmodule, name: Text);

/// Returns an attribute of a kernel, from its constant facts.
#[since(2020)]
#[host]
#[through(value = attribute(which, function))]
fn cuFuncGetAttribute(value: Out<c_int>, which: c_int, function: CUfunction);

/// Sets an attribute of a kernel.
#[since(9000)]
#[call(0x0406, synchronous, idempotent, changes(Function = function), key(attribute), code(guest))]
#[through(set_attribute(function, attribute, value))]
fn cuFuncSetAttribute(function: CUfunction, attribute: Enumeration, value: c_int);

/// Sets a kernel's preferred split between L1 cache and shared memory.
#[since(3000)]
#[call(0x0407, posted, idempotent, changes(Function = function), code(guest))]
#[through(set_cache_config(function, config))]
fn cuFuncSetCacheConfig(function: CUfunction, config: Enumeration);

/// Accepts a width of shared memory banks, which current devices ignore.
#[since(4020)]
fn cuFuncSetSharedMemConfig(function: CUfunction, config: c_int);

/// Returns the module of a kernel.
#[since(11000)]
#[required(function)]
fn cuFuncGetModule(module: Out<CUmodule>, function: CUfunction);

/// Returns the mangled name of a kernel.
#[since(12030)]
#[host]
#[required(function)]
#[through(name = name_of(function))]
fn cuFuncGetName(name: Out<*const c_char>, function: CUfunction);

/// Returns offset and size of a kernel parameter.
#[since(12040)]
#[host]
#[required(function)]
#[through(parameter(function, index, offset, size))]
fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>);

/// Returns that the function is loaded, as every function with a handle is.
#[since(12040)]
fn cuFuncIsLoaded(state: Out<c_int>, function: CUfunction);

/// Does nothing: every function with a handle is loaded.
#[since(12040)]
fn cuFuncLoad(function: CUfunction);

/// Sets a kernel's preferred split between L1 cache and shared memory.
#[since(12000)]
fn cuKernelSetCacheConfig(kernel: CUfunction, config: c_int, device: c_int);

/// Returns the kernels of a module, in the driver's order.
#[since(12040)]
#[host]
fn cuModuleEnumerateFunctions(functions: *mut CUfunction, number: c_uint, module: CUmodule);

/// Returns the number of kernels in a module.
#[since(12040)]
#[call(0x040d, synchronous, idempotent)]
fn cuModuleGetFunctionCount(count: Out<c_uint>, module: CUmodule);

#[since(2000)]
#[refused("superseded: programs built for a current CUDA call a later version")]
fn cuModuleGetGlobal(dptr: Out<c_uint>, bytes: Out<c_uint>, hmod: CUmodule, name: Text);

/// Returns the number of parameters of a kernel.
#[since(13020)]
#[required(function)]
#[through(count = parameter_count(function))]
fn cuFuncGetParamCount(function: CUfunction, count: Out<usize>);
