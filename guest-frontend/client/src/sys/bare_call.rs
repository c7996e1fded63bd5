//! Calls of the program's functions by threads of the library.
//!
//! Such a function may end its thread: CPython before 3.14 calls `pthread_exit` in a thread
//! that waits for the interpreter while that ends. glibc then unwinds the thread's frames, and
//! Rust's frames abort the process without a message. A frame without unwind information stops
//! the unwinder before it reaches them. glibc then discards the frames and ends the thread, and
//! a C++ exception that nothing catches ends the process with its usual message.
//!
//! The caller's frames may therefore be discarded: it holds no lock, and nothing of another
//! thread refers to its stack.

use std::ffi::{c_int, c_void};

/// A function with one argument (`CUhostFn`).
pub type HostFunction = unsafe extern "C" fn(*mut c_void);
/// A function that learns of a stream and its status (`CUstreamCallback`).
pub type StreamCallback = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void);

// paragpu_bare_call(function, first, second, third). It has no `.cfi` directives on purpose.
// Functions with fewer arguments ignore the registers of the others.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.paragpu_bare_call,\"ax\",@progbits",
    ".balign 16",
    ".hidden paragpu_bare_call",
    ".globl paragpu_bare_call",
    ".type paragpu_bare_call,@function",
    "paragpu_bare_call:",
    "push rbp",
    "mov rbp, rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "call rax",
    "pop rbp",
    "ret",
    ".size paragpu_bare_call, . - paragpu_bare_call",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn paragpu_bare_call(
        function: *const c_void,
        first: *mut c_void,
        second: usize,
        third: *mut c_void,
    );
}

/// Calls `function`. It may not return: see the module's description.
///
/// # Safety
/// `function` may be called with `argument` by the calling thread.
pub unsafe fn call(function: HostFunction, argument: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller allows the call. The other arguments are ignored.
    unsafe {
        paragpu_bare_call(function as *const c_void, argument, 0, std::ptr::null_mut());
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller allows the call.
    unsafe {
        function(argument);
    }
}

/// Calls `function`. It may not return: see the module's description.
///
/// # Safety
/// `function` may be called with these arguments by the calling thread.
pub unsafe fn call_with_status(
    function: StreamCallback,
    stream: *mut c_void,
    status: c_int,
    argument: *mut c_void,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller allows the call. A `c_int` is the lower half of its register.
    unsafe {
        let status = status.cast_unsigned() as usize;
        paragpu_bare_call(function as *const c_void, stream, status, argument);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller allows the call.
    unsafe {
        function(stream, status, argument);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn doubles(argument: *mut c_void) {
        // SAFETY: the test passes an `i32` of its own.
        unsafe { *argument.cast::<i32>() *= 2 }
    }

    unsafe extern "C" fn notes(stream: *mut c_void, status: c_int, argument: *mut c_void) {
        // SAFETY: the test passes a place of its own.
        unsafe { *argument.cast() = (stream.addr(), status) }
    }

    #[test]
    fn functions_get_their_arguments() {
        let mut number = 21;
        // SAFETY: `doubles` changes the number that it gets.
        unsafe { call(doubles, (&raw mut number).cast()) };
        assert_eq!(number, 42);
        let mut noted = (0_usize, 0);
        let stream = std::ptr::without_provenance_mut(0x7000_0000_0008);
        // SAFETY: `notes` changes the place that it gets.
        unsafe { call_with_status(notes, stream, -700, (&raw mut noted).cast()) };
        assert_eq!(noted, (0x7000_0000_0008, -700));
    }
}
