//! Linking of images at run time (CUDA Driver API, Module Management). Inputs
//! are collected in the guest; cuLinkComplete links them on the host.

/// Creates a linker.
#[since(5050)]
#[also(cuLinkCreate_v2 = 6050)]
#[host]
fn cuLinkCreate(
    number: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
    state: *mut CUlinkState,
);

/// Adds an image in memory to a linker.
#[since(5050)]
#[also(cuLinkAddData_v2 = 6050)]
#[host]
fn cuLinkAddData(
    state: CUlinkState,
    kind: c_int,
    data: *mut c_void,
    size: usize,
    name: Text,
    number: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
);

/// Adds an image file to a linker.
#[since(5050)]
#[also(cuLinkAddFile_v2 = 6050)]
fn cuLinkAddFile(
    state: CUlinkState,
    kind: c_int,
    path: Text,
    number: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
);

/// Links; the image is valid until the linker is destroyed.
#[since(5050)]
#[host]
fn cuLinkComplete(state: CUlinkState, image: Out<*mut c_void>, size: *mut usize);

/// Destroys a linker.
#[since(5050)]
#[host]
fn cuLinkDestroy(state: CUlinkState);
