//! Linking of images at run time (CUDA Driver API, Module Management).
//!
//! A link in progress exists only in the guest, so that it moves with the program. Its
//! inputs are sent and linked on completion, which therefore reports errors in them.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use paragpu_abi::{CU_JIT_INPUT_FATBINARY, CU_JIT_INPUT_NVVM, CU_JIT_INPUT_PTX, CUlinkState};
use paragpu_client::module::LinkPart;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use super::boundary::{Out, Text};
use super::image::{MAX_SIZE, Options, is_binary};
use super::linking::{Input, Linking};
use super::module::read_file;
use super::{Result, present, put, put_if};
use crate::current;
use crate::objects::{self, Found, InContext, Object};

/// Whether an image begins as its kind requires: machine code, PTX or a fat binary. PTX
/// counts as machine code, because it is that of the software GPU.
fn is_image(kind: u32, image: &[u8]) -> bool {
    let is_text = image.first().is_some_and(u8::is_ascii);
    kind > CU_JIT_INPUT_FATBINARY || is_binary(image) || is_text
}

fn find(state: CUlinkState) -> Result<Found> {
    objects::find(state)
        .filter(|found| matches!(***found, Object::Link(_)))
        .ok_or(Status::INVALID_HANDLE)
}

/// Adds an input to a link that is not completed.
///
/// # Safety
/// `options` and `values` are readable for `number` entries.
unsafe fn add(
    state: CUlinkState,
    kind: c_int,
    name: &str,
    mut image: Vec<u8>,
    (number, options, values): (c_uint, *mut c_int, *mut *mut c_void),
) -> Result {
    let found = find(state)?;
    let Object::Link(link) = &**found else {
        return Err(Status::INVALID_HANDLE);
    };
    let kind = u32::try_from(kind).map_err(|_| Status::INVALID_VALUE)?;
    if kind > CU_JIT_INPUT_NVVM || image.is_empty() || image.len() > MAX_SIZE {
        return Err(Status::INVALID_VALUE);
    }
    if kind == CU_JIT_INPUT_PTX {
        let text = image.iter().position(|byte| *byte == 0);
        image.truncate(text.unwrap_or(image.len()));
    }
    // SAFETY: the caller upholds the contract of `Options::read`.
    let options = unsafe { Options::read(number, options, values) }?;
    if !is_image(kind, &image) {
        return Err(Status::INVALID_IMAGE);
    }
    let mut work = link.object.work.lock();
    if work.image.is_some() {
        return Err(Status::INVALID_VALUE);
    }
    work.inputs.push(Input {
        kind,
        name: name.to_owned(),
        options: options.numbers,
        image,
    });
    Ok(())
}

pub(crate) unsafe fn cuLinkCreate(
    number: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
    state: *mut CUlinkState,
) -> Result {
    present(state)?;
    let current = current::current()?;
    // SAFETY: the caller upholds the contract of `Options::read`.
    let options = unsafe { Options::read(number, options, values) }?;
    // SAFETY: the caller upholds the contract of `Options::report`.
    unsafe { options.report("", "") };
    let work = Mutex::default();
    let object = Arc::new(Linking { options, work });
    // SAFETY: `state` is null or writable, as the caller promises.
    unsafe {
        put(
            state,
            objects::insert(Object::Link(InContext::new(&current, object))),
        )
    }
}

pub(crate) unsafe fn cuLinkAddData(
    state: CUlinkState,
    kind: c_int,
    data: *mut c_void,
    size: usize,
    name: Text<'_>,
    number: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> Result {
    present(data)?;
    if size > MAX_SIZE {
        return Err(Status::OUT_OF_MEMORY);
    }
    // The name is only for messages.
    let name = name.get().unwrap_or("an input");
    // SAFETY: `data` holds `size` bytes, as the caller promises
    let image = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }.to_vec();
    // SAFETY: the caller upholds the contract of `add`.
    unsafe { add(state, kind, name, image, (number, options, values)) }
}

pub(crate) unsafe fn cuLinkAddFile(
    state: CUlinkState,
    kind: c_int,
    path: *const c_char,
    number: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> Result {
    // Errors in the link and the options are reported before those of the file.
    find(state)?;
    // SAFETY: the caller upholds the contract of `Options::read`.
    unsafe { Options::read(number, options, values) }?;
    // SAFETY: the caller upholds the contract of `read_file`.
    let mut image = unsafe { read_file(path) }?;
    // `read_file` appended a zero for PTX.
    image.pop();
    // SAFETY: `path` is null or readable, as the caller promises.
    let name = unsafe { super::text(path) }?;
    // SAFETY: the caller upholds the contract of `add`.
    unsafe { add(state, kind, name, image, (number, options, values)) }
}

pub(crate) unsafe fn cuLinkComplete(
    state: CUlinkState,
    image: Out<'_, *mut c_void>,
    size: *mut usize,
) -> Result {
    let image = image.present()?;
    let found = find(state)?;
    let Object::Link(link) = &**found else {
        return Err(Status::INVALID_HANDLE);
    };
    let mut work = link.object.work.lock();
    if work.image.is_none() {
        let parts: Vec<LinkPart<'_>> = work.inputs.iter().map(Input::part).collect();
        let options = &link.object.options;
        let _ = paragpu_client::take_detail();
        match link.session.modules().link(&parts, &options.numbers) {
            Ok((linked, log)) => {
                // SAFETY: the caller upholds the contract of `Options::report`.
                unsafe { options.report(&log, "") };
                // The linked image of the software GPU is PTX text, which ends with a zero.
                let mut linked = linked;
                linked.push(0);
                work.image = Some(linked.into_boxed_slice());
            }
            Err(status) => {
                // SAFETY: the caller upholds the contract of `Options::report`.
                unsafe { options.report("", &paragpu_client::take_detail()) };
                return Err(status);
            }
        }
    }
    let linked = work.image.as_mut().ok_or(Status::UNKNOWN)?;
    // SAFETY: `size` is null or writable, as the caller promises.
    unsafe { put_if(size, linked.len() - 1) };
    image.put(linked.as_mut_ptr().cast())
}

pub(crate) fn cuLinkDestroy(state: CUlinkState) -> Result {
    let ended = objects::remove(state, |object| matches!(object, Object::Link(_)));
    ended.map(|_| ()).ok_or(Status::INVALID_HANDLE)
}

impl Input {
    fn part(&self) -> LinkPart<'_> {
        LinkPart {
            kind: self.kind,
            name: &self.name,
            options: &self.options,
            image: &self.image,
        }
    }
}
