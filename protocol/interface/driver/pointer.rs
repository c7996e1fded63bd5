//! Attributes of addresses (CUDA Driver API, Unified Addressing).

/// Returns an attribute of an address; memory unknown to CUDA is an error.
#[since(4000)]
#[host]
fn cuPointerGetAttribute(place: *mut c_void, which: c_int, address: CUdeviceptr);

/// Returns several attributes of an address; memory unknown to CUDA has none.
#[since(7000)]
fn cuPointerGetAttributes(
    number: c_uint,
    which: *mut c_int,
    places: *mut *mut c_void,
    address: CUdeviceptr,
);

/// Sets SYNC_MEMOPS, which makes memory operations on an allocation synchronous.
#[since(6000)]
fn cuPointerSetAttribute(value: *const c_void, which: c_int, address: CUdeviceptr);
