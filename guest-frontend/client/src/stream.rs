//! Streams (CUDA Driver API, Stream Management).

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_abi::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING};
use paragpu_communicator::{CachePadded, Window};
use paragpu_protocol::call::WireCall;
use paragpu_protocol::handle::{EventHandle, GreenHandle, StreamHandle};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    ContextSynchronize, EventCreate, EventRecord, EventSynchronize, GraphLaunch, GreenStreamCreate,
    HostFuncLaunch, HostFuncSignal, Launch, StreamCreate, StreamDestroy, StreamQuery,
    StreamSetAttribute, StreamSynchronize, StreamWaitEvent,
};
use parking_lot::Mutex;

use crate::connection::{Link, Signal};
use crate::copy_order::CopyOrder;
use crate::error::Result;
use crate::handles::Handles;
use crate::objects::capture::{self, Mode};
use crate::objects::edge::Dependency;
use crate::objects::event::Event;
use crate::objects::graph::Graph;
use crate::objects::junction::Junction;
use crate::objects::live_streams::Live;
use crate::objects::preference::{Limits, Value, bytes_of};
use crate::objects::stream::Relay;
pub use crate::objects::stream::Stream;
use crate::objects::stream_attributes;
use crate::objects::user_object::References;
use crate::progress::{Awaited, Progress};
use crate::shadow::{Shadows, Work};
use crate::sys::memory::{HostRows, HostSlice};
use crate::user_object::{Launches, Retired};
use crate::window::PinnedWindow;

/// The streams of a session, and the known progress of their work.
#[derive(Debug)]
pub struct Streams {
    link: Arc<Link>,
    handles: Arc<Handles>,
    shadows: Arc<Shadows>,
    /// Number of the session.
    session: u64,
    copies: CopyOrder,
    legacy: Arc<Stream>,
    /// Position of the last kernel or host function in a blocking stream, for which the
    /// legacy default stream waits.
    running: CachePadded<AtomicU64>,
    /// Progress of all streams.
    progress: Arc<Progress>,
    /// Position of the last work in a non-blocking stream.
    unordered: Progress,
    /// Position of the last work of destroyed streams that was not known to be complete.
    orphans: Progress,
    /// All existing streams.
    live: Mutex<Live>,
    /// Records events of all streams together, and waits in all of them.
    junction: Junction,
    /// Memory shared with the host, with a word for each waiting thread.
    window: Arc<PinnedWindow>,
    /// User objects of destroyed graphs.
    retired: Retired,
    /// Unused events for waits that sleep.
    alarms: Mutex<Vec<EventHandle>>,
}

/// Streams that the host has, even if other threads destroy them.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    owner: &'a Streams,
    streams: Vec<Arc<Stream>>,
}

impl Deref for Kept<'_> {
    type Target = [Arc<Stream>];

    fn deref(&self) -> &Self::Target {
        &self.streams
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let mut live = self.owner.live.lock();
        let handles = self.streams.iter().map(|stream| stream.handle());
        let destroyed: Vec<_> = handles.filter(|handle| live.release(*handle)).collect();
        drop(live);
        for stream in destroyed {
            // The thread that destroyed it has gone on. What fails here fails every call.
            let _ = self.owner.post_destroy(stream);
        }
    }
}

impl Streams {
    pub(crate) fn new(
        link: &Arc<Link>,
        handles: &Arc<Handles>,
        shadows: &Arc<Shadows>,
        progress: &Arc<Progress>,
        window: &Arc<PinnedWindow>,
        session: u64,
    ) -> Self {
        let legacy = Arc::new(Stream::new_legacy());
        Self {
            copies: CopyOrder::new(Arc::clone(link), Arc::clone(handles)),
            link: Arc::clone(link),
            handles: Arc::clone(handles),
            shadows: Arc::clone(shadows),
            session,
            running: CachePadded::default(),
            progress: Arc::clone(progress),
            unordered: Progress::default(),
            orphans: Progress::default(),
            live: Mutex::new(Live::with(&legacy)),
            junction: Junction::default(),
            window: Arc::clone(window),
            retired: Retired::default(),
            alarms: Mutex::default(),
            legacy,
        }
    }

    /// Whether the device uses some of the program's memory through shadows.
    pub(crate) fn have_shadows(&self) -> bool {
        self.shadows.are_of_program()
    }

    /// The legacy default stream.
    #[must_use]
    pub fn legacy(&self) -> &Arc<Stream> {
        &self.legacy
    }

    /// Progress of all streams.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Position of the last call sent; see [`Link::sent`].
    pub(crate) fn sent(&self) -> u64 {
        self.link.sent()
    }

    /// Posts work to a stream.
    pub(crate) fn post_work<'a, C: WireCall<'a>>(&self, stream: &Stream, call: &C) -> Result<u64> {
        self.post_work_lent(stream, call, None)
    }

    /// The same, but the call's last bytes may be lent ([`Link::post_and`]).
    pub(crate) fn post_work_lent<'a, C: WireCall<'a>>(
        &self,
        stream: &Stream,
        call: &C,
        lent: Option<HostSlice>,
    ) -> Result<u64> {
        self.before_work(stream)?;
        let note = |position| self.note_work(stream, C::INFO.number, position);
        self.link.post_and(call, lent, note)
    }

    /// Records work in a stream. Called before any later call can be sent: a thread that sees a
    /// later position as posted or complete must also see this one as posted.
    fn note_work(&self, stream: &Stream, number: u16, position: u64) {
        stream.progress().post(position);
        if runs_code(number) {
            stream.note_running(position);
            if stream.is_blocking() {
                self.running.store(position, Ordering::Release);
            }
        }
        if !stream.is_blocking() {
            self.unordered.post(position);
        }
        self.progress.post(position);
    }

    /// Posts a host function as a call that the device executes by itself.
    pub(crate) fn post_signal(&self, stream: &Stream, call: &HostFuncSignal) -> Result<u64> {
        self.before_work(stream)?;
        let number = HostFuncLaunch::INFO.number;
        let note = |position| self.note_work(stream, number, position);
        self.link.post_and(call, None, note)
    }

    /// The words that host and guest share, if the session is on a host that shares them.
    pub(crate) fn words(&self) -> Option<&Window> {
        self.window.words()
    }

    /// The number of the calling thread, if the host asks threads that launch to say who they
    /// are; otherwise 0.
    #[inline]
    pub(crate) fn launching_thread(&self) -> u32 {
        let words = self.window.words();
        words.map_or(0, |words| self.link.launching_thread(words))
    }

    /// Posts a launch that says which thread launches. Launches of other threads need not follow
    /// it. Waits if the thread is too far ahead of what the host has submitted.
    #[cold]
    pub(crate) fn post_named(&self, stream: &Stream, launch: &Launch<'_>) -> Result<u64> {
        self.before_work(stream)?;
        let note = |position| self.note_work(stream, Launch::INFO.number, position);
        let position = self.link.post_unfollowed(launch, note)?;
        if let Some(words) = self.window.words() {
            self.link.await_submission(words, launch.thread(), position);
        }
        Ok(position)
    }

    /// Must be called before work of a stream, or a wait for it.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_IMPLICIT` of the legacy default stream while a blocking stream captures.
    pub(crate) fn permit_implicit(&self, stream: &Stream) -> Result<()> {
        match stream.is_legacy() {
            true => capture::permit_legacy(self.session),
            false => Ok(()),
        }
    }

    /// Must be called before work is posted to a stream.
    pub(crate) fn before_work(&self, stream: &Stream) -> Result<()> {
        self.permit_implicit(stream)?;
        if self.copies.concern(stream) {
            let stream_handle = stream.handle();
            let wait = |event| {
                let call = wait_for_event(stream_handle, event);
                self.link.post(&call).map(drop)
            };
            self.copies
                .make_wait(stream, self.progress.complete(), wait)?;
        }
        Ok(())
    }

    /// Marks the session idle if every stream is known to be idle, without a call.
    pub(crate) fn settle(&self) {
        // Read before the streams are looked at: what is posted meanwhile is not declared complete.
        let posted = self.progress.posted();
        if posted <= self.progress.complete() {
            return;
        }
        let complete = self.progress.complete();
        let live = self.live.lock();
        let idle = live.busy(complete).next().is_none() && self.orphans.posted() <= complete;
        drop(live);
        if idle {
            self.progress.finish(posted);
        }
    }

    /// Whether no work is in flight. Asks the host about work that is not known to be complete.
    ///
    /// # Errors
    /// The error of failed work.
    pub(crate) fn are_idle(&self) -> Result<bool> {
        let complete = self.progress.complete();
        let busy = self.kept(|live| live.busy(complete).cloned().collect());
        for stream in &*busy {
            let posted = stream.progress().posted();
            let handle = stream.handle();
            match self.link.call(&StreamQuery { stream: handle }) {
                Ok(()) => stream.progress().finish(posted),
                Err(Status::NOT_READY) => return Ok(false),
                Err(status) => return Err(status),
            }
        }
        self.settle();
        Ok(self.progress.posted() <= self.progress.complete())
    }

    /// Waits until the stream's work is complete, by polling a shared word or by a call.
    fn await_work(&self, stream: StreamHandle, by_call: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.link.sleeps() {
            return self.sleep_until_done(stream);
        }
        let Some(words) = self.window.words() else {
            return by_call();
        };
        let signal = self.link.await_signal(words, stream)?;
        if signal == Signal::Seen {
            return Ok(());
        }
        by_call()?;
        let is_left = !self
            .window
            .words()
            .is_some_and(|now| std::ptr::eq(now, words));
        if is_left && signal == Signal::Pending {
            self.link.forget_signal(words);
        }
        Ok(())
    }

    /// Sleeps until the stream's work is complete, by an event of whose kind the host knows that
    /// its waits sleep.
    fn sleep_until_done(&self, stream: StreamHandle) -> Result<()> {
        let unused = self.alarms.lock().pop();
        let event = match unused {
            Some(event) => event,
            None => {
                let event = EventHandle(self.handles.next());
                let flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
                self.link.post(&EventCreate { event, flags })?;
                event
            }
        };
        let recorded = self.link.post(&EventRecord { event, stream });
        let waited = recorded.and_then(|_| self.link.call_asleep(&EventSynchronize { event }));
        self.alarms.lock().push(event);
        waited
    }

    /// Sleeps until the stream's work is complete, if waits sleep: for calls that wait for more
    /// than work.
    pub(crate) fn sleep_before_waiting(&self, stream: &Stream) -> Result<()> {
        match self.link.sleeps() && !self.is_known_idle(stream) {
            true => self.sleep_until_done(stream.handle()),
            false => Ok(()),
        }
    }

    /// Waits for a stream of the library's own. Unlike a wait of the program, it does not
    /// synchronize memory.
    pub(crate) fn finish_own(&self, stream: &Stream) -> Result<()> {
        let posted = stream.progress().posted();
        let handle = stream.handle();
        self.await_work(handle, || {
            self.link.call(&StreamSynchronize { stream: handle })
        })?;
        stream.progress().finish(posted);
        Ok(())
    }

    /// Drops references to user objects once these launches are complete.
    pub(crate) fn retire(&self, held: Vec<References>, launches: Launches) {
        self.retired.add(held, launches);
        self.sweep();
    }

    /// Releases user objects whose launches are known to be complete.
    pub(crate) fn sweep(&self) {
        self.retired.sweep(self.progress.complete());
    }

    /// cuCtxSynchronize.
    ///
    /// # Errors
    /// The error of failed work.
    pub fn synchronize_all(&self) -> Result<()> {
        let posted = self.progress.posted();
        if posted > self.progress.complete() {
            let awaited = Awaited::all(posted);
            let by_call = || self.shadows.call(&ContextSynchronize {}, None, &awaited);
            let complete = self.progress.complete();
            let mut has_orphans = false;
            let busy = self.kept(|live| {
                has_orphans = self.orphans.posted() > complete;
                live.busy(complete).cloned().collect()
            });
            match &*busy {
                [stream] if !has_orphans => self.await_work(stream.handle(), by_call)?,
                busy => {
                    if self.link.sleeps() {
                        busy.iter()
                            .try_for_each(|stream| self.sleep_until_done(stream.handle()))?;
                    }
                    by_call()?;
                }
            }
            self.progress.finish(posted);
            self.sweep();
        } else {
            self.link.check()?;
        }
        self.shadows.pull()
    }

    /// cuStreamCreateWithPriority. `priority` must be in the device's range.
    ///
    /// # Errors
    /// `INVALID_VALUE` for unknown flags.
    pub fn create(&self, flags: u32, priority: i32) -> Result<Arc<Stream>> {
        if flags & !CU_STREAM_NON_BLOCKING != 0 {
            return Err(Status::INVALID_VALUE);
        }
        let handle = StreamHandle(self.handles.next());
        self.link.post(&StreamCreate {
            stream: handle,
            flags,
            priority,
        })?;
        self.add(Stream::new(handle, None, flags, priority))
    }

    /// cuGreenCtxStreamCreate. `priority` must be in the device's range.
    pub(crate) fn create_in(&self, green: GreenHandle, priority: i32) -> Result<Arc<Stream>> {
        let handle = StreamHandle(self.handles.next());
        self.link.post(&GreenStreamCreate {
            stream: handle,
            green,
            priority,
        })?;
        self.add(Stream::new(
            handle,
            Some(green),
            CU_STREAM_NON_BLOCKING,
            priority,
        ))
    }

    /// Adds a new stream, which waits for the events that all streams wait for.
    fn add(&self, stream: Stream) -> Result<Arc<Stream>> {
        let stream = Arc::new(stream);
        self.live.lock().streams.push(Arc::clone(&stream));
        self.join(&self.junction, &stream)?;
        Ok(stream)
    }

    /// Makes a new stream wait for the events that the others of its context wait for.
    pub(crate) fn join(&self, junction: &Junction, stream: &Stream) -> Result<()> {
        match junction.barrier().as_ref() {
            Some(barrier) => self.wait_event(stream, barrier),
            None => Ok(()),
        }
    }

    /// The streams of a green context, or all.
    pub(crate) fn all(&self, of: Option<GreenHandle>) -> Kept<'_> {
        self.kept(|live| {
            let streams = live.streams.iter();
            let wanted = streams.filter(|stream| of.is_none() || stream.green() == of);
            wanted.cloned().collect()
        })
    }

    /// Streams that the host has for as long as the result exists, whichever thread destroys them.
    fn kept(&self, choose: impl FnOnce(&Live) -> Vec<Arc<Stream>>) -> Kept<'_> {
        let mut live = self.live.lock();
        let streams = choose(&live);
        streams.iter().for_each(|stream| live.keep(stream.handle()));
        drop(live);
        Kept {
            owner: self,
            streams,
        }
    }

    /// Where all streams are recorded, and wait.
    pub(crate) fn junction(&self) -> &Junction {
        &self.junction
    }

    /// The link and the allocator of handles.
    pub(crate) fn maker(&self) -> (&Link, &Handles) {
        (&self.link, &self.handles)
    }

    /// cuStreamSetAttribute.
    ///
    /// # Errors
    /// As [`Attributes::set`].
    pub fn set_attribute(
        &self,
        stream: &Stream,
        attribute: i32,
        value: Value,
        limits: Limits,
    ) -> Result<()> {
        stream.attributes().set(attribute, value, limits)?;
        self.pass_on(stream, attribute, stream.attributes().get(attribute)?)
    }

    /// cuStreamCopyAttributes.
    pub fn copy_attributes(&self, to: &Stream, from: &Stream) -> Result<()> {
        let copied = to.attributes().copy(from.attributes());
        copied
            .into_iter()
            .try_for_each(|(attribute, value)| self.pass_on(to, attribute, value))
    }

    fn pass_on(&self, stream: &Stream, attribute: i32, value: Value) -> Result<()> {
        if stream.is_legacy() || !stream_attributes::is_passed_on(attribute) {
            return Ok(());
        }
        self.link
            .post(&StreamSetAttribute {
                stream: stream.handle(),
                attribute: attribute.cast_unsigned(),
                value: bytes_of(value),
            })
            .map(drop)
    }

    /// cuStreamDestroy. Its work still runs; a capture that began in it does not go on.
    pub fn destroy(&self, stream: &Stream) -> Result<()> {
        stream.abandon_capture();
        let relay = std::mem::replace(&mut *stream.relay(), Relay::Gone);
        if let Relay::Made(relay) = relay {
            self.destroy(&relay)?;
        }
        // Nothing could wait for its copies later.
        if let Some(position) = self.copies.forget(stream.handle())
            && position > self.progress.complete()
        {
            self.synchronize(stream)?;
        }
        let mut live = self.live.lock();
        // Once the stream is gone, only a wait for the whole session can complete its work.
        if !self.is_known_idle(stream) {
            self.orphans.join(stream.progress().posted());
        }
        let is_kept = live.remove(stream);
        drop(live);
        match is_kept {
            true => self.link.check(),
            false => self.post_destroy(stream.handle()),
        }
    }

    fn post_destroy(&self, stream: StreamHandle) -> Result<()> {
        self.link.post(&StreamDestroy { stream }).map(drop)
    }

    /// Whether all work of the stream is known to be complete.
    pub(crate) fn is_known_idle(&self, stream: &Stream) -> bool {
        let complete = self.progress.complete();
        if stream.is_legacy() {
            // It waits for the other streams, so its last work may be in one of them.
            return self.progress.posted() <= complete;
        }
        stream.progress().posted() <= stream.progress().complete().max(complete)
    }

    /// cuStreamSynchronize.
    ///
    /// # Errors
    /// The error of failed work.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let handle = stream.handle();
        self.wait(stream, |awaited| {
            self.await_work(handle, || {
                let call = StreamSynchronize { stream: handle };
                self.shadows.call(&call, None, awaited)
            })
        })
    }

    /// cuStreamQuery.
    ///
    /// # Errors
    /// `NOT_READY`; the error of failed work.
    pub fn query(&self, stream: &Stream) -> Result<()> {
        self.wait(stream, |_| {
            self.link.call(&StreamQuery {
                stream: stream.handle(),
            })
        })
    }

    /// Uses `ask` to find the stream's work complete, unless it is known to be.
    fn wait(&self, stream: &Stream, ask: impl FnOnce(&Awaited) -> Result<()>) -> Result<()> {
        if stream.is_capturing() {
            return stream.cannot_capture();
        }
        self.permit_implicit(stream)?;
        if self.is_known_idle(stream) {
            self.link.check()?;
            return self.shadows.pull();
        }
        self.finish_after(stream, ask)
    }

    /// Copies from the device by a call, which waits for the stream, and records the work that is
    /// then complete.
    pub(crate) fn copy_out<'a, C>(
        &self,
        stream: &Stream,
        copy: &C,
        destination: HostRows,
    ) -> Result<()>
    where
        C: WireCall<'a>,
        for<'r> C: WireCall<'a, Reply<'r> = ()>,
    {
        self.permit_implicit(stream)?;
        self.finish_after(stream, |awaited| {
            self.shadows.call(copy, Some(destination), awaited)
        })
    }

    /// Calls `wait`, which waits for a stream, and records the work that is then complete.
    fn finish_after(
        &self,
        stream: &Stream,
        wait: impl FnOnce(&Awaited) -> Result<()>,
    ) -> Result<()> {
        let awaited = self.awaited(stream);
        wait(&awaited)?;
        stream.progress().finish(awaited.stream);
        self.progress.finish(awaited.session);
        self.sweep();
        self.shadows.pull()
    }

    /// The work that a wait for `stream` covers if it begins now: the stream's, and the session's
    /// if the legacy stream covers all streams.
    fn awaited(&self, stream: &Stream) -> Awaited {
        let (own, all) = (stream.progress().posted(), self.progress.posted());
        // Read afterwards, so that non-blocking work up to there is in `unordered`.
        let stands_for_all =
            stream.is_legacy() && self.unordered.posted() <= self.progress.complete();
        Awaited::stream(stream.progress(), own, if stands_for_all { all } else { 0 })
    }

    /// cuStreamWaitEvent.
    pub fn wait_event(&self, stream: &Stream, event: &Event) -> Result<()> {
        if stream.is_capturing() || event.is_captured() {
            return stream.capture_wait(self.session, event);
        }
        let Some(recorded) = event.recorded() else {
            return self.link.check();
        };
        if recorded <= self.progress.complete() {
            return self.link.check();
        }
        let call = wait_for_event(stream.handle(), event.handle());
        self.post_work(stream, &call).map(drop)
    }

    /// Must be called before the bytes of a synchronous copy from pageable memory are read
    /// ([`CopyOrder`]).
    pub(crate) fn before_taking(&self, stream: &Stream) -> Result<()> {
        let running = if stream.is_legacy() {
            self.running.load(Ordering::Acquire)
        } else {
            stream.running()
        };
        let complete = stream.progress().complete().max(self.progress.complete());
        if running > complete {
            self.synchronize(stream)?;
        }
        Ok(())
    }

    /// Must be called after the bytes of a synchronous copy were read. Waits until they have
    /// arrived if other sessions may use them: their work would not follow the copy.
    pub(crate) fn after_taking(&self, stream: &Stream) -> Result<()> {
        if self.link.shares_memory() {
            return self.synchronize(stream);
        }
        self.copies.note(stream, self.progress.complete());
        Ok(())
    }

    /// cuStreamBeginCapture, cuStreamBeginCaptureToGraph: work of `stream` is
    /// added to a new graph, or to `into` after `after`.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` for the legacy default stream, `ILLEGAL_STATE` if it is
    /// capturing, `INVALID_VALUE` for nodes of another graph.
    pub fn begin_capture(
        &self,
        stream: &Stream,
        mode: Mode,
        into: Option<Arc<Graph>>,
        after: &[Dependency],
    ) -> Result<()> {
        self.link.check()?;
        stream.begin_capture(self.session, mode, into, after)
    }

    /// Must be called before the capture status of the legacy default stream is queried.
    /// Does not invalidate captures.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_IMPLICIT` while a blocking stream captures.
    pub fn permit_query(&self) -> Result<()> {
        capture::permit_query(self.session)
    }

    /// Must be called before all work of the session is waited for.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` while a stream captures.
    pub fn permit_synchronize(&self) -> Result<()> {
        capture::permit_synchronize(self.session)
    }
}

impl Work for Streams {
    /// As far as the guest knows.
    fn is_in_flight(&self) -> bool {
        self.settle();
        self.progress.posted() > self.progress.complete()
    }
}

/// The call that makes a stream wait for an event. Graph nodes use it with `LEGACY`.
pub(crate) fn wait_for_event(stream: StreamHandle, event: EventHandle) -> StreamWaitEvent {
    StreamWaitEvent { stream, event }
}

/// Whether this call runs code whose progress a program can observe: a kernel, a graph or
/// a host function.
const fn runs_code(number: u16) -> bool {
    number == <Launch as WireCall>::INFO.number
        || number == <HostFuncLaunch as WireCall>::INFO.number
        || number == <GraphLaunch as WireCall>::INFO.number
}
