//! Staging slots: the part of the window through which pageable memory is copied.
//!
//! Slot `i` has bulk token `i + 1`. The guest sets the token's word before it posts a
//! copy from or to the slot; the host clears it when the copy is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::Window;
use paragpu_protocol::handle::WindowOffset;
use paragpu_protocol::layout::{BULK_TOKEN_BYTES, BULK_TOKEN_FAILED};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{HostMap, WaitToken};
use parking_lot::{Mutex, MutexGuard};

use crate::connection::{LOST, Link};
use crate::error::Result;
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
    slots: Vec<Mutex<()>>,
    next: AtomicUsize,
    /// Held while they are announced to the host.
    registering: Mutex<()>,
    registered: AtomicBool,
    /// Small copies for which they were not registered.
    small: AtomicUsize,
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
    pub(crate) fn new(window: &Arc<Window>) -> Option<Self> {
        let count = slots(window.len());
        (count > 0).then(|| Self {
            window: Arc::clone(window),
            slots: (0..count).map(|_| Mutex::new(())).collect(),
            next: AtomicUsize::new(0),
            registering: Mutex::new(()),
            registered: AtomicBool::new(false),
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

    /// Takes a slot. If all are in use, waits for the last copy of the next one.
    pub(crate) fn take(&self, link: &Link) -> Result<Slot<'_>> {
        self.register(link)?;
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

    /// As [`take`](Self::take), but waits for no copy. `None` if all are in use.
    pub(crate) fn take_free(&self, link: &Link) -> Result<Option<Slot<'_>>> {
        self.register(link)?;
        Ok(self.try_take())
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

    /// Registers the slots as pinned memory, once.
    fn register(&self, link: &Link) -> Result<()> {
        if self.is_registered() {
            return Ok(());
        }
        let _registering = self.registering.lock();
        if self.is_registered() {
            return Ok(());
        }
        let offset = WindowOffset(BULK_TOKEN_BYTES);
        let size = (self.slots.len() * SLOT) as u64;
        match link.call(&HostMap { offset, size }) {
            Ok(()) | Err(Status::HOST_MEMORY_ALREADY_REGISTERED) => {
                self.registered.store(true, Ordering::Release);
                Ok(())
            }
            Err(status) => Err(status),
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
