//! The window: memory that both sides see at one address. Pinned memory comes from it as
//! long as the session stays on hosts that share it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use paragpu_communicator::{Error, Window};
use paragpu_protocol::layout::{DEVICE_STRIDE, Regions};
use parking_lot::RwLock;

use crate::shadow::region::Region;
use crate::sys::memory::HostSlice;
use crate::sys::moved_pages::{MovedPages, SecondMapping};

/// The window of a session, as far as it has one.
#[derive(Debug)]
pub(crate) struct PinnedWindow {
    /// First address, the same on both sides; 0 if there is none.
    base: u64,
    /// Mapped as long as the session lives.
    memory: Option<Arc<Window>>,
    /// The session has left it: the host sees other memory at the addresses.
    /// Never taken back.
    left: AtomicBool,
    /// Kernels may know addresses in it.
    named: AtomicBool,
    /// Registered memory of the program that is a part of it, by address.
    moved: RwLock<BTreeMap<u64, MovedPages>>,
    /// How much of that there is; looked at before every lock.
    count: AtomicUsize,
}

impl PinnedWindow {
    pub(crate) fn new(memory: Option<Arc<Window>>, regions: &Regions) -> Self {
        // Pinned memory must have the same address on both sides.
        let same = |window: &&Arc<Window>| window.address() == regions.window;
        let base = memory
            .as_ref()
            .filter(same)
            .map_or(0, |window| window.address());
        Self {
            base,
            memory,
            left: AtomicBool::new(false),
            named: AtomicBool::new(false),
            moved: RwLock::default(),
            count: AtomicUsize::new(0),
        }
    }

    /// First address; 0 where programs have no memory in it.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Bytes; 0 where programs have no memory in it.
    pub(crate) fn len(&self) -> u64 {
        let memory = self.memory.as_ref().filter(|_| self.base != 0);
        memory.map_or(0, |window| window.len())
    }

    /// Whether the address is in the window.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.base != 0 && address.wrapping_sub(self.base) < DEVICE_STRIDE
    }

    /// The memory whose first words tell what is over, where the host sees it.
    pub(crate) fn words(&self) -> Option<&Window> {
        self.memory.as_deref().filter(|_| !self.is_left())
    }

    /// Whether the session has left it.
    pub(crate) fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// The session leaves it. All its pinned memory can be found as shadows by
    /// now: a thread that sees this looks for them.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Keeps its bytes although the memory behind them may go away.
    ///
    /// # Errors
    /// Where it is gone already.
    pub(crate) fn keep(&self) -> Result<(), Error> {
        self.memory.as_ref().map_or(Ok(()), |window| window.keep())
    }

    /// Whether its memory still exists.
    pub(crate) fn is_there(&self) -> bool {
        self.memory.as_ref().is_none_or(|window| window.is_there())
    }

    /// Kernels know addresses in it.
    pub(crate) fn name(&self) {
        self.named.store(true, Ordering::Relaxed);
    }

    /// Whether kernels may know addresses in it.
    pub(crate) fn is_named(&self) -> bool {
        self.named.load(Ordering::Relaxed)
    }

    /// A kernel is given these parameters.
    pub(crate) fn note_named(&self, parameters: &[u8]) {
        if self.base == 0 || self.is_named() {
            return;
        }
        let mut words = parameters.as_chunks::<8>().0.iter();
        if words.any(|word| self.holds(u64::from_le_bytes(*word))) {
            self.name();
        }
    }

    /// Maps a part of it a second time; `None` if that memory cannot be.
    pub(crate) fn second(&self, offset: u64, length: u64) -> Option<SecondMapping> {
        SecondMapping::new(self.memory.as_ref()?, offset, length)
    }

    /// Memory of the program is a part of it.
    pub(crate) fn add_moved(&self, pages: MovedPages) {
        let mut moved = self.moved.write();
        moved.insert(pages.address(), pages);
        self.count.store(moved.len(), Ordering::Release);
    }

    /// The program's memory at `address` is private again; false if it stays
    /// a part of the window.
    pub(crate) fn give_back(&self, address: u64) -> bool {
        let mut moved = self.moved.write();
        let Some(pages) = moved.remove(&address) else {
            return true;
        };
        self.count.store(moved.len(), Ordering::Release);
        drop(moved);
        pages.give_back()
    }

    /// The address in the window of memory of the program that is a part of it.
    pub(crate) fn place_of(&self, address: u64, size: u64) -> Option<u64> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let moved = self.moved.read();
        let (_, pages) = moved.range(..=address).next_back()?;
        pages.in_window(address, size)
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
        HostSlice::of_window(self.memory.as_ref()?, offset, length)
    }
}
