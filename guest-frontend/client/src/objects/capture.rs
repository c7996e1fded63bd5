//! Stream capture (CUDA Driver API, Stream Management): work becomes nodes of a graph
//! instead of being posted.
//!
//! Another stream joins a capture by waiting for an event recorded in it. It must be
//! joined back before the capture ends.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use crate::error::Result;
use crate::objects::edge::{Dependency, Edge, merge};
use crate::objects::event::Event;
use crate::objects::graph::{Graph, HostCall, Marked, Work};
use crate::objects::stream::Stream;
use crate::thread_number::ThreadNumber;

/// CUstreamCaptureMode: what other calls a capture forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Calls of every thread that might wait for work or end it.
    Global,
    /// Those of the thread that captures.
    ThreadLocal,
    /// None.
    Relaxed,
}

impl Mode {
    /// The mode with CUDA's number.
    #[must_use]
    pub fn of(number: i32) -> Option<Self> {
        [Self::Global, Self::ThreadLocal, Self::Relaxed]
            .into_iter()
            .find(|mode| *mode as i32 == number)
    }
}

/// A capture in progress.
#[derive(Debug)]
pub struct Capture {
    /// A number that is unique among the process's captures.
    pub id: u64,
    /// The graph being captured into.
    pub graph: Arc<Graph>,
    mode: Mode,
    thread: ThreadNumber,
    invalid: AtomicBool,
    /// The captured streams. The capture began in the first.
    streams: Mutex<Vec<Arc<Membership>>>,
    sessions: Mutex<Vec<Participant>>,
    /// The capture created its graph.
    own: bool,
}

/// A session whose streams a capture has.
#[derive(Debug)]
struct Participant {
    session: u64,
    /// Some of them are blocking: they synchronize with the legacy default stream.
    is_blocking: bool,
}

/// A stream's part in a capture.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    active: AtomicBool,
    state: Mutex<Option<Part>>,
}

#[derive(Debug)]
struct Part {
    capture: Arc<Capture>,
    /// The dependencies of the stream's next node.
    last: Vec<Dependency>,
}

/// The point of a capture at which an event was recorded.
#[derive(Debug, Default)]
pub(crate) struct CapturePoint {
    active: AtomicBool,
    state: Mutex<Option<(Weak<Capture>, Vec<Dependency>)>>,
}

impl CapturePoint {
    /// Whether the event was last recorded in a capture.
    pub(crate) fn is_captured(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Notes a record outside of any capture.
    pub(crate) fn clear(&self) {
        if self.active.swap(false, Ordering::AcqRel) {
            *self.state.lock() = None;
        }
    }

    fn set(&self, capture: &Arc<Capture>, nodes: Vec<Dependency>) {
        *self.state.lock() = Some((Arc::downgrade(capture), nodes));
        self.active.store(true, Ordering::Release);
    }
}

impl Event {
    /// Refuses an event that marks a point of a capture, and invalidates the
    /// capture.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED`.
    pub(crate) fn refuse_captured(&self) -> Result<()> {
        if !self.is_captured() {
            return Ok(());
        }
        let state = self.point.state.lock();
        if let Some(capture) = state.as_ref().and_then(|(capture, _)| capture.upgrade()) {
            capture.invalidate();
        }
        Err(Status::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses a query of an event that marks a point of a capture: it has no state.
    ///
    /// # Errors
    /// `CAPTURED_EVENT` during the capture, which that invalidates; `INVALID_VALUE` after it.
    pub fn check_not_captured(&self) -> Result<()> {
        if !self.is_captured() {
            return Ok(());
        }
        let state = self.point.state.lock();
        let capture = state.as_ref().and_then(|(capture, _)| capture.upgrade());
        match capture.filter(|capture| capture.is_under_way()) {
            Some(capture) => {
                capture.invalidate();
                Err(Status::CAPTURED_EVENT)
            }
            None => Err(Status::INVALID_VALUE),
        }
    }
}

/// The results of cuStreamGetCaptureInfo.
#[derive(Debug, Clone)]
pub struct Info {
    /// Whether it was invalidated.
    pub invalid: bool,
    /// [`Capture::id`].
    pub id: u64,
    /// The graph.
    pub graph: Arc<Graph>,
    /// The dependencies of the stream's next node.
    pub last: Vec<Dependency>,
    /// The capture created the graph.
    pub own: bool,
}

/// Number of captures in progress; checked before every lock.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static CAPTURES: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// cuThreadExchangeStreamCaptureMode.
pub fn exchange_mode(mode: Mode) -> Mode {
    MODE.try_with(|kept| kept.replace(mode))
        .unwrap_or(Mode::Global)
}

/// Refuses a call that might wait for work, or free what work uses, while a capture
/// forbids it. That invalidates the capture.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED`.
pub fn permit_unsafe() -> Result<()> {
    if ACTIVE.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let own = MODE.try_with(Cell::get).unwrap_or(Mode::Global);
    let thread = ThreadNumber::own();
    let mut refused = false;
    for capture in CAPTURES.lock().iter() {
        let here = capture.thread == thread && capture.mode != Mode::Relaxed;
        let forbids = match own {
            Mode::Relaxed => false,
            Mode::ThreadLocal => here,
            Mode::Global => here || capture.mode == Mode::Global,
        };
        if forbids {
            capture.invalidate();
            refused = true;
        }
    }
    if refused {
        return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

/// Whether this graph was made for a capture that has not ended.
#[must_use]
pub fn is_captured_into(graph: &Arc<Graph>) -> bool {
    let is_into = |capture: &Arc<Capture>| capture.own && Arc::ptr_eq(&capture.graph, graph);
    ACTIVE.load(Ordering::Acquire) != 0 && CAPTURES.lock().iter().any(is_into)
}

impl Capture {
    fn invalidate(&self) {
        self.invalid.store(true, Ordering::Release);
    }

    /// Whether it has not ended.
    fn is_under_way(&self) -> bool {
        CAPTURES.lock().iter().any(|other| other.id == self.id)
    }

    fn is_invalid(&self) -> bool {
        self.invalid.load(Ordering::Acquire)
    }

    /// Whether it has streams of this session, or blocking ones with `only_blocking`.
    fn concerns(&self, session: u64, only_blocking: bool) -> bool {
        self.sessions.lock().iter().any(|participant| {
            participant.session == session && (!only_blocking || participant.is_blocking)
        })
    }

    /// Whether it began in this stream.
    fn began_in(&self, stream: &Stream) -> bool {
        let streams = self.streams.lock();
        streams
            .first()
            .is_some_and(|origin| Arc::ptr_eq(origin, &stream.capture))
    }

    /// Its streams no longer capture. Returns their parts.
    fn end(&self) -> Vec<Part> {
        {
            let mut captures = CAPTURES.lock();
            let before = captures.len();
            captures.retain(|other| other.id != self.id);
            // Another thread may have ended it in the meantime.
            ACTIVE.fetch_sub(before - captures.len(), Ordering::AcqRel);
        }
        // A stream that joins holds the lock of its state when it takes that of the list.
        let streams = self.streams.lock().clone();
        let mut parts = Vec::new();
        for stream in streams {
            parts.extend(stream.state.lock().take());
            stream.active.store(false, Ordering::Release);
        }
        parts
    }

    /// A stream of a session joins.
    fn join(&self, session: u64, stream: &Stream) {
        self.streams.lock().push(Arc::clone(&stream.capture));
        let mut sessions = self.sessions.lock();
        let found = sessions.iter_mut().find(|one| one.session == session);
        match found {
            Some(participant) => participant.is_blocking |= stream.is_blocking(),
            None => sessions.push(Participant {
                session,
                is_blocking: stream.is_blocking(),
            }),
        }
    }
}

impl Stream {
    /// Whether the stream is capturing.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.capture.active.load(Ordering::Acquire)
    }

    fn with_part<R>(&self, action: impl FnOnce(&mut Part) -> Result<R>) -> Result<R> {
        let mut state = self.capture.state.lock();
        let part = state.as_mut().ok_or(Status::ILLEGAL_STATE)?;
        if part.capture.is_invalid() {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        action(part)
    }

    /// Adds work as a node instead of posting it.
    pub fn note(&self, work: Work) -> Result<()> {
        self.note_launch(work, false)
    }

    /// Likewise; a `programmatic` launch may begin before the end of the kernel
    /// before it.
    pub fn note_launch(&self, work: Work, programmatic: bool) -> Result<()> {
        self.with_part(|part| {
            let graph = &part.capture.graph;
            let after = graph.towards(&work, &part.last, programmatic);
            let node = graph.add(work, &after);
            let node = node.inspect_err(|_| part.capture.invalidate())?;
            part.last = vec![node.number.into()];
            Ok(())
        })
    }

    /// Invalidates the stream's capture, if it captures.
    pub fn invalidate_capture(&self) {
        if let Some(part) = self.capture.state.lock().as_ref() {
            part.capture.invalidate();
        }
    }

    /// Refuses something that cannot be captured, and invalidates the capture.
    pub(crate) fn cannot_capture<R>(&self) -> Result<R> {
        self.invalidate_capture();
        Err(Status::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// cuStreamGetCaptureInfo; `None` if nothing is captured.
    #[must_use]
    pub fn capture_info(&self) -> Option<Info> {
        if !self.is_capturing() {
            return None;
        }
        self.capture.state.lock().as_ref().map(|part| Info {
            invalid: part.capture.is_invalid(),
            id: part.capture.id,
            graph: Arc::clone(&part.capture.graph),
            last: part.last.clone(),
            own: part.capture.own,
        })
    }

    /// cuStreamUpdateCaptureDependencies: the stream's next node depends on
    /// `nodes`, and with `add` also on its previous dependencies.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` if the stream does not capture, `INVALID_VALUE` for nodes that the
    /// graph does not have.
    pub fn update_capture(&self, nodes: &[Dependency], add: bool) -> Result<()> {
        self.with_part(|part| {
            part.capture.graph.check_sources(nodes)?;
            if !add {
                part.last.clear();
            }
            merge(&mut part.last, nodes);
            Ok(())
        })
    }
}

/// Refuses work of the legacy default stream while a stream of the session
/// captures, or only a blocking one with `only_blocking`. That invalidates the
/// captures.
fn refuse_while_capturing(session: u64, only_blocking: bool, status: Status) -> Result<()> {
    if ACTIVE.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let mut refused = false;
    for capture in CAPTURES.lock().iter() {
        if capture.concerns(session, only_blocking) {
            capture.invalidate();
            refused = true;
        }
    }
    if refused { Err(status) } else { Ok(()) }
}

/// Checks a call that posts work to the legacy default stream of a session, or
/// waits for it.
///
/// # Errors
/// `STREAM_CAPTURE_IMPLICIT`.
pub(crate) fn permit_legacy(session: u64) -> Result<()> {
    refuse_while_capturing(session, true, Status::STREAM_CAPTURE_IMPLICIT)
}

/// Checks a query about captures in the legacy default stream of a session. It does
/// not invalidate captures.
///
/// # Errors
/// `STREAM_CAPTURE_IMPLICIT` while a blocking stream captures.
pub(crate) fn permit_query(session: u64) -> Result<()> {
    if ACTIVE.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let captures = CAPTURES.lock();
    match captures
        .iter()
        .any(|capture| capture.concerns(session, true))
    {
        true => Err(Status::STREAM_CAPTURE_IMPLICIT),
        false => Ok(()),
    }
}

/// Checks a call that waits for all work of a session.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED` while a stream captures.
pub(crate) fn permit_synchronize(session: u64) -> Result<()> {
    refuse_while_capturing(session, false, Status::STREAM_CAPTURE_UNSUPPORTED)
}

impl Stream {
    /// cuStreamBeginCapture, cuStreamBeginCaptureToGraph: adds the stream's work to a new
    /// graph, or to `into` after `after`.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` for the legacy default stream, `ILLEGAL_STATE` if the
    /// stream already captures, `INVALID_VALUE` for nodes that the graph does not have.
    pub(crate) fn begin_capture(
        &self,
        session: u64,
        mode: Mode,
        into: Option<Arc<Graph>>,
        after: &[Dependency],
    ) -> Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if self.is_legacy() {
            return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
        let own = into.is_none();
        let graph = into.unwrap_or_else(Graph::new);
        graph.check_sources(after)?;
        let mut state = self.capture.state.lock();
        if state.is_some() {
            return Err(Status::ILLEGAL_STATE);
        }
        let capture = Arc::new(Capture {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            graph,
            mode,
            thread: ThreadNumber::own(),
            invalid: AtomicBool::new(false),
            streams: Mutex::default(),
            sessions: Mutex::default(),
            own,
        });
        capture.join(session, self);
        *state = Some(Part {
            capture: Arc::clone(&capture),
            last: after.to_vec(),
        });
        self.capture.active.store(true, Ordering::Release);
        CAPTURES.lock().push(capture);
        ACTIVE.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// cuStreamEndCapture.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` if the stream does not capture; `STREAM_CAPTURE_UNMATCHED` if the
    /// capture began in another stream. With other errors the capture ends:
    /// `STREAM_CAPTURE_INVALIDATED`; `STREAM_CAPTURE_WRONG_THREAD`;
    /// `STREAM_CAPTURE_UNJOINED` if another stream was not joined back.
    pub fn end_capture(&self) -> Result<Arc<Graph>> {
        let (capture, last) = match self.capture.state.lock().as_ref() {
            Some(part) => (Arc::clone(&part.capture), part.last.clone()),
            None => return Err(Status::ILLEGAL_STATE),
        };
        if !capture.began_in(self) {
            capture.invalidate();
            return Err(Status::STREAM_CAPTURE_UNMATCHED);
        }
        let parts = capture.end();
        let joined = parts
            .iter()
            .all(|part| capture.graph.all_before(&part.last, &last));
        if capture.is_invalid() {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != ThreadNumber::own() {
            return Err(Status::STREAM_CAPTURE_WRONG_THREAD);
        }
        if !joined {
            return Err(Status::STREAM_CAPTURE_UNJOINED);
        }
        Ok(Arc::clone(&capture.graph))
    }

    /// The stream is destroyed. A capture that began in it ends without a graph; another one
    /// must still be joined by the stream's work.
    pub(crate) fn abandon_capture(&self) {
        let capture = match self.capture.state.lock().as_ref() {
            Some(part) => Arc::clone(&part.capture),
            None => return,
        };
        if capture.began_in(self) {
            capture.invalidate();
            capture.end();
        }
    }

    /// cuEventRecord in a stream that captures.
    pub(crate) fn capture_record(&self, event: &Event) -> Result<()> {
        self.with_part(|part| {
            event.point.set(&part.capture, part.last.clone());
            Ok(())
        })
    }

    /// An event that a captured launch records: work that waits for it depends on
    /// the kernel by `edge`.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` if the stream does not capture.
    pub fn capture_trigger(&self, event: &Event, edge: Edge) -> Result<()> {
        self.with_part(|part| {
            let edged = |last: &Dependency| Dependency {
                node: last.node,
                edge,
            };
            let nodes = part.last.iter().map(edged).collect();
            event.point.set(&part.capture, nodes);
            Ok(())
        })
    }

    /// A wait for an event that was recorded in a capture, or a wait in a stream that
    /// captures; the stream is of `session`, the event perhaps of another.
    pub(crate) fn capture_wait(&self, session: u64, event: &Event) -> Result<()> {
        let point = event
            .point
            .state
            .lock()
            .as_ref()
            .and_then(|(capture, nodes)| Some((capture.upgrade()?, nodes.clone())));
        let Some((capture, nodes)) = point else {
            if self.is_capturing() {
                // The event's record is not part of the capture.
                self.with_part(|part| {
                    part.capture.invalidate();
                    Ok(())
                })?;
                return Err(Status::STREAM_CAPTURE_ISOLATION);
            }
            return Err(Status::INVALID_VALUE);
        };
        if !capture.is_under_way() {
            return Err(Status::INVALID_VALUE);
        }
        if capture.is_invalid() {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        if self.is_legacy() {
            capture.invalidate();
            return Err(Status::STREAM_CAPTURE_IMPLICIT);
        }
        let mut state = self.capture.state.lock();
        match state.as_mut() {
            Some(part) if Arc::ptr_eq(&part.capture, &capture) => merge(&mut part.last, &nodes),
            Some(part) => {
                part.capture.invalidate();
                capture.invalidate();
                return Err(Status::STREAM_CAPTURE_MERGE);
            }
            None => {
                capture.join(session, self);
                *state = Some(Part {
                    capture,
                    last: nodes,
                });
                self.capture.active.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    /// cuEventRecordWithFlags with CU_EVENT_RECORD_EXTERNAL in a stream that
    /// captures: a node that records the event at each launch.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` if the stream does not capture.
    pub fn capture_external_record(&self, marked: Marked) -> Result<()> {
        self.note(Work::EventRecord(marked))
    }

    /// A wait with CU_EVENT_WAIT_EXTERNAL, likewise.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` if the stream does not capture.
    pub fn capture_external_wait(&self, marked: Marked) -> Result<()> {
        self.note(Work::EventWait(marked))
    }

    /// cuLaunchHostFunc in a stream that captures.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`.
    pub fn capture_host(&self, call: HostCall) -> Result<()> {
        self.note(Work::Host(call))
    }
}

#[cfg(test)]
mod tests {
    use paragpu_protocol::handle::{EventHandle, StreamHandle};

    use super::*;

    /// Two streams of a session, of which the second joined the first's capture.
    fn captured(session: u64) -> (Stream, Stream, Event) {
        let [first, second] = [1, 2].map(|handle| Stream::new(StreamHandle(handle), None, 0, 0));
        first
            .begin_capture(session, Mode::Relaxed, None, &[])
            .unwrap();
        first.note(Work::Empty).unwrap();
        let event = Event::new(EventHandle(3), 0);
        first.capture_record(&event).unwrap();
        second.capture_wait(session, &event).unwrap();
        (first, second, event)
    }

    #[test]
    fn a_capture_ends_with_the_stream_in_which_it_began() {
        const SESSION: u64 = 7001;
        let (first, second, event) = captured(SESSION);
        let graph = Arc::downgrade(&first.capture_info().unwrap().graph);
        assert!(permit_query(SESSION).is_err());
        first.abandon_capture();
        assert!(!first.is_capturing() && !second.is_capturing());
        assert!(graph.upgrade().is_none());
        permit_query(SESSION).unwrap();
        permit_synchronize(SESSION).unwrap();
        assert!(second.capture_wait(SESSION, &event).is_err());
        assert_eq!(second.end_capture().err(), Some(Status::ILLEGAL_STATE));
        second
            .begin_capture(SESSION, Mode::Relaxed, None, &[])
            .unwrap();
        second.end_capture().unwrap();
    }

    #[test]
    fn a_capture_ends_in_the_wrong_thread() {
        let end_elsewhere = |stream: &Stream| {
            std::thread::scope(|scope| scope.spawn(|| stream.end_capture().err()).join().unwrap())
        };
        for (mode, invalid, error) in [
            (
                Mode::Global,
                false,
                Some(Status::STREAM_CAPTURE_WRONG_THREAD),
            ),
            (
                Mode::ThreadLocal,
                false,
                Some(Status::STREAM_CAPTURE_WRONG_THREAD),
            ),
            (
                Mode::ThreadLocal,
                true,
                Some(Status::STREAM_CAPTURE_INVALIDATED),
            ),
            (Mode::Relaxed, false, None),
        ] {
            let stream = Stream::new(StreamHandle(4), None, 0, 0);
            stream.begin_capture(7003, mode, None, &[]).unwrap();
            if invalid {
                stream.cannot_capture::<()>().unwrap_err();
            }
            assert_eq!(end_elsewhere(&stream), error);
            assert_eq!(stream.end_capture().err(), Some(Status::ILLEGAL_STATE));
        }
    }

    #[test]
    fn an_event_of_a_capture_has_no_state() {
        let stream = Stream::new(StreamHandle(5), None, 0, 0);
        let event = Event::new(EventHandle(6), 0);
        event.check_not_captured().unwrap();
        let begin = || stream.begin_capture(7004, Mode::Relaxed, None, &[]);
        begin().unwrap();
        stream.capture_record(&event).unwrap();
        assert_eq!(event.check_not_captured(), Err(Status::CAPTURED_EVENT));
        let invalidated = Some(Status::STREAM_CAPTURE_INVALIDATED);
        assert_eq!(stream.end_capture().err(), invalidated);
        // That capture is over.
        begin().unwrap();
        assert_eq!(event.check_not_captured(), Err(Status::INVALID_VALUE));
        stream.end_capture().unwrap();
        event.point.clear();
        event.check_not_captured().unwrap();
    }

    #[test]
    fn a_capture_outlives_other_streams() {
        let (first, second, _event) = captured(7002);
        second.note(Work::Empty).unwrap();
        second.abandon_capture();
        assert!(first.is_capturing());
        let unjoined = Some(Status::STREAM_CAPTURE_UNJOINED);
        assert_eq!(first.end_capture().err(), unjoined);

        let (first, second, event) = captured(7002);
        second.capture_record(&event).unwrap();
        first.capture_wait(7002, &event).unwrap();
        second.abandon_capture();
        assert_eq!(first.end_capture().unwrap().nodes().len(), 1);
        permit_query(7002).unwrap();
    }
}
