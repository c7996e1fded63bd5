//! Attributes of core dumps of a GPU (CUDA Driver API, Coredump Attributes
//! Control). They are kept; a dump is never made, and asking for one is refused.

/// An attribute in the current context.
#[since(12010)]
fn cuCoredumpGetAttribute(attribute: c_int, value: *mut c_void, size: *mut usize);

/// An attribute for contexts to come.
#[since(12010)]
#[before_init]
fn cuCoredumpGetAttributeGlobal(attribute: c_int, value: *mut c_void, size: *mut usize);

/// Changes an attribute in the current context.
#[since(12010)]
fn cuCoredumpSetAttribute(attribute: c_int, value: *mut c_void, size: *mut usize);

/// Changes an attribute for contexts to come.
#[since(12010)]
#[before_init]
fn cuCoredumpSetAttributeGlobal(attribute: c_int, value: *mut c_void, size: *mut usize);
