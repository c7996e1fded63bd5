//! Streams.

use paragpu_device::Work;
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{StreamQuery, StreamSignal, StreamSynchronize, StreamWaitEvent};

use crate::error::{Fault, Outcome, fail};
use crate::session::Session;
use crate::session::completion::{Continuation, Goal, Progress};
use crate::session::gpu::Gpu;
use crate::session::graph::NodeWork;
use crate::session::link::At;
use crate::session::objects::Objects;

impl Objects {
    pub(crate) fn stream_wait_event(
        &mut self,
        gpu: &mut Gpu,
        call: &StreamWaitEvent,
    ) -> Outcome<()> {
        let NodeWork { work, .. } = self.stream_wait_event_work(call)?;
        let stream = self.streams.for_work(gpu, call.stream)?;
        Ok(gpu.submit(&work, stream)?)
    }

    pub(crate) fn stream_wait_event_work(
        &self,
        call: &StreamWaitEvent,
    ) -> Outcome<NodeWork<'static>> {
        Ok(Work::EventWait(self.events.id(call.event)?).into())
    }
}

impl Session {
    pub(crate) fn stream_synchronize(&mut self, call: &StreamSynchronize) -> Outcome<Progress> {
        if self.is_over(call.stream)? {
            return Ok(Progress::Now);
        }
        let wait = self.objects.streams.begin_wait(call.stream)?;
        Ok(Progress::Later(Goal::Stream(wait), Continuation::Reply))
    }

    /// A wait that ends by clearing a word instead of by a reply.
    pub(crate) fn stream_signal(&mut self, at: At, call: &StreamSignal) -> Result<bool, Fault> {
        let token = call.token;
        if token == 0 || self.copies.tokens.check(token).is_err() {
            let why = format!("bulk token {token}");
            return self.answer::<()>(at, fail(Status::INVALID_VALUE, why));
        }
        // Errors and kernel output must be sent before a reply, so the guest has to
        // ask.
        let must_ask = self.errors.deferred().is_some() || self.printing.may_print();
        if must_ask {
            self.copies.tokens.signal(token, false);
            return self.answer(at, Ok(()));
        }
        let progress = self.until_signalled(call);
        if progress.is_err() {
            self.copies.tokens.signal(token, false);
        }
        self.progress(at, progress)
    }

    /// Waits with a checked token. If the device clears the word itself, nothing is left
    /// to do here. A thread whose word stays set will ask.
    fn until_signalled(&mut self, call: &StreamSignal) -> Outcome<Progress> {
        if self.is_over(call.stream)? {
            self.copies.tokens.signal(call.token, true);
            return Ok(Progress::Now);
        }
        let streams = &mut self.objects.streams;
        let id = streams.id(call.stream)?;
        let tokens = &mut self.copies.tokens;
        if streams.is_alone(call.stream) && tokens.clear_behind(&mut self.gpu, id, call.token)? {
            self.completion.leave_to_device(self.link.executed());
            return Ok(Progress::Now);
        }
        let wait = streams.begin_wait(call.stream)?;
        Ok(Progress::Later(
            Goal::Stream(wait),
            Continuation::Signal(call.token),
        ))
    }

    /// Whether all work of the stream is complete. If so, its output is sent.
    fn is_over(&mut self, stream: StreamHandle) -> Outcome<bool> {
        let over = self.objects.streams.is_over(&mut self.gpu, stream)?;
        if over {
            self.forward_output()?;
        }
        Ok(over)
    }

    pub(crate) fn stream_query(&mut self, call: &StreamQuery) -> Outcome<()> {
        match self.is_over(call.stream)? {
            true => Ok(()),
            false => Err(Status::NOT_READY.into()),
        }
    }
}
