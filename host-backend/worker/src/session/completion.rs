//! Calls that wait for the device while others continue.
//!
//! The session's thread never blocks in the device. It records the goal of each
//! pending reply and polls the device between calls. Replies to one slot are sent
//! in the order of its calls.

use std::sync::Arc;

use paragpu_communicator::Wait;
use paragpu_device::{EventId, StreamId};

use super::copy_in::PagesIn;
use super::copy_out::CopyOut;
use super::gpu::Fence;
use super::link::At;
use super::pacer::{Pace, Pacer};
use super::stream::StreamWait;
use crate::error::SessionEnd;
use crate::statistics::Statistics;

/// Maximum number of calls of a session that wait at once: more than a process has threads.
const MOST_PENDING: usize = 16 * 1024;

/// The goal of a waiting call.
#[derive(Debug)]
pub(crate) enum Goal {
    /// An event of the guest's.
    Event(EventId),
    /// Work that was under way.
    Fence(Fence),
    /// A bulk token's transfer.
    Token(u32),
    /// A copy whose bytes go to the guest.
    CopyOut(Box<CopyOut>),
    /// A copy from memory of the guest that the host reaches.
    PagesIn(Box<PagesIn>),
    /// All that a stream had been given.
    Stream(StreamWait),
    /// Nothing: the reply only waits its turn.
    Ready(Vec<u8>),
}

impl Goal {
    /// The stream that comes to the goal, where it is one.
    fn stream(&self) -> Option<StreamId> {
        match self {
            Self::Fence(fence) => fence.stream(),
            Self::CopyOut(copy) => Some(copy.stream()),
            Self::PagesIn(copy) => Some(copy.stream()),
            Self::Stream(wait) => Some(wait.id()),
            Self::Event(_) | Self::Token(_) | Self::Ready(_) => None,
        }
    }

    /// Memory of the guest that a copy names may soon be another process's.
    fn leave_guest_memory(&mut self) {
        match self {
            Self::PagesIn(copy) => copy.leave(),
            Self::CopyOut(copy) => copy.leave(),
            _ => {}
        }
    }
}

/// The rest of a call, to run when the goal is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    /// Only the reply.
    Reply,
    /// Tell the thread that waits with this token.
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
    /// It is done.
    Now,
    /// It is done once the goal is reached and the rest executed.
    Later(Goal, Then),
}

/// A call that waits.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) at: At,
    pub(crate) goal: Goal,
    pub(crate) then: Then,
}

/// The calls of a session that wait.
#[derive(Debug)]
pub(crate) struct Completion {
    /// In the order in which they came.
    pending: Vec<Pending>,
    /// Replies now are those of calls whose turn has come: they do not queue
    /// behind later calls of their slot.
    answering: bool,
    pacer: Pacer,
    /// The last call whose wait the device itself ends.
    left: Option<u64>,
    statistics: Arc<Statistics>,
}

impl Completion {
    pub(crate) fn new(statistics: Arc<Statistics>) -> Self {
        Self {
            pending: Vec::new(),
            answering: false,
            pacer: Pacer::default(),
            left: None,
            statistics,
        }
    }

    /// Does no call wait?
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Lets a call wait.
    pub(crate) fn push(&mut self, pending: Pending) -> Result<(), SessionEnd> {
        if self.pending.len() >= MOST_PENDING {
            return Err(SessionEnd::TooMuch("calls that wait"));
        }
        self.pending.push(pending);
        self.count();
        Ok(())
    }

    /// Must a reply to this slot wait for an earlier call's?
    pub(crate) fn is_behind(&self, slot: u16) -> bool {
        let waits = |pending: &Pending| pending.at.slot == slot;
        !self.answering && self.pending.iter().any(waits)
    }

    /// Takes the first call from `index` on that waits for no other of its
    /// slot, and moves `index` there.
    pub(crate) fn take_from(&mut self, index: &mut usize) -> Option<Pending> {
        while let Some(this) = self.pending.get(*index) {
            let slot = this.at.slot;
            let before = self.pending.get(..*index).unwrap_or_default();
            if slot == 0 || before.iter().all(|other| other.at.slot != slot) {
                return Some(self.pending.remove(*index));
            }
            *index += 1;
        }
        None
    }

    /// Its goal is not reached: it goes back to where it was, and `index` behind
    /// it.
    pub(crate) fn put_back(&mut self, index: &mut usize, pending: Pending) {
        self.pending.insert(*index, pending);
        *index += 1;
    }

    /// The turn of a call has come, or is over.
    pub(crate) fn set_answering(&mut self, answering: bool) {
        self.answering = answering;
    }

    /// Tells who looks at the session from outside how many calls wait.
    pub(crate) fn count(&self) {
        self.statistics.waiting.set(self.pending.len() as u64);
    }

    /// A stream that a call waits for.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.pending
            .iter()
            .find_map(|pending| pending.goal.stream())
    }

    /// The channel whose page lists are named may soon be another process's:
    /// copies that are under way end.
    pub(crate) fn leave_guest_memory(&mut self) {
        for pending in &mut self.pending {
            pending.goal.leave_guest_memory();
        }
    }

    /// How to wait before looking at the device again, which may compute on
    /// this host.
    pub(crate) fn pace(&mut self, computes_on_host: bool) -> Pace {
        self.pacer.pace(computes_on_host)
    }

    /// The device itself ends the wait that call `sequence` announced.
    pub(crate) fn leave_to_device(&mut self, sequence: u64) {
        self.left = Some(sequence);
    }

    /// Is the guest's next call to be polled for, where `executed` is the last? It
    /// comes when the device has ended a wait, of which this thread hears nothing:
    /// asleep, it would begin the next work late.
    pub(crate) fn expects_call(&mut self, executed: u64) -> bool {
        self.left == Some(executed) && self.pacer.pace(false) == Pace::Guest(Wait::Poll)
    }

    /// Something moved: no wait is long any more.
    pub(crate) fn moved(&mut self) {
        self.pacer.reset();
    }

    /// Has the wait been so long that a kernel that still runs may have printed?
    pub(crate) fn is_slow(&self) -> bool {
        self.pacer.is_slow()
    }
}
