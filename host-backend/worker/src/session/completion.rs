//! Calls that wait for the device while others continue.
//!
//! The session's thread never blocks in the device. It records the goal of each
//! pending reply and polls the device between calls. Replies to one slot are sent
//! in the order of its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::{Backoff, Spin, Wake};
use paragpu_device::{EventId, StreamId};
use parking_lot::Mutex;

use super::copy_in::CopyIn;
use super::copy_out::CopyOut;
use super::fences::Fence;
use super::gpu::Gpu;
use super::link::At;
use super::pacer::Pacer;
use super::stream::StreamWait;
use crate::error::{Outcome, SessionEnd};
use crate::statistics::Statistics;

/// Maximum number of pending calls of a session: more than a process has threads.
const MAX_PENDING: usize = 16 * 1024;

/// Maximum bytes of replies that wait for earlier ones of their slot. A thread of a program
/// has one call at a time, so there are hardly any.
const MOST_READY: usize = 4 << 20;

/// How long this thread polls for the guest's next call after a wait that the device itself
/// ends: as long as the guest polls for that end.
const GUEST_POLLS: Duration = Duration::from_millis(2);

/// The goal of a pending call.
#[derive(Debug)]
pub(crate) enum Goal {
    /// An event of the guest, and the watch that reports it, if there is one.
    Event(EventId, Option<Watch>),
    /// Work that was in flight.
    Fence(Fence),
    /// A bulk token's transfer.
    Token(u32),
    /// A copy to the guest.
    CopyOut(Box<CopyOut>),
    /// A copy from guest memory that the host can reach.
    CopyIn(Box<CopyIn>),
    /// All work that a stream had.
    Stream(StreamWait),
    /// None: the reply waits for earlier ones of its slot.
    Ready(Vec<u8>),
    /// None: the call is executed once the earlier ones of another slot are answered.
    Behind(u16, Ranges),
}

/// Parts of shadows: addresses and sizes.
pub(crate) type Ranges = Vec<(u64, u64)>;

impl Goal {
    /// The stream whose work reaches the goal, if it is one stream.
    fn stream(&self) -> Option<StreamId> {
        match self {
            Self::Fence(fence) => fence.stream(),
            Self::CopyOut(copy) => Some(copy.stream()),
            Self::CopyIn(copy) => Some(copy.stream()),
            Self::Stream(wait) => Some(wait.id()),
            Self::Event(..) | Self::Token(_) | Self::Ready(_) | Self::Behind(..) => None,
        }
    }

    /// Releases guest memory that a copy refers to, because it may soon belong to another
    /// process.
    fn leave_guest_memory(&mut self) {
        match self {
            Self::CopyIn(copy) => copy.leave(),
            Self::CopyOut(copy) => copy.leave(),
            _ => {}
        }
    }
}

/// Set once the device has reported that an event is reached.
pub(crate) type Watch = Arc<AtomicBool>;

/// Wakes the session's thread, over whatever connection it receives.
#[derive(Default)]
struct Alarm(Mutex<Option<Arc<dyn Wake>>>);

impl std::fmt::Debug for Alarm {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Alarm").finish_non_exhaustive()
    }
}

/// The rest of a call, to run when the goal is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Continuation {
    /// Nothing but the reply.
    Reply,
    /// Signal the thread that waits for this token.
    Signal(u32),
    /// Unregister the pinned memory at this offset of the window.
    HostUnmap(u64),
    /// Drop the shadow at this address.
    ShadowDestroy(u64),
    /// Unmap the file at this address.
    FileUnmap(u64),
}

/// The outcome of a call that may have to wait.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The call is complete.
    Now,
    /// The call is complete once the goal is reached and the rest has run.
    Later(Goal, Continuation),
}

impl Progress {
    /// Makes the call pending until the fence is passed, unless it already is.
    pub(crate) fn after(gpu: &mut Gpu, fence: Fence, then: Continuation) -> Outcome<Self> {
        match fence.passed(gpu)? {
            true => Ok(Self::Now),
            false => Ok(Self::Later(Goal::Fence(fence), then)),
        }
    }
}

/// A pending call.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) at: At,
    pub(crate) goal: Goal,
    pub(crate) then: Continuation,
}

/// The pending calls of a session.
#[derive(Debug)]
pub(crate) struct Completion {
    /// In call order.
    pending: Vec<Pending>,
    /// A pending call is being answered: its reply does not queue behind later
    /// calls of its slot.
    answering: bool,
    pacer: Pacer,
    /// Sequence number of the last call whose wait the device itself ends, and the polling for
    /// the next call.
    left: Option<(u64, Spin)>,
    backoff: Backoff,
    alarm: Arc<Alarm>,
    statistics: Arc<Statistics>,
}

impl Completion {
    pub(crate) fn new(statistics: Arc<Statistics>) -> Self {
        Self {
            pending: Vec::new(),
            answering: false,
            pacer: Pacer::default(),
            left: None,
            backoff: Backoff::default(),
            alarm: Arc::default(),
            statistics,
        }
    }

    /// Sets how watches wake this thread.
    pub(crate) fn set_waker(&self, wake: Arc<dyn Wake>) {
        *self.alarm.0.lock() = Some(wake);
    }

    /// Has the device report when the event is reached, if it can.
    pub(crate) fn watch(&self, gpu: &mut Gpu, event: EventId) -> Outcome<Option<Watch>> {
        let (watch, alarm) = (Watch::default(), Arc::clone(&self.alarm));
        let seen = Arc::clone(&watch);
        let reached = Box::new(move || {
            // First, so that this thread sees it even if its connection is just replaced.
            seen.store(true, Ordering::Release);
            if let Some(wake) = &*alarm.0.lock() {
                wake.wake();
            }
        });
        Ok(gpu.event_watch(event, reached)?.then_some(watch))
    }

    /// Whether this thread may sleep until it is woken: all pending calls wait for events that
    /// the device has yet to report.
    pub(crate) fn is_watched(&self) -> bool {
        let is_watched = |pending: &Pending| match &pending.goal {
            Goal::Event(_, Some(watch)) => !watch.load(Ordering::Acquire),
            _ => false,
        };
        self.pending.iter().all(is_watched)
    }

    /// Whether a pending call waits for an event of the guest.
    pub(crate) fn waits_for(&self, event: EventId) -> bool {
        let waits = |pending: &Pending| matches!(pending.goal, Goal::Event(it, _) if it == event);
        self.pending.iter().any(waits)
    }

    /// Whether no call is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The number of pending calls.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Adds a pending call.
    pub(crate) fn push(&mut self, pending: Pending) -> Result<(), SessionEnd> {
        if self.pending.len() >= MAX_PENDING {
            return Err(SessionEnd::TooMuch("calls that wait"));
        }
        if let Goal::Ready(reply) = &pending.goal {
            let waits = self.pending.iter().map(|other| match &other.goal {
                Goal::Ready(reply) => reply.len(),
                _ => 0,
            });
            if waits.sum::<usize>() + reply.len() > MOST_READY {
                return Err(SessionEnd::TooMuch("replies that wait"));
            }
        }
        self.pending.push(pending);
        self.count();
        Ok(())
    }

    /// Whether a reply to this slot must wait for an earlier call's reply.
    pub(crate) fn is_behind(&self, slot: u16) -> bool {
        !self.answering && self.has(slot)
    }

    /// Whether a call of this slot is pending.
    pub(crate) fn has(&self, slot: u16) -> bool {
        self.pending.iter().any(|pending| pending.at.slot == slot)
    }

    /// Takes the first call at or after `index` that has no earlier pending call in its slot or
    /// in the one that it is [behind](Goal::Behind), and advances `index` to its position.
    pub(crate) fn take_from(&mut self, index: &mut usize) -> Option<Pending> {
        while let Some(this) = self.pending.get(*index) {
            let before = self.pending.get(..*index).unwrap_or_default();
            let is_first_of = |slot| slot == 0 || before.iter().all(|other| other.at.slot != slot);
            let other = match this.goal {
                Goal::Behind(slot, _) => slot,
                _ => 0,
            };
            if is_first_of(this.at.slot) && is_first_of(other) {
                return Some(self.pending.remove(*index));
            }
            *index += 1;
        }
        None
    }

    /// Puts a call back whose goal is not reached, and advances `index` past it.
    pub(crate) fn put_back(&mut self, index: &mut usize, pending: Pending) {
        self.pending.insert(*index, pending);
        *index += 1;
    }

    /// Marks the start or the end of answering a pending call.
    pub(crate) fn set_answering(&mut self, answering: bool) {
        self.answering = answering;
    }

    /// Publishes the number of pending calls in the session's counters.
    pub(crate) fn count(&self) {
        self.statistics.waiting.set(self.pending.len() as u64);
    }

    /// A stream that a pending call waits for.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.pending
            .iter()
            .find_map(|pending| pending.goal.stream())
    }

    /// Ends copies in progress from and to guest memory: the channel of their page
    /// lists may soon belong to another process.
    pub(crate) fn leave_guest_memory(&mut self) {
        for pending in &mut self.pending {
            pending.goal.leave_guest_memory();
        }
    }

    /// How this thread waits for the device.
    pub(crate) fn pacer(&mut self) -> &mut Pacer {
        &mut self.pacer
    }

    /// Records that the device itself ends the wait that began with call `sequence`.
    pub(crate) fn leave_to_device(&mut self, sequence: u64) {
        if let Some((_, spin)) = &self.left {
            self.backoff.note(spin);
        }
        self.left = None;
        if self.backoff.allows() {
            self.left = Some((sequence, Spin::until(Instant::now() + GUEST_POLLS, None)));
        }
    }

    /// Whether to poll for the guest's next call instead of sleeping. `executed` is the
    /// last call executed. If the device itself ended the wait, this thread was not
    /// notified. If it slept, it would start the next call late.
    pub(crate) fn expects_call(&mut self, executed: u64) -> bool {
        match &mut self.left {
            Some((sequence, spin)) if *sequence == executed => spin.again(),
            _ => false,
        }
    }
}
