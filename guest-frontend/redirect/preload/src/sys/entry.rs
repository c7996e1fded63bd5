//! The record of a redirected public function.
//!
//! The function's first bytes load the address of an [`Entry`] into r11, which is not
//! preserved across calls, and jump to the entry's target. Initially that is [`lazy`],
//! which loads paragpu's runtime and looks the function up. Afterwards it is [`pass`],
//! which tells the runtime the carrier and jumps there, or [`refuse`].

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

use paragpu_redirect::{Returns, returns};

use super::carrier::Carrier;
use super::runtime::Runtime;
use super::say::{LossyText, say};

/// Maximum length of a function's name, with its zero.
const NAME: usize = 96;
/// `cudaErrorInitializationError`: paragpu's runtime cannot be loaded.
const NOT_INITIALIZED: c_int = 3;
/// `cudaErrorNotSupported`.
const NOT_SUPPORTED: c_int = 801;

/// One public function. The assembly below knows the first four fields.
#[repr(C)]
pub struct Entry {
    /// The target of its jump.
    target: AtomicUsize,
    /// paragpu's function.
    function: AtomicUsize,
    /// Offset from the thread pointer at which paragpu's function finds the carrier.
    slot: AtomicIsize,
    /// The carrier's number.
    number: u32,
    name_length: u32,
    name: *const u8,
    carrier: *const Carrier,
    /// The function's address.
    pub address: usize,
    said: AtomicBool,
}

core::arch::global_asm!(
    ".pushsection .text.paragpu_redirect,\"ax\",@progbits",
    ".balign 16",
    ".hidden paragpu_redirect_lazy",
    ".globl paragpu_redirect_lazy",
    ".type paragpu_redirect_lazy,@function",
    "paragpu_redirect_lazy:",
    "push rbp",
    "mov rbp, rsp",
    "and rsp, -16",
    "sub rsp, 208",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "mov [rsp + 24], rcx",
    "mov [rsp + 32], r8",
    "mov [rsp + 40], r9",
    "mov [rsp + 48], rax",
    "mov [rsp + 56], r10",
    "mov [rsp + 64], r11",
    "movups [rsp + 80], xmm0",
    "movups [rsp + 96], xmm1",
    "movups [rsp + 112], xmm2",
    "movups [rsp + 128], xmm3",
    "movups [rsp + 144], xmm4",
    "movups [rsp + 160], xmm5",
    "movups [rsp + 176], xmm6",
    "movups [rsp + 192], xmm7",
    "mov rdi, r11",
    "call {resolve}",
    "movups xmm7, [rsp + 192]",
    "movups xmm6, [rsp + 176]",
    "movups xmm5, [rsp + 160]",
    "movups xmm4, [rsp + 144]",
    "movups xmm3, [rsp + 128]",
    "movups xmm2, [rsp + 112]",
    "movups xmm1, [rsp + 96]",
    "movups xmm0, [rsp + 80]",
    "mov r11, [rsp + 64]",
    "mov r10, [rsp + 56]",
    "mov rax, [rsp + 48]",
    "mov r9, [rsp + 40]",
    "mov r8, [rsp + 32]",
    "mov rcx, [rsp + 24]",
    "mov rdx, [rsp + 16]",
    "mov rsi, [rsp + 8]",
    "mov rdi, [rsp]",
    "mov rsp, rbp",
    "pop rbp",
    "jmp [r11]",
    ".balign 16",
    ".hidden paragpu_redirect_pass",
    ".globl paragpu_redirect_pass",
    ".type paragpu_redirect_pass,@function",
    "paragpu_redirect_pass:",
    "mov r10, [r11 + 16]",
    "mov eax, [r11 + 24]",
    "mov fs:[r10], eax",
    "jmp [r11 + 8]",
    ".balign 16",
    ".hidden paragpu_redirect_refuse",
    ".globl paragpu_redirect_refuse",
    ".type paragpu_redirect_refuse,@function",
    "paragpu_redirect_refuse:",
    "mov rsi, rdi",
    "mov rdi, r11",
    "jmp {refused}",
    ".popsection",
    resolve = sym resolve,
    refused = sym refused,
);

unsafe extern "C" {
    #[link_name = "paragpu_redirect_lazy"]
    fn lazy();
    #[link_name = "paragpu_redirect_pass"]
    fn pass();
    #[link_name = "paragpu_redirect_refuse"]
    fn refuse();
}

const _: () = assert!(
    core::mem::offset_of!(Entry, target) == 0
        && core::mem::offset_of!(Entry, function) == 8
        && core::mem::offset_of!(Entry, slot) == 16
        && core::mem::offset_of!(Entry, number) == 24
);

impl Entry {
    /// Creates an entry that is resolved by its first call.
    ///
    /// # Safety
    /// As for [`Carrier::add`].
    pub unsafe fn new(
        carrier: *const Carrier,
        name: *const u8,
        name_length: usize,
        address: usize,
    ) -> Self {
        Self {
            target: AtomicUsize::new(lazy as *const () as usize),
            function: AtomicUsize::new(0),
            slot: AtomicIsize::new(0),
            // SAFETY: the caller upholds this.
            number: unsafe { (*carrier).number },
            name_length: u32::try_from(name_length).unwrap_or(0),
            name,
            carrier,
            address,
            said: AtomicBool::new(false),
        }
    }

    fn name(&self) -> &[u8] {
        let length = usize::try_from(self.name_length).unwrap_or(0);
        // SAFETY: guaranteed by the contract of `add`.
        unsafe { core::slice::from_raw_parts(self.name, length) }
    }

    fn carrier(&self) -> &Carrier {
        // SAFETY: the carrier is the head of the mapping that contains this entry.
        unsafe { &*self.carrier }
    }
}

/// Resolves an entry. Concurrent calls are harmless: all find the same target.
extern "C" fn resolve(entry: &Entry) {
    let name = entry.name();
    let mut buffer = [0u8; NAME];
    let carrier = entry.carrier();
    let runtime = carrier
        .interface
        .and_then(|interface| Runtime::load(interface, carrier.path()));
    let function = match (runtime, buffer.get_mut(..name.len())) {
        (Some(runtime), Some(place)) if name.len() < NAME => {
            place.copy_from_slice(name);
            entry.slot.store(runtime.table.slot, Ordering::Relaxed);
            runtime.function(buffer.get(..=name.len()).unwrap_or_default())
        }
        _ => 0,
    };
    entry.function.store(function, Ordering::Relaxed);
    let target = match (function, returns(name)) {
        (0, _) => refuse as *const () as usize,
        // Only functions that return a status depend on the carrier.
        (_, Returns::Status) => pass as *const () as usize,
        _ => function,
    };
    entry.target.store(target, Ordering::Release);
}

/// Returns an error for a function that paragpu's runtime lacks, or for all functions if
/// that runtime cannot be loaded.
extern "C" fn refused(entry: &Entry, first: *mut [u32; 5]) -> usize {
    let carrier = entry.carrier();
    let runtime = carrier.interface.and_then(Runtime::loaded);
    if !entry.said.swap(true, Ordering::Relaxed) && runtime.is_some() {
        say(format_args!(
            "{} is not supported (called by {})",
            LossyText(entry.name()),
            LossyText(carrier.path()),
        ));
    }
    match returns(entry.name()) {
        Returns::Status => {
            let code = if runtime.is_some() {
                NOT_SUPPORTED
            } else {
                NOT_INITIALIZED
            };
            if let Some(runtime) = runtime {
                (runtime.table.fail)(entry.number, code);
            }
            code.unsigned_abs() as usize
        }
        Returns::Text => c"paragpu's CUDA runtime is missing".as_ptr() as usize,
        Returns::Other => 0,
        Returns::Structure => {
            // SAFETY: such a function gets the place of its structure (a
            // cudaChannelFormatDesc), and returns it.
            unsafe { first.write_unaligned([0; 5]) };
            first as usize
        }
    }
}
