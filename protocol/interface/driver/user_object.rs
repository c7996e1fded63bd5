//! User objects (CUDA Driver API, Graph Management).

/// Releases references of a graph to a user object.
#[since(11030)]
fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint);

/// Makes a graph retain references to a user object.
#[since(11030)]
fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);

/// Creates a user object. Its destructor runs on a thread of the library when the last
/// reference is released. Graph launches in flight hold references, which are released when the
/// program observes their completion.
#[since(11030)]
#[in_callbacks]
fn cuUserObjectCreate(
    object_out: Out<CUuserObject>,
    ptr: *mut c_void,
    destroy: CUhostFn,
    initial_refcount: c_uint,
    flags: c_uint,
);

/// Releases the program's references to a user object.
#[since(11030)]
#[in_callbacks]
fn cuUserObjectRelease(object: CUuserObject, count: c_uint);

/// Adds references to a user object.
#[since(11030)]
#[in_callbacks]
fn cuUserObjectRetain(object: CUuserObject, count: c_uint);
