//! Link.

#[since(5050)]
#[refused("not built yet")]
fn cuLinkAddData(
    state: CUlinkState,
    kind: c_int,
    data: *mut c_void,
    size: usize,
    name: Text,
    num_options: c_uint,
    options: *mut c_int,
    option_values: Out<*mut c_void>,
);

#[since(6050)]
#[refused("not built yet")]
fn cuLinkAddData_v2(
    state: CUlinkState,
    kind: c_int,
    data: *mut c_void,
    size: usize,
    name: Text,
    num_options: c_uint,
    options: *mut c_int,
    option_values: Out<*mut c_void>,
);

#[since(5050)]
#[refused("not built yet")]
fn cuLinkAddFile(
    state: CUlinkState,
    kind: c_int,
    path: Text,
    num_options: c_uint,
    options: *mut c_int,
    option_values: Out<*mut c_void>,
);

#[since(6050)]
#[refused("not built yet")]
fn cuLinkAddFile_v2(
    state: CUlinkState,
    kind: c_int,
    path: Text,
    num_options: c_uint,
    options: *mut c_int,
    option_values: Out<*mut c_void>,
);

#[since(5050)]
#[refused("not built yet")]
fn cuLinkComplete(state: CUlinkState, cubin_out: Out<*mut c_void>, size_out: Out<usize>);

#[since(5050)]
#[refused("not built yet")]
fn cuLinkCreate(
    num_options: c_uint,
    options: *mut c_int,
    option_values: Out<*mut c_void>,
    state_out: *mut CUlinkState,
);

#[since(6050)]
#[refused("not built yet")]
fn cuLinkCreate_v2(
    num_options: c_uint,
    options: *mut c_int,
    option_values: Out<*mut c_void>,
    state_out: *mut CUlinkState,
);

#[since(5050)]
#[refused("not built yet")]
fn cuLinkDestroy(state: CUlinkState);
