//! Replies, and the errors of calls that nobody waited for.

use paragpu_communicator::Sender;
use paragpu_device::Error;
use paragpu_protocol::codec::Field;
use paragpu_protocol::frame::{MAX_PAYLOAD, REPLY};
use paragpu_protocol::reply::{encode_done, encode_failed};
use paragpu_protocol::status::Status;

use crate::completion::{Goal, Pending, Then};
use crate::error::{End, Fault, Outcome};
use crate::session::Session;

/// Most bytes of the sentence that comes with an error.
const MOST_DETAIL: usize = 4096;

/// An error that waits for a call to be reported by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deferred {
    pub(crate) status: Status,
    /// Number of the call that failed.
    pub(crate) call: u16,
    pub(crate) detail: String,
}

impl Deferred {
    pub(crate) fn new(call: u16, error: &Error) -> Self {
        Self {
            status: error.status,
            call,
            detail: error.detail.clone(),
        }
    }
}

/// Whom a call's reply is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    /// 0: nobody waits.
    pub(crate) slot: u16,
    /// The call's number.
    pub(crate) call: u16,
}

/// What a call that may have to wait comes to.
#[derive(Debug)]
pub(crate) enum Progress {
    /// It is done.
    Now,
    /// It is done once the goal is reached and the rest executed.
    Later(Goal, Then),
}

/// Does this call's reply report the errors of earlier posted calls?
fn reports(call: u16) -> bool {
    paragpu_protocol::call::info(call).is_some_and(|info| info.reports)
}

impl Session {
    /// Notes an error that the device reported: a sticky one stays.
    pub(crate) fn note(&mut self, call: u16, error: &Error) {
        if error.status.is_sticky() && self.sticky.is_none() {
            tracing::info!(%error, call, "the session's context is lost");
            self.sticky = Some(Deferred::new(call, error));
        }
    }

    /// Keeps the error of a posted call: the first is reported.
    pub(crate) fn defer(&mut self, call: u16, error: &Error) {
        self.note(call, error);
        if self.deferred.is_none() {
            self.deferred = Some(Deferred::new(call, error));
        }
    }

    /// Sends the reply to a call that is over, or keeps its error. True where
    /// it succeeded; a stalled call is not over.
    pub(crate) fn answer<'a, T: Field<'a>>(
        &mut self,
        at: At,
        outcome: Outcome<T>,
    ) -> Result<bool, Fault> {
        match outcome {
            Ok(_) if at.slot == 0 => Ok(true),
            Ok(value) => {
                let mut out = std::mem::take(&mut self.out);
                out.clear();
                let earlier = if reports(at.call) {
                    self.take_error()
                } else {
                    None
                };
                let sent = match &earlier {
                    None => {
                        let tail = encode_done(&value, &mut out);
                        self.reply(at, &out, tail)
                    }
                    Some(error) => {
                        encode_failed(error.status, error.call, clip(&error.detail), &mut out);
                        self.reply(at, &out, &[])
                    }
                };
                self.out = out;
                sent?;
                Ok(true)
            }
            Err(Fault::Call(error)) => {
                if at.slot == 0 {
                    self.defer(at.call, &error);
                } else {
                    self.note(at.call, &error);
                    self.answer_failure(at, &Deferred::new(at.call, &error))?;
                }
                Ok(false)
            }
            Err(other) => Err(other),
        }
    }

    /// Replies with an error.
    pub(crate) fn answer_failure(&mut self, at: At, error: &Deferred) -> Result<(), End> {
        if at.slot == 0 {
            return Ok(());
        }
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        encode_failed(error.status, error.call, clip(&error.detail), &mut out);
        let sent = self.reply(at, &out, &[]);
        self.out = out;
        sent
    }

    /// Answers, or lets the call wait for its goal.
    pub(crate) fn progress(&mut self, at: At, outcome: Outcome<Progress>) -> Result<bool, Fault> {
        match outcome {
            Ok(Progress::Now) => self.answer(at, Ok(())),
            Ok(Progress::Later(goal, then)) => {
                self.wait_for(Pending { at, goal, then })?;
                Ok(true)
            }
            Err(fault) => self.answer::<()>(at, Err(fault)),
        }
    }

    /// The error to report now: the lasting one, else the first deferred one.
    fn take_error(&mut self) -> Option<Deferred> {
        let deferred = self.deferred.take();
        self.sticky.clone().or(deferred)
    }

    /// Sends a reply, after those that its slot waits for already.
    pub(crate) fn reply(&mut self, at: At, head: &[u8], tail: &[u8]) -> Result<(), End> {
        let queued = |pending: &Pending| pending.at.slot == at.slot;
        if !self.completing && self.pending.iter().any(queued) {
            let reply = [head, tail].concat();
            return self.wait_for(Pending {
                at,
                goal: Goal::Ready(reply),
                then: Then::Reply,
            });
        }
        self.send_reply(at, &[head, tail])
    }

    /// Sends a reply.
    pub(crate) fn send_reply(&mut self, at: At, payload: &[&[u8]]) -> Result<(), End> {
        self.ends(at.slot);
        let length: usize = payload.iter().map(|part| part.len()).sum();
        if length > MAX_PAYLOAD {
            let mut out = Vec::new();
            let detail = format!("the reply has {length} bytes");
            encode_failed(Status::NOT_SUPPORTED, at.call, &detail, &mut out);
            self.send(at.call | REPLY, at.slot, &[&out])
        } else {
            self.send(at.call | REPLY, at.slot, payload)
        }
    }

    /// Sends a frame.
    pub(crate) fn send(&mut self, kind: u16, slot: u16, payload: &[&[u8]]) -> Result<(), End> {
        self.sender
            .send(kind, slot, Some(self.executed()), payload)?;
        self.unflushed = true;
        Ok(())
    }
}

/// The detail, cut to a bearable length at a character's border.
fn clip(detail: &str) -> &str {
    let mut end = detail.len().min(MOST_DETAIL);
    while !detail.is_char_boundary(end) {
        end -= 1;
    }
    detail.get(..end).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_protocol::call::{Class, Effect};
    use paragpu_protocol::table::{CALLS, Call};

    #[test]
    fn reporting_calls_create_nothing() {
        let zeros = [0; 256];
        for info in CALLS.iter().filter(|info| reports(info.number)) {
            assert_eq!(info.class, Class::Synchronous, "{}", info.name);
            let call = (0..zeros.len())
                .find_map(|length| Call::decode(info.number, &zeros[..length]).ok())
                .unwrap();
            assert_eq!(call.effect(), Effect::None, "{}", info.name);
        }
        assert_eq!(CALLS.iter().filter(|info| reports(info.number)).count(), 9);
    }

    #[test]
    fn details_are_cut_between_characters() {
        assert_eq!(clip("short"), "short");
        let long = "é".repeat(MOST_DETAIL);
        assert!(clip(&long).len() <= MOST_DETAIL);
        let odd = format!("x{long}");
        assert_eq!(clip(&odd).len(), MOST_DETAIL - 1);
    }
}
