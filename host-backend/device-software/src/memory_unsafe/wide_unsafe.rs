//! Accesses of 16 bytes at once.
//!
//! Programs pass messages of 16 bytes between blocks, such as a status and a value, and rely
//! on reading all of a message or none of it. Rust has no atomic type of that size. On
//! processors with AVX, aligned loads and stores of 16 bytes are single accesses, as Intel's
//! and AMD's manuals promise. On others, all these accesses take a lock.

#[cfg(target_arch = "x86_64")]
use std::arch::{asm, x86_64::__m128i};
use std::ptr::with_exposed_provenance as pointer;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::Memory;
use super::lanes_unsafe::{Lanes, Pattern};

/// The lower and the upper 8 bytes.
pub type Pair = [u64; 2];

/// Whether the processor loads, stores and exchanges 16 aligned bytes at once.
fn is_whole() -> bool {
    #[cfg(target_arch = "x86_64")]
    let whole = is_x86_feature_detected!("avx") && is_x86_feature_detected!("cmpxchg16b");
    #[cfg(not(target_arch = "x86_64"))]
    let whole = false;
    whole
}

/// The lock of accesses of 16 bytes, if this processor needs one.
pub(super) fn lock() -> Option<Mutex<()>> {
    (!is_whole()).then(Mutex::default)
}

/// Loads 16 bytes. `whole` selects the processor's single access; otherwise the caller holds
/// the lock.
///
/// # Safety
/// `address` is a multiple of 16, and 16 bytes there are mapped and readable. `whole`
/// requires [`is_whole`].
#[inline(always)]
unsafe fn load(address: u64, whole: bool) -> Pair {
    #[cfg(target_arch = "x86_64")]
    if whole {
        let value: __m128i;
        // SAFETY: the caller checked the bytes, and that the processor has AVX. Other
        // threads may write them concurrently. That is why it is assembly: the compiler may
        // split a plain access.
        unsafe {
            asm!(
                "vmovdqa {}, xmmword ptr [{}]",
                out(xmm_reg) value,
                in(reg) pointer::<u8>(address as usize),
                options(nostack, preserves_flags, readonly)
            );
            return std::mem::transmute::<__m128i, Pair>(value);
        }
    }
    let _ = whole;
    [0, 8].map(|half| {
        // SAFETY: the caller checked the bytes.
        unsafe { (*pointer::<AtomicU64>((address + half) as usize)).load(Ordering::Relaxed) }
    })
}

/// Stores 16 bytes: as [`load`].
///
/// # Safety
/// As for [`load`]; the bytes are writable.
#[inline(always)]
unsafe fn store(address: u64, value: Pair, whole: bool) {
    #[cfg(target_arch = "x86_64")]
    if whole {
        // SAFETY: as for `load`.
        unsafe {
            asm!(
                "vmovdqa xmmword ptr [{}], {}",
                in(reg) pointer::<u8>(address as usize),
                in(xmm_reg) std::mem::transmute::<Pair, __m128i>(value),
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    let _ = whole;
    for (half, word) in [0, 8].into_iter().zip(value) {
        // SAFETY: the caller checked the bytes.
        unsafe {
            (*pointer::<AtomicU64>((address + half) as usize)).store(word, Ordering::Relaxed);
        }
    }
}

/// Replaces 16 bytes if they equal `old`. Returns what they were.
///
/// # Safety
/// As for [`store`].
unsafe fn exchange(address: u64, old: Pair, new: Pair, whole: bool) -> Pair {
    #[cfg(target_arch = "x86_64")]
    if whole {
        let [mut low, mut high] = old;
        // SAFETY: as for `store`; the processor has this instruction. LLVM reserves rbx,
        // which the instruction needs, so it is restored.
        unsafe {
            asm!(
                "xchg rsi, rbx",
                "lock cmpxchg16b xmmword ptr [rdi]",
                "mov rbx, rsi",
                in("rdi") pointer::<u8>(address as usize),
                inout("rsi") new[0] => _,
                in("rcx") new[1],
                inout("rax") low,
                inout("rdx") high,
                options(nostack)
            );
        }
        return [low, high];
    }
    // SAFETY: as for `store`. The caller holds the lock.
    unsafe {
        let was = load(address, whole);
        if was == old {
            store(address, new, whole);
        }
        was
    }
}

impl Memory {
    /// Excludes other accesses of 16 bytes, unless the processor makes them whole.
    #[inline]
    fn alone(&self) -> Option<MutexGuard<'_, ()>> {
        self.wide.as_ref().map(Mutex::lock)
    }

    fn has_wide(&self, address: u64) -> bool {
        address.is_multiple_of(16) && self.check(address, 16)
    }

    /// Loads 16 aligned bytes at once. Returns `None` outside mapped memory.
    #[must_use]
    pub fn load_wide(&self, address: u64) -> Option<Pair> {
        if !self.has_wide(address) {
            return None;
        }
        let alone = self.alone();
        // SAFETY: checked above to be aligned and inside mapped memory, which is only
        // unmapped while no work uses it.
        Some(unsafe { load(address, alone.is_none()) })
    }

    /// Stores 16 aligned bytes at once. Returns false outside mapped memory.
    #[must_use]
    pub fn store_wide(&self, address: u64, value: Pair) -> bool {
        if !self.has_wide(address) {
            return false;
        }
        let alone = self.alone();
        // SAFETY: as for `load_wide`.
        unsafe { store(address, value, alone.is_none()) };
        drop(alone);
        self.wrote(address, 16);
        true
    }

    /// Atomically replaces 16 aligned bytes by `f` of them, unless that is `None`. Returns
    /// the old value, or `None` outside mapped memory.
    pub fn update_wide(&self, address: u64, f: impl Fn(Pair) -> Option<Pair>) -> Option<Pair> {
        if !self.has_wide(address) {
            return None;
        }
        let alone = self.alone();
        let whole = alone.is_none();
        // SAFETY: as for `load_wide`.
        let mut old = unsafe { load(address, whole) };
        while let Some(new) = f(old) {
            // SAFETY: as for `load_wide`.
            let was = unsafe { exchange(address, old, new, whole) };
            if was == old {
                self.wrote(address, 16);
                break;
            }
            old = was;
        }
        Some(old)
    }
}

impl Lanes<'_> {
    /// Loads the 16 bytes `step` bytes after each lane's address, at once for each lane.
    /// Returns the lower words and the upper ones.
    #[inline(always)]
    pub fn load128(&self, step: u64) -> [[u64; 32]; 2] {
        assert!(step + 16 <= self.size && step.is_multiple_of(16));
        let alone = self.memory.alone();
        let whole = alone.is_none();
        // SAFETY: `Memory::lanes` found these bytes mapped and aligned to the size, which is
        // a power of two of at least 16. They are only unmapped while no work uses them.
        let one = |address: u64| unsafe { load(address + step, whole) };
        if self.pattern == Pattern::Same {
            return one(self.at[0]).map(|word| [word; 32]);
        }
        let [mut low, mut high] = [[0; 32]; 2];
        for ((low, high), &address) in low.iter_mut().zip(&mut high).zip(self.at) {
            [*low, *high] = one(address);
        }
        [low, high]
    }

    /// Stores the lower and upper words of each lane of `mask`: as [`Self::load128`].
    #[inline(always)]
    pub fn store128(&self, step: u64, low: &[u64; 32], high: &[u64; 32], mask: u32) {
        assert!(step + 16 <= self.size && step.is_multiple_of(16));
        let alone = self.memory.alone();
        let whole = alone.is_none();
        let words = low.iter().zip(high);
        for (lane, (&address, (&low, &high))) in self.at.iter().zip(words).enumerate() {
            if mask >> lane & 1 != 0 {
                // SAFETY: as for the load.
                unsafe { store(address + step, [low, high], whole) };
            }
        }
        drop(alone);
        self.note(step, 16, mask);
    }
}

#[cfg(test)]
mod tests {
    use paragpu_protocol::layout::{CHUNK, Regions};

    use super::*;

    /// Each of several threads replaces a pair of equal words by greater ones and checks
    /// that it sees no others.
    fn stay_equal(memory: &Memory, address: u64) {
        let equal = |pair: Pair| assert_eq!(pair[0], pair[1]);
        std::thread::scope(|threads| {
            for thread in 0..3u64 {
                threads.spawn(move || {
                    for round in 0..20_000 {
                        equal(memory.load_wide(address).unwrap());
                        if thread == 0 {
                            assert!(memory.store_wide(address, [round << 32 | round; 2]));
                        } else {
                            let old =
                                memory.update_wide(address + 16, |old| Some(old.map(|v| v + 1)));
                            equal(old.unwrap());
                        }
                    }
                });
            }
        });
        assert_eq!(memory.load_wide(address + 16), Some([40_000; 2]));
    }

    #[test]
    fn pairs_are_accessed_at_once_with_and_without_the_lock() {
        let arena = Regions::of(0).unwrap().arena;
        let mut memory = Memory::new(arena, CHUNK).unwrap();
        memory.map(arena, CHUNK).unwrap();
        if memory.wide.is_none() {
            stay_equal(&memory, arena);
        }
        memory.wide = Some(Mutex::default());
        stay_equal(&memory, arena + 32);
        assert_eq!(memory.load_wide(arena + 8), None);
        assert_eq!(memory.load_wide(arena + CHUNK), None);
        assert!(!memory.store_wide(arena + CHUNK, [0; 2]));
    }
}
