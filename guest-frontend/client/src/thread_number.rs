//! Numbers of threads. A thread that ends has no `std::thread::current` any more, but still makes
//! calls, in the destructors of its last data.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a thread; no other has it, not even later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadNumber(u64);

impl ThreadNumber {
    /// That of the calling thread.
    pub(crate) fn own() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            // Nothing is dropped, so it exists until the thread is gone.
            static OWN: Cell<u64> = const { Cell::new(0) };
        }
        OWN.with(|own| {
            if own.get() == 0 {
                own.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            Self(own.get())
        })
    }
}
