//! Lets several threads of one side wait on its only doorbell.

use std::time::Instant;

use paragpu_communicator::Error;

use crate::doorbell::{Doorbell, Event};
use crate::sync::{Condvar, Mutex, lock, wait};

/// Lets any number of threads wait for the doorbell: one of them sleeps in
/// the kernel, the others behind it, and all look again when it rang.
#[derive(Debug)]
pub(crate) struct Waiting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Counts rings and interruptions.
    epoch: u64,
    /// A thread sleeps in [`Doorbell::wait`].
    polling: bool,
}

impl Waiting {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                epoch: 0,
                polling: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// What to give to [`wait`](Self::wait): take it first, then look whether
    /// there is something to wait for.
    pub(crate) fn epoch(&self) -> u64 {
        lock(&self.state).epoch
    }

    /// Sleeps until the doorbell rang or [`interrupt`](Self::interrupt) was
    /// called since `epoch` was taken, or the deadline passed.
    pub(crate) fn wait(
        &self,
        bell: &dyn Doorbell,
        epoch: u64,
        deadline: Option<Instant>,
    ) -> Result<Event, Error> {
        let mut state = lock(&self.state);
        loop {
            // The bell rang after the caller took the epoch. What it looked at since
            // may be out of date, so it must look again instead of sleeping.
            if state.epoch != epoch {
                return Ok(Event::Rang);
            }
            if !state.polling {
                state.polling = true;
                drop(state);
                // Not under the lock: other threads must be able to queue up behind this
                // one, and `interrupt` to reach it.
                let event = bell.wait(deadline);
                state = lock(&self.state);
                state.polling = false;
                // This thread's deadline concerns no other; every other event does.
                if !matches!(event, Ok(Event::Deadline)) {
                    state.epoch += 1;
                }
                drop(state);
                // Also after a deadline: one of the others must take over the bell.
                self.changed.notify_all();
                return event;
            }
            let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(Event::Deadline);
            }
            state = wait(&self.changed, state, left);
        }
    }

    /// Makes every thread that waits look again.
    pub(crate) fn interrupt(&self, bell: &dyn Doorbell) {
        let mut state = lock(&self.state);
        // The epoch first: a thread that is not asleep yet sees it. The bell next:
        // a thread that sleeps in the kernel hears nothing else.
        state.epoch += 1;
        let polling = state.polling;
        drop(state);
        if polling {
            bell.interrupt();
        }
        self.changed.notify_all();
    }
}
