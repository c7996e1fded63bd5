//! Green contexts (CUDA Driver API, Green Contexts).

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use paragpu_abi::{
    CU_DEV_RESOURCE_TYPE_INVALID, CU_DEV_RESOURCE_TYPE_SM, CU_GREEN_CTX_DEFAULT_STREAM,
    CU_STREAM_NON_BLOCKING, CUcontext, CUdevResource, CUdevResourceDesc, CUdevice, CUevent,
    CUgreenCtx, CUstream,
};
use paragpu_client::green::Green;
use paragpu_client::session::Session;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::GreenCreate;
use paragpu_protocol::types::SmResource;

use super::boundary::Out;
use super::{Result, context, device, event, unsupported_use};
use crate::current::{self, Current, with_stack};
use crate::named_stream;
use crate::objects::context::{Context, GreenBinding};
use crate::objects::green::{Description, GreenContext, Member, Part, REMAINING, forget_parts};
use crate::objects::{self, InContext, Object, as_handle};

/// Maximum number of groups of a split: more than a GPU has multiprocessors.
const MAX_GROUPS: u32 = 255;
/// Size of an encoded split in bytes (protocol/interface/calls/green.rs).
const STEP: usize = 44;
/// Maximum number of resources of a description: the groups of a split and the remainder.
const MAX_RESOURCES: c_uint = 256;

fn numbers(resource: SmResource) -> [u32; 3] {
    [resource.count, resource.least, resource.alignment]
}

/// A part in the program's form.
fn resource(part: Part) -> CUdevResource {
    let mut resource = CUdevResource {
        r#type: CU_DEV_RESOURCE_TYPE_SM,
        _internal_padding: [0; 92],
        _oversize: [0; 12],
    };
    for (slot, number) in resource._oversize.iter_mut().zip(part.numbers) {
        *slot = number;
    }
    let name = part.name().to_le_bytes();
    for (slot, byte) in resource._internal_padding.iter_mut().zip(name) {
        *slot = byte;
    }
    resource
}

/// An empty resource.
const NONE: CUdevResource = CUdevResource {
    r#type: CU_DEV_RESOURCE_TYPE_INVALID,
    _internal_padding: [0; 92],
    _oversize: [0; 12],
};

/// The part that a resource of the program refers to.
fn part(resource: &CUdevResource) -> Result<Arc<Part>> {
    if resource.r#type != CU_DEV_RESOURCE_TYPE_SM {
        return Err(Status::INVALID_RESOURCE_TYPE);
    }
    let name = resource._internal_padding.first_chunk::<8>();
    let name = u64::from_le_bytes(*name.ok_or(Status::UNKNOWN)?);
    let name = usize::try_from(name).map_err(|_| Status::INVALID_RESOURCE_CONFIGURATION)?;
    let found = objects::find(std::ptr::without_provenance_mut(name));
    match found.as_deref().map(|object| &**object) {
        Some(Object::Part(part)) => Ok(Arc::clone(part)),
        _ => Err(Status::INVALID_RESOURCE_CONFIGURATION),
    }
}

/// The green context with this handle.
fn find(green: CUgreenCtx) -> Result<Arc<GreenContext>> {
    match objects::find(green).as_deref().map(|object| &**object) {
        Some(Object::Green(green)) => Ok(Arc::clone(green)),
        _ => Err(Status::INVALID_CONTEXT),
    }
}

fn check_kind(kind: c_int) -> Result {
    match kind {
        CU_DEV_RESOURCE_TYPE_SM => Ok(()),
        _ => Err(Status::INVALID_RESOURCE_TYPE),
    }
}

/// All multiprocessors of a device.
fn whole(session: &Session) -> Result<Part> {
    Ok(Part {
        ordinal: session.ordinal(),
        green: 0,
        way: Vec::new(),
        member: None,
        numbers: numbers(session.sm_resource()?),
    })
}

fn of_green(handle: u64, green: &GreenContext) -> Part {
    Part {
        ordinal: green.primary.ordinal,
        green: handle,
        way: green.way.clone(),
        member: None,
        numbers: numbers(green.green.resource()),
    }
}

/// The multiprocessors of a context: its green context's, or all of the device.
fn of_context(context: &Context) -> Result<Part> {
    match &context.green {
        Some(inside) => Ok(of_green(inside.handle, &*find(as_handle(inside.handle))?)),
        None => whole(context.session),
    }
}

pub(crate) fn cuDeviceGetDevResource(
    device: CUdevice,
    out: Out<'_, CUdevResource>,
    kind: c_int,
) -> Result {
    let out = out.present()?;
    let ordinal = device::ordinal(device)?;
    check_kind(kind)?;
    out.put(resource(whole(device::session(ordinal)?)?))
}

pub(crate) fn cuCtxGetDevResource(
    context: CUcontext,
    out: Out<'_, CUdevResource>,
    kind: c_int,
) -> Result {
    let out = out.present()?;
    check_kind(kind)?;
    let context = current::find(context)?;
    context.alive()?;
    out.put(resource(of_context(&context)?))
}

pub(crate) fn cuGreenCtxGetDevResource(
    green: CUgreenCtx,
    out: Out<'_, CUdevResource>,
    kind: c_int,
) -> Result {
    let out = out.present()?;
    check_kind(kind)?;
    let found = find(green)?;
    out.put(resource(of_green(green as u64, &found)))
}

pub(crate) unsafe fn cuDevSmResourceSplitByCount(
    result: *mut CUdevResource,
    groups: *mut c_uint,
    input: *const CUdevResource,
    remaining: *mut CUdevResource,
    flags: c_uint,
    least: c_uint,
) -> Result {
    // SAFETY: both are null or as the caller promises.
    let (Some(group_count), Some(input)) = (unsafe { groups.as_mut() }, unsafe { input.as_ref() })
    else {
        return Err(Status::INVALID_VALUE);
    };
    let input = part(input)?;
    if input.member.is_some() {
        return Err(Status::INVALID_RESOURCE_CONFIGURATION);
    }
    let wanted = match result.is_null() {
        true => 0,
        false if *group_count == 0 => return Err(Status::INVALID_VALUE),
        false => (*group_count).min(MAX_GROUPS),
    };
    let green = match input.green {
        0 => None,
        handle => Some(find(as_handle(handle))?),
    };
    let session = device::session(input.ordinal)?;
    let of = green.as_ref().map(|green| &*green.green);
    let made = session.sm_split(of, wanted, flags, least)?;
    let member = |number, of: SmResource| match of.count {
        0 => NONE,
        _ => resource(Part {
            member: Some(Member {
                groups: wanted.max(1),
                flags,
                least,
                number,
            }),
            numbers: numbers(of),
            ..(*input).clone()
        }),
    };
    let count = match wanted {
        0 => made.groups,
        _ => made.groups.min(wanted),
    };
    if wanted > 0 {
        for number in 0..u8::try_from(count).unwrap_or(u8::MAX) {
            // SAFETY: the caller promises room for as many resources as `groups` said,
            // which is at least `count`.
            unsafe {
                result
                    .add(usize::from(number))
                    .write(member(number, made.group));
            }
        }
    }
    *group_count = count;
    if !remaining.is_null() {
        // SAFETY: it is writable, as the caller promises.
        unsafe { remaining.write(member(REMAINING, made.remaining)) };
    }
    Ok(())
}

pub(crate) unsafe fn cuDevResourceGenerateDesc(
    out: Out<'_, CUdevResourceDesc>,
    resources: *mut CUdevResource,
    number: c_uint,
) -> Result {
    let out = out.present()?;
    if resources.is_null() || number == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let parts = (0..number.min(MAX_RESOURCES) as usize)
        // SAFETY: the caller promises `number` resources.
        .map(|at| part(unsafe { &*resources.add(at) }))
        .collect::<Result<Vec<_>>>()?;
    if number > MAX_RESOURCES {
        return Err(Status::INVALID_RESOURCE_CONFIGURATION);
    }
    let description = Description::of(&parts)?;
    if description.way.len() > GreenCreate::MAX_STEPS * STEP {
        return Err(unsupported_use!(
            "a resource that was split nine times",
            "the host repeats eight splits"
        ));
    }
    out.put(description.handle())
}

pub(crate) fn cuGreenCtxCreate(
    out: Out<'_, CUgreenCtx>,
    description: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> Result {
    let out = out.present()?;
    let ordinal = device::ordinal(device)?;
    if flags != CU_GREEN_CTX_DEFAULT_STREAM {
        return Err(Status::INVALID_VALUE);
    }
    let description = match description.is_null() {
        // NVIDIA's driver uses the whole device, which is undocumented.
        true => Arc::new(Description::of(&[Arc::new(whole(device::session(
            ordinal,
        )?)?)])?),
        false => match objects::find(description)
            .as_deref()
            .map(|object| &**object)
        {
            Some(Object::Description(description)) => Arc::clone(description),
            _ => return Err(Status::INVALID_VALUE),
        },
    };
    if description.ordinal != ordinal {
        return Err(Status::INVALID_DEVICE);
    }
    let primary = context::retain(device)?;
    let session = primary.session;
    let green = match session.create_green(&description.way, description.count) {
        Ok(green) => green,
        Err(status) => {
            context::cuDevicePrimaryCtxRelease(device)?;
            return Err(status);
        }
    };
    out.put(objects::insert_with(|handle| {
        let mut made = None;
        objects::insert_with(|name| {
            let green = Arc::clone(&green);
            let context = Context::of_green(name, &primary, GreenBinding { handle, green });
            let context = Arc::new(context);
            made = Some(Arc::clone(&context));
            Object::Context(context)
        });
        Object::Green(Arc::new(GreenContext {
            green,
            context: made.unwrap_or_else(|| Arc::clone(&primary)),
            primary,
            way: description.way.clone(),
        }))
    }))
}

pub(crate) fn cuGreenCtxDestroy(green: CUgreenCtx) -> Result {
    let ended = objects::remove(green, |object| matches!(object, Object::Green(_)));
    let Some(Object::Green(ended)) = ended.as_deref() else {
        return Err(Status::INVALID_CONTEXT);
    };
    let context = &ended.context;
    context.set_alive(false);
    objects::remove(context.handle(), |_| true);
    with_stack(|stack| {
        if stack.last().is_some_and(|top| top.name == context.name) {
            stack.pop();
        }
    });
    forget_parts(green as u64);
    objects::end_of_context(context.name);
    let destroyed = context.session.destroy_green(&ended.green);
    context::cuDevicePrimaryCtxRelease(device::number(context.ordinal)).and(destroyed)
}

pub(crate) fn cuCtxFromGreenCtx(out: Out<'_, CUcontext>, green: CUgreenCtx) -> Result {
    out.present()?.put(find(green)?.context.handle())
}

pub(crate) fn cuGreenCtxGetId(green: CUgreenCtx, id: Out<'_, u64>) -> Result {
    let id = id.present()?;
    if !green.is_null() {
        return id.put(find(green)?.context.id());
    }
    let current = current::current()?;
    match current.green {
        Some(_) => id.put(current.id()),
        None => Err(Status::INVALID_CONTEXT),
    }
}

/// The event with this handle, and its session.
fn with_event(
    handle: CUevent,
    with: impl FnOnce(&InContext<paragpu_client::event::Event>) -> Result,
) -> Result {
    let found = event::find(handle)?;
    with(event::inner(&found)?)
}

fn record(session: &'static Session, of: Option<&Green>, handle: CUevent) -> Result {
    with_event(handle, |event| {
        if !std::ptr::eq(session, event.session) {
            return Err(Status::INVALID_HANDLE);
        }
        session.record_all(of, &event.object)
    })
}

fn wait(session: &'static Session, of: Option<&Green>, handle: CUevent) -> Result {
    with_event(handle, |event| {
        session.wait_all(of, event.session, &event.object)
    })
}

/// The context with this handle, if it is alive.
fn usable(context: CUcontext) -> Result<Current> {
    let context = current::find(context)?;
    context.alive()?;
    Ok(context)
}

/// The green context of a context.
fn inside(context: &Context) -> Option<&Green> {
    context.green.as_ref().map(|inside| &*inside.green)
}

pub(crate) fn cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent) -> Result {
    let green = find(green)?;
    record(green.primary.session, Some(&green.green), event)
}

pub(crate) fn cuGreenCtxWaitEvent(green: CUgreenCtx, event: CUevent) -> Result {
    let green = find(green)?;
    wait(green.primary.session, Some(&green.green), event)
}

pub(crate) fn cuCtxRecordEvent(context: CUcontext, event: CUevent) -> Result {
    let context = usable(context)?;
    record(context.session, inside(&context), event)
}

pub(crate) fn cuCtxWaitEvent(context: CUcontext, event: CUevent) -> Result {
    let context = usable(context)?;
    wait(context.session, inside(&context), event)
}

/// Creates a stream in the green context whose resources a context has.
pub(super) fn create_stream(
    context: &Context,
    inside: &GreenBinding,
    priority: c_int,
) -> Result<CUstream> {
    let session = context.session;
    let (least, greatest) = named_stream::priorities(session)?;
    let priority = priority.clamp(greatest, least);
    let object = session.create_green_stream(&inside.green, priority)?;
    Ok(objects::insert(Object::Stream(InContext {
        context: context.name,
        session,
        object,
    })))
}

pub(crate) fn cuGreenCtxStreamCreate(
    stream: Out<'_, CUstream>,
    green: CUgreenCtx,
    flags: c_uint,
    priority: c_int,
) -> Result {
    let stream = stream.present()?;
    let green = find(green)?;
    if flags != CU_STREAM_NON_BLOCKING {
        return Err(Status::INVALID_VALUE);
    }
    let inside = green
        .context
        .green
        .as_ref()
        .ok_or(Status::CONTEXT_IS_DESTROYED)?;
    stream.put(create_stream(&green.context, inside, priority)?)
}

/// The green context of a stream, or null, and the context without its
/// resources.
pub(super) fn of_stream(stream: CUstream) -> Result<(CUgreenCtx, CUcontext)> {
    let named = as_handle(named_stream::named(stream)?.context()?);
    let Ok(context) = current::find(named) else {
        return Ok((std::ptr::null_mut(), named));
    };
    let green = context.green.as_ref().map_or(0, |inside| inside.handle);
    Ok((as_handle(green), as_handle(context.handle)))
}

pub(crate) fn cuStreamGetDevResource(
    stream: CUstream,
    out: Out<'_, CUdevResource>,
    kind: c_int,
) -> Result {
    let out = out.present()?;
    check_kind(kind)?;
    let (green, context) = of_stream(stream)?;
    let part = match green.is_null() {
        true => of_context(&*current::find(context)?)?,
        false => of_green(green as u64, &*find(green)?),
    };
    out.put(resource(part))
}

pub(crate) fn cuStreamGetGreenCtx(stream: CUstream, out: Out<'_, CUgreenCtx>) -> Result {
    out.present()?.put(of_stream(stream)?.0)
}

/// CUexecAffinityParam.
#[repr(C)]
struct ExecAffinity {
    kind: c_int,
    multiprocessors: c_uint,
}

pub(crate) unsafe fn cuCtxGetExecAffinity(out: *mut c_void, kind: c_int) -> Result {
    let context = current::current()?;
    if out.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let out = out.cast::<ExecAffinity>();
    // CU_EXEC_AFFINITY_TYPE_SM_COUNT.
    if kind != 0 {
        // NVIDIA's driver writes the type even if it returns an error.
        // SAFETY: it is not null, so it meets the manual's requirements.
        unsafe { (&raw mut (*out).kind).write(kind) };
        return Err(Status::UNSUPPORTED_EXEC_AFFINITY);
    }
    let [multiprocessors, ..] = of_context(&context)?.numbers;
    let affinity = ExecAffinity {
        kind,
        multiprocessors,
    };
    // SAFETY: as above.
    unsafe { out.write(affinity) };
    Ok(())
}
