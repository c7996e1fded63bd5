//! Host functions: functions of the guest that run in stream order.
//!
//! When the stream reaches one, a device thread asks the guest to run it and blocks
//! until the guest reports completion, which stalls the stream. If the device can access
//! words that host and guest share, the stream itself asks and waits there, and neither a
//! thread nor a frame is involved. The end of the session ends all these waits.

use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use paragpu_communicator::{Polling, Sender, Spin, Window};
use paragpu_device::{MemoryOperation, Until, Word};
use paragpu_protocol::frame::Control;
use paragpu_protocol::status::Status;

use crate::error::{Outcome, fail};
use crate::sys::words;

/// Maximum number of host functions of a session that are queued in streams.
const MAX_QUEUED: usize = 64 * 1024;

/// The state of a host function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its stream has not reached it.
    Queued,
    /// The guest was asked to run it and has not reported completion.
    Running,
}

/// A pair of words in the window: the device counts the functions that it has reached in the
/// first, the guest those that it has run in the second.
#[derive(Clone)]
pub(crate) struct Pair {
    window: Arc<Window>,
    /// Offset in the window.
    offset: u64,
}

impl Pair {
    /// The pair at this index among the token words.
    pub(crate) fn new(window: Arc<Window>, index: u32) -> Self {
        let offset = u64::from(index) * 4;
        Self { window, offset }
    }

    /// Asks for the function with this number and waits for its end.
    pub(crate) fn operations(&self, value: u32) -> [MemoryOperation; 2] {
        let word = |offset| Word {
            address: self.window.address() + offset,
            is_wide: false,
        };
        let value = u64::from(value);
        [
            MemoryOperation::Write {
                word: word(self.offset),
                value,
                is_relaxed: false,
            },
            MemoryOperation::Wait {
                word: word(self.offset + 4),
                value,
                until: Until::AtLeast,
            },
        ]
    }
}

/// A function for which the stream itself asks.
struct Signalled {
    id: u64,
    pair: Pair,
    value: u32,
}

impl Signalled {
    /// Whether the word at `offset` has reached the function's number; they count around.
    fn has_passed(&self, offset: u64) -> bool {
        let count = words::load(&self.pair.window, offset);
        count.wrapping_sub(self.value).cast_signed() >= 0
    }

    fn is_reached(&self) -> bool {
        self.has_passed(self.pair.offset)
    }

    fn has_ended(&self) -> bool {
        self.has_passed(self.pair.offset + 4)
    }

    /// Lets the stream continue.
    fn end(&self) {
        words::store(&self.pair.window, self.pair.offset + 4, self.value);
    }
}

#[derive(Default)]
struct Table {
    functions: HashMap<u64, State>,
    /// In the order of their calls; those at the front have not ended.
    signalled: VecDeque<Signalled>,
    closed: bool,
}

impl Table {
    /// Whether the guest must still report completion.
    fn waits_for(&self, id: u64) -> bool {
        !self.closed && self.functions.get(&id) == Some(&State::Running)
    }

    /// Forgets functions that have ended.
    fn sweep(&mut self) {
        while self.signalled.front().is_some_and(Signalled::has_ended) {
            self.signalled.pop_front();
        }
    }

    /// The function with this number, if the stream asks for it and it has not ended.
    fn signalled(&self, id: u64) -> Option<&Signalled> {
        let mut all = self.signalled.iter();
        all.find(|function| function.id == id && !function.has_ended())
    }

    /// Whether another function may be queued under this number.
    fn check_new(&self, id: u64) -> Outcome<()> {
        if self.functions.contains_key(&id) || self.signalled(id).is_some() {
            return fail(
                Status::INVALID_VALUE,
                format!("host function {id} was launched already"),
            );
        }
        if self.functions.len() + self.signalled.len() >= MAX_QUEUED {
            return fail(Status::OUT_OF_MEMORY, "too many host functions are pending");
        }
        Ok(())
    }
}

/// The host functions of a session.
pub(crate) struct HostFunctions {
    table: Mutex<Table>,
    changed: Condvar,
    /// Number of functions in state `Running`; changed under the table's lock.
    running: AtomicUsize,
    /// Counts the events that may end a wait.
    changes: AtomicU64,
    sender: Arc<dyn Sender>,
    executed: Arc<AtomicU64>,
}

impl HostFunctions {
    pub(crate) fn new(sender: Arc<dyn Sender>, executed: Arc<AtomicU64>) -> Self {
        Self {
            table: Mutex::default(),
            changed: Condvar::new(),
            running: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            sender,
            executed,
        }
    }

    /// Whether the guest is running any for which it was asked by a frame, and so must report.
    pub(crate) fn need_report(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Whether the guest is running any.
    pub(crate) fn are_running(&self) -> bool {
        if self.need_report() {
            return true;
        }
        let table = self.table.lock();
        let mut signalled = table.signalled.iter();
        signalled.any(|function| function.is_reached() && !function.has_ended())
    }

    /// Whether none is queued or running.
    pub(crate) fn is_empty(&self) -> bool {
        let mut table = self.table.lock();
        table.sweep();
        table.functions.is_empty() && table.signalled.is_empty()
    }

    /// Whether it is queued or running.
    pub(crate) fn has(&self, id: u64) -> bool {
        let table = self.table.lock();
        !table.closed && (table.functions.contains_key(&id) || table.signalled(id).is_some())
    }

    /// Records a function that is about to be submitted.
    pub(crate) fn queue(&self, id: u64) -> Outcome<()> {
        let mut table = self.table.lock();
        table.check_new(id)?;
        table.functions.insert(id, State::Queued);
        Ok(())
    }

    /// The same, for a function for which the stream itself asks.
    pub(crate) fn queue_signalled(&self, id: u64, pair: Pair, value: u32) -> Outcome<()> {
        let mut table = self.table.lock();
        table.sweep();
        table.check_new(id)?;
        table.signalled.push_back(Signalled { id, pair, value });
        Ok(())
    }

    /// Removes a function that no stream will reach.
    pub(crate) fn remove(&self, id: u64) {
        let mut table = self.table.lock();
        table.signalled.retain(|function| function.id != id);
        if table.functions.remove(&id) == Some(State::Running) {
            self.running.fetch_sub(1, Ordering::Release);
        }
    }

    /// Has the guest run the function. Runs on a thread of the device.
    pub(crate) fn run(&self, id: u64) {
        {
            let mut table = self.table.lock();
            if table.closed {
                return;
            }
            if table.functions.insert(id, State::Running) != Some(State::Running) {
                self.running.fetch_add(1, Ordering::Release);
            }
        }
        let sent = self
            .sender
            .send(
                Control::HostFunc.kind(),
                0,
                Some(self.executed.load(Ordering::Relaxed)),
                &[&id.to_le_bytes()],
            )
            .map(drop);
        // If the connection is lost, the frame is resent over the next one.
        let _ = self.sender.flush();
        if sent.is_err() {
            // The session's thread detects the failure and ends the session.
            self.remove(id);
            return;
        }
        // Most functions are shorter than a wake-up.
        let mut spin = Spin::new(Polling::default().spin, None);
        let mut seen = 0;
        while spin.again() {
            let changes = self.changes.load(Ordering::Acquire);
            if changes != seen {
                seen = changes;
                if !self.table.lock().waits_for(id) {
                    return;
                }
            }
        }
        let mut table = self.table.lock();
        while table.waits_for(id) {
            self.changed.wait(&mut table);
        }
    }

    /// Wakes the waits to check their conditions.
    fn change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// Handles the guest's report of completion.
    pub(crate) fn done(&self, id: u64) -> Outcome<()> {
        let mut table = self.table.lock();
        if let Some(function) = table.signalled(id)
            && function.is_reached()
        {
            function.end();
            table.sweep();
            return Ok(());
        }
        match table.functions.get(&id) {
            Some(State::Running) => {
                table.functions.remove(&id);
                self.running.fetch_sub(1, Ordering::Release);
                drop(table);
                self.change();
                Ok(())
            }
            _ => fail(
                Status::INVALID_VALUE,
                format!("host function {id} was not requested"),
            ),
        }
    }

    /// Ends all current and future waits.
    pub(crate) fn close(&self) {
        let mut table = self.table.lock();
        table.closed = true;
        // In their order, so that the last one of a pair remains.
        table
            .signalled
            .drain(..)
            .for_each(|function| function.end());
        drop(table);
        self.change();
    }
}
