//! Counters of the process's calls to its host.
//!
//! The first threads have counters of their own, which they change without atomic
//! read-modify-writes. Later threads share counters in several cache lines, so that threads
//! that launch at the same time hardly slow each other down.

use std::cell::Cell;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use paragpu_protocol::table::CALLS;
use parking_lot::Mutex;

use crate::notice::notice;

/// Threads with counters of their own, and counters that the other threads share.
const OWN: usize = 48;
const SHARED: usize = 16;
const STRIPES: usize = OWN + SHARED;

/// Counts since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// CUDA functions that the program called.
    pub calls: u64,
    /// Calls that were sent without waiting.
    pub posted: u64,
    /// Calls that waited for a reply.
    pub synchronous: u64,
    /// Bytes copied towards the device.
    pub bytes_to_device: u64,
    /// Bytes copied from the device.
    pub bytes_from_device: u64,
}

#[repr(align(128))]
struct Stripe {
    calls: AtomicU64,
    posted: AtomicU64,
    synchronous: AtomicU64,
    to_device: AtomicU64,
    from_device: AtomicU64,
}

static COUNTERS: [Stripe; STRIPES] = [const {
    Stripe {
        calls: AtomicU64::new(0),
        posted: AtomicU64::new(0),
        synchronous: AtomicU64::new(0),
        to_device: AtomicU64::new(0),
        from_device: AtomicU64::new(0),
    }
}; STRIPES];

/// Adds to one of the thread's counters.
#[inline]
fn add(counter: impl FnOnce(&Stripe) -> &AtomicU64, more: u64) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        /// One more than the index of the thread's counters; 0 before its first call.
        static PLACE: Cell<usize> = const { Cell::new(0) };
    }
    #[cold]
    fn choose() -> usize {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        1 + if next < OWN {
            next
        } else {
            OWN + next % SHARED
        }
    }
    let place = PLACE.with(|place| {
        if place.get() == 0 {
            place.set(choose());
        }
        place.get() - 1
    });
    let Some(stripe) = COUNTERS.get(place) else {
        return;
    };
    let counter = counter(stripe);
    if place < OWN {
        let count = counter.load(Ordering::Relaxed);
        counter.store(count.wrapping_add(more), Ordering::Relaxed);
    } else {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

/// The program called a CUDA function.
#[inline]
pub fn count_call() {
    add(|stripe| &stripe.calls, 1);
}

#[inline]
pub(crate) fn count_posted() {
    add(|stripe| &stripe.posted, 1);
}

/// Begins the wait for a call's reply; dropping the result ends it.
pub(crate) fn count_synchronous(number: u16) -> Option<Waiting> {
    add(|stripe| &stripe.synchronous, 1);
    let began = CLOCKED.load(Ordering::Relaxed).then(Instant::now)?;
    Some(Waiting { number, began })
}

/// How long calls of one number waited, in the order of [`CALLS`].
struct Waits {
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

static WAITS: [Waits; CALLS.len()] = [const {
    Waits {
        count: AtomicU64::new(0),
        nanoseconds: AtomicU64::new(0),
    }
}; CALLS.len()];

/// Whether wait times are recorded.
static CLOCKED: AtomicBool = AtomicBool::new(false);

/// A call that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    number: u16,
    began: Instant,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let place = CALLS.binary_search_by_key(&self.number, |call| call.number);
        let Some(waits) = place.ok().and_then(|place| WAITS.get(place)) else {
            return;
        };
        let took = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        waits.count.fetch_add(1, Ordering::Relaxed);
        waits.nanoseconds.fetch_add(took, Ordering::Relaxed);
    }
}

/// One JSON object: by a call's name, how often it waited and microseconds in all.
fn waits_to_json() -> String {
    let each = CALLS.iter().zip(&WAITS).filter_map(|(call, waits)| {
        let count = waits.count.load(Ordering::Relaxed);
        let microseconds = waits.nanoseconds.load(Ordering::Relaxed) / 1000;
        let name = call.name;
        (count > 0).then(|| format!("\"{name}\":{{\"count\":{count},\"us\":{microseconds}}}"))
    });
    format!("{{{}}}", each.collect::<Vec<_>>().join(","))
}

pub(crate) fn count_to_device(bytes: u64) {
    add(|stripe| &stripe.to_device, bytes);
}

pub(crate) fn count_from_device(bytes: u64) {
    add(|stripe| &stripe.from_device, bytes);
}

/// The counts so far.
#[must_use]
pub fn statistics() -> Statistics {
    let sum = |field: fn(&Stripe) -> &AtomicU64| {
        COUNTERS
            .iter()
            .map(|stripe| field(stripe).load(Ordering::Relaxed))
            .sum()
    };
    Statistics {
        calls: sum(|stripe| &stripe.calls),
        posted: sum(|stripe| &stripe.posted),
        synchronous: sum(|stripe| &stripe.synchronous),
        bytes_to_device: sum(|stripe| &stripe.to_device),
        bytes_from_device: sum(|stripe| &stripe.from_device),
    }
}

impl Statistics {
    /// One line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        format!(
            "{{\"calls\":{},\"posted\":{},\"synchronous\":{},\"bytes_to_device\":{},\"bytes_from_device\":{},\"waits\":{}}}",
            self.calls,
            self.posted,
            self.synchronous,
            self.bytes_to_device,
            self.bytes_from_device,
            waits_to_json(),
        )
    }
}

static FILE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// When the process exits, appends one line of JSON with the counts to a file.
pub fn write_statistics_to(path: PathBuf) {
    *FILE.lock() = Some(path);
    CLOCKED.store(true, Ordering::Relaxed);
}

pub(crate) fn write_at_end() {
    let Some(path) = FILE.lock().take() else {
        return;
    };
    let written = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        // A pipe that nobody reads is an error, and no wait.
        .custom_flags(libc::O_NONBLOCK)
        .open(&path)
        .and_then(|mut file| file.write_all(format!("{}\n", statistics().to_json()).as_bytes()));
    if let Err(error) = written {
        notice(format_args!(
            "cannot write the statistics to {}: {error}",
            path.display()
        ));
    }
}
