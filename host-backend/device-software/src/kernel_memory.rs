//! Host memory of the blocks in flight: registers, local and shared memory, and call stacks.
//!
//! All kernels of a session have one limit, because streams are cheap and each may have a
//! kernel that never ends. What exceeds a base allowance is charged to the session's VM.

use paragpu_device::HostMemory;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// Maximum number of bytes of all blocks in flight of a session.
pub const LIMIT: u64 = 1 << 30;
/// Bytes of a session that are not charged.
const UNCHARGED: u64 = 32 << 20;
/// Bytes that are charged at once.
const STEP: u64 = 4 << 20;

/// The account of a session's blocks in flight.
#[derive(Debug, Default)]
pub struct KernelMemory {
    state: Mutex<State>,
    account: OnceLock<Arc<dyn HostMemory>>,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    charged: u64,
}

impl KernelMemory {
    /// Charges the session from now on.
    pub fn charge_to(&self, account: Arc<dyn HostMemory>) {
        // Called once, before the session launches anything.
        let _ = self.account.set(account);
    }

    /// Whether no block is in flight.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.state.lock().used == 0
    }

    /// Memory that can grow.
    #[must_use]
    pub fn open(self: &Arc<Self>) -> Held {
        Held {
            memory: Arc::clone(self),
            bytes: 0,
        }
    }

    fn take(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let used = state.used.saturating_add(bytes);
        if used > LIMIT {
            return false;
        }
        let more = used.saturating_sub(UNCHARGED + state.charged);
        if more > 0
            && let Some(account) = self.account.get()
        {
            let more = more.next_multiple_of(STEP);
            if !account.charge(more) {
                return false;
            }
            state.charged += more;
        }
        state.used = used;
        true
    }

    fn give_back(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.used -= bytes;
        if state.used <= UNCHARGED
            && let Some(account) = self.account.get()
        {
            account.discharge(std::mem::take(&mut state.charged));
        }
    }
}

/// Bytes of the account, returned when dropped.
#[derive(Debug)]
pub struct Held {
    memory: Arc<KernelMemory>,
    bytes: u64,
}

impl Held {
    /// Takes more. Returns false if the session or its VM has no room.
    #[must_use]
    pub fn grow(&mut self, bytes: u64) -> bool {
        let taken = self.memory.take(bytes);
        if taken {
            self.bytes += bytes;
        }
        taken
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A VM with room for [`STEP`].
    #[derive(Debug, Default)]
    struct Vm(AtomicU64);

    impl HostMemory for Vm {
        fn charge(&self, bytes: u64) -> bool {
            let fits = self.0.load(Ordering::Relaxed) + bytes <= STEP;
            if fits {
                self.0.fetch_add(bytes, Ordering::Relaxed);
            }
            fits
        }

        fn discharge(&self, bytes: u64) {
            self.0.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    #[test]
    fn all_kernels_have_one_limit() {
        let memory = Arc::new(KernelMemory::default());
        let (mut one, mut other) = (memory.open(), memory.open());
        assert!(one.grow(LIMIT - 1) && !other.grow(2) && other.grow(1));
        drop(one);
        assert!(other.grow(2) && !memory.is_unused());
        drop(other);
        assert!(memory.is_unused());
    }

    #[test]
    fn a_vm_is_charged_for_what_exceeds_the_allowance() {
        let (memory, vm) = (Arc::new(KernelMemory::default()), Arc::new(Vm::default()));
        memory.charge_to(Arc::clone(&vm) as Arc<_>);
        let mut held = memory.open();
        assert!(held.grow(UNCHARGED));
        assert_eq!(vm.0.load(Ordering::Relaxed), 0);
        assert!(held.grow(1) && held.grow(STEP - 1));
        assert_eq!(vm.0.load(Ordering::Relaxed), STEP);
        assert!(!held.grow(1), "the VM has no room");
        drop(held);
        assert_eq!(vm.0.load(Ordering::Relaxed), 0);
    }
}
