//! Sends replies.

use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::Field;
use paragpu_protocol::reply::{encode_done, encode_failed};
use paragpu_protocol::table::Launch;

use crate::calls::handler;
use crate::error::{Fault, Outcome, SessionEnd};
use crate::session::completion::{Continuation, Goal, Pending, Progress};
use crate::session::errors::Deferred;
use crate::session::gpu::Gpu;
use crate::session::link::At;
use crate::session::replies::Replies;

/// Maximum length of an error's detail, in bytes.
const MAX_DETAIL: usize = 4096;

impl Replies {
    /// Sends the reply to a completed call. The error of a posted call is stored for a
    /// later one. Returns whether the call succeeded; a stalled call is not complete.
    pub(crate) fn answer<'a, T: Field<'a>>(
        &mut self,
        gpu: &mut Gpu,
        at: At,
        outcome: Outcome<T>,
    ) -> Result<bool, Fault> {
        match outcome {
            Ok(_) if at.slot == 0 => Ok(true),
            Ok(value) => {
                self.gather_failure(gpu);
                self.forward_last_words(gpu)?;
                let mut out = self.link.take_buffer();
                let earlier = if handler(at.call).is_some_and(|handler| handler.info.reports) {
                    self.errors.take()
                } else {
                    None
                };
                let sent = match &earlier {
                    None => {
                        let tail = encode_done(&value, &mut out);
                        self.send(at, &out, tail)
                    }
                    Some(error) => {
                        encode_failed(error.status, error.call, clip(&error.detail), &mut out);
                        self.send(at, &out, &[])
                    }
                };
                self.link.keep_buffer(out);
                sent?;
                Ok(true)
            }
            Err(Fault::Call(error)) => {
                if at.slot == 0 {
                    self.errors.defer(at.call, &error);
                } else {
                    self.errors.note(at.call, &error);
                }
                self.forward_last_words(gpu)?;
                self.fail(at, &Deferred::new(at.call, &error))?;
                Ok(false)
            }
            Err(other) => Err(other),
        }
    }

    /// Once the context is lost, sends what its kernels wrote, before the first reply that
    /// says so: a failed assertion's message, for one.
    fn forward_last_words(&mut self, gpu: &mut Gpu) -> Result<(), SessionEnd> {
        match self.errors.became_sticky() {
            true => self.printing.forward_all(gpu, &mut self.link),
            false => Ok(()),
        }
    }

    /// Keeps the error of a launch that a lane submitted.
    pub(crate) fn gather_failure(&mut self, gpu: &mut Gpu) {
        if let Some(error) = gpu.take_failure() {
            self.errors.defer(Launch::INFO.number, &error);
        }
    }

    /// Replies with an error.
    pub(crate) fn fail(&mut self, at: At, error: &Deferred) -> Result<(), SessionEnd> {
        if at.slot == 0 {
            return Ok(());
        }
        let mut out = self.link.take_buffer();
        encode_failed(error.status, error.call, clip(&error.detail), &mut out);
        let sent = self.send(at, &out, &[]);
        self.link.keep_buffer(out);
        sent
    }

    /// Answers the call, or makes it pending until its goal is reached.
    pub(crate) fn progress(
        &mut self,
        gpu: &mut Gpu,
        at: At,
        outcome: Outcome<Progress>,
    ) -> Result<bool, Fault> {
        match outcome {
            Ok(Progress::Now) => self.answer(gpu, at, Ok(())),
            Ok(Progress::Later(goal, then)) => {
                self.completion.push(Pending { at, goal, then })?;
                Ok(true)
            }
            Err(fault) => self.answer::<()>(gpu, at, Err(fault)),
        }
    }

    /// Sends a reply, behind the pending replies of its slot.
    pub(crate) fn send(&mut self, at: At, head: &[u8], tail: &[u8]) -> Result<(), SessionEnd> {
        if self.completion.is_behind(at.slot) {
            let reply = [head, tail].concat();
            return self.completion.push(Pending {
                at,
                goal: Goal::Ready(reply),
                then: Continuation::Reply,
            });
        }
        self.link.send_reply(at, &[head, tail])
    }

    /// Reports a failed transfer, so that no other call reports it.
    pub(crate) fn fail_transfer(&mut self, at: At, error: &Deferred) -> Result<(), SessionEnd> {
        self.errors.reported(error);
        self.fail(at, error)
    }

    /// Answers a call that is no longer pending.
    pub(crate) fn finish<'a, T: Field<'a>>(
        &mut self,
        gpu: &mut Gpu,
        at: At,
        outcome: Outcome<T>,
    ) -> Result<(), SessionEnd> {
        match self.answer(gpu, at, outcome) {
            Ok(_) | Err(Fault::Call(_) | Fault::Stall) => Ok(()),
            Err(Fault::End(end)) => Err(end),
        }
    }

    /// Sends new kernel output. Returns whether a thread whose wait is over must ask, so that it
    /// reads what was sent.
    pub(crate) fn forward_output(&mut self, gpu: &mut Gpu) -> Result<bool, SessionEnd> {
        self.printing.forward(gpu, &mut self.link)?;
        Ok(self.link.has_unread_output())
    }
}

/// Truncates the detail to its maximum length at a character boundary.
fn clip(detail: &str) -> &str {
    let mut end = detail.len().min(MAX_DETAIL);
    while !detail.is_char_boundary(end) {
        end -= 1;
    }
    detail.get(..end).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_truncated_between_characters() {
        assert_eq!(clip("short"), "short");
        let long = "é".repeat(MAX_DETAIL);
        assert!(clip(&long).len() <= MAX_DETAIL);
        let odd = format!("x{long}");
        assert_eq!(clip(&odd).len(), MAX_DETAIL - 1);
    }
}
