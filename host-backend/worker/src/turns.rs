//! The session's turn on a GPU with shares, by the daemon's messages
//! ([`paragpu_control::turn`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paragpu_control::turn::{Turn, TurnRequest};
use parking_lot::{Condvar, Mutex};

/// The state of the session's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnState {
    /// Not its turn: launches wait.
    Away,
    /// Not its turn, and the daemon knows that launches wait.
    Wanted,
    /// The daemon knows that launches waited, but none wait now: a turn is returned
    /// immediately.
    Left,
    /// Its turn: it launches.
    Ours,
    /// Its turn until this time.
    Ends(Instant),
    /// Its turn is over for others: what it launched waits for the program.
    Passed,
    /// The same, or a kernel still runs long after its turn; and the daemon knows that launches
    /// wait.
    Late,
}

/// The session's turn. By default the session needs none.
pub struct Turns {
    paced: AtomicBool,
    state: Mutex<TurnState>,
    changed: Condvar,
    send: Box<dyn Fn(TurnRequest) + Send + Sync>,
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns")
            .field("paced", &self.is_paced())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self::new(drop)
    }
}

impl Turns {
    /// Turns that are requested with `request`.
    pub fn new(request: impl Fn(TurnRequest) + Send + Sync + 'static) -> Self {
        Self {
            paced: AtomicBool::new(false),
            state: Mutex::new(TurnState::Away),
            changed: Condvar::new(),
            send: Box::new(request),
        }
    }

    /// Whether launches need a turn. A single relaxed load, because it is on the path of
    /// each launch.
    pub(crate) fn is_paced(&self) -> bool {
        self.paced.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> TurnState {
        *self.state.lock()
    }

    /// Waits for a turn, until a deadline.
    pub(crate) fn wait(&self, until: Instant) {
        let mut state = self.state.lock();
        let waits = |state: &mut TurnState| self.is_paced() && *state == TurnState::Wanted;
        self.changed.wait_while_until(&mut state, waits, until);
    }

    /// Handles a message of the daemon.
    pub fn handle(&self, turn: Turn) {
        let mut state = self.state.lock();
        match turn {
            Turn::Paced | Turn::Free => {
                *state = TurnState::Away;
                self.paced.store(turn == Turn::Paced, Ordering::Relaxed);
            }
            Turn::Yours if *state == TurnState::Left => {
                *state = TurnState::Away;
                (self.send)(TurnRequest::Over);
            }
            Turn::Yours => *state = TurnState::Ours,
            Turn::Ends(within) => {
                let end = Instant::now() + Duration::from_micros(within);
                match *state {
                    TurnState::Ours => *state = TurnState::Ends(end),
                    TurnState::Ends(earlier) => *state = TurnState::Ends(earlier.min(end)),
                    // The turn has already ended.
                    TurnState::Away
                    | TurnState::Wanted
                    | TurnState::Left
                    | TurnState::Passed
                    | TurnState::Late => {}
                }
            }
        }
        self.changed.notify_all();
    }

    /// Requests a turn for a launch that has to wait.
    pub(crate) fn request(&self) {
        let mut state = self.state.lock();
        match *state {
            TurnState::Away => {
                *state = TurnState::Wanted;
                (self.send)(TurnRequest::Wanted);
            }
            TurnState::Left => *state = TurnState::Wanted,
            TurnState::Wanted
            | TurnState::Ours
            | TurnState::Ends(_)
            | TurnState::Passed
            | TurnState::Late => {}
        }
    }

    /// Has others launch, because all launched work waits for the program.
    pub(crate) fn pass(&self) {
        let mut state = self.state.lock();
        if matches!(*state, TurnState::Ends(_)) {
            *state = TurnState::Passed;
            (self.send)(TurnRequest::Waits);
        }
    }

    /// Requests another turn while work of the last one is not complete. The daemon must have
    /// let others launch, by [`pass`](Self::pass) or since
    /// [`OVERRUN`](paragpu_control::turn::OVERRUN).
    pub(crate) fn request_again(&self) {
        let mut state = self.state.lock();
        if matches!(*state, TurnState::Ends(_) | TurnState::Passed) {
            *state = TurnState::Late;
            (self.send)(TurnRequest::Wanted);
        }
    }

    /// Returns the turn after everything launched in it is complete.
    pub(crate) fn give_up(&self) {
        let mut state = self.state.lock();
        if matches!(
            *state,
            TurnState::Ours | TurnState::Ends(_) | TurnState::Passed | TurnState::Late
        ) {
            *state = TurnState::Away;
            (self.send)(TurnRequest::Over);
        }
    }

    /// Returns the turn because the session is idle.
    pub(crate) fn leave(&self) {
        self.give_up();
        let mut state = self.state.lock();
        if *state == TurnState::Wanted {
            *state = TurnState::Left;
        }
    }
}
