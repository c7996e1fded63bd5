//! The window: memory that both sides map at one address. Pinned memory comes from it
//! while the session is on hosts that share it. A session that begins without one gets one
//! when it moves to such a host.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use paragpu_communicator::{Error, Window};
use paragpu_protocol::layout::{DEVICE_STRIDE, Regions};
use parking_lot::RwLock;

use crate::shadow::region::Region;
use crate::staging::Staging;
use crate::sys::memory::HostSlice;
use crate::sys::moved_pages::{MovedPages, SecondMapping};

/// The window of a session, if it has one.
#[derive(Debug)]
pub(crate) struct PinnedWindow {
    /// First address, the same on both sides.
    base: u64,
    /// The mapping, which lives as long as the session.
    memory: OnceLock<Mapped>,
    /// Whether the session has left it: the host has other memory at the addresses. Never
    /// reset.
    left: AtomicBool,
    /// Whether kernels may know addresses in it.
    known: AtomicBool,
    /// Registered memory of the program that maps parts of it, by address.
    moved: RwLock<BTreeMap<u64, Moved>>,
    /// Number of entries in `moved`; checked before the lock is taken.
    count: AtomicUsize,
}

/// Registered memory: its size in bytes, and its pages. What else is in its first and last page
/// is not registered.
#[derive(Debug)]
struct Moved {
    size: u64,
    pages: MovedPages,
}

/// A window, with its staging slots if it has room for any.
#[derive(Debug)]
struct Mapped {
    window: Arc<Window>,
    staging: Option<Staging>,
}

impl Mapped {
    fn new(window: Arc<Window>) -> Self {
        let staging = Staging::new(&window);
        Self { window, staging }
    }
}

impl PinnedWindow {
    pub(crate) fn new(memory: Option<Arc<Window>>, regions: &Regions) -> Self {
        Self {
            base: regions.window,
            memory: memory
                .map(Mapped::new)
                .map_or_else(OnceLock::new, OnceLock::from),
            left: AtomicBool::new(false),
            known: AtomicBool::new(false),
            moved: RwLock::default(),
            count: AtomicUsize::new(0),
        }
    }

    fn memory(&self) -> Option<&Window> {
        self.memory.get().map(|mapped| &*mapped.window)
    }

    /// The memory, if it has the same address on both sides, as pinned memory must.
    fn pinned(&self) -> Option<&Window> {
        self.memory().filter(|window| window.address() == self.base)
    }

    /// Whether the session has had one.
    pub(crate) fn is_mapped(&self) -> bool {
        self.memory().is_some()
    }

    /// Adopts the window of a new connection. Returns false if there has been one.
    pub(crate) fn adopt(&self, window: Arc<Window>) -> bool {
        self.memory.set(Mapped::new(window)).is_ok()
    }

    /// Its staging slots.
    pub(crate) fn staging(&self) -> Option<&Staging> {
        self.memory.get()?.staging.as_ref()
    }

    /// First address.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Size in bytes; 0 if programs have no memory in it.
    pub(crate) fn len(&self) -> u64 {
        self.pinned().map_or(0, Window::len)
    }

    /// Whether the address is in the window.
    pub(crate) fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < DEVICE_STRIDE && self.pinned().is_some()
    }

    /// The memory whose first words report completion, if the host shares it.
    pub(crate) fn words(&self) -> Option<&Window> {
        self.memory().filter(|_| !self.is_left())
    }

    /// Whether the session has left it.
    pub(crate) fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Marks the window as left. All its pinned memory can now be found as shadows, where
    /// threads that see this look for it.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Preserves its contents, because the memory behind it may be removed.
    ///
    /// # Errors
    /// If it is already gone.
    pub(crate) fn keep(&self) -> Result<(), Error> {
        self.memory().map_or(Ok(()), Window::keep)
    }

    /// Whether its memory still exists.
    pub(crate) fn exists(&self) -> bool {
        self.memory().is_none_or(Window::is_there)
    }

    /// Records that kernels may know addresses in it.
    pub(crate) fn note_known(&self) {
        self.known.store(true, Ordering::Relaxed);
    }

    /// Whether kernels may know addresses in it.
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    /// Records that a kernel received these parameters.
    pub(crate) fn note_parameters(&self, parameters: &[u8]) {
        if self.pinned().is_none() || self.is_known() {
            return;
        }
        let mut words = parameters.as_chunks::<8>().0.iter();
        if words.any(|word| self.holds(u64::from_le_bytes(*word))) {
            self.note_known();
        }
    }

    /// Maps a part of it a second time; `None` if that is impossible.
    pub(crate) fn second(&self, offset: u64, length: u64) -> Option<SecondMapping> {
        SecondMapping::new(self.memory()?, offset, length)
    }

    /// Adds registered memory of the program whose pages are a part of it.
    pub(crate) fn add_moved(&self, address: u64, size: u64, pages: MovedPages) {
        let mut moved = self.moved.write();
        moved.insert(address, Moved { size, pages });
        self.count.store(moved.len(), Ordering::Release);
    }

    /// Makes the pages of the memory registered at `address` private again. Returns false if
    /// they stay a part of the window.
    pub(crate) fn give_back(&self, address: u64) -> bool {
        let mut moved = self.moved.write();
        let Some(Moved { pages, .. }) = moved.remove(&address) else {
            return true;
        };
        self.count.store(moved.len(), Ordering::Release);
        drop(moved);
        pages.give_back()
    }

    /// The address in the window of a range of registered memory that is a part of it. `None`
    /// for memory beside it in the same pages, which can leave the window at any time.
    pub(crate) fn address_of(&self, address: u64, size: u64) -> Option<u64> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let moved = self.moved.read();
        let (from, found) = moved.range(..=address).next_back()?;
        let end = (address - from).checked_add(size)?;
        (end <= found.size).then(|| found.pages.in_window(address, size))?
    }

    /// A shadow of part of it.
    pub(crate) fn region(&self, offset: u64, length: u64) -> Option<Arc<Region>> {
        let source = self.part(offset, length)?;
        let address = source.address();
        Some(Region::new(source, address, address, length))
    }

    /// The shadow of its staging slots.
    pub(crate) fn region_of_slots(&self, offset: u64, length: u64) -> Option<Arc<Region>> {
        self.part(offset, length).map(Region::of_slots)
    }

    fn part(&self, offset: u64, length: u64) -> Option<HostSlice> {
        HostSlice::of_window(self.memory()?, offset, length)
    }
}
