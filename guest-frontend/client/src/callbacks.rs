//! Host functions: functions of the program that run when a stream gets to
//! them (cuLaunchHostFunc).
//!
//! While some are outstanding one thread reads frames, so that the host is
//! heard although nobody waits; another one runs the functions, so that one
//! that blocks does not stop the reading.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, Once, OnceLock, Weak};

use paragpu_protocol::table::{HostFuncDone, HostFuncLaunch};

use crate::error::Result;
use crate::link::Link;
use crate::progress::Progress;
use crate::session::Session;
use crate::slots::lock;
use crate::stream::Stream;

/// A function of the program and its argument.
pub type HostFunction = Box<dyn FnOnce() + Send>;

/// The host functions of a session.
///
/// Shadows of pinned memory are brought into agreement around each function:
/// what the device wrote before it is there when it begins, what it wrote
/// itself is there for the work that follows.
#[derive(Debug)]
pub struct Callbacks {
    shared: Arc<Shared>,
    started: Once,
}

struct Waiting {
    function: HostFunction,
    /// Work of its stream, and the function's own position in it: what comes
    /// before is over when it runs. 0 until it was posted.
    progress: Arc<Progress>,
    position: u64,
}

struct Shared {
    link: Arc<Link>,
    session: OnceLock<Weak<Session>>,
    functions: Mutex<HashMap<u64, Waiting>>,
    outstanding: Mutex<usize>,
    changed: Condvar,
    next: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Callbacks {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self {
            shared: Arc::new(Shared {
                link,
                session: OnceLock::new(),
                functions: Mutex::new(HashMap::new()),
                outstanding: Mutex::new(0),
                changed: Condvar::new(),
                next: AtomicU64::new(1),
            }),
            started: Once::new(),
        }
    }

    /// Whose shadows the functions see.
    pub(crate) fn bind(&self, session: &Arc<Session>) {
        let _ = self.shared.session.set(Arc::downgrade(session));
    }

    /// Host functions that have not run yet.
    pub(crate) fn outstanding(&self) -> usize {
        *lock(&self.shared.outstanding)
    }

    fn start(&self) {
        self.started.call_once(|| {
            let (sender, ids) = channel::<u64>();
            self.tell(sender);
            let shared = Arc::clone(&self.shared);
            spawn("paragpu-host", move || {
                for id in ids {
                    shared.run(id);
                }
            });
            let shared = Arc::clone(&self.shared);
            spawn("paragpu-reader", move || shared.read());
        });
    }

    fn tell(&self, sender: Sender<u64>) {
        let sender = Mutex::new(sender);
        self.shared.link.on_host_function(Box::new(move |id| {
            let _ = lock(&sender).send(id);
        }));
    }
}

/// Starts a thread with every signal blocked: the program's handlers run on
/// the program's own threads.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let body = move || {
        crate::sys::process::block_signals();
        body();
    };
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(body) {
        eprintln!("paragpu: cannot start the thread {name}: {error}");
    }
}

impl Shared {
    fn run(&self, id: u64) {
        let Some(waiting) = lock(&self.functions).remove(&id) else {
            return;
        };
        let session = self.session.get().and_then(Weak::upgrade);
        // What fails here fails every later call as well, and is told there.
        if let Some(session) = &session {
            waiting.progress.finish(waiting.position.saturating_sub(1));
            let _ = session.pull();
        }
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(waiting.function));
        if let Some(session) = &session {
            let _ = session.push_visible();
        }
        let _ = self.link.post(&HostFuncDone { id });
        let _ = self.link.flush();
        let mut outstanding = lock(&self.outstanding);
        *outstanding = outstanding.saturating_sub(1);
        if *outstanding == 0 {
            drop(outstanding);
            // Whoever waits for a reply may now read for itself.
            self.link.wake_reader();
        }
    }

    fn read(&self) {
        loop {
            let mut outstanding = lock(&self.outstanding);
            while *outstanding == 0 {
                outstanding = self
                    .changed
                    .wait(outstanding)
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            drop(outstanding);
            self.link.read_while(|| *lock(&self.outstanding) > 0);
            if self.link.check().is_err() {
                return;
            }
        }
    }
}

impl Session {
    /// cuLaunchHostFunc: `function` runs when `stream` gets there; the stream
    /// goes on when it returns. It must not call CUDA.
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn launch_host_function(&self, stream: &Stream, function: HostFunction) -> Result<()> {
        self.link.check()?;
        self.callbacks.start();
        let shared = &self.callbacks.shared;
        let id = shared.next.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting {
            function,
            progress: Arc::clone(&stream.progress),
            position: 0,
        };
        *lock(&shared.outstanding) += 1;
        let posted = {
            // Held until the position is known, so that it runs only then.
            let mut functions = lock(&shared.functions);
            functions.insert(id, waiting);
            let posted = self.post_work(
                stream,
                &HostFuncLaunch {
                    stream: stream.handle,
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
            *lock(&shared.outstanding) -= 1;
        }
        shared.changed.notify_all();
        posted.and_then(|_| self.link.flush())
    }
}
