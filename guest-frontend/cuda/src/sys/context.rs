//! Contexts (CUDA Driver API, Primary Context Management, Context Management).
//!
//! All contexts of a device share one session, with its memory and its default
//! stream. Objects created in a context are destroyed with it, and so are its copies of the
//! variables of libraries.

use std::ffi::{c_int, c_uint, c_void};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use paragpu_abi::{
    self as abi, CU_CTX_MAP_HOST, CU_CTX_SCHED_BLOCKING_SYNC, CU_CTX_SCHED_SPIN,
    CU_CTX_SCHED_YIELD, CUcontext, CUctxCreateParams, CUdevice,
};
use paragpu_protocol::layout::{DEVICE_STRIDE, MAX_DEVICES};
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use super::boundary::Out;
use super::{Result, device, except_fault, host, present, put, unsupported_use};
use crate::current::{
    current, current_if_any, current_or_released, find, find_or_current, with_stack,
};
use crate::named_stream;
use crate::objects::context::{Context, memory_of_others};
use crate::objects::{self, Object, limits, peers, pool};

/// Scheduling, host mapping, local memory and synchronisation flags.
const FLAGS: u32 = 0xff;
/// At most one of them is set.
const SCHEDULING: u32 = CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD | CU_CTX_SCHED_BLOCKING_SYNC;

fn create(ordinal: u32, primary: bool, flags: u32) -> Result<Arc<Context>> {
    let session = device::session(ordinal)?;
    session.check()?;
    let mut made = None;
    objects::insert_with(|handle| {
        let context = Arc::new(Context::new(handle, ordinal, session, primary, flags));
        made = Some(Arc::clone(&context));
        Object::Context(context)
    });
    made.ok_or(Status::UNKNOWN)
}

/// Refuses unknown flags, and more than one way to wait.
fn check_flags(flags: u32) -> Result {
    if flags & !FLAGS != 0 || (flags & SCHEDULING).count_ones() > 1 {
        return Err(Status::INVALID_VALUE);
    }
    Ok(())
}

fn create_current(ordinal: u32, flags: u32) -> Result<CUcontext> {
    check_flags(flags)?;
    // Not while `end_libraries` looks for contexts.
    let guard = guarded(ordinal)?.primary.lock();
    let context = create(ordinal, false, flags)?;
    drop(guard);
    let handle = context.handle();
    with_stack(|stack| stack.push(Rc::new(context)));
    Ok(handle)
}

/// Destroys the objects created in a context.
fn end_objects(context: &Context) {
    let ended = objects::end_of_context(context.handle);
    let session = context.session;
    for object in ended {
        // The host's result no longer matters.
        let _ = match &*object {
            Object::Stream(inner) => session.streams().destroy(&inner.object),
            Object::Event(inner) => session.destroy_event(&inner.object),
            Object::Module(inner, _) => super::module::unload(session, &inner.object),
            Object::Array(inner) => super::array::destroy(inner),
            Object::Mipmapped(inner) => session.textures().destroy_array(&inner.object),
            Object::GraphExec(inner) => inner.object.destroy(),
            _ => Ok(()),
        };
    }
    super::texture::end_of_context(context.handle);
}

/// Unloads what libraries loaded into a context that has ended, and their managed variables if
/// it was the last one of its device.
fn end_libraries(ended: &Context) -> Result {
    super::library::forget_context(ended.place());
    let guarded = guarded(ended.ordinal)?;
    let primary = guarded.primary.lock();
    if !primary.is_alive() && has_no_others(ended) {
        super::library::forget_managed(ended.session);
        // The runtime looks managed variables up again.
        guarded.ends.fetch_add(1, Ordering::Release);
    }
    Ok(())
}

/// Whether the device has no contexts but the primary one, apart from `ended`.
fn has_no_others(ended: &Context) -> bool {
    let mut has_none = true;
    objects::for_each(|object| {
        if let Object::Context(other) = object {
            let is_other = other.handle != ended.handle && other.is_alive();
            has_none &= other.ordinal != ended.ordinal || other.is_primary() || !is_other;
        }
    });
    has_none
}

struct Primary {
    context: Option<Arc<Context>>,
    retained: u32,
    flags: u32,
}

/// A primary context, and its flags and [`ACTIVE`] for programs that query these often.
struct Guarded {
    state: AtomicU64,
    /// Times that the context, or the device's last other one, ended, for the runtime library.
    ends: AtomicU32,
    primary: Mutex<Primary>,
}

/// It is retained.
const ACTIVE: u64 = 1 << 32;

static PRIMARIES: [Guarded; MAX_DEVICES as usize] = [const {
    Guarded {
        state: AtomicU64::new(0),
        ends: AtomicU32::new(0),
        primary: Mutex::new(Primary {
            context: None,
            retained: 0,
            flags: 0,
        }),
    }
}; MAX_DEVICES as usize];

fn guarded(ordinal: u32) -> Result<&'static Guarded> {
    let guarded = PRIMARIES.get(ordinal as usize);
    guarded.ok_or(Status::INVALID_DEVICE)
}

fn with_primary<R>(
    device: CUdevice,
    with: impl FnOnce(u32, &mut Primary) -> Result<R>,
) -> Result<R> {
    let ordinal = device::ordinal(device)?;
    let guarded = guarded(ordinal)?;
    let mut primary = guarded.primary.lock();
    let was_alive = primary.is_alive();
    let result = with(ordinal, &mut primary);
    if was_alive && !primary.is_alive() {
        guarded.ends.fetch_add(1, Ordering::Release);
    }
    let active = if primary.retained > 0 { ACTIVE } else { 0 };
    let state = u64::from(primary.flags) | active;
    guarded.state.store(state, Ordering::Release);
    result
}

/// The primary context of a device, if it was ever retained.
pub fn primary(ordinal: u32) -> Option<Arc<Context>> {
    guarded(ordinal).ok()?.primary.lock().context.clone()
}

/// How often the primary context of a device ended (`paragpu_primary_ends`).
pub(super) fn primary_ends(device: CUdevice) -> Option<&'static AtomicU32> {
    let ordinal = device::ordinal(device).ok()?;
    Some(&guarded(ordinal).ok()?.ends)
}

impl Primary {
    fn is_alive(&self) -> bool {
        let context = self.context.as_ref();
        context.is_some_and(|context| context.is_alive())
    }

    /// Destroys the context and frees everything that it holds, but no memory of the device's
    /// other contexts. The next context of the device has the same handle.
    fn destroy(&mut self) -> Result {
        self.retained = 0;
        let Some(context) = &self.context else {
            return Ok(());
        };
        let waited = context.session.synchronize();
        context.set_alive(false);
        super::library::forget_context(context.place());
        if has_no_others(context) {
            super::library::forget_managed(context.session);
        }
        end_objects(context);
        peers::end(context.handle);
        let arena = context.session.regions().arena;
        let (_guard, kept) = memory_of_others();
        pool::freed_all(arena..arena + DEVICE_STRIDE, &kept);
        host::free_all(context.session, &kept);
        let virtual_memory = context.session.virtual_memory();
        except_fault(waited.and(virtual_memory.clear_others(kept)))
    }
}

/// Retains the primary context of a device.
pub(super) fn retain(device: CUdevice) -> Result<Arc<Context>> {
    with_primary(device, |ordinal, primary| {
        let context = match &primary.context {
            Some(context) => Arc::clone(context),
            None => create(ordinal, true, primary.flags)?,
        };
        // After a fault the device has no new context.
        if !context.is_alive() {
            context.session.check()?;
            context.set_alive(true);
        }
        primary.context = Some(Arc::clone(&context));
        primary.retained += 1;
        Ok(context)
    })
}

pub(crate) fn cuDevicePrimaryCtxRetain(context: Out<'_, CUcontext>, device: CUdevice) -> Result {
    context.put(retain(device)?.handle())
}

pub(crate) fn cuDevicePrimaryCtxRelease(device: CUdevice) -> Result {
    with_primary(device, |_, primary| {
        if primary.retained == 0 {
            return Err(Status::INVALID_CONTEXT);
        }
        match primary.retained {
            1 => primary.destroy(),
            _ => {
                primary.retained -= 1;
                Ok(())
            }
        }
    })
}

pub(crate) fn cuDevicePrimaryCtxReset(device: CUdevice) -> Result {
    with_primary(device, |_, primary| primary.destroy())
}

pub(crate) fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: c_uint) -> Result {
    check_flags(flags)?;
    let active = with_primary(device, |_, primary| Ok(primary.retained > 0))?;
    if active {
        return Err(Status::PRIMARY_CONTEXT_ACTIVE);
    }
    cuDevicePrimaryCtxSetFlags_v2(device, flags)
}

pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) -> Result {
    check_flags(flags)?;
    with_primary(device, |_, primary| {
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.set_flags(flags);
        }
        Ok(())
    })
}

pub(crate) fn cuDevicePrimaryCtxGetState(
    device: CUdevice,
    flags: Out<'_, c_uint>,
    active: Out<'_, c_int>,
) -> Result {
    let state = &guarded(device::ordinal(device)?)?.state;
    let state = state.load(Ordering::Acquire);
    flags.put((state & !ACTIVE) as c_uint)?;
    active.put(c_int::from(state & ACTIVE != 0))
}

pub(crate) fn cuCtxCreate_v2(
    context: Out<'_, CUcontext>,
    flags: c_uint,
    device: CUdevice,
) -> Result {
    context.present()?;
    context.put(create_current(device::ordinal(device)?, flags)?)
}

/// # Safety
/// `context` is null or writable.
pub(crate) unsafe fn cuCtxCreate_v3(
    context: *mut CUcontext,
    parameters: *mut c_void,
    number: c_int,
    flags: c_uint,
    device: CUdevice,
) -> Result {
    present(context)?;
    let _ = parameters;
    let ordinal = device::ordinal(device)?;
    check_flags(flags)?;
    if number > 0 {
        return Err(Status::UNSUPPORTED_EXEC_AFFINITY);
    }
    // SAFETY: `context` is null or writable, as the caller promises.
    unsafe { put(context, create_current(ordinal, flags)?) }
}

/// # Safety
/// `parameters` is null or readable.
pub(crate) unsafe fn cuCtxCreate_v4(
    context: Out<'_, CUcontext>,
    parameters: *mut CUctxCreateParams,
    flags: c_uint,
    device: CUdevice,
) -> Result {
    context.present()?;
    let ordinal = device::ordinal(device)?;
    // SAFETY: the pointer is null or readable, as the caller promises.
    if unsafe { parameters.as_ref() }.is_some_and(|parameters| {
        parameters.numExecAffinityParams > 0 || !parameters.cigParams.is_null()
    }) {
        return Err(unsupported_use!(
            "cuCtxCreate_v4 with parameters",
            "contexts with execution affinity belong to MPS, and others to graphics"
        ));
    }
    context.put(create_current(ordinal, flags)?)
}

pub(crate) fn cuCtxDestroy(context: CUcontext) -> Result {
    let ended = find(context)?;
    if ended.is_primary() {
        return Err(Status::INVALID_CONTEXT);
    }
    objects::remove(context, |_| true);
    let waited = ended.session.synchronize();
    ended.set_alive(false);
    with_stack(|stack| {
        if stack.last().is_some_and(|top| top.handle == ended.handle) {
            stack.pop();
        }
    });
    end_objects(&ended);
    peers::end(ended.handle);
    let memory = ended.take_memory();
    for address in memory {
        host::end_memory(ended.session, address);
    }
    end_libraries(&ended)?;
    except_fault(waited)
}

pub(crate) fn cuCtxPushCurrent(context: CUcontext) -> Result {
    let context = find(context)?;
    with_stack(|stack| stack.push(context));
    Ok(())
}

pub(crate) fn cuCtxPopCurrent(context: Out<'_, CUcontext>) -> Result {
    let popped = with_stack(Vec::pop).ok_or(Status::INVALID_CONTEXT)?;
    context.put_if(popped.handle());
    Ok(())
}

pub(crate) fn cuCtxSetCurrent(context: CUcontext) -> Result {
    let context = if context.is_null() {
        None
    } else {
        Some(find(context)?)
    };
    with_stack(|stack| {
        stack.pop();
        stack.extend(context);
    });
    Ok(())
}

pub(crate) fn cuCtxGetCurrent(context: Out<'_, CUcontext>) -> Result {
    context.put(current_if_any().map_or(std::ptr::null_mut(), |context| context.handle()))
}

pub(crate) fn cuCtxGetDevice(device: Out<'_, CUdevice>) -> Result {
    device.put(device::number(current_or_released()?.ordinal))
}

pub(crate) fn cuCtxGetDevice_v2(device: Out<'_, CUdevice>, context: CUcontext) -> Result {
    device.put(device::number(find_or_current(context)?.ordinal))
}

pub(crate) fn cuCtxGetFlags(flags: Out<'_, c_uint>) -> Result {
    let context = current_or_released()?;
    // Every context maps host memory, but of those that the program did not create CUDA says it.
    flags.put(match context.is_primary() {
        true => context.flags() | CU_CTX_MAP_HOST,
        false => context.flags(),
    })
}

pub(crate) fn cuCtxSetFlags(flags: c_uint) -> Result {
    check_flags(flags)?;
    current()?.set_flags(flags);
    Ok(())
}

pub(crate) fn cuCtxGetId(context: CUcontext, id: Out<'_, u64>) -> Result {
    id.put(find_or_current(context)?.alive()?.id())
}

pub(crate) fn cuCtxGetApiVersion(context: CUcontext, version: Out<'_, c_uint>) -> Result {
    let found = find_or_current(context)?;
    found.alive().map_err(|_| Status::INVALID_CONTEXT)?;
    version.put(3020)
}

/// Waits for all work of a context, or of the green context whose resources it has.
fn synchronize(context: &Context) -> Result {
    let session = context.session;
    session.streams().permit_synchronize()?;
    match &context.green {
        Some(inside) => session.synchronize_green(&inside.green)?,
        None => session.synchronize()?,
    }
    pool::waited(session)
}

pub(crate) fn cuCtxSynchronize() -> Result {
    synchronize(&*current()?)
}

pub(crate) fn cuCtxSynchronize_v2(context: CUcontext) -> Result {
    let context = find_or_current(context)?;
    synchronize(context.alive()?)
}

pub(crate) fn cuCtxGetStreamPriorityRange(
    least: Out<'_, c_int>,
    greatest: Out<'_, c_int>,
) -> Result {
    let (low, high) = named_stream::priorities(current()?.session)?;
    least.put_if(low);
    greatest.put_if(high);
    Ok(())
}

/// The number of a limit, if it is one.
fn known_limit(limit: c_int) -> Result<u32> {
    if !(0..=abi::CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED).contains(&limit) {
        return Err(Status::INVALID_VALUE);
    }
    u32::try_from(limit).map_err(|_| Status::INVALID_VALUE)
}

pub(crate) fn cuCtxSetLimit(limit: c_int, value: usize) -> Result {
    let known = known_limit(limit)?;
    let context = current()?;
    // CUDA does not allow setting these two.
    if [abi::CU_LIMIT_SHMEM_SIZE, abi::CU_LIMIT_CIG_ENABLED].contains(&limit) {
        return Err(Status::NOT_PERMITTED);
    }
    super::capture::permit_unsafe()?;
    limits::set(&context, known, value as u64)
}

pub(crate) fn cuCtxGetLimit(value: Out<'_, usize>, limit: c_int) -> Result {
    value.present()?;
    let (limit, context) = (known_limit(limit)?, current()?);
    let found = limits::get(&context, limit)?;
    value.put(usize::try_from(found).map_err(|_| Status::INVALID_VALUE)?)
}

pub(crate) fn cuCtxGetCacheConfig(config: Out<'_, c_int>) -> Result {
    config.put(current()?.cache_config())
}

pub(crate) fn cuCtxSetCacheConfig(config: c_int) -> Result {
    if !(0..=3).contains(&config) {
        return Err(Status::INVALID_VALUE);
    }
    current()?.set_cache_config(config);
    Ok(())
}

pub(crate) fn cuCtxGetSharedMemConfig(config: Out<'_, c_int>) -> Result {
    current()?;
    config.put(1)
}

pub(crate) fn cuCtxSetSharedMemConfig(config: c_int) -> Result {
    current()?;
    if (0..=2).contains(&config) {
        Ok(())
    } else {
        Err(Status::INVALID_VALUE)
    }
}

pub(crate) fn cuCtxAttach(context: Out<'_, CUcontext>, flags: c_uint) -> Result {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    context.put(current()?.handle())
}

/// Fails if the thread has no context, which is all that some functions do.
pub(super) fn require_current() -> Result {
    current().map(drop)
}

pub(crate) fn cuCtxDetach(context: CUcontext) -> Result {
    find(context).map(|_| ())
}

pub(crate) fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) -> Result {
    let (own, peer) = (current()?, find(peer)?);
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if own.handle == peer.handle {
        return Err(Status::PEER_ACCESS_UNSUPPORTED);
    }
    peers::enable(&own, &peer)
}

pub(crate) fn cuCtxDisablePeerAccess(peer: CUcontext) -> Result {
    peers::disable(&*current()?, &*find(peer)?)
}
