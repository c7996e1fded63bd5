//! Host functions: functions of the program that run in stream order
//! (cuLaunchHostFunc).
//!
//! One thread runs the functions. If the GPU can announce them in words that it shares with
//! the guest ([`crate::host_words`]), that thread polls these while functions are outstanding,
//! and naps if it takes long. Otherwise the host asks for them by frames. While such functions
//! are outstanding, another thread reads frames, so that requests of the host are received
//! although no thread waits, and a function that blocks does not stop the reading.
//!
//! A function may call `pthread_exit` ([`crate::sys::bare_call`]). Its stream then stalls until
//! the program launches another function, which restarts the thread. Until then no function of
//! the session runs: most likely the process is exiting.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::{Spin, Wait, Window};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{HostFuncDone, HostFuncLaunch, HostFuncSignal};
use parking_lot::{Condvar, Mutex};

use crate::callback::{in_callback, run_callback};
use crate::callback_watch::CallbackWatch;
use crate::connection::Link;
use crate::error::Result;
use crate::host_thread::{Called, HostThread, Inbox};
use crate::host_words::{HostWords, Place};
use crate::objects::graph::HostRun;
use crate::objects::stream::Stream;
use crate::progress::Progress;
use crate::shadow::Shadows;
use crate::stream::Streams;
use crate::sys::process::spawn;

/// A function of the program and its argument.
pub type HostFunction = Box<dyn FnOnce() + Send>;

/// The host functions of a session.
///
/// Shadows of pinned memory are synchronized around each function: the function
/// sees what the device wrote before it, and later work sees what the function
/// wrote.
#[derive(Debug)]
pub struct HostFunctions {
    link: Arc<Link>,
    streams: Arc<Streams>,
    shared: Arc<Shared>,
    /// The thread that reads frames has started.
    reads: Mutex<bool>,
}

struct Waiting {
    function: HostFunction,
    /// Progress of its stream, and the function's position in it. Earlier work is
    /// complete when it runs. 0 until it is posted.
    progress: Arc<Progress>,
    position: u64,
    /// The GPU announces it.
    is_announced: bool,
    /// It also runs if work before it fails.
    is_callback: bool,
}

/// A host function of a graph.
struct GraphFunction {
    run: HostRun,
    /// Launches that have not reached it, in order.
    launches: VecDeque<Launched>,
    /// The graph was destroyed.
    ended: bool,
}

/// A launch of a graph.
struct Launched {
    /// The function as it was then: replacing it affects later launches only.
    run: HostRun,
    /// Progress of the stream, and the launch's position in it.
    progress: Arc<Progress>,
    position: u64,
}

struct Shared {
    link: Arc<Link>,
    streams: Arc<Streams>,
    shadows: Arc<Shadows>,
    functions: Mutex<BTreeMap<u64, Waiting>>,
    /// Those of graphs, which run at each launch.
    kept: Mutex<HashMap<u64, GraphFunction>>,
    /// Those that the GPU announces.
    words: Mutex<HostWords>,
    /// Held while one of them gets its place and is posted.
    order: Mutex<()>,
    /// The thread that runs the functions.
    runner: HostThread,
    /// The window by whose words the GPU should have announced one for which the host has asked:
    /// its address.
    cannot_announce: AtomicU64,
    /// Functions that have not run yet.
    outstanding: AtomicUsize,
    /// Those of them that also run if work fails.
    callbacks: Arc<CallbackWatch>,
    /// Those for which the host asks.
    asked: Mutex<usize>,
    changed: Condvar,
    inbox: Inbox,
    next: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// Polls of the words between two of the connection.
const POLLS_PER_RECEIVE: u32 = 64;
/// A nap lasts for this part of the time already waited, within these limits.
const NAP: (u32, Duration, Duration) = (64, Duration::from_micros(20), Duration::from_micros(500));

impl HostFunctions {
    pub(crate) fn new(link: &Arc<Link>, streams: &Arc<Streams>, shadows: &Arc<Shadows>) -> Self {
        Self {
            shared: Arc::new(Shared {
                link: Arc::clone(link),
                streams: Arc::clone(streams),
                shadows: Arc::clone(shadows),
                functions: Mutex::default(),
                kept: Mutex::new(HashMap::new()),
                words: Mutex::default(),
                order: Mutex::default(),
                runner: HostThread::default(),
                cannot_announce: AtomicU64::new(0),
                outstanding: AtomicUsize::new(0),
                callbacks: Arc::default(),
                asked: Mutex::new(0),
                changed: Condvar::new(),
                inbox: Inbox::default(),
                next: AtomicU64::new(1),
            }),
            link: Arc::clone(link),
            streams: Arc::clone(streams),
            reads: Mutex::default(),
        }
    }

    /// Host functions that have not run yet.
    pub(crate) fn outstanding(&self) -> usize {
        self.shared.outstanding.load(Ordering::Acquire)
    }

    /// At the end of the process: callbacks that work failed before run, as CUDA promises.
    pub(crate) fn finish_callbacks(&self) {
        if self.link.check().is_err() && !in_callback() {
            self.shared.end_all();
        }
    }

    /// Starts the threads that do not run.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if one cannot be started.
    fn start(&self) -> Result<()> {
        let thread = &self.shared.runner.thread;
        if thread.runs() {
            return Ok(());
        }
        let mut reads = self.reads.lock();
        if !*reads {
            let shared = Arc::clone(&self.shared);
            self.link.on_host_function(Box::new(move |id| {
                shared.inbox.ids.lock().push_back(id);
                shared.inbox.tell();
            }));
            let shared = Arc::clone(&self.shared);
            *reads = spawn("paragpu-reader", move || shared.read());
        }
        if !*reads {
            return Err(Status::OPERATING_SYSTEM);
        }
        let (shared, ending) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        thread.start(
            "paragpu-host",
            move || shared.serve(),
            move || ending.runner.end_ending(),
        )
    }
}

impl Shared {
    /// Runs the functions. Between two, this polls before it sleeps: the stream stalls until
    /// this thread is awake, and a launch would have to wake it. It makes no call whose reply may
    /// depend on a function that has not run.
    fn serve(&self) {
        // Of the thread before this one, which a function has ended.
        self.finish();
        let mut expected = Vec::new();
        let mut polls = 0_u32;
        loop {
            let seen = self.inbox.events.load(Ordering::SeqCst);
            while self.run_next(&mut expected) {}
            if self.link.check().is_err() {
                self.end_all();
            }
            let began = Instant::now();
            let mut spin = Spin::new(self.link.spin(), None);
            loop {
                if self.inbox.events.load(Ordering::SeqCst) != seen || self.announced(&expected) {
                    break;
                }
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(POLLS_PER_RECEIVE) && !expected.is_empty() {
                    // A host that cannot have the GPU announce a function asks for it.
                    self.link.drain(Wait::Poll);
                }
                if spin.again() {
                    continue;
                }
                // Without a host, nothing is announced any more.
                let expects = !expected.is_empty() && self.link.check().is_ok();
                let (part, least, most) = NAP;
                let nap = expects.then(|| (began.elapsed() / part).clamp(least, most));
                self.inbox.sleep(seen, nap);
                if expects {
                    self.link.drain(Wait::Poll);
                }
            }
        }
    }

    /// Work has failed: callbacks run, in order, and other functions never do.
    fn end_all(&self) {
        if self.runner.begin_ending() {
            while self.end_next() {}
            self.runner.end_ending();
        }
    }

    /// Ends the oldest function. Returns false if there is none.
    fn end_next(&self) -> bool {
        let next = self.functions.lock().pop_first();
        let Some((id, waiting)) = next else {
            return false;
        };
        match waiting.is_announced {
            true => self.words.lock().forget(id),
            false => {
                let mut asked = self.asked.lock();
                *asked = asked.saturating_sub(1);
            }
        }
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        if waiting.is_callback {
            self.callbacks.end();
            run_callback(waiting.function);
        }
        true
    }

    /// Whether the GPU has reached one of these functions.
    fn announced(&self, expected: &[Place]) -> bool {
        let window = self.streams.words();
        window.is_some_and(|window| expected.iter().any(|place| place.is_reached(window)))
    }

    /// Runs a function whose turn has come. If there is none, returns false and, in
    /// `expected`, those that the GPU announces next.
    fn run_next(&self, expected: &mut Vec<Place>) -> bool {
        let asked_for = self.inbox.ids.lock().pop_front();
        if let Some(id) = asked_for {
            self.run(id, None);
            return true;
        }
        let mut words = self.words.lock();
        expected.clear();
        expected.extend(words.next());
        let window = self.streams.words();
        let reached = window.and_then(|window| expected.iter().find(|it| it.is_reached(window)));
        let Some(&place) = reached else {
            return false;
        };
        let id = words.take(place);
        drop(words);
        if let Some(id) = id {
            self.run(id, Some(place));
        }
        true
    }

    /// Runs a function that the GPU announced at `place`, or that the host asked for.
    fn run(&self, id: u64, place: Option<Place>) {
        let waiting = self.functions.lock().remove(&id);
        let Some(waiting) = waiting.or_else(|| self.next_launch(id)) else {
            return;
        };
        if waiting.is_announced && place.is_none() {
            self.words.lock().forget(id);
            let window = self.streams.words().map_or(0, Window::address);
            self.cannot_announce.store(window, Ordering::Relaxed);
        }
        // If this fails, every later call fails as well and reports it.
        waiting.progress.finish(waiting.position.saturating_sub(1));
        let _ = self.shadows.pull();
        if waiting.is_callback {
            self.callbacks.end();
        }
        self.runner.calls(Called {
            id,
            place,
            is_announced: waiting.is_announced,
        });
        run_callback(waiting.function);
        self.finish();
    }

    /// The function that was called, if any, is over.
    fn finish(&self) {
        let Some(called) = self.runner.take_called() else {
            return;
        };
        let _ = self.shadows.after_function();
        match (called.place, self.streams.words()) {
            // What the function wrote is where the GPU reads it.
            (Some(place), Some(window)) if !self.shadows.are_apart() => place.finish(window),
            _ => {
                let _ = self.link.post(&HostFuncDone { id: called.id });
                let _ = self.link.flush();
            }
        }
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
        if called.is_announced {
            return;
        }
        let mut asked = self.asked.lock();
        *asked = asked.saturating_sub(1);
        if *asked == 0 {
            drop(asked);
            // A thread that waits for a reply may now read frames itself.
            self.link.wake_reader();
        }
    }

    /// The next run of a graph's host function.
    fn next_launch(&self, id: u64) -> Option<Waiting> {
        let mut all = self.kept.lock();
        let kept = all.get_mut(&id)?;
        let Launched {
            run,
            progress,
            position,
        } = kept.launches.pop_front()?;
        if kept.ended && kept.launches.is_empty() {
            all.remove(&id);
        }
        Some(Waiting {
            function: Box::new(move || run()),
            progress,
            position,
            is_announced: false,
            is_callback: false,
        })
    }

    fn read(&self) {
        loop {
            let mut asked = self.asked.lock();
            while *asked == 0 {
                self.changed.wait(&mut asked);
            }
            drop(asked);
            self.link.read_while(|| *self.asked.lock() > 0);
            if self.link.check().is_err() {
                return;
            }
        }
    }
}

impl Shared {
    /// Counts functions for which the host will ask.
    fn expect(&self, count: usize) {
        self.outstanding.fetch_add(count, Ordering::AcqRel);
        *self.asked.lock() += count;
    }

    /// Takes back what [`expect`](Self::expect) counted.
    fn unexpect(&self, count: usize) {
        self.outstanding.fetch_sub(count, Ordering::AcqRel);
        *self.asked.lock() -= count;
    }
}

impl HostFunctions {
    /// Stores a function that graphs run. Returns its number.
    pub(crate) fn keep(&self, run: HostRun) -> u64 {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let kept = GraphFunction {
            run,
            launches: VecDeque::new(),
            ended: false,
        };
        self.shared.kept.lock().insert(id, kept);
        id
    }

    /// Replaces a function from the next launch on.
    pub(crate) fn replace(&self, id: u64, run: HostRun) {
        if let Some(kept) = self.shared.kept.lock().get_mut(&id) {
            kept.run = run;
        }
    }

    /// Removes a function once earlier launches have reached it.
    pub(crate) fn end_kept(&self, id: u64) {
        let mut all = self.shared.kept.lock();
        if let Some(kept) = all.get_mut(&id) {
            kept.ended = true;
            if kept.launches.is_empty() {
                all.remove(&id);
            }
        }
    }

    /// Records that the launch that `post` posts runs the functions `ids`.
    pub(crate) fn launch_kept(
        &self,
        ids: &[u64],
        progress: &Arc<Progress>,
        post: impl FnOnce() -> Result<u64>,
    ) -> Result<u64> {
        self.start()?;
        let shared = &self.shared;
        shared.expect(ids.len());
        let posted = {
            // The lock is held until the position is known, so that they run only then.
            let mut all = shared.kept.lock();
            let posted = post();
            if let Ok(position) = posted {
                for id in ids {
                    if let Some(kept) = all.get_mut(id) {
                        kept.launches.push_back(Launched {
                            run: Arc::clone(&kept.run),
                            progress: Arc::clone(progress),
                            position,
                        });
                    }
                }
            }
            posted
        };
        if posted.is_err() {
            shared.unexpect(ids.len());
        }
        shared.changed.notify_all();
        posted
    }

    /// cuLaunchHostFunc: `function` runs when `stream` reaches it; the stream
    /// continues when it returns. It must not call CUDA.
    ///
    /// # Errors
    /// As [`Link::check`]; `OPERATING_SYSTEM` if no thread for it can be started.
    pub fn launch(&self, stream: &Stream, function: HostFunction) -> Result<()> {
        self.launch_either(stream, function, false)
    }

    /// cuStreamAddCallback: as [`launch`](Self::launch), but `function` also runs if work before
    /// it fails.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn launch_callback(&self, stream: &Stream, function: HostFunction) -> Result<()> {
        self.launch_either(stream, function, true)
    }

    fn launch_either(
        &self,
        stream: &Stream,
        function: HostFunction,
        is_callback: bool,
    ) -> Result<()> {
        self.link.check()?;
        if stream.is_capturing() {
            return stream.cannot_capture();
        }
        self.start()?;
        let shared = &self.shared;
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let mut waiting = Waiting {
            function,
            progress: Arc::clone(stream.progress()),
            position: 0,
            is_announced: true,
            is_callback,
        };
        let handle = stream.handle();
        if shared.can_announce() {
            // Functions of a stream are posted in the order of their places. The lock of the
            // places is not held meanwhile: the host may have no room for the call until an
            // earlier function has run.
            let _order = shared.order.lock();
            let place = shared.words.lock().place(handle, id);
            if let Some(Place { pair, value }) = place {
                let call = HostFuncSignal {
                    stream: handle,
                    id,
                    pair,
                    value,
                };
                shared.outstanding.fetch_add(1, Ordering::AcqRel);
                let posted = shared.insert(id, waiting, || self.streams.post_signal(stream, &call));
                if posted.is_err() {
                    shared.words.lock().forget(id);
                    shared.outstanding.fetch_sub(1, Ordering::AcqRel);
                }
                shared.inbox.tell();
                return posted.and_then(|_| self.link.flush());
            }
        }
        waiting.is_announced = false;
        shared.expect(1);
        let call = HostFuncLaunch { stream: handle, id };
        let posted = shared.insert(id, waiting, || self.streams.post_work(stream, &call));
        if posted.is_err() {
            shared.unexpect(1);
        }
        shared.changed.notify_all();
        posted.and_then(|_| self.link.flush())
    }
}

impl Shared {
    /// Whether the GPU may announce functions: this side must poll for that.
    fn can_announce(&self) -> bool {
        let cannot = self.cannot_announce.load(Ordering::Relaxed);
        let window = self.streams.words();
        window.is_some_and(|window| window.address() != cannot) && !self.link.spin().is_zero()
    }

    /// Stores a function that `post` posts.
    fn insert(&self, id: u64, waiting: Waiting, post: impl FnOnce() -> Result<u64>) -> Result<u64> {
        // The lock is held until the position is known, so that it runs only then.
        let mut functions = self.functions.lock();
        let is_callback = waiting.is_callback;
        functions.insert(id, waiting);
        let posted = match is_callback {
            true => self.callbacks.begin(&self.link).and_then(|()| post()),
            false => post(),
        };
        match (&posted, functions.get_mut(&id)) {
            (Ok(position), Some(waiting)) => waiting.position = *position,
            _ => {
                functions.remove(&id);
                if is_callback {
                    self.callbacks.end();
                }
            }
        }
        posted
    }
}
