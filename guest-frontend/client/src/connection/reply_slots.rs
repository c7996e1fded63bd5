//! Reply slots, one for each thread that waits for the host.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use paragpu_communicator::CachePadded;
use paragpu_protocol::frame::REPLY;
use parking_lot::{Condvar, Mutex};

use super::pace::Pace;
use crate::sys::memory::HostRows;
use crate::sys::uncancelled::Uncancelled;

const CHUNK: usize = 64;
const CHUNKS: usize = 1024;

const IDLE: u32 = 0;
const WAITING: u32 = 1;
const DONE: u32 = 2;
const LOST: u32 = 3;

/// The slot of one waiting thread.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    state: AtomicU32,
    inner: Mutex<Inner>,
    changed: Condvar,
    pace: CachePadded<Mutex<Pace>>,
}

#[derive(Debug, Default)]
struct Inner {
    kind: u16,
    reply: Vec<u8>,
    destination: Option<HostRows>,
    /// The thread is to look for what there is to do.
    is_roused: bool,
}

/// Why a frame was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotError {
    /// No thread waits for it.
    Unasked,
    /// The bytes do not fit the request.
    OutOfBounds,
}

impl Slot {
    /// The launches of the thread. Only that thread uses them.
    pub(super) fn pace(&self) -> &Mutex<Pace> {
        &self.pace
    }

    /// Begins a wait of the calling thread for the reply to `call`. The reply
    /// reuses the memory of `reply`; data frames go to `destination`.
    pub(crate) fn begin(&self, call: u16, destination: Option<HostRows>, reply: Vec<u8>) {
        let mut inner = self.inner.lock();
        inner.reply = reply;
        inner.kind = call | REPLY;
        inner.destination = destination;
        self.state.store(WAITING, Ordering::Release);
    }

    /// Whether the wait is over.
    pub(crate) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) != WAITING
    }

    /// Delivers a reply.
    pub(crate) fn deliver(&self, kind: u16, payload: &[u8]) -> Result<(), SlotError> {
        let mut inner = self.inner.lock();
        if self.state.load(Ordering::Relaxed) != WAITING || inner.kind != kind {
            return Err(SlotError::Unasked);
        }
        inner.reply.clear();
        inner.reply.extend_from_slice(payload);
        inner.destination = None;
        self.state.store(DONE, Ordering::Release);
        self.changed.notify_one();
        Ok(())
    }

    /// Delivers a part of the requested data.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), SlotError> {
        let inner = self.inner.lock();
        if self.state.load(Ordering::Relaxed) != WAITING {
            return Err(SlotError::Unasked);
        }
        match &inner.destination {
            Some(destination) if destination.write(offset, bytes) => Ok(()),
            Some(_) => Err(SlotError::OutOfBounds),
            None => Err(SlotError::Unasked),
        }
    }

    /// Has `read` fill the destination with the bytes from `at` on of the `length` bytes
    /// at `offset`, as far as they are contiguous. Returns false if nothing may be
    /// written there.
    pub(crate) fn land(
        &self,
        offset: u64,
        length: usize,
        at: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        // The lock is held while the memory is filled: the waiting thread blocks here.
        let inner = self.inner.lock();
        let waits = self.state.load(Ordering::Relaxed) == WAITING;
        let destination = inner.destination.as_ref().filter(|_| waits);
        destination.is_some_and(|destination| destination.land(offset, length, at, read))
    }

    /// Ends the wait without a reply.
    pub(crate) fn fail(&self) {
        let mut inner = self.inner.lock();
        if self.state.load(Ordering::Relaxed) == WAITING {
            inner.destination = None;
            self.state.store(LOST, Ordering::Release);
            self.changed.notify_one();
        }
    }

    /// Sleeps until the wait is over, or the thread is roused. It may be ending, so that it has
    /// no `std::thread::current`.
    pub(crate) fn sleep(&self) {
        let mut inner = self.inner.lock();
        while !inner.is_roused && !self.is_over() {
            self.changed.wait(&mut inner);
        }
        inner.is_roused = false;
    }

    /// Ends the thread's sleep, or the next one.
    pub(crate) fn rouse(&self) {
        self.inner.lock().is_roused = true;
        self.changed.notify_one();
    }

    /// Ends the wait. Returns the reply, or `None` if it was lost.
    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        let mut inner = self.inner.lock();
        inner.destination = None;
        match self.state.swap(IDLE, Ordering::Relaxed) {
            DONE => Some(std::mem::take(&mut inner.reply)),
            _ => None,
        }
    }
}

/// All slots of a link. They are never removed, so one can be looked up without a
/// lock.
#[derive(Debug)]
pub(crate) struct Slots {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    list: Vec<u16>,
    /// Slots below this exist; slot 0 means "no reply".
    next: usize,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(Free {
                list: Vec::new(),
                next: 1,
            }),
        }
    }

    /// The slot with this number, if it exists.
    pub(crate) fn get(&self, index: u16) -> Option<&Slot> {
        let index = usize::from(index);
        self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)
    }

    /// All slots ever made.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Slot> {
        self.chunks
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|chunk| chunk.iter())
    }

    fn acquire(&self) -> Option<u16> {
        let mut free = self.free.lock();
        let index = match free.list.pop() {
            Some(index) => index,
            None => {
                let index = u16::try_from(free.next).ok()?;
                free.next += 1;
                index
            }
        };
        drop(free);
        let chunk = self.chunks.get(usize::from(index) / CHUNK)?;
        chunk.get_or_init(|| (0..CHUNK).map(|_| Slot::default()).collect());
        Some(index)
    }

    fn release(&self, index: u16) {
        self.free.lock().list.push(index);
    }
}

/// A slot held by a thread.
#[derive(Debug)]
pub(super) struct Lease {
    slots: Arc<Slots>,
    index: u16,
}

impl Lease {
    /// Another slot for the calling thread. `None` if all are taken.
    pub(super) fn of(slots: &Arc<Slots>) -> Option<Self> {
        Some(Self {
            index: slots.acquire()?,
            slots: Arc::clone(slots),
        })
    }

    pub(super) fn index(&self) -> u16 {
        self.index
    }

    /// The slot.
    pub(super) fn slot(&self) -> Option<&Slot> {
        self.slots.get(self.index)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slots.release(self.index);
    }
}

thread_local! {
    static LEASES: RefCell<Vec<Lease>> = const { RefCell::new(Vec::new()) };
}

/// Has the calling thread's hash maps get their random seed, for which the first one asks the kernel
/// by a function that cancellation would interrupt.
fn seed_maps() {
    let _uncancelled = Uncancelled::begin();
    let _ = std::hash::RandomState::new();
}

/// Runs `with` with the calling thread's slot of `slots`. `None` if 65,535 threads
/// already have one.
pub(crate) fn with_slot<R>(slots: &Arc<Slots>, with: impl FnOnce(u16, &Slot) -> R) -> Option<R> {
    let kept = LEASES.try_with(|leases| {
        let mut leases = leases.borrow_mut();
        if let Some(lease) = leases.iter().find(|lease| Arc::ptr_eq(&lease.slots, slots)) {
            return Some(lease.index);
        }
        // Leases of links that no longer exist.
        leases.retain(|lease| Arc::strong_count(&lease.slots) > 1);
        seed_maps();
        let index = slots.acquire()?;
        leases.push(Lease {
            slots: Arc::clone(slots),
            index,
        });
        Some(index)
    });
    match kept {
        Ok(index) => {
            let index = index?;
            Some(with(index, slots.get(index)?))
        }
        // The thread is exiting and has released its slots: borrow one for this
        // call.
        Err(_) => {
            let lease = Lease {
                slots: Arc::clone(slots),
                index: slots.acquire()?,
            };
            Some(with(lease.index, slots.get(lease.index)?))
        }
    }
}
