//! The session's turn on a GPU with shares ([`paragpu_control::turn`]): the daemon's
//! messages, and how the session obeys them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paragpu_control::turn::{Plea, Turn};
use parking_lot::{Condvar, Mutex};

/// Where the session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    /// Launches wait.
    Away,
    /// The same, and the daemon knows that there are some.
    Wanted,
    /// The daemon believes so, but nothing is launched for a while: a turn that
    /// comes goes back at once.
    Left,
    /// It launches.
    Ours,
    /// It launches until then.
    Ends(Instant),
}

/// The session's turn. The default never needs one.
pub struct Turns {
    paced: AtomicBool,
    stand: Mutex<Stand>,
    changed: Condvar,
    say: Box<dyn Fn(Plea) + Send + Sync>,
}

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turns")
            .field("paced", &self.is_paced())
            .field("stand", &self.stand())
            .finish_non_exhaustive()
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self::new(drop)
    }
}

impl Turns {
    /// Turns that are asked for with `say`.
    pub fn new(say: impl Fn(Plea) + Send + Sync + 'static) -> Self {
        Self {
            paced: AtomicBool::new(false),
            stand: Mutex::new(Stand::Away),
            changed: Condvar::new(),
            say: Box::new(say),
        }
    }

    /// Do launches need a turn? One relaxed load: it is asked at each launch.
    pub(crate) fn is_paced(&self) -> bool {
        self.paced.load(Ordering::Relaxed)
    }

    pub(crate) fn stand(&self) -> Stand {
        *self.stand.lock()
    }

    /// Waits until the turn is the session's, at most so long.
    pub(crate) fn wait(&self, until: Instant) {
        let mut stand = self.stand.lock();
        let waits = |stand: &mut Stand| self.is_paced() && *stand == Stand::Wanted;
        self.changed.wait_while_until(&mut stand, waits, until);
    }

    /// The daemon says something.
    pub fn hear(&self, turn: Turn) {
        let mut stand = self.stand.lock();
        match turn {
            Turn::Paced | Turn::Free => {
                *stand = Stand::Away;
                self.paced.store(turn == Turn::Paced, Ordering::Relaxed);
            }
            Turn::Yours if *stand == Stand::Left => {
                *stand = Stand::Away;
                (self.say)(Plea::Over);
            }
            Turn::Yours => *stand = Stand::Ours,
            Turn::Ends(within) => {
                let end = Instant::now() + Duration::from_micros(within);
                match *stand {
                    Stand::Ours => *stand = Stand::Ends(end),
                    Stand::Ends(earlier) => *stand = Stand::Ends(earlier.min(end)),
                    // The turn is over already.
                    Stand::Away | Stand::Wanted | Stand::Left => {}
                }
            }
        }
        self.changed.notify_all();
    }

    /// A call asks to launch when it is not the session's turn.
    pub(crate) fn want(&self) {
        let mut stand = self.stand.lock();
        match *stand {
            Stand::Away => {
                *stand = Stand::Wanted;
                (self.say)(Plea::Wanted);
            }
            Stand::Left => *stand = Stand::Wanted,
            Stand::Wanted | Stand::Ours | Stand::Ends(_) => {}
        }
    }

    /// The turn is over, and all that was launched in it.
    pub(crate) fn give_up(&self) {
        let mut stand = self.stand.lock();
        if matches!(*stand, Stand::Ours | Stand::Ends(_)) {
            *stand = Stand::Away;
            (self.say)(Plea::Over);
        }
    }

    /// Nothing is launched for a while, and nothing that was runs any more.
    pub(crate) fn leave(&self) {
        self.give_up();
        let mut stand = self.stand.lock();
        if *stand == Stand::Wanted {
            *stand = Stand::Left;
        }
    }
}
