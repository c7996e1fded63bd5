//! Streams.

use paragpu_device::Work;
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{StreamQuery, StreamSignal, StreamSynchronize, StreamWaitEvent};

use crate::error::{Fault, Outcome, fail};
use crate::session::completion::{Continuation, Goal, Progress};
use crate::session::copies::Copies;
use crate::session::gpu::Gpu;
use crate::session::graph::NodeWork;
use crate::session::link::At;
use crate::session::objects::Objects;
use crate::session::replies::Replies;

impl Objects {
    pub(crate) fn stream_wait_event(
        &mut self,
        gpu: &mut Gpu,
        call: &StreamWaitEvent,
    ) -> Outcome<()> {
        let NodeWork { work, .. } = self.stream_wait_event_work(call)?;
        let stream = self.streams.for_work(gpu, call.stream)?;
        self.streams.wait(call.stream);
        Ok(gpu.submit(&work, stream)?)
    }

    pub(crate) fn stream_wait_event_work(
        &self,
        call: &StreamWaitEvent,
    ) -> Outcome<NodeWork<'static>> {
        Ok(Work::EventWait(self.events.id(call.event)?).into())
    }

    pub(crate) fn stream_synchronize(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        call: &StreamSynchronize,
    ) -> Outcome<Progress> {
        if self.is_over(gpu, replies, call.stream)? {
            return Ok(Progress::Now);
        }
        let wait = self.streams.begin_wait(call.stream)?;
        Ok(Progress::Later(Goal::Stream(wait), Continuation::Reply))
    }

    /// A wait that ends by clearing a word instead of by a reply.
    pub(crate) fn stream_signal(
        &mut self,
        gpu: &mut Gpu,
        copies: &mut Copies,
        replies: &mut Replies,
        at: At,
        call: &StreamSignal,
    ) -> Result<bool, Fault> {
        let token = call.token;
        if token == 0 || copies.tokens.check(token).is_err() {
            let why = format!("bulk token {token}");
            return replies.answer::<()>(gpu, at, fail(Status::INVALID_VALUE, why));
        }
        // An error is part of a reply, so the guest has to ask.
        if replies.errors.deferred().is_some() {
            copies.tokens.signal(token, false);
            return replies.answer(gpu, at, Ok(()));
        }
        let progress = self.until_signalled(gpu, copies, replies, call);
        if progress.is_err() {
            copies.tokens.signal(token, false);
        }
        replies.progress(gpu, at, progress)
    }

    /// Waits with a checked token. If the device clears the word itself, nothing is left
    /// to do here. A thread whose word stays set will ask, and so will one whose kernels
    /// printed: output is sent before a reply.
    fn until_signalled(
        &mut self,
        gpu: &mut Gpu,
        copies: &mut Copies,
        replies: &mut Replies,
        call: &StreamSignal,
    ) -> Outcome<Progress> {
        // The GPU clears the word sooner if it need not be asked first.
        let has_just_begun = self.streams.has_just_begun(gpu, call.stream);
        if !has_just_begun && self.streams.is_over(gpu, call.stream)? {
            let has_printed = replies.forward_output(gpu)?;
            copies.tokens.signal(call.token, !has_printed);
            return Ok(Progress::Now);
        }
        let may_have_output = replies.printing.may_print() || replies.link.has_unread_output();
        let streams = &mut self.streams;
        let id = streams.id(call.stream)?;
        let tokens = &mut copies.tokens;
        let is_alone = streams.is_alone(call.stream) && !may_have_output;
        if is_alone && tokens.clear_behind(gpu, id, call.token)? {
            replies.completion.leave_to_device(replies.link.executed());
            return Ok(Progress::Now);
        }
        let wait = streams.begin_wait(call.stream)?;
        Ok(Progress::Later(
            Goal::Stream(wait),
            Continuation::Signal(call.token),
        ))
    }

    /// Whether all work of the stream is complete. If so, its output is sent.
    fn is_over(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        stream: StreamHandle,
    ) -> Outcome<bool> {
        let over = self.streams.is_over(gpu, stream)?;
        if over {
            replies.forward_output(gpu)?;
        }
        Ok(over)
    }

    pub(crate) fn stream_query(
        &mut self,
        gpu: &mut Gpu,
        replies: &mut Replies,
        call: &StreamQuery,
    ) -> Outcome<()> {
        match self.is_over(gpu, replies, call.stream)? {
            true => Ok(()),
            false => Err(Status::NOT_READY.into()),
        }
    }
}
