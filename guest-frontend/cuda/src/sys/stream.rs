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

use super::{Result, context, event, get, graph_node, put, put_if, unsupported_use};
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
            let _ = self.session.stream_destroy(&self.stream);
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
            stream: session.stream_create(0, 0)?,
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
    let object = current.session.stream_create(flags, priority)?;
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

api! {
    /// A stream.
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) {
        put(stream, create(stream, flags, 0)?)
    }

    /// A stream with a priority, brought into the device's range.
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) {
        put(stream, create(stream, flags, priority)?)
    }

    /// Ends a stream; its work still runs.
    fn cuStreamDestroy | cuStreamDestroy_v2(stream: CUstream) same {
        let ended = objects::remove(stream, |object| matches!(object, Object::Stream(_)));
        match ended.as_deref() {
            Some(Object::Stream(inner)) => inner.session.stream_destroy(&inner.object),
            _ => Err(Status::INVALID_HANDLE),
        }
    }

    /// Waits for its work.
    fn cuStreamSynchronize | cuStreamSynchronize_ptsz(stream: CUstream) on stream {
        let named = named(stream)?;
        let (session, stream) = named.both()?;
        session.stream_synchronize(stream)
    }

    /// Is its work over?
    fn cuStreamQuery | cuStreamQuery_ptsz(stream: CUstream) on stream {
        let named = named(stream)?;
        let (session, stream) = named.both()?;
        session.stream_query(stream)
    }

    /// What comes after waits for an event.
    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz(
        stream: CUstream, waited: CUevent, flags: c_uint,
    ) on stream {
        if flags & !1 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let named = named(stream)?;
        let (session, stream) = named.both()?;
        let found = event::find(waited)?;
        let inner = event::inner(&found)?;
        if std::ptr::eq(inner.session, session) {
            if flags & EXTERNAL != 0 && stream.is_capturing() {
                return session.capture_wait_external(stream, graph_node::marked(waited)?);
            }
            return session.stream_wait_event(stream, &inner.object);
        }
        if stream.is_capturing() {
            return Err(unsupported_use!("cuStreamWaitEvent of another device's event in a capture"));
        }
        // Another device's event: its worker cannot be waited for in order.
        inner.session.event_synchronize(&inner.object)
    }

    /// Its flags.
    fn cuStreamGetFlags | cuStreamGetFlags_ptsz(stream: CUstream, flags: *mut c_uint) on stream {
        put(flags, named(stream)?.stream()?.flags())
    }

    /// Its priority.
    fn cuStreamGetPriority | cuStreamGetPriority_ptsz(stream: CUstream, priority: *mut c_int) on stream {
        put(priority, named(stream)?.stream()?.priority())
    }

    /// A number that no other stream has.
    fn cuStreamGetId | cuStreamGetId_ptsz(stream: CUstream, id: *mut u64) on stream {
        let named = named(stream)?;
        let (session, stream) = named.both()?;
        put(id, u64::from(session.ordinal()) << 48 | stream.handle().0)
    }

    /// Its device.
    fn cuStreamGetDevice | cuStreamGetDevice_ptsz(stream: CUstream, device: *mut CUdevice) on stream {
        put(device, named(stream)?.session()?.ordinal().cast_signed())
    }

    /// Its context.
    fn cuStreamGetCtx | cuStreamGetCtx_ptsz(stream: CUstream, context: *mut CUcontext) on stream {
        let handle = named(stream)?.context()?;
        put(context, std::ptr::without_provenance_mut(usize::try_from(handle).unwrap_or(0)))
    }

    /// Its context; green contexts are not served, so there is never one.
    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz(
        stream: CUstream, context: *mut CUcontext, green: *mut *mut c_void,
    ) on stream {
        let handle = named(stream)?.context()?;
        put_if(green, std::ptr::null_mut());
        put(context, std::ptr::without_provenance_mut(usize::try_from(handle).unwrap_or(0)))
    }

    /// Priority and synchronisation policy; other attributes are not served.
    fn cuStreamGetAttribute | cuStreamGetAttribute_ptsz(
        stream: CUstream, attribute: c_int, value: *mut cudaLaunchAttributeValue,
    ) on stream {
        let named = named(stream)?;
        let mut found = cudaLaunchAttributeValue { pad: [0; 8] };
        match attribute {
            PRIORITY => found.priority = named.stream()?.priority(),
            SYNCHRONIZATION_POLICY => found.syncPolicy = 1,
            _ => return Err(unsupported_use!("cuStreamGetAttribute of this attribute")),
        }
        put(value, found)
    }

    /// The synchronisation policy is a preference; other attributes are not
    /// served.
    fn cuStreamSetAttribute | cuStreamSetAttribute_ptsz(
        stream: CUstream, attribute: c_int, value: *const cudaLaunchAttributeValue,
    ) on stream {
        let named = named(stream)?;
        let value = get(value)?;
        match attribute {
            SYNCHRONIZATION_POLICY if (1..=4).contains(&value.syncPolicy) => Ok(()),
            SYNCHRONIZATION_POLICY => Err(Status::INVALID_VALUE),
            PRIORITY if value.priority == named.stream()?.priority() => Ok(()),
            _ => Err(unsupported_use!("cuStreamSetAttribute of this attribute")),
        }
    }

    /// All attributes that differ between streams are fixed at creation.
    fn cuStreamCopyAttributes | cuStreamCopyAttributes_ptsz(to: CUstream, from: CUstream) same {
        named(to)?;
        named(from)?;
        Ok(())
    }

    /// Runs a function of the program in the stream's order.
    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz(
        stream: CUstream, function: CUhostFn, argument: *mut c_void,
    ) on stream {
        let function = function.ok_or(Status::INVALID_VALUE)?;
        let named = named(stream)?;
        let (session, stream) = named.both()?;
        if stream.is_capturing() {
            return session.capture_host(stream, graph_node::host_call(Some(function), argument)?);
        }
        let argument = Carried(argument);
        session.launch_host_function(stream, Box::new(move || {
            let argument = argument;
            // SAFETY: the program's own function with the program's argument.
            unsafe { function(argument.0) }
        }))
    }

    /// As cuLaunchHostFunc; the function learns the stream and its state.
    fn cuStreamAddCallback | cuStreamAddCallback_ptsz(
        stream: CUstream, function: CUstreamCallback, argument: *mut c_void, flags: c_uint,
    ) on stream {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let function = function.ok_or(Status::INVALID_VALUE)?;
        let (argument, handle) = (Carried(argument), Carried(stream));
        let named = named(stream)?;
        let (session, stream) = named.both()?;
        session.launch_host_function(stream, Box::new(move || {
            let (argument, handle) = (argument, handle);
            let status = session.check().err().unwrap_or(Status::SUCCESS);
            // SAFETY: the program's own function with the program's argument.
            unsafe { function(handle.0, status.0.cast_signed(), argument.0) }
        }))
    }

    /// There is no managed memory to attach.
    fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz(
        stream: CUstream, address: CUdeviceptr, length: usize, flags: c_uint,
    ) on stream {
        named(stream)?;
        let _ = (address, length, flags);
        Err(Status::INVALID_VALUE)
    }
}
