//! The order to a worker to move its session.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use paragpu_communicator_secure::Credentials;
use paragpu_control::worker::{Migrate, ToWorker};
use paragpu_protocol::codec::Text;
use paragpu_protocol::handshake::{Arrive, MAGIC, VERSION};

use super::token::token;
use crate::link::{Destination, Links, announce};
use crate::session::Session;

/// The destination and options of a move.
#[derive(Debug)]
pub(super) struct MoveOptions {
    pub(super) place: Destination,
    /// It is another daemon.
    pub(super) elsewhere: bool,
    pub(super) local: bool,
    pub(super) wanted: u32,
    pub(super) communicator: String,
    pub(super) precopy: bool,
    pub(super) hand_over: bool,
}

/// What a session needs to join the move of its VM.
#[derive(Debug)]
pub(super) struct Joining {
    pub(super) vm: String,
    pub(super) options: MoveOptions,
    /// The ends of the gates that sessions read.
    pub(super) gates: [OwnedFd; 3],
}

/// The order, and the link to the destination that comes with it.
#[derive(Debug)]
pub(super) struct Departure<'a> {
    pub(super) message: ToWorker,
    link: OwnedFd,
    gates: Option<&'a [OwnedFd; 3]>,
}

impl Departure<'_> {
    /// The descriptors for the message.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let gates = self.gates.into_iter().flatten();
        let all = std::iter::once(&self.link).chain(gates);
        all.map(|fd| fd.as_fd()).collect()
    }
}

impl MoveOptions {
    /// Announces a session to the destination, without waiting.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn announce<'a>(
        &self,
        session: &mut Session,
        links: &Links,
        tls: Option<&Credentials>,
        gates: Option<&'a [OwnedFd; 3]>,
    ) -> Result<Departure<'a>, String> {
        if session.token == [0; 16] && !self.elsewhere {
            session.mark = token();
        }
        let facts = &session.facts;
        // The connection is handed over if possible.
        let follows = match (self.local, self.communicator.as_str()) {
            (true, wanted) if facts.communicator == wanted => "",
            (false, "") => "tcp",
            (_, wanted) => wanted,
        };
        let link = links.open(&self.place, tls)?;
        let arrive = Arrive {
            magic: MAGIC,
            version: VERSION,
            vm: Text(&facts.vm),
            device: facts.ordinal,
            token: match self.elsewhere {
                true => session.token,
                false => session.identity(),
            },
            guest_pid: facts.guest_pid,
            communicator: Text(&facts.communicator),
            follows: Text(follows),
            wanted: self.wanted,
            expires: facts.expires.unwrap_or(0),
        };
        announce(&link, &arrive, &self.place)?;
        let message = ToWorker::Migrate(Migrate {
            local: self.local,
            here: !self.elsewhere,
            held: gates.is_some(),
            follows: follows.to_owned(),
            precopy: self.precopy,
            hand_over: self.hand_over,
        });
        Ok(Departure {
            message,
            link,
            gates,
        })
    }
}
