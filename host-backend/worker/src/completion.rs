//! Answers pending calls whose goals are reached.

use paragpu_protocol::handle::ObjectKind;

use crate::error::{Fault, Outcome, SessionEnd};
use crate::session::Session;
use crate::session::completion::{Continuation, Goal, Pending};

impl Session {
    /// Answers the pending calls whose goals are reached, in order within a slot.
    /// Returns whether there were any.
    pub(crate) fn complete(&mut self) -> Result<bool, SessionEnd> {
        let (mut moved, error) = self
            .copies
            .tokens
            .poll(&mut self.gpu, &mut self.objects.streams);
        if let Some((call, error)) = error {
            self.replies.errors.defer(call, &error);
        }
        let mut index = 0;
        while let Some(mut this) = self.replies.completion.take_from(&mut index) {
            let finished = match self.reached(&mut this) {
                Ok(false) => {
                    self.replies.completion.put_back(&mut index, this);
                    continue;
                }
                Err(Fault::End(end)) => return Err(end),
                Ok(true) => {
                    self.replies.completion.set_answering(true);
                    self.finish(this)
                }
                Err(fault) => {
                    self.replies.completion.set_answering(true);
                    self.abandon(this, fault)
                }
            };
            moved = true;
            self.replies.completion.set_answering(false);
            finished?;
        }
        let completion = &self.replies.completion;
        completion.count();
        let waits_for = |event| completion.waits_for(event);
        self.objects.events.end_waits(&mut self.gpu, waits_for);
        Ok(moved)
    }

    fn reached(&mut self, pending: &mut Pending) -> Outcome<bool> {
        Ok(match &mut pending.goal {
            Goal::Event(event, _) => self.gpu.event_query(*event)?,
            Goal::Fence(fence) => fence.passed(&mut self.gpu)?,
            Goal::Token(token) => !self.copies.tokens.is_in_flight(*token),
            Goal::CopyOut(copy) => {
                let outbound = self.copies.outbound_of(copy.stream());
                let (gpu, host) = (&mut self.gpu, &mut self.host);
                let before = copy.issued();
                let over = copy.step(pending.at, gpu, outbound, host, &mut self.replies.link);
                if copy.issued() != before {
                    self.objects.streams.received(copy.stream());
                }
                over?
            }
            Goal::CopyIn(copy) => {
                let before = copy.issued();
                let over = copy.step(
                    &mut self.gpu,
                    &mut self.copies.inbound,
                    self.host.pages(),
                    &self.copies.statistics,
                );
                if copy.issued() != before {
                    self.objects.streams.received(copy.stream());
                }
                over?
            }
            Goal::Stream(wait) => {
                let over = self.objects.streams.passed(&mut self.gpu, wait)?;
                if over {
                    self.objects.streams.end_wait(&mut self.gpu, wait);
                }
                over
            }
            Goal::Ready(_) | Goal::Behind(..) => true,
        })
    }

    fn finish(&mut self, pending: Pending) -> Result<(), SessionEnd> {
        let has_printed = self.replies.forward_output(&mut self.gpu)?;
        if let Goal::Ready(reply) = &pending.goal {
            return self.replies.link.send_reply(pending.at, &[reply]);
        }
        if let Goal::Behind(_, ranges) = &pending.goal {
            let mut runs = Vec::new();
            let changes = self.host.changes(ranges, &mut runs);
            return self.replies.finish(&mut self.gpu, pending.at, changes);
        }
        let outcome = match pending.then {
            Continuation::Reply => Ok(()),
            Continuation::Signal(token) => {
                // The guest reads output before a reply, so it has to ask.
                self.copies.tokens.signal(token, !has_printed);
                Ok(())
            }
            Continuation::HostUnmap(offset) => self.host.unpin(&mut self.gpu, offset),
            Continuation::ShadowDestroy(address) => self.host.drop_shadow(&mut self.gpu, address),
            Continuation::FileUnmap(address) => self.host.unmap_file(&mut self.gpu, address),
        };
        if let Goal::Token(token) = pending.goal
            && let Some(error) = self.copies.tokens.take_failure(token)
        {
            return self.replies.fail_transfer(pending.at, &error);
        }
        self.replies.finish(&mut self.gpu, pending.at, outcome)
    }

    /// Called if the goal will not be reached. Runs the rest of the call as far as
    /// possible, to free the call's resources.
    fn abandon(&mut self, pending: Pending, fault: Fault) -> Result<(), SessionEnd> {
        self.replies.forward_output(&mut self.gpu)?;
        match pending.then {
            Continuation::Reply => {}
            Continuation::Signal(token) => self.copies.tokens.signal(token, false),
            Continuation::HostUnmap(offset) => {
                let _ = self.host.unpin(&mut self.gpu, offset);
                self.objects.live.discard((ObjectKind::HostMemory, offset));
            }
            Continuation::ShadowDestroy(address) => {
                let _ = self.host.drop_shadow(&mut self.gpu, address);
                self.objects.live.discard((ObjectKind::Shadow, address));
            }
            Continuation::FileUnmap(address) => {
                let _ = self.host.unmap_file(&mut self.gpu, address);
            }
        }
        match pending.goal {
            Goal::CopyOut(copy) => copy.abandon(&mut self.gpu),
            Goal::CopyIn(copy) => copy.abandon(&mut self.gpu),
            Goal::Stream(wait) => self.objects.streams.end_wait(&mut self.gpu, &wait),
            _ => {}
        }
        self.replies
            .finish::<()>(&mut self.gpu, pending.at, Err(fault))
    }
}
