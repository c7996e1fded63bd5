//! The window: memory that both sides map at one address. Pinned memory comes from it
//! while the session is on hosts that share it. A session without one gets one when it moves to
//! such a host: one that began over a socket, and one that has left its window.
//!
//! The windows of a session lie one behind the other, because what the program pinned in an
//! earlier one keeps its addresses. Words and slots of a new one are used once nothing refers to
//! those of the last one any more: a copy that was posted with the same token would clear them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use paragpu_communicator::{Error, Window};
use paragpu_protocol::layout::{DEVICE_STRIDE, Regions, THREAD_TOKENS};
use parking_lot::RwLock;

use crate::shadow::region::Region;
use crate::staging::Staging;
use crate::sys::memory::{HostSlice, discard, load_token, store_token};
use crate::sys::moved_pages::{MovedPages, SecondMapping};

/// Between two windows. Over `pci` the rings lie before the window.
const GAP: u64 = 64 << 20;

/// The windows of a session.
#[derive(Debug)]
pub(crate) struct PinnedWindow {
    /// First address of their region.
    base: u64,
    /// The first one, which leads to the others.
    first: OnceLock<Box<Mapped>>,
    /// How many the session has left.
    departures: AtomicUsize,
    /// Whether kernels may know addresses in the current one.
    known: AtomicBool,
    /// Registered memory of the program that maps parts of the current one, by address.
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

/// A window, with its staging slots if it has room for any. The mapping lives as long as the
/// session.
#[derive(Debug)]
pub(crate) struct Mapped {
    window: Arc<Window>,
    /// Offset in the region.
    offset: u64,
    staging: Option<Staging>,
    /// Whether the session has left it: the host has other memory at the addresses. Never
    /// reset.
    left: AtomicBool,
    /// Whether its words and slots are used.
    open: AtomicBool,
    next: OnceLock<Box<Self>>,
}

impl Mapped {
    fn new(window: Arc<Window>, base: u64, open: bool) -> Box<Self> {
        // One that the communicator mapped elsewhere has no pinned memory.
        let offset = window.address().wrapping_sub(base);
        let offset = if offset < DEVICE_STRIDE { offset } else { 0 };
        Box::new(Self {
            staging: Staging::new(&window, offset),
            window,
            offset,
            left: AtomicBool::new(false),
            open: AtomicBool::new(open),
            next: OnceLock::new(),
        })
    }

    /// Its staging slots.
    pub(crate) fn staging(&self) -> Option<&Staging> {
        self.staging.as_ref()
    }

    /// Offset in the region, and size in bytes.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.offset, self.window.len())
    }

    /// Whether the session has left it.
    pub(crate) fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Whether a range of the region is a part of it.
    fn contains(&self, offset: u64, length: u64) -> bool {
        let end = offset.checked_add(length);
        offset >= self.offset && end.is_some_and(|end| end <= self.offset + self.window.len())
    }

    /// Preserves its contents, because the memory behind it may be removed.
    ///
    /// # Errors
    /// If it is already gone.
    pub(crate) fn keep(&self) -> Result<(), Error> {
        self.window.keep()
    }
}

impl PinnedWindow {
    pub(crate) fn new(memory: Option<Arc<Window>>, regions: &Regions) -> Self {
        let base = regions.window;
        let first = memory.map(|memory| Mapped::new(memory, base, true));
        Self {
            base,
            first: first.map_or_else(OnceLock::new, OnceLock::from),
            departures: AtomicUsize::new(0),
            known: AtomicBool::new(false),
            moved: RwLock::default(),
            count: AtomicUsize::new(0),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Mapped> {
        std::iter::successors(self.first.get(), |mapped| mapped.next.get()).map(Box::as_ref)
    }

    /// The current window, if the host shares it.
    pub(crate) fn current(&self) -> Option<&Mapped> {
        self.all().last().filter(|mapped| !mapped.is_left())
    }

    /// The one that contains a range of the region.
    fn containing(&self, offset: u64, length: u64) -> Option<&Mapped> {
        self.all().find(|mapped| mapped.contains(offset, length))
    }

    /// The offset from which there is room for another one.
    pub(crate) fn room(&self) -> Option<u64> {
        let Some(last) = self.all().last() else {
            return Some(0);
        };
        let (offset, length) = last.place();
        let room = (offset + length + GAP).next_multiple_of(GAP);
        (room < DEVICE_STRIDE).then_some(room)
    }

    /// Adopts the window of a new connection. Returns `None` if the session has one, or there is
    /// no room at its addresses.
    pub(crate) fn adopt(&self, window: Arc<Window>) -> Option<&Mapped> {
        if self.current().is_some() || Some(window.address().wrapping_sub(self.base)) != self.room()
        {
            return None;
        }
        let last = self.all().last();
        // The words and slots of the first one are the first.
        let mapped = Mapped::new(window, self.base, last.is_none());
        let place = last.map_or(&self.first, |last| &last.next);
        // What kernels know of an earlier one is a shadow by now.
        self.known.store(false, Ordering::Relaxed);
        Some(place.get_or_init(|| mapped))
    }

    /// The windows before the current one.
    pub(crate) fn earlier(&self) -> impl Iterator<Item = &Mapped> {
        self.all().filter(|mapped| mapped.next.get().is_some())
    }

    /// Has words and slots of the current one used. Nobody uses those of earlier ones any more, but
    /// copies and waits that were posted with them may not be complete.
    pub(crate) fn open(&self) {
        let Some(mapped) = self.current() else {
            return;
        };
        let is_open = |mapped: &&Mapped| mapped.open.load(Ordering::Acquire);
        if let Some(last) = self.earlier().filter(is_open).last() {
            for index in 0..THREAD_TOKENS as usize {
                store_token(&mapped.window, index, load_token(&last.window, index));
            }
        }
        mapped.open.store(true, Ordering::Release);
    }

    /// First address of the region.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Whether the address is in the current window.
    pub(crate) fn holds(&self, address: u64) -> bool {
        let offset = address.wrapping_sub(self.base);
        offset < DEVICE_STRIDE && self.shares(offset)
    }

    /// Whether the offset is in the current window.
    pub(crate) fn shares(&self, offset: u64) -> bool {
        let current = self.current();
        current.is_some_and(|current| current.contains(offset, 1))
    }

    /// The memory whose first words report completion, if the host shares it.
    pub(crate) fn words(&self) -> Option<&Window> {
        self.opened().map(|current| &*current.window)
    }

    /// The staging slots, if the host shares them.
    pub(crate) fn staging(&self) -> Option<&Staging> {
        self.opened()?.staging()
    }

    fn opened(&self) -> Option<&Mapped> {
        self.current()
            .filter(|current| current.open.load(Ordering::Acquire))
    }

    /// How many windows the session has left.
    pub(crate) fn departures(&self) -> usize {
        self.departures.load(Ordering::Acquire)
    }

    /// Marks a window as left. All its pinned memory can now be found as shadows, where
    /// threads that see this look for it.
    pub(crate) fn leave(&self, mapped: &Mapped) {
        if let Some(staging) = &mapped.staging {
            staging.leave();
        }
        mapped.left.store(true, Ordering::Release);
        self.departures.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether its memory still exists.
    pub(crate) fn exists(&self) -> bool {
        let last = self.all().last();
        last.is_none_or(|last| last.window.is_there())
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
        if self.is_known() || self.current().is_none() {
            return;
        }
        let mut words = parameters.as_chunks::<8>().0.iter();
        if words.any(|word| self.holds(u64::from_le_bytes(*word))) {
            self.note_known();
        }
    }

    /// Maps a part of the current one a second time; `None` if that is impossible.
    pub(crate) fn second(&self, offset: u64, length: u64) -> Option<SecondMapping> {
        let mapped = self.containing(offset, length)?;
        SecondMapping::new(&mapped.window, offset - mapped.offset, length)
    }

    /// Frees the memory of a range of a window that the session has left, which nobody uses any
    /// more.
    pub(crate) fn discard(&self, offset: u64, length: u64) {
        if let Some(left) = self.containing(offset, length).filter(|it| it.is_left()) {
            discard(&left.window, offset - left.offset, length);
        }
    }

    /// Adds registered memory of the program whose pages are a part of it.
    pub(crate) fn add_moved(&self, address: u64, size: u64, pages: MovedPages) {
        let mut moved = self.moved.write();
        moved.insert(address, Moved { size, pages });
        self.count.store(moved.len(), Ordering::Release);
    }

    /// Forgets that memory registered at `address` is a part of it. Returns its pages.
    pub(crate) fn take_moved(&self, address: u64) -> Option<MovedPages> {
        let mut moved = self.moved.write();
        let taken = moved.remove(&address);
        self.count.store(moved.len(), Ordering::Release);
        taken.map(|moved| moved.pages)
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

    /// A shadow of pinned memory.
    pub(crate) fn region(&self, offset: u64, length: u64) -> Option<Arc<Region>> {
        let mapped = self.containing(offset, length)?;
        let source = HostSlice::of_window(&mapped.window, offset - mapped.offset, length)?;
        let address = source.address();
        Some(Region::new(source, address, address, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::test_window::window_at;

    const LENGTH: u64 = 16 << 20;

    /// A window at an offset of the region.
    fn window(regions: &Regions, offset: u64) -> Arc<Window> {
        Arc::new(window_at(Some(regions.window + offset), LENGTH as usize))
    }

    #[test]
    fn the_next_window_lies_behind_the_last_one() {
        let regions = Regions::of(14).unwrap();
        let windows = PinnedWindow::new(None, &regions);
        assert_eq!(windows.room(), Some(0));
        let mut starts = Vec::new();
        for at in 0..3 {
            let room = windows.room().unwrap();
            assert!(starts.iter().all(|start| start + LENGTH <= room));
            starts.push(room);
            let elsewhere = window(&regions, room + LENGTH);
            assert!(windows.adopt(elsewhere).is_none());
            let next = window(&regions, room);
            let current = windows.adopt(Arc::clone(&next)).unwrap();
            assert_eq!(current.place(), (room, LENGTH));
            assert!(windows.adopt(next).is_none(), "it has one");
            assert!(windows.holds(regions.window + room));
            assert!(!windows.holds(regions.window + room + LENGTH));
            assert!(starts[..at].iter().all(|start| !windows.shares(*start)));
            // What was pinned in earlier ones is still there.
            let pinned = |start: &u64| windows.region(start + 8192, 4096).is_some();
            assert!(starts.iter().all(pinned));
            windows.leave(current);
            assert_eq!(windows.departures(), at + 1);
            assert!(windows.current().is_none() && windows.words().is_none());
            assert!(!windows.holds(regions.window + room));
        }
    }

    #[test]
    fn words_and_slots_of_the_next_window_are_used_once_it_is_opened() {
        let regions = Regions::of(15).unwrap();
        let windows = PinnedWindow::new(Some(window(&regions, 0)), &regions);
        let words = |index| load_token(windows.words().unwrap(), index);
        assert!(
            windows.staging().is_some(),
            "nothing precedes the first one"
        );
        // A copy and a wait that may not be complete.
        let waits = [0, THREAD_TOKENS as usize - 1];
        for index in waits {
            store_token(windows.words().unwrap(), index, 1);
        }
        windows.leave(windows.current().unwrap());
        // It was never opened, so nothing refers to its words.
        windows.adopt(window(&regions, windows.room().unwrap()));
        windows.leave(windows.current().unwrap());
        windows.adopt(window(&regions, windows.room().unwrap()));
        assert!(windows.words().is_none() && windows.staging().is_none());
        windows.open();
        assert!(windows.staging().is_some());
        assert_eq!(waits.map(words), [1, 1]);
        assert_eq!(words(1), 0);
        assert!(windows.earlier().all(|earlier| earlier.is_left()));
    }
}
