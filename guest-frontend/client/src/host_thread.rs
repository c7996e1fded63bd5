//! The thread that runs the host functions of a session ([`crate::host_function`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::callback::CallbackThread;
use crate::host_words::Place;

/// A function that was called, until the host knows that it has returned.
pub(crate) struct Called {
    pub(crate) id: u64,
    /// Where the GPU announced it.
    pub(crate) place: Option<Place>,
    /// The GPU was to announce it.
    pub(crate) is_announced: bool,
}

/// The thread, and what it does.
#[derive(Default)]
pub(crate) struct HostThread {
    pub(crate) thread: CallbackThread,
    /// The function that runs, or that has ended the thread.
    called: Mutex<Option<Called>>,
    /// The thread that runs callbacks because work has failed: this one, or the one that ends
    /// the process.
    ending: Mutex<Option<ThreadId>>,
    ended: Condvar,
}

impl HostThread {
    /// Notes a function before it is called.
    pub(crate) fn calls(&self, called: Called) {
        *self.called.lock() = Some(called);
    }

    /// The function that has returned, or has ended the thread before this one.
    pub(crate) fn take_called(&self) -> Option<Called> {
        self.called.lock().take()
    }

    /// Waits until no other thread runs callbacks, and notes that the calling one does. Returns
    /// false if a function has ended the thread: no more of them run.
    pub(crate) fn begin_ending(&self) -> bool {
        let mut ending = self.ending.lock();
        while ending.is_some() {
            self.ended.wait(&mut ending);
        }
        if !self.thread.runs() {
            return false;
        }
        *ending = Some(std::thread::current().id());
        true
    }

    /// The calling thread runs no more callbacks, or ends.
    pub(crate) fn end_ending(&self) {
        let mut ending = self.ending.lock();
        if *ending == Some(std::thread::current().id()) {
            *ending = None;
            self.ended.notify_all();
        }
    }
}

/// What the thread waits for.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Functions that the host has asked for.
    pub(crate) ids: Mutex<VecDeque<u64>>,
    /// Number of launches and requests.
    pub(crate) events: AtomicU64,
    /// The thread sleeps, or is about to.
    is_asleep: AtomicBool,
    woken: Condvar,
}

impl Inbox {
    /// Records a launch or a request, after everything that the thread needs for it.
    pub(crate) fn tell(&self) {
        // Sequentially consistent with `sleep`: either that sees the event, or this sees it sleep.
        self.events.fetch_add(1, Ordering::SeqCst);
        if self.is_asleep.load(Ordering::SeqCst) {
            drop(self.ids.lock());
            self.woken.notify_one();
        }
    }

    /// Sleeps until there are other events than `seen`, or for `most`.
    pub(crate) fn sleep(&self, seen: u64, most: Option<Duration>) {
        let mut ids = self.ids.lock();
        self.is_asleep.store(true, Ordering::SeqCst);
        if self.events.load(Ordering::SeqCst) == seen {
            match most {
                Some(most) => drop(self.woken.wait_for(&mut ids, most)),
                None => self.woken.wait(&mut ids),
            }
        }
        self.is_asleep.store(false, Ordering::Relaxed);
    }
}
