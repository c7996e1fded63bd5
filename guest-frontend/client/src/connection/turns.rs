//! A queue for senders: while threads contend for the connection, each sends once a turn.
//!
//! A thread that has just sent is running and would take each freed slot, or the lock,
//! before any waiting thread. Without a queue, one of eight threads waited milliseconds
//! while the others continued. With it, the calls of threads that launch at the same time
//! overlap, so that the host may submit them side by side.
//!
//! The queue is used only while each waiter has a processor to spin on. If threads must
//! sleep to let others run, a turn for each call costs more than it gains.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use paragpu_communicator::Spin;
use parking_lot::{Condvar, Mutex};

use crate::sys::uncancelled::processors;

/// Polls of a thread that waits for its turn, or for room while others wait for theirs, before
/// the first that yields the processor: some turns of each of the others. If one yields, and
/// the kernel runs something else meanwhile, all others wait for it.
pub(super) const EAGER_POLLS: u32 = 1024;

/// A queue of threads; empty while none contend.
#[derive(Default)]
pub(super) struct Turns {
    /// Maximum length, by the number of processors; one of them is for the host.
    longest: OnceLock<u64>,
    /// The ticket of the next thread that arrives.
    next: AtomicU64,
    /// The ticket whose turn it is; [`next`](Self::next) if the queue is empty.
    current: AtomicU64,
    /// Number of threads that sleep, or are about to.
    sleepers: AtomicUsize,
    /// Held by a thread from its last look at the turn until it sleeps.
    falls_asleep: Mutex<()>,
    changed: Condvar,
    /// Held by a thread that keeps the others from sending.
    pub(super) pausing: Mutex<()>,
}

impl Turns {
    /// Whether threads are queued. A thread that arrives then must queue as well:
    /// overtaking would starve the others. A stale answer lets one thread overtake.
    pub(super) fn is_taken(&self) -> bool {
        self.waiting() != 0
    }

    /// Whether threads wait behind the one whose turn it is.
    pub(super) fn has_several(&self) -> bool {
        self.waiting() > 1
    }

    fn waiting(&self) -> u64 {
        let current = self.current.load(Ordering::Relaxed);
        self.next.load(Ordering::Relaxed).saturating_sub(current)
    }

    /// Queues and returns when it is this thread's turn. `None` if the queue is too
    /// long.
    pub(super) fn take(&self, spin: Duration) -> Option<Turn<'_>> {
        let longest = *self.longest.get_or_init(|| processors() as u64 - 1);
        if self.waiting() >= longest {
            return None;
        }
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let mut spin = Spin::new(spin, None);
        let mut polls = 0;
        while self.current.load(Ordering::Acquire) != ticket {
            if polls < EAGER_POLLS {
                polls += 1;
                std::hint::spin_loop();
                continue;
            }
            if !spin.again() {
                self.sleep(ticket);
                break;
            }
        }
        Some(Turn {
            turns: self,
            ticket,
        })
    }

    /// Sleeps until it is the ticket's turn.
    ///
    /// This thread announces that it sleeps and then looks at the turn; the one before it
    /// passes the turn and then looks for sleepers. All four are SeqCst, so at least one of
    /// the two sees what the other did.
    ///
    /// The thread may be ending ([`at_thread_end`](crate::sys::process::at_thread_end)), so it
    /// has no `std::thread::current`.
    #[cold]
    fn sleep(&self, ticket: u64) {
        let mut asleep = self.falls_asleep.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.current.load(Ordering::SeqCst) != ticket {
            self.changed.wait(&mut asleep);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A thread's turn, until it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    ticket: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let next = self.ticket + 1;
        self.turns.current.store(next, Ordering::SeqCst);
        if self.turns.sleepers.load(Ordering::SeqCst) != 0 {
            drop(self.turns.falls_asleep.lock());
            self.turns.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: u64 = 6;
    const EACH: u64 = 400;

    impl Turns {
        fn of(longest: u64) -> Self {
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
                while turns.waiting() != number + 2 {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner(), (0..THREADS).collect::<Vec<_>>());
        assert!(!turns.is_taken());
    }

    /// Threads that end still make calls, in the destructors of their last data.
    #[test]
    fn a_thread_that_ends_sleeps_until_its_turn() {
        static TURNS: Turns = Turns {
            longest: OnceLock::new(),
            next: AtomicU64::new(0),
            current: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            falls_asleep: Mutex::new(()),
            changed: Condvar::new(),
            pausing: Mutex::new(()),
        };
        TURNS.longest.set(THREADS).unwrap();
        let first = TURNS.take(Duration::ZERO).unwrap();
        let ends = std::thread::spawn(|| {
            // From here on it has a handle, which is destroyed first.
            let _ = std::thread::current();
            crate::sys::process::at_thread_end(|| drop(TURNS.take(Duration::ZERO)));
        });
        while TURNS.sleepers.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop(first);
        ends.join().unwrap();
        assert!(!TURNS.is_taken());
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
                                std::thread::yield_now();
                            }
                            drop(turn);
                        }
                    });
                }
            });
            assert_eq!(count.into_inner() as u64, THREADS * EACH);
            assert!(!turns.is_taken());
        }
    }
}
