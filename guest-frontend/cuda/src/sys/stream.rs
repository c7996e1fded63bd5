//! Streams (CUDA Driver API, Stream Management).

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::rc::Rc;
use std::sync::Arc;

use paragpu_abi::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUdeviceptr, CUevent, CUhostFn,
    CUstream, CUstreamCallback, cudaLaunchAttributeValue,
};
use paragpu_client::Session;
use paragpu_client::stream::Stream;
use paragpu_protocol::status::Status;

use super::boundary::{In, Out};
use super::{Result, context, event, graph_node, put, unsupported_use};
use crate::objects::{self, Found, InContext, Object};

/// CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY.
const SYNCHRONIZATION_POLICY: c_int = 3;
/// CU_LAUNCH_ATTRIBUTE_PRIORITY.
const PRIORITY: c_int = 8;

/// CU_EVENT_WAIT_EXTERNAL.
const EXTERNAL: c_uint = 1;

/// The thread's own default stream of one device; ends with the thread.
#[derive(Debug)]
pub struct OwnStream {
    session: &'static Session,
    stream: Arc<Stream>,
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if !paragpu_client::sys::process::forked() {
            let _ = self.session.streams().destroy(&self.stream);
        }
    }
}

thread_local! {
    static OWN: RefCell<Vec<Rc<OwnStream>>> = const { RefCell::new(Vec::new()) };
}

/// A stream that a call names.
#[derive(Debug)]
pub enum Named {
    /// The legacy default stream.
    Legacy(&'static Session),
    /// The thread's own default stream.
    Own(Rc<OwnStream>),
    /// A created one.
    Created(Found),
}

impl Named {
    /// Its session.
    pub fn session(&self) -> Result<&'static Session> {
        match self {
            Self::Legacy(session) => Ok(session),
            Self::Own(own) => Ok(own.session),
            Self::Created(found) => match &***found {
                Object::Stream(inner) => Ok(inner.session),
                _ => Err(Status::INVALID_HANDLE),
            },
        }
    }

    /// The stream.
    pub fn stream(&self) -> Result<&Arc<Stream>> {
        match self {
            Self::Legacy(session) => Ok(session.legacy()),
            Self::Own(own) => Ok(&own.stream),
            Self::Created(found) => match &***found {
                Object::Stream(inner) => Ok(&inner.object),
                _ => Err(Status::INVALID_HANDLE),
            },
        }
    }

    /// Both.
    pub fn both(&self) -> Result<(&'static Session, &Arc<Stream>)> {
        Ok((self.session()?, self.stream()?))
    }

    /// The handle of the context that it belongs to.
    fn context(&self) -> Result<u64> {
        match self {
            Self::Legacy(_) | Self::Own(_) => Ok(context::current()?.handle),
            Self::Created(found) => match &***found {
                Object::Stream(inner) => Ok(inner.context),
                _ => Err(Status::INVALID_HANDLE),
            },
        }
    }
}

/// The stream that a call names; the default ones are those of the current
/// context.
#[inline]
pub fn named(stream: CUstream) -> Result<Named> {
    if stream.is_null() || stream == CU_STREAM_LEGACY {
        return Ok(Named::Legacy(context::current()?.session));
    }
    if stream == CU_STREAM_PER_THREAD {
        return own(context::current()?.session).map(Named::Own);
    }
    let found = objects::find(stream).ok_or(Status::INVALID_HANDLE)?;
    match &**found {
        Object::Stream(_) => Ok(Named::Created(found)),
        _ => Err(Status::INVALID_HANDLE),
    }
}

fn own(session: &'static Session) -> Result<Rc<OwnStream>> {
    OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        if let Some(kept) = own
            .iter()
            .find(|kept| kept.session.ordinal() == session.ordinal())
        {
            return Ok(Rc::clone(kept));
        }
        let made = Rc::new(OwnStream {
            session,
            stream: session.streams().create(0, 0)?,
        });
        own.push(Rc::clone(&made));
        Ok(made)
    })
    .unwrap_or(Err(Status::DEINITIALIZED))
}

/// Least and greatest priority: CUDA gives 0 and -5 where priorities are
/// supported, else 0 and 0.
pub fn priorities(session: &Session) -> Result<(c_int, c_int)> {
    let supported = session.snapshot()?.attribute(78).unwrap_or(0) != 0;
    Ok((0, if supported { -5 } else { 0 }))
}

fn create(stream: *mut CUstream, flags: c_uint, priority: c_int) -> Result<CUstream> {
    if stream.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let current = context::current()?;
    let (least, greatest) = priorities(current.session)?;
    let priority = priority.clamp(greatest, least);
    let object = current.session.streams().create(flags, priority)?;
    Ok(objects::insert(Object::Stream(InContext {
        context: current.handle,
        session: current.session,
        object,
    })))
}

/// A pointer of the program that is handed to another thread.
struct Carried(*mut c_void);
// SAFETY: the program gave it for use by a thread of the library.
unsafe impl Send for Carried {}

pub(crate) unsafe fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> Result {
    put(stream, create(stream, flags, 0)?)
}

pub(crate) unsafe fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> Result {
    put(stream, create(stream, flags, priority)?)
}

pub(crate) fn cuStreamDestroy(stream: CUstream) -> Result {
    let ended = objects::remove(stream, |object| matches!(object, Object::Stream(_)));
    match ended.as_deref() {
        Some(Object::Stream(inner)) => inner.session.streams().destroy(&inner.object),
        _ => Err(Status::INVALID_HANDLE),
    }
}

pub(crate) fn cuStreamSynchronize(stream: CUstream) -> Result {
    let named = named(stream)?;
    let (session, stream) = named.both()?;
    session.streams().synchronize(stream)
}

pub(crate) fn cuStreamQuery(stream: CUstream) -> Result {
    let named = named(stream)?;
    let (session, stream) = named.both()?;
    session.streams().query(stream)
}

pub(crate) fn cuStreamWaitEvent(stream: CUstream, waited: CUevent, flags: c_uint) -> Result {
    if flags & !1 != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let named = named(stream)?;
    let (session, stream) = named.both()?;
    let found = event::find(waited)?;
    let inner = event::inner(&found)?;
    if std::ptr::eq(inner.session, session) {
        if flags & EXTERNAL != 0 && stream.is_capturing() {
            return stream.capture_external_wait(graph_node::marked(waited)?);
        }
        return session.streams().wait_event(stream, &inner.object);
    }
    if stream.is_capturing() {
        return Err(unsupported_use!(
            "cuStreamWaitEvent of another device's event in a capture"
        ));
    }
    // Another device's event: its worker cannot be waited for in order.
    inner.session.events().synchronize(&inner.object)
}

pub(crate) unsafe fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint) -> Result {
    put(flags, named(stream)?.stream()?.flags())
}

pub(crate) unsafe fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int) -> Result {
    put(priority, named(stream)?.stream()?.priority())
}

pub(crate) fn cuStreamGetId(stream: CUstream, id: Out<'_, u64>) -> Result {
    let named = named(stream)?;
    let (session, stream) = named.both()?;
    id.put(u64::from(session.ordinal()) << 48 | stream.handle().0)
}

pub(crate) fn cuStreamGetDevice(stream: CUstream, device: Out<'_, CUdevice>) -> Result {
    device.put(named(stream)?.session()?.ordinal().cast_signed())
}

pub(crate) unsafe fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> Result {
    let handle = named(stream)?.context()?;
    put(
        context,
        std::ptr::without_provenance_mut(usize::try_from(handle).unwrap_or(0)),
    )
}

pub(crate) unsafe fn cuStreamGetCtx_v2(
    stream: CUstream,
    context: *mut CUcontext,
    green: Out<'_, *mut c_void>,
) -> Result {
    let handle = named(stream)?.context()?;
    green.put_if(std::ptr::null_mut());
    put(
        context,
        std::ptr::without_provenance_mut(usize::try_from(handle).unwrap_or(0)),
    )
}

pub(crate) fn cuStreamGetAttribute(
    stream: CUstream,
    attribute: c_int,
    value: Out<'_, cudaLaunchAttributeValue>,
) -> Result {
    let named = named(stream)?;
    let mut found = cudaLaunchAttributeValue { pad: [0; 8] };
    match attribute {
        PRIORITY => found.priority = named.stream()?.priority(),
        SYNCHRONIZATION_POLICY => found.syncPolicy = 1,
        _ => return Err(unsupported_use!("cuStreamGetAttribute of this attribute")),
    }
    value.put(found)
}

pub(crate) unsafe fn cuStreamSetAttribute(
    stream: CUstream,
    attribute: c_int,
    value: In<'_, cudaLaunchAttributeValue>,
) -> Result {
    let named = named(stream)?;
    let value = value.get()?;
    match attribute {
        SYNCHRONIZATION_POLICY if (1..=4).contains(&value.syncPolicy) => Ok(()),
        SYNCHRONIZATION_POLICY => Err(Status::INVALID_VALUE),
        PRIORITY if value.priority == named.stream()?.priority() => Ok(()),
        _ => Err(unsupported_use!("cuStreamSetAttribute of this attribute")),
    }
}

pub(crate) fn cuStreamCopyAttributes(to: CUstream, from: CUstream) -> Result {
    named(to)?;
    named(from)?;
    Ok(())
}

pub(crate) unsafe fn cuLaunchHostFunc(
    stream: CUstream,
    function: CUhostFn,
    argument: *mut c_void,
) -> Result {
    let function = function.ok_or(Status::INVALID_VALUE)?;
    let named = named(stream)?;
    let (session, stream) = named.both()?;
    if stream.is_capturing() {
        return stream.capture_host(graph_node::host_call(Some(function), argument)?);
    }
    let argument = Carried(argument);
    session.host_functions().launch(
        stream,
        Box::new(move || {
            let argument = argument;
            // SAFETY: the program's own function with the program's argument.
            unsafe { function(argument.0) }
        }),
    )
}

pub(crate) fn cuStreamAddCallback(
    stream: CUstream,
    function: CUstreamCallback,
    argument: *mut c_void,
    flags: c_uint,
) -> Result {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let function = function.ok_or(Status::INVALID_VALUE)?;
    let (argument, handle) = (Carried(argument), Carried(stream));
    let named = named(stream)?;
    let (session, stream) = named.both()?;
    session.host_functions().launch(
        stream,
        Box::new(move || {
            let (argument, handle) = (argument, handle);
            let status = session.check().err().unwrap_or(Status::SUCCESS);
            // SAFETY: the program's own function with the program's argument.
            unsafe { function(handle.0, status.0.cast_signed(), argument.0) }
        }),
    )
}

pub(crate) fn cuStreamAttachMemAsync(
    stream: CUstream,
    address: CUdeviceptr,
    length: usize,
    flags: c_uint,
) -> Result {
    named(stream)?;
    let _ = (address, length, flags);
    Err(Status::INVALID_VALUE)
}
