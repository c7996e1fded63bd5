//! Carriers: the copies of NVIDIA's runtime through which redirected calls arrive, and
//! this library's interface to the redirector.
//!
//! A program and each of its libraries may carry its own copy of the runtime, each with
//! its own last error. `libparagpu-redirect.so` makes all of them jump here. On the way
//! it stores the carrier's number in a thread-local word, and the call takes it out.
//! Other calls find zero there.

use crate::records_unsafe;
use paragpu_abi::cudaError_t;
use std::arch::{asm, global_asm};

// A thread-local word at a fixed offset from the thread pointer, so that the
// redirector writes it with one instruction.
global_asm!(
    ".pushsection .tbss.paragpu_carrier,\"awT\",@nobits",
    ".balign 4",
    ".hidden paragpu_carrier",
    ".globl paragpu_carrier",
    ".type paragpu_carrier,@object",
    ".size paragpu_carrier,4",
    "paragpu_carrier:",
    ".zero 4",
    ".popsection",
);

/// Takes the carrier of the current call; zero for a caller without one.
#[inline]
pub fn take() -> u32 {
    let carrier: u32;
    // SAFETY: the word is thread-local, and there are no references to it.
    unsafe {
        asm!(
            "mov {slot}, qword ptr [rip + paragpu_carrier@GOTTPOFF]",
            "mov {carrier:e}, dword ptr fs:[{slot}]",
            "mov dword ptr fs:[{slot}], 0",
            slot = out(reg) _,
            carrier = out(reg) carrier,
            options(nostack, preserves_flags),
        );
    }
    carrier
}

/// The interface for the redirector; `redirect/preload/src/sys/runtime.rs` mirrors it.
#[repr(C)]
pub(crate) struct Table {
    version: u32,
    fail: extern "C" fn(carrier: u32, code: cudaError_t),
    slot: isize,
}

extern "C" fn fail(carrier: u32, code: cudaError_t) {
    records_unsafe::fail(carrier, code);
}

/// Returns the interface for the redirector. The symbol also distinguishes paragpu's
/// runtime from NVIDIA's, which is redirected.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn paragpu_runtime_interface() -> *const Table {
    static TABLE: std::sync::OnceLock<Table> = std::sync::OnceLock::new();
    TABLE.get_or_init(|| {
        let slot: isize;
        // SAFETY: it reads a constant that the loader wrote.
        unsafe {
            asm!(
                "mov {slot}, qword ptr [rip + paragpu_carrier@GOTTPOFF]",
                slot = out(reg) slot,
                options(nostack, preserves_flags),
            );
        }
        Table {
            version: 1,
            fail,
            slot,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::failure::{cudaGetLastError, cudaPeekAtLastError};
    use paragpu_abi::cudaErrorNotSupported;

    /// Stores a carrier's number as the redirector does.
    fn call_from(carrier: u32) {
        // SAFETY: the table lives forever; the word is this thread's.
        unsafe {
            let slot = (*paragpu_runtime_interface()).slot;
            asm!("mov dword ptr fs:[{slot}], {carrier:e}", slot = in(reg) slot, carrier = in(reg) carrier);
        }
    }

    #[test]
    fn each_carrier_has_its_own_last_error() {
        call_from(5);
        assert_eq!(take(), 5);
        assert_eq!(take(), 0, "a number is for one call");
        call_from(5);
        assert_eq!(
            crate::sys::stubs::cudaVDPAUGetDevice(),
            cudaErrorNotSupported
        );
        assert_eq!(cudaPeekAtLastError(), 0, "not the program's error");
        call_from(6);
        assert_eq!(cudaGetLastError(), 0, "nor another library's");
        call_from(5);
        assert_eq!(cudaPeekAtLastError(), cudaErrorNotSupported);
        call_from(5);
        assert_eq!(cudaGetLastError(), cudaErrorNotSupported);
        call_from(5);
        assert_eq!(cudaGetLastError(), 0);
    }
}
