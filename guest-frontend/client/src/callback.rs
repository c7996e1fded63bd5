//! Functions of the program that the library calls in threads of its own: host functions, and
//! destructors of user objects. They must not call CUDA.

use std::cell::{Cell, OnceCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use crate::error::Result;
use crate::sys::process::spawn_for_callbacks;

thread_local! {
    // Nothing is dropped, so it exists until the thread is gone.
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs such a function.
#[inline]
#[must_use]
pub fn in_callback() -> bool {
    IS_RUNNING.with(Cell::get)
}

/// Runs such a function. If it panics, it ends, but not its caller. If it ends its thread
/// ([`crate::sys::bare_call`]), this does not return, and destructors do not run: the caller
/// holds no lock.
pub(crate) fn run_callback(function: impl FnOnce()) {
    let outer = IS_RUNNING.replace(true);
    let _ = catch_unwind(AssertUnwindSafe(function));
    IS_RUNNING.set(outer);
}

/// A thread that runs such functions. One of them may end it.
#[derive(Debug, Default)]
pub(crate) struct CallbackThread(Arc<Life>);

#[derive(Debug, Default)]
struct Life {
    runs: AtomicBool,
    /// Held while the thread is started, and when it ends: it may end at once.
    changes: Mutex<()>,
}

/// Notices the end of its thread, also by `pthread_exit`.
struct Ending<F: FnOnce()> {
    life: Arc<Life>,
    ended: Option<F>,
}

impl<F: FnOnce()> Drop for Ending<F> {
    fn drop(&mut self) {
        let changes = self.life.changes.lock();
        self.life.runs.store(false, Ordering::Release);
        drop(changes);
        if let Some(ended) = self.ended.take() {
            ended();
        }
    }
}

thread_local! {
    // Dropped when the thread ends, with the thread's other objects.
    static ENDING: OnceCell<Ending<Box<dyn FnOnce()>>> = const { OnceCell::new() };
}

impl CallbackThread {
    pub(crate) fn runs(&self) -> bool {
        self.0.runs.load(Ordering::Acquire)
    }

    /// Starts the thread unless it runs. `ended` is called in it when it ends.
    ///
    /// # Errors
    /// `OPERATING_SYSTEM` if it cannot be started. The next call tries again.
    pub(crate) fn start(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let _changes = self.0.changes.lock();
        if self.runs() {
            return Ok(());
        }
        let life = Arc::clone(&self.0);
        let started = spawn_for_callbacks(name, move || {
            // Until this thread counts as running.
            drop(life.changes.lock());
            let ended: Option<Box<dyn FnOnce()>> = Some(Box::new(ended));
            // A new thread has none.
            let _ = ENDING.with(|ending| ending.set(Ending { life, ended }));
            body();
        });
        if !started {
            return Err(Status::OPERATING_SYSTEM);
        }
        self.0.runs.store(true, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_that_ended_is_started_again() {
        let thread = CallbackThread::default();
        for round in 0..3 {
            let (ending, ends) = channel::<()>();
            let (sender, received) = channel();
            assert!(!thread.runs());
            let (first, last) = (sender.clone(), sender.clone());
            let body = move || {
                first.send("runs").unwrap();
                let _ = ends.recv();
            };
            let ended = move || last.send("ended").unwrap();
            thread.start("test", body, ended).unwrap();
            assert_eq!(received.recv(), Ok("runs"), "round {round}");
            assert!(thread.runs());
            let again = move || sender.send("again").unwrap();
            thread.start("test", again, || ()).unwrap();
            drop(ending);
            assert_eq!(received.iter().collect::<Vec<_>>(), ["ended"]);
        }
    }

    #[test]
    fn only_the_thread_of_a_callback_runs_one() {
        assert!(!in_callback());
        run_callback(|| {
            assert!(in_callback());
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(!in_callback()));
            });
            run_callback(|| panic!("a panic of the program's function"));
            assert!(in_callback());
        });
        assert!(!in_callback());
    }
}
