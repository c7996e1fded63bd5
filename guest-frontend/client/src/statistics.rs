//! How often and with what the process crossed to its host.
//!
//! Counters are spread over several cache lines, so that threads which launch
//! at the same time do not slow each other down.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

const STRIPES: usize = 16;

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

fn stripe() -> &'static Stripe {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    let mine = MINE.try_with(|mine| *mine).unwrap_or(0);
    COUNTERS.get(mine).unwrap_or(&COUNTERS[0])
}

/// The program called a CUDA function.
pub fn count_call() {
    stripe().calls.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn count_posted() {
    stripe().posted.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn count_synchronous() {
    stripe().synchronous.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn count_to_device(bytes: u64) {
    stripe().to_device.fetch_add(bytes, Ordering::Relaxed);
}

pub(crate) fn count_from_device(bytes: u64) {
    stripe().from_device.fetch_add(bytes, Ordering::Relaxed);
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
            "{{\"calls\":{},\"posted\":{},\"synchronous\":{},\"bytes_to_device\":{},\"bytes_from_device\":{}}}",
            self.calls, self.posted, self.synchronous, self.bytes_to_device, self.bytes_from_device
        )
    }
}

static FILE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// At the process's end, appends one line of JSON with the counts to a file.
pub fn write_statistics_to(path: PathBuf) {
    *FILE.lock() = Some(path);
}

pub(crate) fn write_at_end() {
    let Some(path) = FILE.lock().take() else {
        return;
    };
    let written = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(format!("{}\n", statistics().to_json()).as_bytes()));
    if let Err(error) = written {
        eprintln!(
            "paragpu: cannot write the statistics to {}: {error}",
            path.display()
        );
    }
}
