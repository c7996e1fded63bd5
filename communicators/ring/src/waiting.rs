//! Lets several threads of one side wait on its only doorbell.

use std::time::Instant;

use paragpu_communicator::Error;

use crate::doorbell::{Doorbell, Event};
use crate::sync::{Condvar, Mutex, lock, wait};

/// Lets any number of threads wait for the doorbell. One of them sleeps in the kernel, the
/// others on a condition variable, and all check again when it rings.
#[derive(Debug)]
pub(crate) struct Waiting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Counts rings and interruptions.
    epoch: u64,
    /// Whether a thread is in [`Doorbell::wait`].
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

    /// The epoch to pass to [`wait`](Self::wait). Read it first, then check whether there
    /// is something to wait for.
    pub(crate) fn epoch(&self) -> u64 {
        lock(&self.state).epoch
    }

    /// Sleeps until the doorbell rings or [`interrupt`](Self::interrupt) is called, also if
    /// that was since `epoch` was read, or until the deadline.
    pub(crate) fn wait(
        &self,
        bell: &dyn Doorbell,
        epoch: u64,
        deadline: Option<Instant>,
    ) -> Result<Event, Error> {
        let mut state = lock(&self.state);
        loop {
            // The bell rang after the caller read the epoch. What it has checked since may
            // be out of date, so it must check again instead of sleeping.
            if state.epoch != epoch {
                return Ok(Event::Rang);
            }
            if !state.polling {
                state.polling = true;
                drop(state);
                // Without the lock, so that other threads can queue behind this one, and
                // `interrupt` can reach it.
                let event = bell.wait(deadline);
                state = lock(&self.state);
                state.polling = false;
                // Only this thread's deadline does not concern the others.
                if !matches!(event, Ok(Event::Deadline)) {
                    state.epoch += 1;
                }
                drop(state);
                // Also after a deadline, because one of the others must take over the bell.
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

    /// Makes all waiting threads check again.
    pub(crate) fn interrupt(&self, bell: &dyn Doorbell) {
        let mut state = lock(&self.state);
        // The epoch first, for a thread that is about to sleep. The bell next, because a
        // thread that sleeps in the kernel notices nothing else.
        state.epoch += 1;
        let polling = state.polling;
        drop(state);
        if polling {
            bell.interrupt();
        }
        self.changed.notify_all();
    }
}
