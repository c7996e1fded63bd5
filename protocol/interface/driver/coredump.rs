//! Coredump.

#[since(12010)]
#[refused("not built yet")]
fn cuCoredumpGetAttribute(attrib: c_int, value: *mut c_void, size: Out<usize>);

#[since(12010)]
#[refused("not built yet")]
fn cuCoredumpGetAttributeGlobal(attrib: c_int, value: *mut c_void, size: Out<usize>);

#[since(12010)]
#[refused("not built yet")]
fn cuCoredumpSetAttribute(attrib: c_int, value: *mut c_void, size: Out<usize>);

#[since(12010)]
#[refused("not built yet")]
fn cuCoredumpSetAttributeGlobal(attrib: c_int, value: *mut c_void, size: Out<usize>);
