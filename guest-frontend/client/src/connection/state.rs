//! The state of a session's link.
//!
//! ```text
//!               the host orders a move
//!   Connected --------------------------> MoveOrdered
//!    |  ^  |                                |   |
//!    |  |  | connection lost                |   | a reader notices,
//!    |  |  +------------------+             |   | or connection lost
//!    |  |                     v             |   |
//!    |  +--------------- Reconnecting <-----|---+
//!    |    connected,       |    ^           |
//!    |    or nothing to do |    +- connected, and the host ordered
//!    |                     |       another move meanwhile: MoveOrdered
//!    v                     v                v
//!  Ended(status): closed by the program, refused, or not found in time
//! ```
//!
//! The reading thread, which holds the receiving half, receives the order to move.
//! The thread that reconnects, which holds `Recovery::repair`, begins and ends
//! reconnecting. Any thread can end the link. `Ended` is final.

use std::sync::atomic::{AtomicU32, Ordering};

use paragpu_protocol::status::Status;

use crate::error::Result;

/// The states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Frames flow in both directions.
    Connected,
    /// The host ordered a move; no thread reads until one has reconnected there.
    MoveOrdered,
    /// A thread reconnects; the others wait.
    Reconnecting,
    /// Every call returns this from now on.
    Ended(Status),
}

const CONNECTED: u32 = 0;
const MOVE_ORDERED: u32 = 1;
const RECONNECTING: u32 = 2;
/// Set if the other bits are the status of an ended link.
const ENDED: u32 = 1 << 31;

impl State {
    const fn number(self) -> u32 {
        match self {
            Self::Connected => CONNECTED,
            Self::MoveOrdered => MOVE_ORDERED,
            Self::Reconnecting => RECONNECTING,
            Self::Ended(status) => ENDED | status.0,
        }
    }

    const fn of(number: u32) -> Self {
        match number {
            CONNECTED => Self::Connected,
            MOVE_ORDERED => Self::MoveOrdered,
            RECONNECTING => Self::Reconnecting,
            ended => Self::Ended(Status(ended & !ENDED)),
        }
    }
}

/// The state, which every call checks without a lock.
#[derive(Debug)]
pub(super) struct LinkState {
    number: AtomicU32,
    /// Whether its end is printed.
    announced: bool,
}

impl LinkState {
    /// The state of a new link, whose end is printed if `announced`.
    pub(super) const fn connected(announced: bool) -> Self {
        Self {
            number: AtomicU32::new(CONNECTED),
            announced,
        }
    }

    pub(super) const fn is_announced(&self) -> bool {
        self.announced
    }

    pub(super) fn get(&self) -> State {
        State::of(self.number.load(Ordering::Acquire))
    }

    /// Success unless the link has ended. A relaxed load suffices: a call that sees the
    /// end late finds its sender closed.
    pub(super) fn check(&self) -> Result<()> {
        match self.number.load(Ordering::Relaxed) {
            number if number & ENDED == 0 => Ok(()),
            ended => Err(Status(ended & !ENDED)),
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        matches!(self.get(), State::Ended(_))
    }

    /// Whether a thread may read frames. Not while a move is ordered or in
    /// progress.
    pub(super) fn may_read(&self) -> bool {
        self.get() == State::Connected
    }

    /// Records that the host ordered a move. A reconnecting thread checks for orders
    /// itself before it finishes.
    pub(super) fn order_move(&self) {
        self.change(|state| match state {
            State::Connected => Some(State::MoveOrdered),
            State::MoveOrdered | State::Reconnecting | State::Ended(_) => None,
        });
    }

    /// Notes that a thread begins to reconnect.
    pub(super) fn begin_reconnecting(&self) {
        self.change(|state| match state {
            State::Ended(_) => None,
            _ => Some(State::Reconnecting),
        });
    }

    /// Notes that reconnecting is done. `must_move` if the host ordered another
    /// move meanwhile.
    pub(super) fn end_reconnecting(&self, must_move: bool) {
        self.change(|state| match state {
            State::Reconnecting if must_move => Some(State::MoveOrdered),
            State::Reconnecting => Some(State::Connected),
            State::Connected | State::MoveOrdered | State::Ended(_) => None,
        });
    }

    /// Ends the link.
    ///
    /// # Errors
    /// The status with which it had already ended.
    pub(super) fn end(&self, status: Status) -> Result<()> {
        let ended = |state| match state {
            State::Ended(_) => None,
            _ => Some(State::Ended(status)),
        };
        match self.try_change(ended) {
            Ok(()) => Ok(()),
            Err(State::Ended(earlier)) => Err(earlier),
            Err(_) => Ok(()),
        }
    }

    fn change(&self, to: impl Fn(State) -> Option<State>) {
        let _ = self.try_change(to);
    }

    fn try_change(&self, to: impl Fn(State) -> Option<State>) -> Result<(), State> {
        let to = |number| to(State::of(number)).map(State::number);
        self.number
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, to)
            .map(|_| ())
            .map_err(State::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_final() {
        let state = LinkState::connected(true);
        assert_eq!(state.end(Status::LAUNCH_FAILED), Ok(()));
        state.order_move();
        state.begin_reconnecting();
        state.end_reconnecting(true);
        assert_eq!(state.get(), State::Ended(Status::LAUNCH_FAILED));
        assert_eq!(state.end(Status::DEINITIALIZED), Err(Status::LAUNCH_FAILED));
        assert_eq!(state.check(), Err(Status::LAUNCH_FAILED));
    }

    #[test]
    fn a_move_that_is_ordered_while_reconnecting_is_made_after() {
        let state = LinkState::connected(true);
        state.begin_reconnecting();
        state.order_move();
        assert_eq!(state.get(), State::Reconnecting);
        state.end_reconnecting(true);
        assert_eq!(state.get(), State::MoveOrdered);
        assert!(!state.may_read());
        state.begin_reconnecting();
        state.end_reconnecting(false);
        assert!(state.may_read());
    }
}
