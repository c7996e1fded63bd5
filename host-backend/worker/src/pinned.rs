//! Pinned memory at a window's addresses, in a window and without one.
//!
//! A session that goes where its window cannot, to another host or into a
//! directory, has memory of its own at the same addresses from then on, in
//! *shadows* ([`crate::shadow`]) like pinned memory of sessions that never had
//! a window. What is in it the guest knows, at the very moment at which it goes
//! over to the new connection: it sends that first, and nothing is executed
//! before. So no daemon carries it, and what the program writes until then is
//! not lost.

use std::time::{Duration, Instant};

use paragpu_communicator::{Error as TravelError, Receiver, Sender as _, Wait};
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::{CONTROL, Control};

use crate::error::{End, Fault};
use crate::session::Session;
use crate::transfer::state::StateError;

/// Longest silence of a guest that sends what it has pinned.
const SILENCE: Duration = Duration::from_secs(60);

/// Where the contents of pinned memory at a window's addresses are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Pinned {
    /// In the window, which guest and worker share; or there is neither.
    #[default]
    Window = 0,
    /// With the guest, which is to send them; here are zeros.
    Guest = 1,
    /// Here, and the guest has a copy.
    Here = 2,
}

impl Pinned {
    /// By its number in a state.
    ///
    /// # Errors
    /// [`StateError::Order`] for a number that is none.
    pub fn of(number: u8) -> Result<Self, StateError> {
        Ok(match number {
            0 => Self::Window,
            1 => Self::Guest,
            2 => Self::Here,
            _ => return Err(StateError::Order("pinned memory at an unknown place")),
        })
    }
}

/// What a guest that connects again finds at its window's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing.
    Nothing,
    /// The window that it has.
    Window,
    /// Memory of the host's own that lacks what the guest has there.
    Wanting,
    /// Memory of the host's own.
    Copies,
}

impl Session {
    /// What a guest that connects again is told.
    pub(crate) fn sharing(&self) -> Sharing {
        match self.pinned {
            Pinned::Window if self.window.is_some() => Sharing::Window,
            Pinned::Window => Sharing::Nothing,
            Pinned::Guest => Sharing::Wanting,
            Pinned::Here => Sharing::Copies,
        }
    }

    /// Where pinned memory will be once the session has left its window.
    pub(crate) fn pinned_without_window(&self) -> Pinned {
        match self.pinned {
            Pinned::Window if self.window.is_some() => Pinned::Guest,
            other => other,
        }
    }

    /// The session, which comes, has no window, and its pinned memory is
    /// `pinned`.
    pub(crate) fn leave_window(&mut self, pinned: Pinned) {
        if pinned != Pinned::Window {
            self.pinned = pinned;
            self.tokens.leave_window();
        }
    }

    /// Can memory at a window's addresses be pinned?
    pub(crate) fn has_pinned(&self) -> bool {
        self.window.is_some() || self.pinned != Pinned::Window
    }

    /// Takes in what a guest that came has pinned, where that is lacking.
    pub(crate) fn await_pinned(&mut self, receiver: &mut dyn Receiver) -> Result<(), End> {
        let kind = Control::Pinned.kind();
        while self.pinned == Pinned::Guest {
            let deadline = Instant::now() + SILENCE;
            let Some(frame) = receiver.receive(Wait::Until(deadline))? else {
                if Instant::now() < deadline {
                    continue;
                }
                return Err(TravelError::Closed.into());
            };
            if frame.header.kind != kind {
                if frame.header.kind < CONTROL {
                    return Err(End::Kind(frame.header.kind));
                }
                self.take(frame.header, frame.payload)?;
                continue;
            }
            let mut reader = Reader::new(frame.payload);
            let address: u64 = reader.field().map_err(|source| End::Malformed {
                name: "Pinned",
                number: kind,
                source,
            })?;
            let bytes = reader.bytes(reader.remaining()).unwrap_or_default();
            if bytes.is_empty() {
                self.pinned = Pinned::Here;
                self.send(kind, 0, &[])?;
                self.sender.flush()?;
            } else {
                self.shadow_run(address, bytes)
                    .map_err(|fault| match fault {
                        Fault::End(end) => end,
                        _ => End::Pinned(address),
                    })?;
            }
        }
        Ok(())
    }
}
