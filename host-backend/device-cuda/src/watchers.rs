//! Threads that sleep in the driver until events are reached, each for one event at a time.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

/// Maximum number of threads: as many events can be waited for at once.
const MAX_THREADS: usize = 64;

/// A wait, and what follows it.
pub(crate) type Watch = Box<dyn FnOnce() + Send>;

struct State {
    /// Watches that idle threads have not begun.
    given: VecDeque<Watch>,
    /// Threads without a watch.
    idle: usize,
    threads: usize,
}

/// The threads, started as needed. They end with the process.
pub(crate) struct Watchers {
    state: Mutex<State>,
    changed: Condvar,
}

/// Those of the process.
pub(crate) static WATCHERS: Watchers = Watchers::new();

impl Watchers {
    const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                given: VecDeque::new(),
                idle: 0,
                threads: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Runs the watch at once in a thread of its own. Returns false if all are busy.
    pub(crate) fn run(&'static self, watch: Watch) -> bool {
        let mut state = self.state.lock();
        if state.idle > state.given.len() {
            state.given.push_back(watch);
            drop(state);
            self.changed.notify_one();
            return true;
        }
        if state.threads >= MAX_THREADS {
            return false;
        }
        let thread = std::thread::Builder::new().name("watch".into());
        let started = thread.spawn(move || {
            watch();
            loop {
                self.next()();
            }
        });
        state.threads += usize::from(started.is_ok());
        started.is_ok()
    }

    /// Waits for the next watch.
    fn next(&self) -> Watch {
        let mut state = self.state.lock();
        state.idle += 1;
        loop {
            if let Some(watch) = state.given.pop_front() {
                state.idle -= 1;
                return watch;
            }
            self.changed.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// A watch that ends when something is sent, and reports its thread.
    fn held(ends: Receiver<()>, ended: std::sync::mpsc::Sender<std::thread::ThreadId>) -> Watch {
        Box::new(move || {
            let _ = ends.recv();
            let _ = ended.send(std::thread::current().id());
        })
    }

    #[test]
    fn watches_wait_at_the_same_time_and_threads_are_used_again() {
        let watchers: &Watchers = Box::leak(Box::new(Watchers::new()));
        let (ended, threads) = channel();
        let mut release = Vec::new();
        for _ in 0..MAX_THREADS {
            let (end, ends) = channel();
            release.push(end);
            assert!(watchers.run(held(ends, ended.clone())));
        }
        assert!(!watchers.run(Box::new(|| {})), "all are busy");
        // The last ends first: none waits for another.
        release.pop().unwrap().send(()).unwrap();
        let thread = threads.recv().unwrap();
        while watchers.state.lock().idle == 0 {
            std::thread::yield_now();
        }
        let (end, ends) = channel();
        assert!(watchers.run(held(ends, ended)));
        end.send(()).unwrap();
        assert_eq!(threads.recv().unwrap(), thread);
    }
}
