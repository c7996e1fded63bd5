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
//! Who may change it: the thread that reads (it holds the receiving half) sees
//! the order to move; the thread that repairs (it holds `Recovery::repair`)
//! begins and ends reconnecting; anybody ends the link. `Ended` is final.

use std::sync::atomic::{AtomicU32, Ordering};

use paragpu_protocol::status::Status;

use crate::error::Result;

/// The states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Frames go both ways.
    Connected,
    /// The host sends the session elsewhere; nobody reads until a
    /// thread has taken it there.
    MoveOrdered,
    /// A thread connects; the others wait.
    Reconnecting,
    /// Every call returns this from now on.
    Ended(Status),
}

const CONNECTED: u32 = 0;
const MOVE_ORDERED: u32 = 1;
const RECONNECTING: u32 = 2;
/// Set where the rest is the status that the link ended with.
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

/// The state, looked at by every call without a lock.
#[derive(Debug)]
pub(super) struct LinkState(AtomicU32);

impl LinkState {
    pub(super) const fn connected() -> Self {
        Self(AtomicU32::new(CONNECTED))
    }

    pub(super) fn get(&self) -> State {
        State::of(self.0.load(Ordering::Acquire))
    }

    /// Success unless the link has ended. As cheap as a call needs it: a call
    /// that sees the end late finds its sender closed.
    pub(super) fn check(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            number if number & ENDED == 0 => Ok(()),
            ended => Err(Status(ended & !ENDED)),
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        matches!(self.get(), State::Ended(_))
    }

    /// May a thread read frames? Not while the link is taken elsewhere.
    pub(super) fn may_read(&self) -> bool {
        self.get() == State::Connected
    }

    /// The host ordered a move. A thread that reconnects looks for orders
    /// itself before it is done.
    pub(super) fn order_move(&self) {
        self.change(|state| match state {
            State::Connected => Some(State::MoveOrdered),
            State::MoveOrdered | State::Reconnecting | State::Ended(_) => None,
        });
    }

    /// A thread connects again from now on.
    pub(super) fn begin_reconnecting(&self) {
        self.change(|state| match state {
            State::Ended(_) => None,
            _ => Some(State::Reconnecting),
        });
    }

    /// It is done; `must_move` where the host ordered a move that was not
    /// followed yet.
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
        self.0
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
        let state = LinkState::connected();
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
        let state = LinkState::connected();
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
