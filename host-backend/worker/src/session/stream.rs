//! The guest's streams.

use std::sync::Arc;

use paragpu_device::{EventId, Result, StreamId};
use paragpu_protocol::handle::{GreenHandle, StreamHandle};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{StreamCreate, StreamDestroy, StreamSetAttribute};

use super::fences::Fence;
use super::gpu::Gpu;
use super::host_account::Charge;
use super::host_function::HostFunctions;
use super::queue::{BEHIND, Blocker, Blockers, Queue};
use crate::error::{Fault, Outcome, fail};
use crate::handles::Table;

/// Minimum number of destroyed streams with unfinished work after which all of them
/// are polled.
const SWEEP_THRESHOLD: usize = 64;

/// Work items of all streams per session that are not charged to the VM.
const OWN_WORK: u64 = 16 * 1024;
/// Host memory charged for each work item beyond that.
const ITEM: u64 = 1024;
/// Granularity of charges in work items.
const CHARGED: u64 = 4096;

/// A wait for all work that a stream had when the wait began.
#[derive(Debug)]
pub(crate) struct StreamWait {
    stream: StreamHandle,
    id: StreamId,
    period: u64,
}

impl StreamWait {
    /// The device's identifier of the stream.
    pub(crate) fn id(&self) -> StreamId {
        self.id
    }
}

/// Waits for a stream that has received more work since they began.
#[derive(Debug)]
struct EarlierWaits {
    /// The period in which the waits began.
    period: u64,
    /// The mark before that work.
    mark: EventId,
    waits: u32,
}

/// A stream of the guest.
#[derive(Debug)]
struct Stream {
    id: StreamId,
    /// The green context of its kernels; 0 for the whole device.
    green: GreenHandle,
    /// It received work since it was last seen idle.
    busy: bool,
    /// It received work since its last mark of a fence.
    unfenced: bool,
    /// It received work that may wait for the program, which [`Streams::mark_wait`] has not
    /// marked.
    unmarked_wait: bool,
    queue: Queue,
    /// Advances when the stream receives work while a call waits for it.
    period: u64,
    /// Number of waits that began in this period; they end when the stream is idle.
    waits: u32,
    /// Waits of earlier periods.
    passed: Vec<EarlierWaits>,
}

impl Stream {
    fn new(id: StreamId, green: GreenHandle) -> Self {
        Self {
            id,
            green,
            busy: false,
            unfenced: false,
            unmarked_wait: false,
            queue: Queue::default(),
            period: 0,
            waits: 0,
            passed: Vec::new(),
        }
    }

    /// Separates current waits from work that is about to be submitted. A mark is
    /// recorded only in this case: polling a stream costs the device nothing, while a
    /// mark behind a graph cost it 20 µs.
    fn set_apart(&mut self, gpu: &mut Gpu) -> Outcome<()> {
        if self.waits > 0 {
            let mark = gpu.mark(self.id)?;
            self.passed.push(EarlierWaits {
                period: self.period,
                mark,
                waits: self.waits,
            });
            self.waits = 0;
            self.period += 1;
        }
        Ok(())
    }
}

/// The streams of a session.
#[derive(Debug)]
pub(crate) struct Streams {
    table: Table<Stream>,
    legacy: Stream,
    /// The stream that received work last, if the guest has sent calls ever since.
    latest: Option<StreamHandle>,
    /// Streams that the guest destroyed and whose work is not complete. The
    /// device's streams live until it is, because fences depend on it.
    dying: Vec<Dying>,
    /// Number of these after which all are polled: twice what the last poll left, so that
    /// destroying many streams behind long work stays linear.
    sweep_threshold: usize,
    blockers: Blockers,
    /// Work items of all streams that are not known to be complete.
    queued: u64,
    /// Maximum of these, with what is charged.
    room: u64,
    /// The host memory charged for work.
    held: Charge,
}

/// A destroyed stream.
#[derive(Debug)]
struct Dying {
    id: StreamId,
    /// As in [`Stream`].
    unfenced: bool,
    /// Work items that it had.
    queued: u64,
}

impl Streams {
    /// Charges work to `held`.
    pub(crate) fn new(host_functions: Arc<HostFunctions>, held: Charge) -> Self {
        Self {
            queued: 0,
            room: OWN_WORK,
            held,
            table: Table::new("stream"),
            legacy: Stream::new(StreamId::LEGACY, GreenHandle::default()),
            latest: None,
            dying: Vec::new(),
            sweep_threshold: SWEEP_THRESHOLD,
            blockers: Blockers::new(host_functions),
        }
    }

    fn get(&mut self, handle: StreamHandle) -> Outcome<&mut Stream> {
        if handle == StreamHandle::LEGACY {
            return Ok(&mut self.legacy);
        }
        self.table.get_mut(handle.0)
    }

    /// The device's identifier of a stream.
    pub(crate) fn id(&self, handle: StreamHandle) -> Outcome<StreamId> {
        match handle {
            StreamHandle::LEGACY => Ok(self.legacy.id),
            other => Ok(self.table.get(other.0)?.id),
        }
    }

    /// The stream for a submission of work. Stalls the call if the stream, or the
    /// work behind a host function, is at its limit.
    pub(crate) fn for_work(&mut self, gpu: &mut Gpu, handle: StreamHandle) -> Outcome<StreamId> {
        self.for_pieces(gpu, handle, 1)
    }

    /// [`for_work`](Self::for_work) for work that counts as several items.
    pub(crate) fn for_pieces(
        &mut self,
        gpu: &mut Gpu,
        handle: StreamHandle,
        pieces: u32,
    ) -> Outcome<StreamId> {
        if self.blockers.have_many_behind(gpu) && self.queued >= BEHIND {
            self.sweep(gpu)?;
            if self.queued >= BEHIND {
                return Err(Fault::Stall);
            }
        }
        if !self.has_room(gpu, u64::from(pieces))? {
            return Err(Fault::Stall);
        }
        // A wait for the legacy stream includes the work of the others.
        self.legacy.set_apart(gpu)?;
        let stream = self.get(handle)?;
        stream.set_apart(gpu)?;
        let before = stream.queue.len();
        let admitted = stream.queue.admit(gpu, stream.id, pieces)?;
        let (id, after) = (stream.id, stream.queue.len());
        stream.busy |= admitted;
        stream.unfenced |= admitted;
        self.queued = self.queued - before + after;
        if !admitted {
            return Err(Fault::Stall);
        }
        self.blockers.count();
        self.latest = Some(handle);
        Ok(id)
    }

    /// Whether all streams together may have more work. What exceeds the session's own
    /// allowance is charged to its VM as host memory.
    fn has_room(&mut self, gpu: &mut Gpu, more: u64) -> Outcome<bool> {
        if self.queued + more <= self.room {
            return Ok(true);
        }
        self.sweep(gpu)?;
        let wanted = (self.queued + more).saturating_sub(self.room);
        if wanted > 0 {
            let wanted = wanted.max(CHARGED);
            match self.held.grow(wanted.saturating_mul(ITEM)) {
                Ok(()) => self.room += wanted,
                // Without work in flight, nothing would end the wait.
                Err(_) => return Ok(self.queued == 0),
            }
        }
        Ok(true)
    }

    /// Removes complete work, and returns its charge.
    fn sweep(&mut self, gpu: &mut Gpu) -> Outcome<()> {
        self.destroy_dying(gpu)?;
        let mut queued: u64 = self.dying.iter().map(|stream| stream.queued).sum();
        let streams = self.table.values_mut();
        for stream in std::iter::once(&mut self.legacy).chain(streams) {
            if stream.queue.len() > 0 {
                stream.queue.sweep(gpu, stream.id);
                queued += stream.queue.len();
            }
        }
        self.queued = queued;
        let needed = match queued {
            0..=OWN_WORK => OWN_WORK,
            more => (more + CHARGED).min(self.room),
        };
        self.held.shrink((self.room - needed).saturating_mul(ITEM));
        self.room = needed;
        Ok(())
    }

    /// Records that the work just submitted completes only after the guest has run a host
    /// function, as does everything behind it.
    pub(crate) fn follow(&mut self, gpu: &mut Gpu, blocker: Blocker) {
        self.blockers.add(gpu, blocker);
    }

    /// Records that the work just submitted may wait for the program: for a host function, or for
    /// what another stream or the host does next.
    pub(crate) fn wait(&mut self, handle: StreamHandle) {
        if let Ok(stream) = self.get(handle) {
            stream.unmarked_wait = true;
        }
    }

    /// Marks the end of work that [waits](Self::wait), once.
    pub(crate) fn mark_wait(
        &mut self,
        gpu: &mut Gpu,
        handle: StreamHandle,
    ) -> Outcome<Option<EventId>> {
        let stream = self.get(handle)?;
        match std::mem::take(&mut stream.unmarked_wait) {
            true => Ok(Some(gpu.mark(stream.id)?)),
            false => Ok(None),
        }
    }

    /// Whether the guest runs host functions.
    pub(crate) fn host_functions_run(&self) -> bool {
        self.blockers.functions_run()
    }

    /// A fence behind all work submitted so far.
    pub(crate) fn fence(&mut self, gpu: &mut Gpu) -> Outcome<Fence> {
        self.destroy_dying(gpu)?;
        let mut marks = Vec::new();
        let marked = self.mark_unfenced(gpu, &mut marks);
        // Even after an error, later fences include these marks.
        let fence = gpu.fence(marks)?;
        marked?;
        if self.room > OWN_WORK {
            self.sweep(gpu)?;
        }
        Ok(fence)
    }

    /// Marks the streams with work that no fence includes.
    fn mark_unfenced(&mut self, gpu: &mut Gpu, marks: &mut Vec<(EventId, StreamId)>) -> Result<()> {
        let streams = self.table.values_mut();
        for stream in std::iter::once(&mut self.legacy).chain(streams) {
            if stream.busy && stream.unfenced {
                if gpu.stream_query(stream.id)? {
                    stream.busy = false;
                } else {
                    marks.push((gpu.mark(stream.id)?, stream.id));
                }
                stream.unfenced = false;
            }
        }
        for stream in &mut self.dying {
            if stream.unfenced {
                marks.push((gpu.mark(stream.id)?, stream.id));
                stream.unfenced = false;
            }
        }
        Ok(())
    }

    /// Records that a copy, which was admitted before, submitted its next part to a stream.
    pub(crate) fn received(&mut self, id: StreamId) {
        let streams = self.table.values_mut();
        let mut streams = std::iter::once(&mut self.legacy).chain(streams);
        if let Some(stream) = streams.find(|stream| stream.id == id) {
            stream.busy = true;
            stream.unfenced = true;
        } else if let Some(stream) = self.dying.iter_mut().find(|stream| stream.id == id) {
            stream.unfenced = true;
        }
    }

    /// Whether all work submitted so far is complete.
    pub(crate) fn are_idle(&mut self, gpu: &mut Gpu) -> Outcome<bool> {
        self.destroy_dying(gpu)?;
        let streams = self.table.values_mut();
        for stream in std::iter::once(&mut self.legacy).chain(streams) {
            if stream.busy && !gpu.stream_query(stream.id)? {
                return Ok(false);
            }
            stream.busy = false;
        }
        Ok(self.dying.is_empty())
    }

    /// Destroys dying streams whose work is complete.
    fn destroy_dying(&mut self, gpu: &mut Gpu) -> Outcome<()> {
        let mut index = 0;
        while let Some(&Dying { id, queued, .. }) = self.dying.get(index) {
            if gpu.stream_query(id)? {
                self.dying.swap_remove(index);
                self.queued -= queued;
                gpu.stream_destroy(id)?;
            } else {
                index += 1;
            }
        }
        self.sweep_threshold = SWEEP_THRESHOLD.max(2 * self.dying.len());
        Ok(())
    }

    pub(crate) fn stream_create(&mut self, gpu: &mut Gpu, call: &StreamCreate) -> Outcome<()> {
        self.check_new(call.stream)?;
        let id = gpu.stream_create(call.flags, call.priority)?;
        self.insert(call.stream, id, GreenHandle::default());
        Ok(())
    }

    pub(crate) fn stream_set_attribute(
        &mut self,
        gpu: &mut Gpu,
        call: &StreamSetAttribute,
    ) -> Outcome<()> {
        let stream = self.get(call.stream)?;
        if let Err(error) = gpu.stream_set_attribute(stream.id, call.attribute, &call.value) {
            // The call is posted, and no result depends on it.
            let attribute = call.attribute;
            tracing::debug!(%error, attribute, "the GPU refuses an attribute of a stream");
        }
        Ok(())
    }

    /// Checks that a new stream can have this handle.
    pub(crate) fn check_new(&self, handle: StreamHandle) -> Outcome<()> {
        if handle < StreamHandle::FIRST {
            return fail(
                Status::INVALID_HANDLE,
                format!("stream handles begin at {}", StreamHandle::FIRST.0),
            );
        }
        self.table.check_free(handle.0)
    }

    /// Adds a stream, after [`check_new`](Self::check_new).
    pub(crate) fn insert(&mut self, handle: StreamHandle, id: StreamId, green: GreenHandle) {
        self.table.insert(handle.0, Stream::new(id, green));
    }

    /// Whether this green context has streams.
    pub(crate) fn are_in(&mut self, green: GreenHandle) -> bool {
        self.table.values_mut().any(|stream| stream.green == green)
    }

    /// Destroys a stream, whose work may still run.
    pub(crate) fn stream_destroy(&mut self, gpu: &mut Gpu, call: &StreamDestroy) -> Outcome<()> {
        let mut stream = self.table.remove(call.stream.0)?;
        let queued = stream.queue.len();
        stream.queue.abandon(gpu);
        for passed in stream.passed.drain(..) {
            gpu.free_mark(passed.mark);
        }
        if stream.busy && !gpu.stream_query(stream.id)? {
            let id = stream.id;
            self.dying.push(Dying {
                id,
                unfenced: stream.unfenced,
                queued,
            });
            if self.dying.len() > self.sweep_threshold {
                self.destroy_dying(gpu)?;
            }
            return Ok(());
        }
        self.queued -= queued;
        Ok(gpu.stream_destroy(stream.id)?)
    }

    /// Whether no other stream has work that could delay this stream's.
    pub(crate) fn is_alone(&self, handle: StreamHandle) -> bool {
        handle != StreamHandle::LEGACY || self.table.is_empty()
    }

    /// Records that the guest's next call has not arrived yet.
    pub(crate) fn caught_up(&mut self) {
        self.latest = None;
    }

    /// Whether the stream's last work was submitted so recently that it is hardly complete.
    pub(crate) fn has_just_begun(&self, gpu: &Gpu, handle: StreamHandle) -> bool {
        self.latest == Some(handle) && !gpu.computes_on_host()
    }

    /// Begins a wait for all work of the stream.
    pub(crate) fn begin_wait(&mut self, handle: StreamHandle) -> Outcome<StreamWait> {
        let stream = self.get(handle)?;
        stream.waits += 1;
        Ok(StreamWait {
            stream: handle,
            id: stream.id,
            period: stream.period,
        })
    }

    /// Whether the wait is over.
    ///
    /// # Errors
    /// The error of failed work.
    pub(crate) fn passed(&mut self, gpu: &mut Gpu, wait: &StreamWait) -> Result<bool> {
        let Ok(stream) = self.get(wait.stream) else {
            // The stream was destroyed: it receives no more work and lives until it
            // is idle.
            let dying = self.dying.iter().any(|stream| stream.id == wait.id);
            return match dying {
                true => gpu.stream_query(wait.id),
                false => Ok(true),
            };
        };
        if wait.period == stream.period {
            stream.busy = !gpu.stream_query(stream.id)?;
            return Ok(!stream.busy);
        }
        let before = |passed: &&EarlierWaits| passed.period == wait.period;
        match stream.passed.iter().find(before) {
            Some(passed) => gpu.event_query(passed.mark),
            None => Ok(true),
        }
    }

    /// Ends a wait that is over or abandoned.
    pub(crate) fn end_wait(&mut self, gpu: &mut Gpu, wait: &StreamWait) {
        let Ok(stream) = self.get(wait.stream) else {
            return;
        };
        if wait.period == stream.period {
            stream.waits -= 1;
            return;
        }
        let before = |passed: &EarlierWaits| passed.period == wait.period;
        let Some(index) = stream.passed.iter().position(before) else {
            return;
        };
        if let Some(passed) = stream.passed.get_mut(index) {
            passed.waits -= 1;
            if passed.waits == 0 {
                gpu.free_mark(passed.mark);
                stream.passed.swap_remove(index);
            }
        }
    }

    /// Whether the stream's work is complete.
    pub(crate) fn is_over(&mut self, gpu: &mut Gpu, handle: StreamHandle) -> Outcome<bool> {
        let stream = self.get(handle)?;
        let over = gpu.stream_query(stream.id)?;
        if over {
            stream.busy = false;
        }
        Ok(over)
    }
}
