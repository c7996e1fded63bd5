//! Host functions: functions of the guest that run in stream order.
//!
//! When the stream reaches one, a device thread asks the guest to run it and blocks
//! until the guest reports completion, which stalls the stream. The end of the
//! session ends all these waits.

use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use paragpu_communicator::{Polling, Sender, Spin};
use paragpu_protocol::frame::Control;
use paragpu_protocol::status::Status;

use crate::error::{Outcome, fail};

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

#[derive(Debug, Default)]
struct Table {
    functions: HashMap<u64, State>,
    closed: bool,
}

impl Table {
    /// Whether the guest must still report completion.
    fn waits_for(&self, id: u64) -> bool {
        !self.closed && self.functions.get(&id) == Some(&State::Running)
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

    /// Whether the guest is running any.
    pub(crate) fn are_running(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Whether none is queued or running.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().functions.is_empty()
    }

    /// Whether it is queued or running.
    pub(crate) fn has(&self, id: u64) -> bool {
        let table = self.table.lock();
        !table.closed && table.functions.contains_key(&id)
    }

    /// Records a function that is about to be submitted.
    pub(crate) fn queue(&self, id: u64) -> Outcome<()> {
        let mut table = self.table.lock();
        if table.functions.contains_key(&id) {
            return fail(
                Status::INVALID_VALUE,
                format!("host function {id} was launched already"),
            );
        }
        if table.functions.len() >= MAX_QUEUED {
            return fail(Status::OUT_OF_MEMORY, "too many host functions are pending");
        }
        table.functions.insert(id, State::Queued);
        Ok(())
    }

    /// Removes a function that no stream will reach.
    pub(crate) fn remove(&self, id: u64) {
        let mut table = self.table.lock();
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
        self.table.lock().closed = true;
        self.change();
    }
}
