//! A context: all contexts of a device share its session.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use paragpu_abi::{CU_CTX_SCHED_BLOCKING_SYNC, CUcontext};
use paragpu_client::Session;
use paragpu_client::green::Green;
use paragpu_protocol::status::Status;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use super::as_handle;
use crate::coredump::Attributes;
use crate::sys::Result;

/// See [`has_other_contexts`]. Most programs have none, so that no launch looks at contexts.
static HAS_OTHERS: AtomicBool = AtomicBool::new(false);

/// Whether there was a context that is not the primary one of its device. Without one, nothing is
/// apart.
#[inline]
pub fn has_other_contexts() -> bool {
    HAS_OTHERS.load(Ordering::Relaxed)
}

/// The green context whose resources a context has.
#[derive(Debug)]
pub struct GreenBinding {
    /// Its handle's number.
    pub handle: u64,
    /// The green context.
    pub green: Arc<Green>,
}

/// A context as a place for libraries: it has its own copy of each one's variables. A green
/// context shares those of its device's primary one.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Its session.
    pub session: &'static Session,
    /// Its handle's number; `None` for the primary context, which may not exist yet.
    pub other: Option<u64>,
}

impl Place {
    /// The device's primary context.
    #[must_use]
    pub fn primary(session: &'static Session) -> Self {
        Self {
            session,
            other: None,
        }
    }

    /// A number that no other place has. Handles are larger than the ordinals of devices.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.other.unwrap_or_else(|| self.session.ordinal().into())
    }
}

/// A context.
#[derive(Debug)]
pub struct Context {
    /// The handle that owns the objects created in it: its own, or the primary
    /// context's if it has a green context's resources.
    pub handle: u64,
    /// Its handle's number.
    pub name: u64,
    /// The green context whose resources it has.
    pub green: Option<GreenBinding>,
    /// Its device's number.
    pub ordinal: u32,
    /// Its device's session.
    pub session: &'static Session,
    primary: bool,
    flags: AtomicU32,
    alive: AtomicBool,
    id: AtomicU64,
    cache_config: AtomicI32,
    /// Attributes of its core dumps.
    pub coredump: Mutex<Attributes>,
    /// What the program set, by the limit's number.
    pub limits: Mutex<BTreeMap<u32, u64>>,
}

/// Memory allocated or pinned in contexts that are not primary, by address: the context's
/// handle. A primary context ends with all other memory of the session. One table for all
/// contexts, because memory may be freed while another one is current.
static MEMORY: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
/// The number of entries. Read before the lock is taken.
static MEMORY_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Locked for reading until new memory of such a context is in the table, and for writing
/// while a primary context ends.
static ALLOCATING: RwLock<()> = RwLock::new(());

/// The addresses of the memory that outlives primary contexts. None is added until the guard is
/// dropped.
pub fn memory_of_others() -> (RwLockWriteGuard<'static, ()>, HashSet<u64>) {
    let guard = ALLOCATING.write();
    let kept = MEMORY.lock().keys().copied().collect();
    (guard, kept)
}

/// Called before memory is freed, so that no context frees it again. Its address may soon
/// belong to other memory.
pub fn forget_memory(address: u64) {
    if MEMORY_COUNT.load(Ordering::Acquire) != 0 {
        let mut memory = MEMORY.lock();
        memory.remove(&address);
        MEMORY_COUNT.store(memory.len(), Ordering::Release);
    }
}

/// The handle of the context, not a primary one, in which the memory that starts here was
/// allocated.
#[must_use]
pub fn of_memory(start: u64) -> Option<u64> {
    match MEMORY_COUNT.load(Ordering::Acquire) {
        0 => None,
        _ => MEMORY.lock().get(&start).copied(),
    }
}

/// The number of the next context.
fn next_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(1);
    IDS.fetch_add(1, Ordering::Relaxed)
}

/// Whether these flags ask threads to sleep while they wait.
fn waits_sleep(flags: u32) -> bool {
    flags & CU_CTX_SCHED_BLOCKING_SYNC != 0
}

impl Context {
    /// A context of a device's session.
    #[must_use]
    pub fn new(
        handle: u64,
        ordinal: u32,
        session: &'static Session,
        primary: bool,
        flags: u32,
    ) -> Self {
        HAS_OTHERS.fetch_or(!primary, Ordering::Relaxed);
        session.set_waits_sleep(waits_sleep(flags));
        Self {
            handle,
            name: handle,
            green: None,
            ordinal,
            session,
            primary,
            flags: AtomicU32::new(flags),
            alive: AtomicBool::new(true),
            id: AtomicU64::new(next_id()),
            cache_config: AtomicI32::new(0),
            coredump: Mutex::new(Attributes::of_new_context()),
            limits: Mutex::default(),
        }
    }

    /// The primary context with the resources of a green context.
    #[must_use]
    pub fn of_green(name: u64, primary: &Self, green: GreenBinding) -> Self {
        let (ordinal, session) = (primary.ordinal, primary.session);
        Self {
            name,
            green: Some(green),
            ..Self::new(primary.handle, ordinal, session, true, primary.flags())
        }
    }

    /// Allocates or pins memory in it; `allocate` returns the address.
    ///
    /// # Errors
    /// The error of `allocate`.
    pub fn allocate(&self, allocate: impl FnOnce() -> Result<u64>) -> Result<u64> {
        // Otherwise the end of the primary context could free it before it is recorded.
        let _guard = (!self.primary).then(|| ALLOCATING.read());
        allocate().inspect(|address| self.keep_memory(*address))
    }

    /// Records memory allocated in it.
    pub fn keep_memory(&self, address: u64) {
        if !self.primary {
            let mut memory = MEMORY.lock();
            memory.insert(address, self.handle);
            MEMORY_COUNT.store(memory.len(), Ordering::Release);
        }
    }

    /// Takes the addresses of the memory allocated in it.
    pub fn take_memory(&self) -> Vec<u64> {
        let mut memory = MEMORY.lock();
        let mut own = Vec::new();
        memory.retain(|address, context| {
            let is_own = *context == self.handle;
            if is_own {
                own.push(*address);
            }
            !is_own
        });
        MEMORY_COUNT.store(memory.len(), Ordering::Release);
        own
    }

    /// The place for libraries.
    #[must_use]
    pub fn place(&self) -> Place {
        Place {
            session: self.session,
            other: (!self.primary).then_some(self.handle),
        }
    }

    /// Its handle for the program.
    #[must_use]
    pub fn handle(&self) -> CUcontext {
        as_handle(self.name)
    }

    /// Whether it is the primary context of its device.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        self.primary
    }

    /// A number that is unique among contexts. A primary context that is retained again has
    /// another one, by which programs notice that its objects are gone.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Scheduling, host mapping and local memory flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the flags. All contexts of a device wait as those say that were set last.
    pub fn set_flags(&self, flags: u32) {
        self.session.set_waits_sleep(waits_sleep(flags));
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// Whether it is alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// The context, if it is alive.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED`.
    pub fn alive(&self) -> Result<&Self> {
        match self.is_alive() {
            true => Ok(self),
            false => Err(Status::CONTEXT_IS_DESTROYED),
        }
    }

    /// Refuses a destroyed context, and one that a kernel's fault ended.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED`; as [`Session::check`].
    #[inline]
    pub fn usable(&self) -> Result {
        self.alive()?.session.check()
    }

    /// Records that it was retained again, or destroyed.
    pub fn set_alive(&self, alive: bool) {
        self.limits.lock().clear();
        if alive {
            self.id.store(next_id(), Ordering::Relaxed);
        }
        self.alive.store(alive, Ordering::Relaxed);
    }

    /// Preferred division of the L1 cache.
    #[must_use]
    pub fn cache_config(&self) -> i32 {
        self.cache_config.load(Ordering::Relaxed)
    }

    /// Changes the preference.
    pub fn set_cache_config(&self, config: i32) {
        self.cache_config.store(config, Ordering::Relaxed);
    }
}
