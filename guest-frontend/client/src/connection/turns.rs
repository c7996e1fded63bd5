//! A queue for senders when the ring or socket is full.
//!
//! A thread that has just sent is running and would take each freed slot before any
//! sleeping thread wakes: without a queue, one of eight threads waited milliseconds
//! while the others continued. The queue is used only while each waiter has a
//! processor to spin on. If threads must sleep to let others run, a turn for each
//! call costs more than it gains.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use paragpu_communicator::Spin;
use parking_lot::Mutex;

/// A queue of threads; empty while there is room.
#[derive(Default)]
pub(super) struct Turns {
    /// Maximum length, by the number of processors; one of them is for the host.
    longest: OnceLock<usize>,
    /// Length of the queue, for threads that arrive.
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<Arc<Waiter>>>,
}

struct Waiter {
    thread: Thread,
    /// Whether it is this thread's turn.
    called: AtomicBool,
}

impl Waiter {
    fn call(&self) {
        // If the unpark comes first, the thread checks again.
        self.called.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Turns {
    /// Whether threads are queued. A thread that arrives then must queue as well:
    /// overtaking would starve the others. A stale answer lets one thread overtake.
    pub(super) fn is_taken(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Queues and returns when it is this thread's turn. `None` if the queue is too
    /// long.
    pub(super) fn take(&self, spin: Duration) -> Option<Turn<'_>> {
        let longest = *self.longest.get_or_init(|| {
            std::thread::available_parallelism().map_or(0, |processors| processors.get() - 1)
        });
        let waiter = Arc::new(Waiter {
            thread: std::thread::current(),
            called: AtomicBool::new(false),
        });
        {
            let mut queue = self.queue.lock();
            if queue.len() >= longest {
                return None;
            }
            waiter.called.store(queue.is_empty(), Ordering::Relaxed);
            queue.push_back(Arc::clone(&waiter));
            self.waiting.store(queue.len(), Ordering::Relaxed);
        }
        let mut spin = Spin::new(spin, None);
        while !waiter.called.load(Ordering::Acquire) {
            if !spin.again() {
                std::thread::park();
            }
        }
        Some(Turn {
            turns: self,
            waiter,
        })
    }
}

/// A thread's turn, until it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    waiter: Arc<Waiter>,
}

impl Turn<'_> {
    /// Wakes all threads of the queue, because there is room again. Waking them one
    /// by one would be slower than the host.
    pub(super) fn open(self) {
        let mut queue = self.turns.queue.lock();
        for waiter in queue.drain(..) {
            waiter.call();
        }
        self.turns.waiting.store(0, Ordering::Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut queue = self.turns.queue.lock();
        // Not if the queue was opened before.
        if queue
            .front()
            .is_some_and(|first| Arc::ptr_eq(first, &self.waiter))
        {
            queue.pop_front();
            if let Some(next) = queue.front() {
                next.call();
            }
        }
        self.turns.waiting.store(queue.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: usize = 6;
    const EACH: usize = 400;

    impl Turns {
        fn of(longest: usize) -> Self {
            Self {
                longest: OnceLock::from(longest),
                ..Self::default()
            }
        }
    }

    #[test]
    fn the_queue_is_bounded() {
        let turns = Turns::of(1);
        let first = turns.take(Duration::ZERO).unwrap();
        assert!(turns.take(Duration::ZERO).is_none());
        drop(first);
        assert!(turns.take(Duration::ZERO).is_some());
    }

    /// Every thread sends in the order of the line, one at a time.
    #[test]
    fn turns_come_in_order() {
        let turns = Turns::of(THREADS + 1);
        let inside = AtomicUsize::new(0);
        let first = turns.take(Duration::ZERO).unwrap();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let (turns, order, inside) = (&turns, &order, &inside);
                scope.spawn(move || {
                    let turn = turns.take(Duration::ZERO).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    order.lock().push(number);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(turn);
                });
                // The next gets in line behind it.
                while turns.waiting.load(Ordering::Relaxed) != number + 2 {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner(), (0..THREADS).collect::<Vec<_>>());
        assert!(!turns.is_taken());
    }

    /// However turns end, every thread gets one and none sleeps forever.
    #[test]
    fn no_thread_stays_queued() {
        for spin in [Duration::ZERO, Duration::from_micros(20)] {
            let turns = Turns::of(THREADS);
            let count = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for number in 0..THREADS {
                    let (turns, count) = (&turns, &count);
                    scope.spawn(move || {
                        for round in 0..EACH {
                            let turn = turns.take(spin).unwrap();
                            count.fetch_add(1, Ordering::Relaxed);
                            if (round + number).is_multiple_of(5) {
                                turn.open();
                            }
                        }
                    });
                }
            });
            assert_eq!(count.into_inner(), THREADS * EACH);
            assert!(!turns.is_taken());
        }
    }
}
