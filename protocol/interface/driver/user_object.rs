//! User objects (CUDA Driver API, Graph Management).

/// Releases references of a graph to a user object.
#[since(11030)]
fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint);

/// Gives a graph references to a user object.
#[since(11030)]
fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);

/// Makes a user object. Its destructor runs on a thread of the library when the
/// last reference goes; those of launches under way go when the program learns
/// that the launches are over.
#[since(11030)]
fn cuUserObjectCreate(
    object_out: Out<CUuserObject>,
    ptr: *mut c_void,
    destroy: CUhostFn,
    initial_refcount: c_uint,
    flags: c_uint,
);

/// Releases references of the program to a user object.
#[since(11030)]
fn cuUserObjectRelease(object: CUuserObject, count: c_uint);

/// Takes more references to a user object.
#[since(11030)]
fn cuUserObjectRetain(object: CUuserObject, count: c_uint);
