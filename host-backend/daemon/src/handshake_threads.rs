//! Threads that do TLS handshakes with guests, outside the event loop.
//!
//! A handshake signs, checks certificates and derives keys. Inside the loop, a flood of
//! them would delay everyone. A thread does one step of one handshake at a time: it reads
//! the available data and never waits for the peer. The loop keeps the queue
//! ([`Reception`](crate::reception::Reception)) and starts no more steps than there are
//! threads.
#![forbid(unsafe_code)]

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

use crate::handshake::{Pending, Progress};
use crate::sys;

/// Maximum number of threads.
const MAX_THREADS: usize = 4;

/// A connection with its key, and the result of a step.
type Step = (u64, Pending, Progress);

/// The daemon's side of the threads.
#[derive(Debug)]
pub struct HandshakeThreads {
    orders: Sender<(u64, Pending)>,
    done: Receiver<Step>,
    /// Receives a byte for each completed step.
    woken: UnixStream,
    /// Number of idle threads.
    idle: usize,
}

impl HandshakeThreads {
    /// Starts one thread per two processors, at least one and at most [`MAX_THREADS`].
    pub fn start() -> io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (processors / 2).clamp(1, MAX_THREADS);
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let (orders, receiver) = channel();
        let (results, done) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..count {
            let (receiver, results) = (Arc::clone(&receiver), results.clone());
            let wake = wake.try_clone()?;
            let run = move || {
                // Signals are for the event loop's thread.
                let _ = sys::block_signals();
                serve(&receiver, &results, &wake);
            };
            let thread = std::thread::Builder::new().name("handshakes".into());
            thread.spawn(run)?;
        }
        Ok(Self {
            orders,
            done,
            woken,
            idle: count,
        })
    }

    /// Whether a thread is idle.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.idle > 0
    }

    /// Has a thread do the next step of a connection's handshake.
    pub fn submit(&mut self, key: u64, pending: Pending) {
        match self.orders.send((key, pending)) {
            Ok(()) => self.idle = self.idle.saturating_sub(1),
            Err(_) => tracing::error!("no thread is left for handshakes"),
        }
    }

    /// A descriptor that is readable when steps are complete.
    #[must_use]
    pub fn woken(&self) -> &UnixStream {
        &self.woken
    }

    /// Returns the completed steps.
    pub fn done(&mut self) -> Vec<Step> {
        let mut bytes = [0; 64];
        while matches!((&self.woken).read(&mut bytes), Ok(count) if count > 0) {}
        let done: Vec<Step> = self.done.try_iter().collect();
        self.idle += done.len();
        done
    }
}

fn serve(orders: &Mutex<Receiver<(u64, Pending)>>, results: &Sender<Step>, mut wake: &UnixStream) {
    loop {
        let next = orders.lock().recv();
        let Ok((key, mut pending)) = next else { return };
        let progress = pending.advance();
        if results.send((key, pending, progress)).is_err() {
            return;
        }
        // Does not block: at most one byte per thread is unread.
        let _ = wake.write(&[1]);
    }
}
