//! Lets the program have memory that it has freed and that the destination still maps, when a
//! call lacks memory. Otherwise the destination keeps it until the next round.

use super::Source;
use super::peer::Peer;
use crate::session::Session;
use crate::transfer::state::{Kind, StateError};

impl Peer {
    /// Has the destination let go of the memory at these addresses. It answers.
    fn free(&mut self, addresses: Vec<u8>) -> Result<(), StateError> {
        self.expects_answer();
        if let Ok(writer) = self.writer() {
            writer.put(Kind::Freed, &[&addresses])?;
            return writer.flush();
        }
        self.stage()?.run(move |writer| {
            writer.put(Kind::Freed, &[&addresses])?;
            writer.flush()
        });
        Ok(())
    }
}

impl Source {
    /// Has the destination let go of freed memory if a call lacks memory. Returns true until it
    /// has. No other answer may be due meanwhile.
    pub(super) fn relieve(&mut self, session: &mut Session) -> Result<bool, StateError> {
        if self.shared.is_letting_go {
            if !self.peer.has_answer()? {
                return Ok(true);
            }
            self.peer.take(Kind::Ready)?;
            self.shared.is_letting_go = false;
            session.transfer.shortage.let_go();
            tracing::debug!("the destination has let go of freed memory, which a call lacks");
        }
        if !session.transfer.shortage.is_awaited() {
            return Ok(false);
        }
        self.peer.free(self.shared.let_go(session))?;
        self.shared.is_letting_go = true;
        Ok(true)
    }

    /// The same for a stopped session, which has nothing else to do.
    pub(super) fn relieve_now(&mut self, session: &mut Session) -> Result<(), StateError> {
        while self.relieve(session)? {
            self.peer.await_answer()?;
        }
        Ok(())
    }
}
