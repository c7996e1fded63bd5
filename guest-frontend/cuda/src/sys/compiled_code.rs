//! The private table through which NVRTC and nvJitLink cache compiled code. A handle for
//! an input is used to look up and store code. If nothing is found, they compile again.
//!
//! Derived from arguments and results of native runs. Without it, cuDNN recompiled the
//! attention kernels in every process, which takes half a second.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use paragpu_abi::CUresult;
use paragpu_protocol::status::Status;

use super::boundary::{Boundary, Out};
use super::exported::{TABLE_FUNCTION, guard_before_init};
use super::to_malloc;
use crate::compile_cache::{CompileCache, Key, key};

/// Maximum number of bytes of cached code.
const MAX_CODE: usize = 256 << 20;

/// A handle for compiled code, which callers hold by address.
#[derive(Debug)]
pub(super) struct Compiled(Key);

fn cache() -> Option<&'static CompileCache> {
    static CACHE: OnceLock<Option<CompileCache>> = OnceLock::new();
    CACHE.get_or_init(CompileCache::of_user).as_ref()
}

/// The text and the one after it, in which a compiler puts its host and build time.
///
/// # Safety
/// `name` is null or a zero-terminated text.
unsafe fn compiler<'a>(name: *const c_char) -> &'a [u8] {
    const MAX_NAME: usize = 64;
    const PAGE: usize = 4096;
    if name.is_null() {
        return &[];
    }
    // SAFETY: the caller upholds this.
    let first = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    let rest = name.wrapping_add(first.len());
    // No byte of another page than that of the text's end is read.
    let readable = (PAGE - (rest.addr() - 1) % PAGE - 1).min(MAX_NAME);
    // SAFETY: on a page that is mapped, since the text ends on it.
    let behind = unsafe { std::slice::from_raw_parts(rest.cast::<u8>(), readable) };
    let length = behind.iter().position(|byte| *byte == 0).unwrap_or(0);
    // SAFETY: the two are adjacent.
    unsafe { std::slice::from_raw_parts(name.cast(), first.len() + length) }
}

/// A handle for the code of a `kind` compiled from `size` bytes at `source` with
/// `options`.
///
/// # Safety
/// `out` is null or writable, `source` has `size` bytes, and the texts are null or
/// zero-terminated.
pub(super) unsafe extern "C" fn open(
    out: *mut *mut Compiled,
    kind: u32,
    source: *const u8,
    size: usize,
    options: *const c_char,
    name: *const c_char,
) -> CUresult {
    guard_before_init(TABLE_FUNCTION, || {
        // SAFETY: the caller upholds this.
        let out = unsafe { Out::take(out) }.present()?;
        if source.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller upholds this.
        let source = unsafe { std::slice::from_raw_parts(source, size) };
        // SAFETY: the caller upholds this.
        let options = (!options.is_null()).then(|| unsafe { CStr::from_ptr(options) });
        let options = options.unwrap_or_default().to_bytes();
        // SAFETY: the caller upholds this.
        let compiler = unsafe { compiler(name) };
        let key = key(&[&kind.to_le_bytes(), source, options, compiler]);
        out.put(Box::into_raw(Box::new(Compiled(key))))
    })
}

/// Closes a handle.
///
/// # Safety
/// `handle` is null, or from [`open`] and not closed yet.
pub(super) unsafe extern "C" fn close(handle: *mut Compiled) -> CUresult {
    guard_before_init(TABLE_FUNCTION, || {
        if handle.is_null() {
            return Err(Status::INVALID_HANDLE);
        }
        // SAFETY: the caller upholds this.
        drop(unsafe { Box::from_raw(handle) });
        Ok(())
    })
}

/// Returns the cached code, or `NOT_FOUND`.
///
/// # Safety
/// `handle` is null or one of [`open`]; the pointers are null or writable.
pub(super) unsafe extern "C" fn get(
    handle: *const Compiled,
    _: usize,
    out: *mut *mut u8,
    size: *mut u32,
) -> CUresult {
    guard_before_init(TABLE_FUNCTION, || {
        // SAFETY: the caller upholds this.
        let (handle, out, size) = unsafe { (handle.as_ref(), Out::take(out), Out::take(size)) };
        let (out, size) = (out.present()?, size.present()?);
        let handle = handle.ok_or(Status::INVALID_HANDLE)?;
        let code = cache().and_then(|cache| cache.get(&handle.0));
        let code = code.ok_or(Status::NOT_FOUND)?;
        size.put(u32::try_from(code.len()).map_err(|_| Status::NOT_FOUND)?)?;
        out.put(to_malloc(&code)?)
    })
}

/// Stores code.
///
/// # Safety
/// `handle` is null or from [`open`]; `code` has `size` bytes.
pub(super) unsafe extern "C" fn put(
    handle: *const Compiled,
    _: usize,
    code: *const u8,
    size: usize,
) -> CUresult {
    guard_before_init(TABLE_FUNCTION, || {
        // SAFETY: the caller upholds this.
        let handle = unsafe { handle.as_ref() }.ok_or(Status::INVALID_HANDLE)?;
        if code.is_null() || size > MAX_CODE {
            return Err(Status::INVALID_VALUE);
        }
        if let Some(cache) = cache() {
            // SAFETY: the caller upholds this.
            cache.put(&handle.0, unsafe { std::slice::from_raw_parts(code, size) });
        }
        Ok(())
    })
}

/// Frees the result of [`get`].
///
/// # Safety
/// `code` is null, or from [`get`] and not freed yet.
pub(super) unsafe extern "C" fn free(code: *mut c_void) -> CUresult {
    guard_before_init(TABLE_FUNCTION, || {
        // SAFETY: the caller upholds this.
        unsafe { libc::free(code) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_identified_by_two_texts() {
        // SAFETY: texts that end.
        unsafe {
            let two = [&b"HOST\0"[..], b"date\0"].concat();
            assert_eq!(compiler(two.as_ptr().cast()), b"HOST\0date");
            assert_eq!(compiler(std::ptr::null()), b"");
        }
    }

    #[test]
    fn handles_are_checked() {
        // SAFETY: null is refused, and handles are closed once.
        unsafe {
            let mut handle = std::ptr::null_mut();
            let (source, options) = (b"source", c"-arch=sm_90");
            let opened = open(
                &raw mut handle,
                1,
                source.as_ptr(),
                6,
                options.as_ptr(),
                c"HOST".as_ptr(),
            );
            assert_eq!(opened, 0);
            assert_eq!(
                open(
                    &raw mut handle,
                    1,
                    std::ptr::null(),
                    6,
                    options.as_ptr(),
                    c"".as_ptr()
                ),
                1
            );
            let (mut code, mut size) = (std::ptr::null_mut(), 0);
            assert_eq!(get(std::ptr::null(), 0, &raw mut code, &raw mut size), 400);
            assert_eq!(put(std::ptr::null(), 0, source.as_ptr(), 6), 400);
            assert_eq!(put(handle, 0, std::ptr::null(), 6), 1);
            assert_eq!(close(handle), 0);
            assert_eq!(close(std::ptr::null_mut()), 400);
            assert_eq!(free(std::ptr::null_mut()), 0);
        }
    }
}
