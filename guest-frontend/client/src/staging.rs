//! Staging slots: the part of the window through which pageable memory is copied.
//!
//! Slot `i` has bulk token `i + 1`. The guest sets the token's word before it posts a
//! copy from or to the slot; the host clears it when the copy is complete.
//!
//! When the session leaves the window, copies in progress continue in the slots, which are a
//! shadow then. Others send their bytes in calls.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::Window;
use paragpu_protocol::handle::{ShadowAddress, WindowOffset};
use paragpu_protocol::layout::{BULK_TOKEN_BYTES, BULK_TOKEN_FAILED};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{HostMap, ShadowDestroy, WaitToken};
use parking_lot::{Mutex, MutexGuard};

use crate::connection::{LOST, Link};
use crate::error::Result;
use crate::shadow::Region;
pub(crate) use crate::staging_layout::SLOT;
use crate::staging_layout::{end, slots};
use crate::sys::memory::{HostSlice, load_token, store_token};

/// How long a token is polled before the guest asks the host for a notification.
const PATIENCE: Duration = Duration::from_micros(200);
/// Registering the slots takes some 10 ms, which so many small copies save.
const WORTHWHILE: usize = 500;

/// The staging slots of a session.
#[derive(Debug)]
pub struct Staging {
    window: Arc<Window>,
    /// The window's offset in the region.
    offset: u64,
    slots: Vec<Mutex<()>>,
    next: AtomicUsize,
    /// Held while they are announced to the host.
    registering: Mutex<()>,
    registered: AtomicBool,
    /// What the host has, once the session has left the window.
    away: Mutex<Away>,
    /// Whether it has.
    left: AtomicBool,
    /// Copies in progress.
    copies: AtomicUsize,
    /// Small copies for which they were not registered.
    small: AtomicUsize,
}

/// The slots of a window that the session has left.
#[derive(Debug, Default)]
enum Away {
    /// It has not.
    #[default]
    No,
    /// They are a shadow; `None` for slots that the host did not know.
    Yes(Option<Arc<Region>>),
}

/// A copy that uses slots.
#[derive(Debug)]
pub(crate) struct StagedCopy<'a>(&'a Staging);

impl Deref for StagedCopy<'_> {
    type Target = Staging;

    fn deref(&self) -> &Staging {
        self.0
    }
}

impl Drop for StagedCopy<'_> {
    fn drop(&mut self) {
        self.0.copies.fetch_sub(1, Ordering::Release);
    }
}

/// A slot in exclusive use, whose last copy is complete.
#[derive(Debug)]
pub struct Slot<'a> {
    staging: &'a Staging,
    index: usize,
    _held: MutexGuard<'a, ()>,
}

impl Staging {
    /// The slots of a window, if it has room for any.
    pub(crate) fn new(window: &Arc<Window>, offset: u64) -> Option<Self> {
        let count = slots(window.len());
        (count > 0).then(|| Self {
            window: Arc::clone(window),
            offset,
            slots: (0..count).map(|_| Mutex::new(())).collect(),
            next: AtomicUsize::new(0),
            registering: Mutex::new(()),
            registered: AtomicBool::new(false),
            away: Mutex::default(),
            left: AtomicBool::new(false),
            copies: AtomicUsize::new(0),
            small: AtomicUsize::new(0),
        })
    }

    /// Whether the host has confirmed the slots. They are unusable before.
    pub(crate) fn is_registered(&self) -> bool {
        self.registered.load(Ordering::Acquire)
    }

    /// Bytes of the window up to the end of the slots.
    pub(crate) fn end(&self) -> u64 {
        end(self.slots.len())
    }

    /// The number of slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether a small copy is to use a slot.
    pub(crate) fn is_worthwhile(&self) -> bool {
        self.is_registered() || self.small.fetch_add(1, Ordering::Relaxed) >= WORTHWHILE
    }

    /// Begins a copy. `None` if the session has left the window.
    ///
    /// # Errors
    /// If the host does not accept the slots.
    pub(crate) fn begin(&self, link: &Link) -> Result<Option<StagedCopy<'_>>> {
        // `is_unused` reads in the other order.
        self.copies.fetch_add(1, Ordering::SeqCst);
        let copy = StagedCopy(self);
        let is_left = self.left.load(Ordering::SeqCst);
        Ok((!is_left && self.register(link)?).then_some(copy))
    }

    /// Takes a slot. If all are in use, waits for the last copy of the next one.
    pub(crate) fn take(&self, link: &Link) -> Result<Slot<'_>> {
        if let Some(slot) = self.try_take() {
            return Ok(slot);
        }
        let start = self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        let (index, held) = (0..self.slots.len())
            .map(|step| (start + step) % self.slots.len())
            .find_map(|index| Some((index, self.slots.get(index)?.try_lock()?)))
            .or_else(|| Some((start, self.slots.get(start)?.lock())))
            .ok_or(Status::UNKNOWN)?;
        let slot = Slot {
            staging: self,
            index,
            _held: held,
        };
        slot.wait(link)?;
        Ok(slot)
    }

    /// A free slot whose last copy is complete, if there is one. The first, so that those
    /// that are used stay in the processor's caches.
    pub(crate) fn try_take(&self) -> Option<Slot<'_>> {
        let is_free = |index| load_token(&self.window, index) == 0;
        let mut free = (0..self.slots.len()).filter(|&index| is_free(index));
        free.find_map(|index| {
            let held = self.slots.get(index)?.try_lock()?;
            let slot = Slot {
                staging: self,
                index,
                _held: held,
            };
            is_free(index).then_some(slot)
        })
    }

    /// Registers the slots as pinned memory, once. Returns false if the session leaves the window
    /// meanwhile.
    fn register(&self, link: &Link) -> Result<bool> {
        if self.is_registered() {
            return Ok(true);
        }
        let _registering = self.registering.lock();
        if self.is_registered() {
            return Ok(true);
        }
        let offset = WindowOffset(self.offset + BULK_TOKEN_BYTES);
        let size = (self.slots.len() * SLOT) as u64;
        let mapped = link.call(&HostMap { offset, size });
        let away = self.away.lock();
        match (mapped, &*away) {
            (Ok(()) | Err(Status::HOST_MEMORY_ALREADY_REGISTERED), Away::No) => {
                self.registered.store(true, Ordering::Release);
                Ok(true)
            }
            (Err(status), Away::No) => Err(status),
            (Err(_), Away::Yes(_)) => Ok(false),
            (Ok(()), Away::Yes(_)) => {
                drop(away);
                // A shadow now, which no copy uses.
                let address = ShadowAddress(self.window.address() + BULK_TOKEN_BYTES);
                link.call(&ShadowDestroy { address }).map(|()| false)
            }
        }
    }

    /// Begins to leave the window. Returns the shadow that the slots become, if the host knows
    /// them.
    pub(crate) fn depart(&self) -> Option<Arc<Region>> {
        let mut away = self.away.lock();
        let length = (self.slots.len() * SLOT) as u64;
        let slots = HostSlice::of_window(&self.window, BULK_TOKEN_BYTES, length);
        let region = slots.filter(|_| self.is_registered()).map(Region::of_slots);
        *away = Away::Yes(region.clone());
        region
    }

    /// Marks the window as left: the slots can be found as a shadow.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    /// Whether no copy uses the slots of a window that the session has left, nor will.
    pub(crate) fn is_unused(&self) -> bool {
        self.left.load(Ordering::SeqCst) && self.copies.load(Ordering::SeqCst) == 0
    }

    /// Takes the shadow that unused slots became.
    pub(crate) fn take_shadow(&self) -> Option<Arc<Region>> {
        match &mut *self.away.lock() {
            Away::No => None,
            Away::Yes(region) => region.take(),
        }
    }
}

impl Slot<'_> {
    /// The slot's token.
    pub(crate) fn token(&self) -> u32 {
        u32::try_from(self.index + 1).unwrap_or(0)
    }

    /// The slot's address on the device.
    pub(crate) fn address(&self) -> u64 {
        self.staging.window.address() + self.offset()
    }

    fn offset(&self) -> u64 {
        BULK_TOKEN_BYTES + (self.index * SLOT) as u64
    }

    /// Whether the host has a copy of it.
    pub(crate) fn is_apart(&self) -> bool {
        self.staging.left.load(Ordering::Acquire)
    }

    /// Sets the token. A copy that will clear it must be posted next.
    pub(crate) fn arm(&self) {
        store_token(&self.staging.window, self.index, 1);
    }

    /// Clears the token because no copy will.
    pub(crate) fn disarm(&self) {
        store_token(&self.staging.window, self.index, 0);
    }

    /// Waits until the last copy from or to the slot is complete.
    pub(crate) fn wait(&self, link: &Link) -> Result<()> {
        let pending = || match load_token(&self.staging.window, self.index) {
            0 => Some(false),
            BULK_TOKEN_FAILED => Some(true),
            _ => None,
        };
        if pending() == Some(false) {
            return Ok(());
        }
        link.flush()?;
        let began = Instant::now();
        'poll: while began.elapsed() < PATIENCE {
            for _ in 0..32 {
                match pending() {
                    Some(false) => return Ok(()),
                    Some(true) => break 'poll,
                    None => std::hint::spin_loop(),
                }
            }
            std::thread::yield_now();
        }
        let result = link.call(&WaitToken {
            token: self.token(),
        });
        // After a failure, or if the host cannot write the word.
        self.disarm();
        result
    }

    /// Copies into the slot.
    pub(crate) fn fill(&self, bytes: &[u8]) -> Result<()> {
        self.staging
            .window
            .copy_in(self.offset(), bytes)
            .map_err(|_| Status::UNKNOWN)
    }

    /// The first `length` bytes of the slot, in place.
    pub(crate) fn bytes(&self, length: usize) -> Result<HostSlice> {
        let window = &self.staging.window;
        let bytes = HostSlice::of_window(window, self.offset(), length.min(SLOT) as u64);
        bytes.filter(|_| window.is_there()).ok_or(LOST)
    }

    /// Copies `bytes.len()` bytes at `at` out of the slot. `is_much`: they are part of so many
    /// that the processor's caches do not hold them.
    pub(crate) fn empty(&self, at: usize, bytes: &mut [u8], is_much: bool) -> Result<()> {
        let (window, at) = (&self.staging.window, self.offset() + at as u64);
        let copied = match is_much {
            true => window.stream_out(at, bytes),
            false => window.copy_out(at, bytes),
        };
        copied.map_err(|_| Status::UNKNOWN)?;
        // A device that was removed left no bytes.
        let there = self.staging.window.is_there();
        there.then_some(()).ok_or(LOST)
    }
}
