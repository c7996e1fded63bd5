//! Streams.

use paragpu_device::StreamId;
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    StreamCreate, StreamDestroy, StreamQuery, StreamSynchronize, StreamWaitEvent,
};

use crate::answer::Progress;
use crate::completion::{Goal, Then};
use crate::error::{Outcome, fail};
use crate::events::Fence;
use crate::session::Session;

/// Destroyed streams that may wait for their work before all are looked at.
const MANY_DYING: usize = 64;

/// A stream of the guest.
#[derive(Debug)]
pub(crate) struct Stream {
    id: StreamId,
    /// Work was given to it since it was last found empty.
    busy: bool,
}

impl Stream {
    pub(crate) fn new(id: StreamId) -> Self {
        Self { id, busy: false }
    }

    /// The device's name of it.
    pub(crate) fn id(&self) -> StreamId {
        self.id
    }
}

impl Session {
    fn stream(&mut self, handle: StreamHandle) -> Outcome<&mut Stream> {
        if handle == StreamHandle::LEGACY {
            return Ok(&mut self.legacy);
        }
        self.streams.get_mut(handle.0)
    }

    /// The stream that work is about to be given to.
    pub(crate) fn work_stream(&mut self, handle: StreamHandle) -> Outcome<StreamId> {
        let stream = self.stream(handle)?;
        stream.busy = true;
        Ok(stream.id)
    }

    /// A fence behind all work given so far.
    pub(crate) fn fence(&mut self) -> Outcome<Fence> {
        self.bury()?;
        let (device, events) = (self.device.as_mut(), &mut self.events);
        let mut fence = Fence::default();
        let streams = self.streams.values_mut();
        for stream in std::iter::once(&mut self.legacy).chain(streams) {
            if stream.busy {
                if device.stream_query(stream.id)? {
                    stream.busy = false;
                } else {
                    fence.add(events.mark(device, stream.id)?, stream.id);
                }
            }
        }
        for stream in &self.dying {
            fence.add(events.mark(device, *stream)?, *stream);
        }
        Ok(fence)
    }

    /// Destroys the streams that were only waiting for their work.
    fn bury(&mut self) -> Outcome<()> {
        let mut index = 0;
        while let Some(&stream) = self.dying.get(index) {
            if self.device.stream_query(stream)? {
                self.dying.swap_remove(index);
                self.device.stream_destroy(stream)?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    pub(crate) fn stream_create(&mut self, call: &StreamCreate) -> Outcome<()> {
        let handle = call.stream;
        if handle < StreamHandle::FIRST {
            return fail(
                Status::INVALID_HANDLE,
                format!("stream handles begin at {}", StreamHandle::FIRST.0),
            );
        }
        self.streams.check_free(handle.0)?;
        let id = self.device.stream_create(call.flags, call.priority)?;
        self.streams.insert(handle.0, Stream::new(id));
        Ok(())
    }

    /// The stream's work still runs: the device's stream lives until it is
    /// over, so that fences can count on it.
    pub(crate) fn stream_destroy(&mut self, call: &StreamDestroy) -> Outcome<()> {
        let stream = self.streams.remove(call.stream.0)?;
        if stream.busy && !self.device.stream_query(stream.id)? {
            self.dying.push(stream.id);
            if self.dying.len() > MANY_DYING {
                self.bury()?;
            }
            return Ok(());
        }
        Ok(self.device.stream_destroy(stream.id)?)
    }

    /// Is the stream's work over?
    fn is_over(&mut self, handle: StreamHandle) -> Outcome<bool> {
        let id = self.stream(handle)?.id;
        let over = self.device.stream_query(id)?;
        if over {
            self.stream(handle)?.busy = false;
        }
        Ok(over)
    }

    pub(crate) fn stream_synchronize(&mut self, call: &StreamSynchronize) -> Outcome<Progress> {
        if self.is_over(call.stream)? {
            self.forward_output()?;
            return Ok(Progress::Now);
        }
        // A mark, because work that others add meanwhile is not waited for.
        let id = self.stream(call.stream)?.id;
        let mark = self.events.mark(self.device.as_mut(), id)?;
        Ok(Progress::Later(
            Goal::Fence(Fence::of(mark, id)),
            Then::Reply,
        ))
    }

    pub(crate) fn stream_query(&mut self, call: &StreamQuery) -> Outcome<()> {
        if self.is_over(call.stream)? {
            self.forward_output()?;
            Ok(())
        } else {
            Err(Status::NOT_READY.into())
        }
    }

    pub(crate) fn stream_wait_event(&mut self, call: &StreamWaitEvent) -> Outcome<()> {
        let event = *self.guest_events.get(call.event.0)?;
        let stream = self.work_stream(call.stream)?;
        Ok(self.device.stream_wait_event(stream, event)?)
    }
}
