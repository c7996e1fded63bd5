//! A context: all contexts of a device share its session.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use paragpu_abi::CUcontext;
use paragpu_client::Session;
use paragpu_client::green::Green;
use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use crate::coredump::Attributes;
use crate::sys::Result;

/// CUDA_ERROR_CONTEXT_IS_DESTROYED.
pub const CONTEXT_IS_DESTROYED: Status = Status(709);

/// The green context whose resources a context has.
#[derive(Debug)]
pub struct InGreen {
    /// Its handle's number.
    pub handle: u64,
    /// It.
    pub green: Arc<Green>,
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
    pub green: Option<InGreen>,
    /// Its device's number.
    pub ordinal: u32,
    /// Its device's session.
    pub session: &'static Session,
    primary: bool,
    flags: AtomicU32,
    alive: AtomicBool,
    id: u64,
    cache_config: AtomicI32,
    /// Attributes of its core dumps.
    pub coredump: Mutex<Attributes>,
    /// Device memory allocated in it; not kept for primary contexts, which
    /// end with all of the session's.
    memory: Mutex<HashSet<u64>>,
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
        static IDS: AtomicU64 = AtomicU64::new(1);
        Self {
            handle,
            name: handle,
            green: None,
            ordinal,
            session,
            primary,
            flags: AtomicU32::new(flags),
            alive: AtomicBool::new(true),
            id: IDS.fetch_add(1, Ordering::Relaxed),
            cache_config: AtomicI32::new(0),
            coredump: Mutex::new(Attributes::of_new_context()),
            memory: Mutex::new(HashSet::new()),
        }
    }

    /// The primary context with the resources of a green context.
    #[must_use]
    pub fn of_green(name: u64, primary: &Self, green: InGreen) -> Self {
        let (ordinal, session) = (primary.ordinal, primary.session);
        Self {
            name,
            green: Some(green),
            ..Self::new(primary.handle, ordinal, session, true, primary.flags())
        }
    }

    /// Notes device memory allocated in it.
    pub fn keep_memory(&self, address: u64) {
        if !self.primary {
            self.memory.lock().insert(address);
        }
    }

    /// Takes the device memory allocated in it.
    pub fn take_memory(&self) -> HashSet<u64> {
        std::mem::take(&mut *self.memory.lock())
    }

    /// Its handle as the program has it.
    #[must_use]
    pub fn handle(&self) -> CUcontext {
        std::ptr::without_provenance_mut(usize::try_from(self.name).unwrap_or(0))
    }

    /// Whether it is the primary context of its device.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        self.primary
    }

    /// A number that no other context has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Scheduling, host mapping and local memory flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Changes the flags.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// Whether it may be used.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// The context, if it may be used.
    ///
    /// # Errors
    /// `CONTEXT_IS_DESTROYED`.
    pub fn alive(&self) -> Result<&Self> {
        match self.is_alive() {
            true => Ok(self),
            false => Err(CONTEXT_IS_DESTROYED),
        }
    }

    /// Notes that it was retained again, or destroyed.
    pub fn set_alive(&self, alive: bool) {
        self.alive.store(alive, Ordering::Relaxed);
    }

    /// Preferred division of the first cache.
    #[must_use]
    pub fn cache_config(&self) -> i32 {
        self.cache_config.load(Ordering::Relaxed)
    }

    /// Changes the preference.
    pub fn set_cache_config(&self, config: i32) {
        self.cache_config.store(config, Ordering::Relaxed);
    }
}
