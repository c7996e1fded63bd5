//! Watches for failed work while callbacks (cuStreamAddCallback) are outstanding: they run if work
//! fails, and the program may do nothing but wait for one.
//!
//! A thread of its own asks the host. The thread that runs the functions must not: the host may
//! answer only after a function has run, because the question is behind calls that wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::StreamQuery;
use parking_lot::Mutex;

use crate::connection::Link;
use crate::error::Result;
use crate::sys::process::spawn;

/// While callbacks are outstanding, the host is asked this often whether work has failed.
const INTERVAL: Duration = Duration::from_millis(100);

/// The callbacks that have not run yet, and the thread that watches.
#[derive(Debug, Default)]
pub(crate) struct CallbackWatch {
    outstanding: AtomicUsize,
    /// The thread runs. It ends once no callbacks are outstanding, and with the session.
    runs: Mutex<bool>,
}

impl CallbackWatch {
    /// Counts a callback, also if this fails, and starts the thread unless it runs.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if it cannot be started.
    pub(crate) fn begin(self: &Arc<Self>, link: &Arc<Link>) -> Result<()> {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        // Counted before: a thread that is about to end sees the callback, or this one starts
        // another.
        let mut runs = self.runs.lock();
        if !*runs {
            let (this, link) = (Arc::clone(self), Arc::clone(link));
            *runs = spawn("paragpu-watch", move || this.watch(&link));
        }
        match *runs {
            true => Ok(()),
            false => Err(Status::OPERATING_SYSTEM),
        }
    }

    /// A callback runs now, or never will.
    pub(crate) fn end(&self) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
    }

    fn watch(&self, link: &Link) {
        loop {
            std::thread::sleep(INTERVAL);
            let mut runs = self.runs.lock();
            if self.outstanding.load(Ordering::Acquire) == 0 || link.check().is_err() {
                *runs = false;
                return;
            }
            drop(runs);
            // The link notes an error and wakes the thread that runs the callbacks.
            let _ = link.call_asleep(&StreamQuery {
                stream: StreamHandle::LEGACY,
            });
        }
    }
}
