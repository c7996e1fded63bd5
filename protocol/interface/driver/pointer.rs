//! Attributes of addresses (CUDA Driver API, Unified Addressing).

/// One attribute; memory that CUDA does not know is an error.
#[since(4000)]
#[host]
fn cuPointerGetAttribute(place: *mut c_void, which: c_int, address: CUdeviceptr);

/// Several attributes; memory that CUDA does not know has none.
#[since(7000)]
fn cuPointerGetAttributes(
    number: c_uint,
    which: *mut c_int,
    places: *mut *mut c_void,
    address: CUdeviceptr,
);

/// Memory operations on any memory are ordered already.
#[since(6000)]
fn cuPointerSetAttribute(value: *const c_void, which: c_int, address: CUdeviceptr);
