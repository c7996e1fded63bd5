//! The guest's streams.

use paragpu_device::StreamId;
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::status::Status;

use super::gpu::{Fence, Gpu};
use super::queue::Queue;
use crate::error::{Fault, Outcome, fail};
use crate::handles::Table;

/// Destroyed streams that may wait for their work before all are looked at.
const MANY_DYING: usize = 64;

/// A stream of the guest.
#[derive(Debug)]
struct Stream {
    id: StreamId,
    /// Work was given to it since it was last found empty.
    busy: bool,
    queue: Queue,
}

impl Stream {
    fn new(id: StreamId) -> Self {
        Self {
            id,
            busy: false,
            queue: Queue::default(),
        }
    }
}

/// The streams of a session.
#[derive(Debug)]
pub(crate) struct Streams {
    table: Table<Stream>,
    legacy: Stream,
    /// Streams that the guest destroyed and whose work is not over. The device's
    /// streams live until it is, so that fences can count on it.
    dying: Vec<StreamId>,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new("stream"),
            legacy: Stream::new(StreamId::LEGACY),
            dying: Vec::new(),
        }
    }

    fn get(&mut self, handle: StreamHandle) -> Outcome<&mut Stream> {
        if handle == StreamHandle::LEGACY {
            return Ok(&mut self.legacy);
        }
        self.table.get_mut(handle.0)
    }

    /// The device's name of a stream.
    pub(crate) fn id(&self, handle: StreamHandle) -> Outcome<StreamId> {
        match handle {
            StreamHandle::LEGACY => Ok(self.legacy.id),
            other => Ok(self.table.get(other.0)?.id),
        }
    }

    /// The stream that work is about to be given to; a stall where so much
    /// waits in it already that more must wait.
    pub(crate) fn for_work(&mut self, gpu: &mut Gpu, handle: StreamHandle) -> Outcome<StreamId> {
        let stream = self.get(handle)?;
        if !stream.queue.admit(gpu, stream.id)? {
            return Err(Fault::Stall);
        }
        stream.busy = true;
        Ok(stream.id)
    }

    /// A fence behind all work given so far.
    pub(crate) fn fence(&mut self, gpu: &mut Gpu) -> Outcome<Fence> {
        self.bury(gpu)?;
        let mut fence = Fence::default();
        let streams = self.table.values_mut();
        for stream in std::iter::once(&mut self.legacy).chain(streams) {
            if stream.busy {
                if gpu.stream_query(stream.id)? {
                    stream.busy = false;
                } else {
                    fence.add(gpu.mark(stream.id)?, stream.id);
                }
            }
        }
        for stream in &self.dying {
            fence.add(gpu.mark(*stream)?, *stream);
        }
        Ok(fence)
    }

    /// Destroys the streams that were only waiting for their work.
    fn bury(&mut self, gpu: &mut Gpu) -> Outcome<()> {
        let mut index = 0;
        while let Some(&stream) = self.dying.get(index) {
            if gpu.stream_query(stream)? {
                self.dying.swap_remove(index);
                gpu.stream_destroy(stream)?;
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    pub(crate) fn create(
        &mut self,
        gpu: &mut Gpu,
        handle: StreamHandle,
        flags: u32,
        priority: i32,
    ) -> Outcome<()> {
        if handle < StreamHandle::FIRST {
            return fail(
                Status::INVALID_HANDLE,
                format!("stream handles begin at {}", StreamHandle::FIRST.0),
            );
        }
        self.table.check_free(handle.0)?;
        let id = gpu.stream_create(flags, priority)?;
        self.table.insert(handle.0, Stream::new(id));
        Ok(())
    }

    /// The stream's work may still run.
    pub(crate) fn destroy(&mut self, gpu: &mut Gpu, handle: StreamHandle) -> Outcome<()> {
        let mut stream = self.table.remove(handle.0)?;
        stream.queue.abandon(gpu);
        if stream.busy && !gpu.stream_query(stream.id)? {
            self.dying.push(stream.id);
            if self.dying.len() > MANY_DYING {
                self.bury(gpu)?;
            }
            return Ok(());
        }
        Ok(gpu.stream_destroy(stream.id)?)
    }

    /// Is the stream's work over?
    pub(crate) fn is_over(&mut self, gpu: &mut Gpu, handle: StreamHandle) -> Outcome<bool> {
        let stream = self.get(handle)?;
        let over = gpu.stream_query(stream.id)?;
        if over {
            stream.busy = false;
        }
        Ok(over)
    }
}
