//! Launches (CUDA Driver API, Execution Control).

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use paragpu_abi::{
    CU_EVENT_DISABLE_TIMING as DISABLE_TIMING, CU_EVENT_INTERPROCESS as INTERPROCESS,
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as CLUSTER_DIMENSION,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE as COOPERATIVE, CU_LAUNCH_ATTRIBUTE_IGNORE as IGNORE,
    CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT as COMPLETION_EVENT,
    CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING as NVLINK_SCHEDULING,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION as PREFERRED_CLUSTER,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT as PROGRAMMATIC_EVENT,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as PROGRAMMATIC_SERIALIZATION,
    CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY as SYNCHRONIZATION_POLICY,
    CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as PARAM_BUFFER_POINTER,
    CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as PARAM_BUFFER_SIZE,
    CU_LAUNCH_PARAM_END_AS_INT as PARAM_END,
    CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC,
    CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC, CUDA_LAUNCH_PARAMS, CUevent,
    CUfunction, CUlaunchConfig, CUstream, cudaLaunchAttribute,
};
use paragpu_client::launch::Shape;
use paragpu_client::module::Function;
use paragpu_client::objects::edge::Edge;
use paragpu_client::objects::graph::Kernel;
use paragpu_client::objects::preference;
use paragpu_protocol::status::Status;

use super::boundary::In;
use super::boundary::own_default;
use super::module::callable_in;
use super::{Result, event, host, stream, unsupported_use};
use crate::settings::settings;
use crate::{current, named_stream};

thread_local! {
    static PARAMETERS: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Copies the parameters to which the program's pointers lead, packed by the kernel's
/// layout.
///
/// # Safety
/// `pointers` is null or leads to each of the function's parameters, readable
/// for its size (cuLaunchKernel).
unsafe fn gather(function: &Function, pointers: *mut *mut c_void, out: &mut Vec<u8>) -> Result {
    let parameters = function.parameters();
    if parameters.is_empty() {
        return Ok(());
    }
    if pointers.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    out.resize(function.parameter_bytes(), 0);
    for (index, &(offset, size)) in parameters.iter().enumerate() {
        // SAFETY: `pointers` is readable here, as the caller promises.
        let pointer: *const u8 = unsafe { pointers.add(index).read() }.cast();
        let (offset, size) = (offset as usize, size as usize);
        let place = out.get_mut(offset..offset + size);
        match place {
            Some(place) if !pointer.is_null() => {
                // SAFETY: each parameter has its declared size, as the caller promises
                unsafe { std::ptr::copy_nonoverlapping(pointer, place.as_mut_ptr(), size) };
            }
            _ => return Err(Status::INVALID_VALUE),
        }
    }
    Ok(())
}

/// Copies the parameters that the program has packed itself.
///
/// # Safety
/// `extra` is a list that ends with CU_LAUNCH_PARAM_END; its size is that of
/// its buffer (cuLaunchKernel).
unsafe fn packed(function: &Function, extra: *mut *mut c_void, out: &mut Vec<u8>) -> Result {
    let mut buffer: *const u8 = std::ptr::null();
    let mut size = 0;
    let mut at = extra;
    loop {
        // SAFETY: the pointer is readable here, as the caller promises.
        match unsafe { at.read() }.addr() {
            PARAM_END => break,
            // SAFETY: `at` is readable here, as the caller promises.
            PARAM_BUFFER_POINTER => buffer = unsafe { at.add(1).read() }.cast(),
            // SAFETY: `at` is readable here, as the caller promises.
            PARAM_BUFFER_SIZE => size = unsafe { at.add(1).read().cast::<usize>().read() },
            _ => return Err(Status::INVALID_VALUE),
        }
        // SAFETY: `at` points to that many elements, as the caller promises.
        at = unsafe { at.add(2) };
    }
    if buffer.is_null() && (size > 0 || function.parameter_bytes() > 0) {
        return Err(Status::INVALID_VALUE);
    }
    // The program's buffer may be longer or, as NCCL's is, shorter than the kernel's
    // parameters.
    out.resize(function.parameter_bytes(), 0);
    // SAFETY: `buffer` holds as many bytes, as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(buffer, out.as_mut_ptr(), out.len().min(size)) };
    Ok(())
}

/// Packs the parameters of a launch, from `pointers` or from `extra`, in memory of the thread.
///
/// # Safety
/// `pointers` is null or leads to each parameter's bytes, `extra` null or a
/// list that ends with CU_LAUNCH_PARAM_END (cuLaunchKernel).
#[inline]
pub unsafe fn with_parameters<R>(
    function: &Function,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
    take: impl FnOnce(&[u8]) -> Result<R>,
) -> Result<R> {
    if !pointers.is_null() && !extra.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let mut parameters = PARAMETERS.try_with(Cell::take).unwrap_or_default();
    parameters.clear();
    let gathered = if extra.is_null() {
        // SAFETY: the caller upholds the contract of `gather`.
        unsafe { gather(function, pointers, &mut parameters) }
    } else {
        // SAFETY: the caller upholds the contract of `packed`.
        unsafe { packed(function, extra, &mut parameters) }
    };
    let taken = gathered.and_then(|()| take(&parameters));
    let _ = PARAMETERS.try_with(|kept| kept.set(parameters));
    taken
}

/// Launches a kernel.
///
/// # Safety
/// `pointers` is null or leads to each parameter's bytes, `extra` null or a
/// list that ends with CU_LAUNCH_PARAM_END (cuLaunchKernel).
unsafe fn launch(
    named: CUfunction,
    shape: &Shape,
    stream: CUstream,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    let by = named_stream::named(stream)?;
    let callable = callable_in(named, || by.current())?;
    let function = callable.function()?;
    let (session, stream) = by.both()?;
    // Checked before the program's pointers are followed.
    if shape.grid.contains(&0) || shape.block.contains(&0) {
        stream.invalidate_capture();
        return Err(Status::INVALID_VALUE);
    }
    if !std::ptr::eq(session, callable.session) || by.is_apart(|| callable.context()) {
        return Err(Status::INVALID_HANDLE);
    }
    if stream.is_capturing() {
        let capture = |parameters: &[u8]| {
            host::adopt_named(session, parameters)?;
            let kernel = Kernel::new(
                session.ordinal(),
                callable.context().unwrap_or_default(),
                Arc::clone(function),
                named as u64,
                shape.clone(),
                parameters.to_vec(),
            );
            let captured = session.launches().capture(stream, kernel);
            captured.inspect_err(|_| stream.invalidate_capture())
        };
        // SAFETY: the caller upholds the contract of `with_parameters`.
        return unsafe { with_parameters(function, pointers, extra, capture) };
    }
    let launch = |parameters: &[u8]| {
        if host::adopt_named(session, parameters)? {
            // The memory's contents are sent now, so other devices must have written them.
            session.streams().synchronize(stream)?;
        }
        session
            .launches()
            .launch(function, stream, shape, parameters)
    };
    // SAFETY: the caller upholds the contract of `with_parameters`.
    unsafe { with_parameters(function, pointers, extra, launch) }?;
    if settings().launch_blocking {
        return session.streams().synchronize(stream);
    }
    Ok(())
}

/// Launches a kernel with attributes.
///
/// # Safety
/// As for [`launch`]; `config.attrs` is null or points to `numAttrs` records.
unsafe fn launch_with(
    config: &CUlaunchConfig,
    stream: CUstream,
    function: CUfunction,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    // SAFETY: the caller upholds the contract of `shape_of` and `events_of`.
    let (shape, events) = unsafe { (shape_of(config)?, events_of(config)?) };
    // SAFETY: the caller upholds the contract of `launch`.
    unsafe { launch(function, &shape, stream, pointers, extra) }?;
    events
        .into_iter()
        .try_for_each(|(named, edge)| event::record_launched(named, stream, edge))
}

/// The shape of a launch with this configuration.
///
/// # Safety
/// `config.attrs` is null or points to `numAttrs` records (cuLaunchKernelEx).
pub(super) unsafe fn shape_of(config: &CUlaunchConfig) -> Result<Shape> {
    let mut shape = Shape {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        dynamic_shared: config.sharedMemBytes,
        ..Shape::default()
    };
    // SAFETY: the caller upholds the contract of `attributes`.
    unsafe { attributes(&mut shape, config.attrs, config.numAttrs) }?;
    Ok(shape)
}

/// The events that a launch records.
///
/// # Safety
/// As for [`shape_of`], which must have accepted the attributes.
unsafe fn events_of(config: &CUlaunchConfig) -> Result<Vec<(CUevent, Edge)>> {
    let mut events = Vec::new();
    for index in 0..config.numAttrs as usize {
        // SAFETY: the list has `numAttrs` records, as the caller promises.
        let attribute = unsafe { &*config.attrs.add(index) };
        if !matches!(attribute.id, PROGRAMMATIC_EVENT | COMPLETION_EVENT) {
            continue;
        }
        // SAFETY: every field of the union is numbers; `id` says which is set.
        let (named, [_, words, ..]) = unsafe { (attribute.val.event, attribute.val.pad) };
        // Flags of the event record, none of which is supported.
        if words << 32 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let at_start = words >> 32 != 0;
        let found = event::find(named)?;
        let flags = event::inner(&found)?.object.flags();
        if flags & (DISABLE_TIMING | INTERPROCESS) != DISABLE_TIMING {
            return Err(Status::INVALID_VALUE);
        }
        events.push((
            named,
            match attribute.id {
                COMPLETION_EVENT => Edge::Begun,
                _ if at_start => Edge::ProgrammaticBegun,
                _ => Edge::Programmatic,
            },
        ));
    }
    Ok(events)
}

/// Reads the attributes of a launch.
///
/// # Safety
/// `attributes` is null or points to `number` records (cuLaunchKernelEx).
unsafe fn attributes(
    shape: &mut Shape,
    attributes: *const cudaLaunchAttribute,
    number: c_uint,
) -> Result {
    if number > 0 && attributes.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    for index in 0..number as usize {
        // SAFETY: `attributes` points to `count` elements, as the caller promises.
        let attribute = unsafe { &*attributes.add(index) };
        match attribute.id {
            // They do not change results.
            IGNORE | NVLINK_SCHEDULING => {}
            PREFERRED_CLUSTER => {
                // SAFETY: every field of the union is numbers; `id` says which is set.
                let cluster = unsafe { attribute.val.clusterDim };
                shape.preferred_cluster = [cluster.x, cluster.y, cluster.z];
            }
            // An attribute of streams.
            SYNCHRONIZATION_POLICY => return Err(Status::INVALID_VALUE),
            id if preference::is_of_launch(id) => {
                let limits = stream::limits(current::current()?.session)?;
                // SAFETY: every field of the union is numbers.
                let value = unsafe { attribute.val.pad };
                shape.preferences.set(id, value, limits)?;
            }
            // `events_of` handles these after the launch.
            PROGRAMMATIC_EVENT | COMPLETION_EVENT => {}
            // SAFETY: every field of the union is numbers; `id` says which is set.
            COOPERATIVE => shape.cooperative = unsafe { attribute.val.cooperative } != 0,
            CLUSTER_DIMENSION => {
                // SAFETY: every field of the union is numbers; `id` says which is set.
                let cluster = unsafe { attribute.val.clusterDim };
                shape.cluster = [cluster.x, cluster.y, cluster.z];
            }
            PROGRAMMATIC_SERIALIZATION => {
                // SAFETY: every field of the union is numbers; `id` says which is set.
                shape.programmatic = unsafe { attribute.val.syncPolicy } != 0;
            }
            id if !preference::is_defined(id) => return Err(Status::INVALID_VALUE),
            _ => {
                return Err(unsupported_use!(
                    "cuLaunchKernelEx with this launch attribute",
                    "it is not passed on to the host"
                ));
            }
        }
    }
    Ok(())
}

/// Launches a kernel whose parameters are packed.
pub(super) fn launch_packed(
    function: CUfunction,
    shape: &Shape,
    stream: CUstream,
    parameters: &mut [u8],
) -> Result {
    let mut size = parameters.len();
    let mut extra = [
        std::ptr::without_provenance_mut(PARAM_BUFFER_POINTER),
        parameters.as_mut_ptr().cast::<c_void>(),
        std::ptr::without_provenance_mut(PARAM_BUFFER_SIZE),
        (&raw mut size).cast(),
        std::ptr::without_provenance_mut(PARAM_END),
    ];
    // SAFETY: the list ends with CU_LAUNCH_PARAM_END, and the size is that of the buffer.
    unsafe {
        let extra = extra.as_mut_ptr();
        launch(function, shape, stream, std::ptr::null_mut(), extra)
    }
}

const MULTI_DEVICE_FLAGS: c_uint = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC
    | CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;

pub(crate) unsafe fn cuLaunchCooperativeKernelMultiDevice(
    launches: *mut CUDA_LAUNCH_PARAMS,
    number: c_uint,
    flags: c_uint,
) -> Result {
    if launches.is_null() || number == 0 || flags & !MULTI_DEVICE_FLAGS != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if number > 1 {
        return Err(unsupported_use!(
            "cuLaunchCooperativeKernelMultiDevice on more than one device",
            "CUDA removed such launches, and workers have one device each"
        ));
    }
    // SAFETY: `launches` holds at least one, as the caller promises.
    let one = unsafe { &*launches };
    // As natively, the default streams are refused.
    if one.hStream.addr() <= 2 {
        return Err(Status::INVALID_HANDLE);
    }
    let shape = Shape {
        grid: [one.gridDimX, one.gridDimY, one.gridDimZ],
        block: [one.blockDimX, one.blockDimY, one.blockDimZ],
        dynamic_shared: one.sharedMemBytes,
        cooperative: true,
        ..Shape::default()
    };
    let none = std::ptr::null_mut();
    // SAFETY: the caller upholds the contract of `launch`.
    unsafe { launch(one.function, &shape, one.hStream, one.kernelParams, none) }
}

pub(crate) unsafe fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    let shape = Shape {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        dynamic_shared: shared,
        ..Shape::default()
    };
    // SAFETY: the caller upholds the contract of `launch`.
    unsafe { launch(function, &shape, stream, pointers, extra) }
}

pub(crate) unsafe fn cuLaunchKernelEx(
    config: In<'_, CUlaunchConfig>,
    function: CUfunction,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    // SAFETY: the caller upholds the contract of `launch_with`.
    unsafe {
        launch_with(
            config.get()?,
            config.get()?.hStream,
            function,
            pointers,
            extra,
        )
    }
}

pub(crate) unsafe fn cuLaunchKernelEx_ptsz(
    config: In<'_, CUlaunchConfig>,
    function: CUfunction,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    let stream = own_default(config.get()?.hStream);
    // SAFETY: the caller upholds the contract of `launch_with`.
    unsafe { launch_with(config.get()?, stream, function, pointers, extra) }
}

pub(crate) unsafe fn cuLaunchCooperativeKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    pointers: *mut *mut c_void,
) -> Result {
    let shape = Shape {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        dynamic_shared: shared,
        cooperative: true,
        ..Shape::default()
    };
    // SAFETY: the caller upholds the contract of `launch`.
    unsafe { launch(function, &shape, stream, pointers, std::ptr::null_mut()) }
}
