//! Stream capture (CUDA Driver API, Stream Management): work of a stream is
//! noted as nodes of a graph instead of being posted.
//!
//! Other streams join a capture by waiting for an event that was recorded in
//! it, and must be joined back before it ends.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::ThreadId;

use paragpu_protocol::status::Status;

use crate::error::Result;
use crate::event::Event;
use crate::graph::{CopyWork, Fill, Graph, HostCall, Kernel, Marked, Place, Work};
use crate::session::Session;
use crate::slots::lock;
use crate::stream::Stream;

/// CUstreamCaptureMode: what other calls a capture forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Calls of every thread that might wait for or end work.
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

/// A capture under way.
#[derive(Debug)]
pub struct Capture {
    /// A number that no other capture of the process has.
    pub id: u64,
    /// What it fills.
    pub graph: Arc<Graph>,
    mode: Mode,
    thread: ThreadId,
    invalid: AtomicBool,
    /// The streams in it; the first is the one that it began in.
    streams: Mutex<Vec<Arc<Slot>>>,
    /// It has streams that wait for the legacy default stream.
    blocking: AtomicBool,
    session: u64,
    /// Its graph was begun with it.
    own: bool,
}

/// A stream's part in a capture.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    active: AtomicBool,
    state: Mutex<Option<Part>>,
}

#[derive(Debug)]
struct Part {
    capture: Arc<Capture>,
    /// What the stream's next node comes after.
    last: Vec<u32>,
}

/// What an event stands for that was recorded in a capture.
#[derive(Debug, Default)]
pub(crate) struct Point {
    active: AtomicBool,
    state: Mutex<Option<(Weak<Capture>, Vec<u32>)>>,
}

impl Point {
    /// Was the event last recorded in a capture?
    pub(crate) fn is_captured(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// The event was recorded outside of any capture.
    pub(crate) fn clear(&self) {
        if self.active.swap(false, Ordering::AcqRel) {
            *lock(&self.state) = None;
        }
    }

    fn set(&self, capture: &Arc<Capture>, nodes: Vec<u32>) {
        *lock(&self.state) = Some((Arc::downgrade(capture), nodes));
        self.active.store(true, Ordering::Release);
    }
}

/// What cuStreamGetCaptureInfo tells.
#[derive(Debug, Clone)]
pub struct Info {
    /// Was something done that made it useless?
    pub invalid: bool,
    /// [`Capture::id`].
    pub id: u64,
    /// The graph.
    pub graph: Arc<Graph>,
    /// What the stream's next node comes after.
    pub last: Vec<u32>,
    /// The graph was begun with the capture.
    pub own: bool,
}

/// How many captures are under way; looked at before every lock.
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

/// Refuses a call that might wait for work, or end what work uses, while a
/// capture forbids it; such a capture is of no use any more.
///
/// # Errors
/// `STREAM_CAPTURE_UNSUPPORTED`.
pub fn permit_unsafe() -> Result<()> {
    if ACTIVE.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let own = MODE.try_with(Cell::get).unwrap_or(Mode::Global);
    let thread = std::thread::current().id();
    let mut refused = false;
    for capture in lock(&CAPTURES).iter() {
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

impl Capture {
    fn invalidate(&self) {
        self.invalid.store(true, Ordering::Release);
    }

    fn is_invalid(&self) -> bool {
        self.invalid.load(Ordering::Acquire)
    }
}

impl Stream {
    /// Is its work being captured?
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.capture.active.load(Ordering::Acquire)
    }

    fn with_part<R>(&self, action: impl FnOnce(&mut Part) -> Result<R>) -> Result<R> {
        let mut state = lock(&self.capture.state);
        let part = state.as_mut().ok_or(Status::ILLEGAL_STATE)?;
        if part.capture.is_invalid() {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        action(part)
    }

    /// Notes work as a node, in the place of posting it.
    pub(crate) fn note(&self, work: Work) -> Result<()> {
        self.with_part(|part| {
            let node = part.capture.graph.add(work, &part.last);
            part.last = vec![node.inspect_err(|_| part.capture.invalidate())?.number];
            Ok(())
        })
    }

    /// Something that a capture cannot hold: the capture is of no use any
    /// more.
    pub(crate) fn cannot_capture<R>(&self) -> Result<R> {
        if let Some(part) = lock(&self.capture.state).as_ref() {
            part.capture.invalidate();
        }
        Err(Status::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// cuStreamGetCaptureInfo; `None` where nothing is captured.
    #[must_use]
    pub fn capture_info(&self) -> Option<Info> {
        if !self.is_capturing() {
            return None;
        }
        lock(&self.capture.state).as_ref().map(|part| Info {
            invalid: part.capture.is_invalid(),
            id: part.capture.id,
            graph: Arc::clone(&part.capture.graph),
            last: part.last.clone(),
            own: part.capture.own,
        })
    }

    /// cuStreamUpdateCaptureDependencies: the stream's next node comes after
    /// `nodes`, with `add` after those that it came after already, too.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` where nothing is captured, `INVALID_VALUE` for nodes
    /// that the graph has not.
    pub fn update_capture(&self, nodes: &[u32], add: bool) -> Result<()> {
        self.with_part(|part| {
            for node in nodes {
                part.capture.graph.work(*node)?;
            }
            if !add {
                part.last.clear();
            }
            merge(&mut part.last, nodes);
            Ok(())
        })
    }
}

fn merge(last: &mut Vec<u32>, nodes: &[u32]) {
    for node in nodes {
        if !last.contains(node) {
            last.push(*node);
        }
    }
}

impl Session {
    /// cuStreamBeginCapture, cuStreamBeginCaptureToGraph: work of `stream` is
    /// added to a new graph, or to `into` after `after`.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` for the legacy default stream,
    /// `ILLEGAL_STATE` where it captures already, `INVALID_VALUE` for nodes
    /// that the graph has not.
    pub fn capture_begin(
        &self,
        stream: &Stream,
        mode: Mode,
        into: Option<Arc<Graph>>,
        after: &[u32],
    ) -> Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        self.check()?;
        if stream.is_legacy() {
            return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
        let own = into.is_none();
        let graph = into.unwrap_or_else(Graph::new);
        for node in after {
            graph.work(*node)?;
        }
        let mut state = lock(&stream.capture.state);
        if state.is_some() {
            return Err(Status::ILLEGAL_STATE);
        }
        let capture = Arc::new(Capture {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            graph,
            mode,
            thread: std::thread::current().id(),
            invalid: AtomicBool::new(false),
            streams: Mutex::new(vec![Arc::clone(&stream.capture)]),
            blocking: AtomicBool::new(stream.is_blocking()),
            session: self.number(),
            own,
        });
        *state = Some(Part {
            capture: Arc::clone(&capture),
            last: after.to_vec(),
        });
        stream.capture.active.store(true, Ordering::Release);
        lock(&CAPTURES).push(capture);
        ACTIVE.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// cuStreamEndCapture.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` where nothing is captured; `STREAM_CAPTURE_UNMATCHED`
    /// for another stream than it began in; `STREAM_CAPTURE_WRONG_THREAD`;
    /// `STREAM_CAPTURE_INVALIDATED`; `STREAM_CAPTURE_UNJOINED` where work of
    /// another stream is not waited for.
    pub fn capture_end(&self, stream: &Stream) -> Result<Arc<Graph>> {
        let (capture, last) = match lock(&stream.capture.state).as_ref() {
            Some(part) => (Arc::clone(&part.capture), part.last.clone()),
            None => return Err(Status::ILLEGAL_STATE),
        };
        let streams = lock(&capture.streams).clone();
        if !streams
            .first()
            .is_some_and(|origin| Arc::ptr_eq(origin, &stream.capture))
        {
            capture.invalidate();
            return Err(Status::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(Status::STREAM_CAPTURE_WRONG_THREAD);
        }
        lock(&CAPTURES).retain(|other| !Arc::ptr_eq(other, &capture));
        ACTIVE.fetch_sub(1, Ordering::AcqRel);
        let mut joined = true;
        for slot in &streams {
            let part = lock(&slot.state).take();
            slot.active.store(false, Ordering::Release);
            if let Some(part) = part {
                joined &= capture.graph.all_before(&part.last, &last);
            }
        }
        if capture.is_invalid() {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        if !joined {
            return Err(Status::STREAM_CAPTURE_UNJOINED);
        }
        Ok(Arc::clone(&capture.graph))
    }

    /// Refuses work of the legacy default stream while a stream that waits for
    /// it captures, and ends what `only_blocking` captures there are.
    fn refuse_while_capturing(&self, only_blocking: bool, status: Status) -> Result<()> {
        if ACTIVE.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut refused = false;
        for capture in lock(&CAPTURES).iter() {
            if capture.session == self.number()
                && (!only_blocking || capture.blocking.load(Ordering::Acquire))
            {
                capture.invalidate();
                refused = true;
            }
        }
        if refused { Err(status) } else { Ok(()) }
    }

    /// Before work is given to, or waited for in, the legacy default stream.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_IMPLICIT`.
    pub fn permit_legacy(&self) -> Result<()> {
        self.refuse_while_capturing(true, Status::STREAM_CAPTURE_IMPLICIT)
    }

    /// Before all work of the session is waited for.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` while a stream captures.
    pub fn permit_synchronize(&self) -> Result<()> {
        self.refuse_while_capturing(false, Status::STREAM_CAPTURE_UNSUPPORTED)
    }

    /// cuEventRecord in a stream that captures.
    pub(crate) fn capture_record(&self, event: &Event, stream: &Stream) -> Result<()> {
        stream.with_part(|part| {
            event.point.set(&part.capture, part.last.clone());
            Ok(())
        })
    }

    /// cuStreamWaitEvent of an event that was recorded in a capture, or in a
    /// stream that captures.
    pub(crate) fn capture_wait(&self, stream: &Stream, event: &Event) -> Result<()> {
        let point = lock(&event.point.state)
            .as_ref()
            .and_then(|(capture, nodes)| Some((capture.upgrade()?, nodes.clone())));
        let Some((capture, nodes)) = point else {
            if stream.is_capturing() {
                // What the event stands for is no part of the capture.
                stream.with_part(|part| {
                    part.capture.invalidate();
                    Ok(())
                })?;
                return Err(Status::STREAM_CAPTURE_ISOLATION);
            }
            return Err(Status::CAPTURED_EVENT);
        };
        let under_way = lock(&CAPTURES)
            .iter()
            .any(|other| Arc::ptr_eq(other, &capture));
        if !under_way {
            return Err(Status::CAPTURED_EVENT);
        }
        if capture.is_invalid() {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        if stream.is_legacy() {
            capture.invalidate();
            return Err(Status::STREAM_CAPTURE_IMPLICIT);
        }
        let mut state = lock(&stream.capture.state);
        match state.as_mut() {
            Some(part) if Arc::ptr_eq(&part.capture, &capture) => merge(&mut part.last, &nodes),
            Some(part) => {
                part.capture.invalidate();
                capture.invalidate();
                return Err(Status::STREAM_CAPTURE_MERGE);
            }
            None => {
                lock(&capture.streams).push(Arc::clone(&stream.capture));
                if stream.is_blocking() {
                    capture.blocking.store(true, Ordering::Release);
                }
                *state = Some(Part {
                    capture,
                    last: nodes,
                });
                stream.capture.active.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    /// cuEventRecordWithFlags with CU_EVENT_RECORD_EXTERNAL in a stream that
    /// captures: a node that records the event at each launch.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` where nothing is captured.
    pub fn capture_record_external(&self, stream: &Stream, marked: Marked) -> Result<()> {
        stream.note(Work::EventRecord(marked))
    }

    /// cuStreamWaitEvent with CU_EVENT_WAIT_EXTERNAL, likewise.
    ///
    /// # Errors
    /// `ILLEGAL_STATE` where nothing is captured.
    pub fn capture_wait_external(&self, stream: &Stream, marked: Marked) -> Result<()> {
        stream.note(Work::EventWait(marked))
    }

    /// cuLaunchHostFunc in a stream that captures.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_INVALIDATED`.
    pub fn capture_host(&self, stream: &Stream, call: HostCall) -> Result<()> {
        stream.note(Work::Host(call))
    }

    /// A launch, checked, in a stream that captures; `handle` is what the
    /// program calls the kernel by.
    ///
    /// # Errors
    /// As [`Session::launch`].
    pub fn capture_launch(&self, stream: &Stream, kernel: Kernel) -> Result<()> {
        self.check_launch(&kernel.function, &kernel.shape)?;
        stream.note(Work::Kernel(Arc::new(kernel)))
    }

    /// A copy of linear memory in a stream that captures.
    pub(crate) fn capture_copy(
        &self,
        stream: &Stream,
        destination: Place,
        source: Place,
        extent: [u64; 3],
    ) -> Result<()> {
        stream.note(Work::Copy(Arc::new(CopyWork {
            ordinal: self.ordinal,
            destination,
            source,
            extent,
        })))
    }

    /// A memset in a stream that captures.
    pub(crate) fn capture_memset(&self, stream: &Stream, fill: Fill) -> Result<()> {
        stream.note(Work::Memset(fill))
    }
}
