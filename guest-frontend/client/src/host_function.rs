//! Host functions: functions of the program that run in stream order
//! (cuLaunchHostFunc).
//!
//! While some are outstanding, one thread reads frames, so that requests of the host are
//! received although no thread waits. Another thread runs the functions, so that a
//! function that blocks does not stop the reading.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Once};

use paragpu_communicator::Spin;
use paragpu_protocol::table::{HostFuncDone, HostFuncLaunch};
use parking_lot::{Condvar, Mutex};

use crate::connection::Link;
use crate::error::Result;
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
    started: Once,
}

struct Waiting {
    function: HostFunction,
    /// Progress of its stream, and the function's position in it. Earlier work is
    /// complete when it runs. 0 until it is posted.
    progress: Arc<Progress>,
    position: u64,
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
    shadows: Arc<Shadows>,
    functions: Mutex<HashMap<u64, Waiting>>,
    /// Those of graphs, which run at each launch.
    kept: Mutex<HashMap<u64, GraphFunction>>,
    outstanding: Mutex<usize>,
    changed: Condvar,
    next: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl HostFunctions {
    pub(crate) fn new(link: Arc<Link>, streams: Arc<Streams>, shadows: Arc<Shadows>) -> Self {
        Self {
            shared: Arc::new(Shared {
                link: Arc::clone(&link),
                shadows,
                functions: Mutex::new(HashMap::new()),
                kept: Mutex::new(HashMap::new()),
                outstanding: Mutex::new(0),
                changed: Condvar::new(),
                next: AtomicU64::new(1),
            }),
            link,
            streams,
            started: Once::new(),
        }
    }

    /// Host functions that have not run yet.
    pub(crate) fn outstanding(&self) -> usize {
        *self.shared.outstanding.lock()
    }

    fn start(&self) {
        self.started.call_once(|| {
            let (sender, ids) = channel::<u64>();
            self.report(sender);
            let shared = Arc::clone(&self.shared);
            spawn("paragpu-host", move || {
                while let Some(id) = shared.next_id(&ids) {
                    shared.run(id);
                }
            });
            let shared = Arc::clone(&self.shared);
            spawn("paragpu-reader", move || shared.read());
        });
    }

    fn report(&self, sender: Sender<u64>) {
        let sender = Mutex::new(sender);
        self.shared.link.on_host_function(Box::new(move |id| {
            let _ = sender.lock().send(id);
        }));
    }
}

impl Shared {
    /// The next function to run. While more are outstanding, this polls before it
    /// sleeps: the stream stalls until this thread is awake.
    fn next_id(&self, ids: &Receiver<u64>) -> Option<u64> {
        let more = *self.outstanding.lock() > 0;
        let mut spin = Spin::new(self.link.spin(), None);
        while more && spin.again() {
            match ids.try_recv() {
                Err(TryRecvError::Empty) => {}
                found => return found.ok(),
            }
        }
        ids.recv().ok()
    }

    fn run(&self, id: u64) {
        let waiting = self.functions.lock().remove(&id);
        let Some(waiting) = waiting.or_else(|| self.next_launch(id)) else {
            return;
        };
        // If this fails, every later call fails as well and reports it.
        waiting.progress.finish(waiting.position.saturating_sub(1));
        let _ = self.shadows.pull();
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(waiting.function));
        let _ = self.shadows.after_function();
        let _ = self.link.post(&HostFuncDone { id });
        let _ = self.link.flush();
        let mut outstanding = self.outstanding.lock();
        *outstanding = outstanding.saturating_sub(1);
        if *outstanding == 0 {
            drop(outstanding);
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
        })
    }

    fn read(&self) {
        loop {
            let mut outstanding = self.outstanding.lock();
            while *outstanding == 0 {
                self.changed.wait(&mut outstanding);
            }
            drop(outstanding);
            self.link.read_while(|| *self.outstanding.lock() > 0);
            if self.link.check().is_err() {
                return;
            }
        }
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
        self.start();
        let shared = &self.shared;
        *shared.outstanding.lock() += ids.len();
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
            *shared.outstanding.lock() -= ids.len();
        }
        shared.changed.notify_all();
        posted
    }

    /// cuLaunchHostFunc: `function` runs when `stream` reaches it; the stream
    /// continues when it returns. It must not call CUDA.
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn launch(&self, stream: &Stream, function: HostFunction) -> Result<()> {
        self.link.check()?;
        if stream.is_capturing() {
            return stream.cannot_capture();
        }
        self.start();
        let shared = &self.shared;
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting {
            function,
            progress: Arc::clone(stream.progress()),
            position: 0,
        };
        *shared.outstanding.lock() += 1;
        let posted = {
            // The lock is held until the position is known, so that it runs only then.
            let mut functions = shared.functions.lock();
            functions.insert(id, waiting);
            let posted = self.streams.post_work(
                stream,
                &HostFuncLaunch {
                    stream: stream.handle(),
                    id,
                },
            );
            match (&posted, functions.get_mut(&id)) {
                (Ok(position), Some(waiting)) => waiting.position = *position,
                _ => {
                    functions.remove(&id);
                }
            }
            posted
        };
        if posted.is_err() {
            *shared.outstanding.lock() -= 1;
        }
        shared.changed.notify_all();
        posted.and_then(|_| self.link.flush())
    }
}
