//! User objects (CUDA Driver API, Graph Management).

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use paragpu_abi::{
    CU_GRAPH_USER_OBJECT_MOVE, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CUgraph, CUhostFn, CUuserObject,
};
use paragpu_client::objects::user_object::{self, UserObject};
use paragpu_protocol::status::Status;

use super::boundary::Out;
use super::{Result, graph, host_call};
use crate::objects::{self, Object};

fn find(object: CUuserObject) -> Result<Arc<UserObject>> {
    let found = objects::find(object).ok_or(Status::INVALID_VALUE)?;
    match &**found {
        Object::UserObject(object) => Ok(Arc::clone(object)),
        _ => Err(Status::INVALID_VALUE),
    }
}

/// Checks a number of references: 1 to INT_MAX.
fn some(count: c_uint) -> Result<u32> {
    if count == 0 || i32::try_from(count).is_err() {
        return Err(Status::INVALID_VALUE);
    }
    Ok(count)
}

pub(crate) unsafe fn cuUserObjectCreate(
    out: Out<'_, CUuserObject>,
    data: *mut c_void,
    destroy: CUhostFn,
    references: c_uint,
    flags: c_uint,
) -> Result {
    let out = out.present()?;
    if flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC {
        return Err(Status::INVALID_VALUE);
    }
    let references = some(references)?;
    // SAFETY: the caller upholds the contract of `host_call`.
    let destroy = unsafe { host_call::host_call(destroy, data) }?;
    user_object::start()?;
    out.put(objects::insert_with(|handle| {
        let ended = Box::new(move || {
            let handle = usize::try_from(handle).unwrap_or(0);
            objects::remove(std::ptr::without_provenance_mut(handle), |_| true);
            (destroy.run)();
        });
        Object::UserObject(UserObject::new(references, ended))
    }))
}

pub(crate) fn cuUserObjectRetain(object: CUuserObject, count: c_uint) -> Result {
    find(object)?.retain(some(count)?)
}

pub(crate) fn cuUserObjectRelease(object: CUuserObject, count: c_uint) -> Result {
    find(object)?.release(some(count)?)
}

pub(crate) fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: c_uint,
    flags: c_uint,
) -> Result {
    if flags & !CU_GRAPH_USER_OBJECT_MOVE != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let graph = graph::find(graph)?;
    graph.retain(
        &find(object)?,
        some(count)?,
        flags == CU_GRAPH_USER_OBJECT_MOVE,
    )
}

pub(crate) fn cuGraphReleaseUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: c_uint,
) -> Result {
    graph::find(graph)?.release(&find(object)?, some(count)?)
}
