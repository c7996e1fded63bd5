//! Attributes of core dumps of a GPU (CUDA Driver API, Coredump Attributes
//! Control). They are only stored: no dump is ever written, and requests for one are
//! refused.

/// Returns a core dump attribute of the current context.
#[since(12010)]
fn cuCoredumpGetAttribute(attribute: c_int, value: *mut c_void, size: *mut usize);

/// Returns a core dump attribute for new contexts.
#[since(12010)]
#[before_init]
fn cuCoredumpGetAttributeGlobal(attribute: c_int, value: *mut c_void, size: *mut usize);

/// Sets a core dump attribute of the current context.
#[since(12010)]
fn cuCoredumpSetAttribute(attribute: c_int, value: *mut c_void, size: *mut usize);

/// Sets a core dump attribute for new contexts.
#[since(12010)]
#[before_init]
fn cuCoredumpSetAttributeGlobal(attribute: c_int, value: *mut c_void, size: *mut usize);

#[since(13020)]
#[refused("no core dump is ever written")]
fn cuCoredumpDeregisterCompleteCallback();

#[since(13020)]
#[refused("no core dump is ever written")]
fn cuCoredumpDeregisterStartCallback();

#[since(13020)]
#[refused("no core dump is ever written")]
fn cuCoredumpRegisterCompleteCallback();

#[since(13020)]
#[refused("no core dump is ever written")]
fn cuCoredumpRegisterStartCallback();
