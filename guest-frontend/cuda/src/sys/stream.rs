//! Streams (CUDA Driver API, Stream Management).

use std::ffi::{c_int, c_uint, c_void};

use paragpu_abi::{
    CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT,
    CU_EVENT_WAIT_EXTERNAL,
    CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING as NVLINK_SCHEDULING,
    CU_LAUNCH_ATTRIBUTE_PRIORITY, CU_STREAM_NON_BLOCKING, CUcontext, CUdevice, CUevent, CUhostFn,
    CUstream, CUstreamCallback, cudaLaunchAttributeValue,
};
use paragpu_client::Session;
use paragpu_client::objects::preference::Limits;
use paragpu_client::objects::stream_attributes;
use paragpu_client::sys::bare_call;
use paragpu_protocol::status::Status;

use super::boundary::{In, Out};
use super::{Result, capture, event, host_call, unsupported_use};
use crate::current;
use crate::named_stream;
use crate::objects::{self, InContext, Object, pool};

const MAX_ACCESS_POLICY_WINDOW_SIZE: u32 =
    CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE.cast_unsigned();
const MEM_SYNC_DOMAIN_COUNT: u32 = CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT.cast_unsigned();

fn create(flags: c_uint, priority: c_int) -> Result<CUstream> {
    let current = current::current()?;
    if let Some(inside) = &current.green {
        if flags & !CU_STREAM_NON_BLOCKING != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if flags == 0 {
            return Err(unsupported_use!(
                "a blocking stream in a green context",
                "streams of green contexts do not wait for the legacy default stream"
            ));
        }
        return super::green::create_stream(&current, inside, priority);
    }
    let (least, greatest) = named_stream::priorities(current.session)?;
    let priority = priority.clamp(greatest, least);
    let object = current.session.streams().create(flags, priority)?;
    Ok(objects::insert(Object::Stream(InContext::new(
        &current, object,
    ))))
}

/// A pointer of the program that is passed to another thread.
struct Carried(*mut c_void);
// SAFETY: the program passed it for use by a thread of the library.
unsafe impl Send for Carried {}

pub(crate) fn cuStreamCreate(stream: Out<'_, CUstream>, flags: c_uint) -> Result {
    stream.present()?.put(create(flags, 0)?)
}

pub(crate) fn cuStreamCreateWithPriority(
    stream: Out<'_, CUstream>,
    flags: c_uint,
    priority: c_int,
) -> Result {
    stream.present()?.put(create(flags, priority)?)
}

pub(crate) fn cuStreamDestroy(stream: CUstream) -> Result {
    let ended = objects::remove(stream, |object| matches!(object, Object::Stream(_)));
    match ended.as_deref() {
        Some(Object::Stream(inner)) => inner.session.streams().destroy(&inner.object),
        _ => Err(objects::missing(stream)),
    }
}

pub(crate) fn cuStreamSynchronize(stream: CUstream) -> Result {
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    capture::permit_unsafe()?;
    session.streams().synchronize(stream)?;
    pool::waited(session)
}

pub(crate) fn cuStreamQuery(stream: CUstream) -> Result {
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    capture::permit_unsafe()?;
    session.streams().query(stream)
}

pub(crate) fn cuStreamWaitEvent(stream: CUstream, waited: CUevent, flags: c_uint) -> Result {
    if flags & !1 != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    let found = event::find(waited)?;
    let inner = event::inner(&found)?;
    if flags & CU_EVENT_WAIT_EXTERNAL != 0 {
        if !stream.is_capturing() {
            return Err(Status::ILLEGAL_STATE);
        }
        return stream.capture_external_wait(event::marked(waited)?);
    }
    if stream.is_capturing() || inner.object.is_captured() {
        return session.wait_event(stream, &inner.object);
    }
    session.wait_event_of(stream, inner.session, &inner.object)
}

pub(crate) fn cuStreamGetFlags(stream: CUstream, flags: Out<'_, c_uint>) -> Result {
    flags.put(named_stream::named(stream)?.stream()?.flags())
}

pub(crate) fn cuStreamGetPriority(stream: CUstream, priority: Out<'_, c_int>) -> Result {
    priority.put(named_stream::named(stream)?.stream()?.priority())
}

pub(crate) fn cuStreamGetId(stream: CUstream, id: Out<'_, u64>) -> Result {
    id.put(named_stream::named(stream)?.id()?)
}

pub(crate) fn cuStreamGetDevice(stream: CUstream, device: Out<'_, CUdevice>) -> Result {
    device.put(super::device::number(
        named_stream::named(stream)?.session()?.ordinal(),
    ))
}

pub(crate) fn cuStreamGetCtx(stream: CUstream, context: Out<'_, CUcontext>) -> Result {
    let handle = named_stream::named(stream)?.context()?;
    context.put(objects::as_handle(handle))
}

pub(crate) fn cuStreamGetCtx_v2(
    stream: CUstream,
    context: Out<'_, CUcontext>,
    green: Out<'_, *mut c_void>,
) -> Result {
    let (inside, without) = super::green::of_stream(stream)?;
    green.put_if(inside);
    context.put_if(without);
    Ok(())
}

pub(crate) fn cuStreamGetAttribute(
    stream: CUstream,
    attribute: c_int,
    value: Out<'_, cudaLaunchAttributeValue>,
) -> Result {
    let named = named_stream::named(stream)?;
    let stream = named.stream()?;
    let mut found = cudaLaunchAttributeValue { pad: [0; 8] };
    if attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY {
        found.priority = stream.priority();
    } else if stream_attributes::is_kept(attribute) {
        found.pad = stream.attributes().get(attribute)?;
    } else if attribute == NVLINK_SCHEDULING {
        return Err(unsupported_use!(
            "cuStreamGetAttribute of this attribute",
            "it is not passed on to the host"
        ));
    } else {
        // Those of launches, too, are invalid for streams.
        return Err(Status::INVALID_VALUE);
    }
    value.put(found)
}

pub(crate) unsafe fn cuStreamSetAttribute(
    stream: CUstream,
    attribute: c_int,
    value: In<'_, cudaLaunchAttributeValue>,
) -> Result {
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    let value = value.get()?;
    // SAFETY: every field of the union is numbers.
    if attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY && unsafe { value.priority } == stream.priority() {
        return Ok(());
    }
    if matches!(attribute, CU_LAUNCH_ATTRIBUTE_PRIORITY | NVLINK_SCHEDULING) {
        return Err(unsupported_use!(
            "cuStreamSetAttribute of this attribute",
            "it is not passed on to the host"
        ));
    }
    if !stream_attributes::is_kept(attribute) {
        return Err(Status::INVALID_VALUE);
    }
    let limits = limits(session)?;
    // SAFETY: every field of the union is numbers.
    let value = unsafe { value.pad };
    session
        .streams()
        .set_attribute(stream, attribute, value, limits)
}

/// The limits of a device for stream attributes.
pub(super) fn limits(session: &Session) -> Result<Limits> {
    let snapshot = session.snapshot()?;
    let limit = |which, least| {
        let told = snapshot.attribute(which).unwrap_or(0);
        u64::try_from(told).unwrap_or(0).max(least)
    };
    Ok(Limits {
        window: limit(MAX_ACCESS_POLICY_WINDOW_SIZE, 0),
        domains: limit(MEM_SYNC_DOMAIN_COUNT, 1),
    })
}

pub(crate) fn cuStreamCopyAttributes(to: CUstream, from: CUstream) -> Result {
    let (to, from) = (named_stream::named(to)?, named_stream::named(from)?);
    let (session, to) = to.both()?;
    session.streams().copy_attributes(to, from.stream()?)
}

pub(crate) unsafe fn cuLaunchHostFunc(
    stream: CUstream,
    function: CUhostFn,
    argument: *mut c_void,
) -> Result {
    let function = function.ok_or(Status::INVALID_VALUE)?;
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    if stream.is_capturing() {
        // SAFETY: the caller upholds the contract of `host_call`.
        return stream.capture_host(unsafe { host_call::host_call(Some(function), argument) }?);
    }
    let argument = Carried(argument);
    session.host_functions().launch(
        stream,
        Box::new(move || {
            let argument = argument;
            // SAFETY: the program registered this function to be called with this argument.
            unsafe { bare_call::call(function, argument.0) }
        }),
    )
}

pub(crate) unsafe fn cuLaunchHostFunc_v2(
    stream: CUstream,
    function: CUhostFn,
    argument: *mut c_void,
    mode: c_uint,
) -> Result {
    // CU_HOST_TASK_BLOCKING and _SPINWAIT.
    if mode > 1 {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: the caller upholds the contract of `cuLaunchHostFunc`.
    unsafe { cuLaunchHostFunc(stream, function, argument) }
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
    let named = named_stream::named(stream)?;
    let (session, stream) = named.both()?;
    session.host_functions().launch_callback(
        stream,
        Box::new(move || {
            let (argument, handle) = (argument, handle);
            let status = session.check().err().unwrap_or(Status::SUCCESS);
            // SAFETY: the program registered this function to be called with this argument.
            unsafe {
                let status = status.0.cast_signed();
                bare_call::call_with_status(function, handle.0, status, argument.0);
            }
        }),
    )
}
