//! The background writer: writes posted frames that no thread flushes, and bytes that a
//! full socket did not accept.

use std::sync::Arc;
use std::time::Duration;

use paragpu_communicator::Error;

use crate::link::{Link, Patience};

/// Time between two checks of the writer while there is traffic. Posting then costs no
/// system call, because the writer needs no notification.
const TICK: Duration = Duration::from_micros(50);

/// Checks without work after which it sleeps until notified.
const IDLE_TICKS: u32 = 20;

/// Starts the writer of a link; it ends with the link.
pub(crate) fn start(link: Arc<Link>) -> Result<(), Error> {
    std::thread::Builder::new()
        .name("paragpu-writer".into())
        .stack_size(64 << 10)
        .spawn(move || run(&link))
        .map(drop)
        .map_err(|source| Error::io("cannot start the writer thread", source))
}

fn run(link: &Link) {
    let mut outgoing = link.lock();
    let mut idle = IDLE_TICKS;
    loop {
        if link.is_closed() {
            // Another thread may be in the middle of a frame, and two writers would
            // interleave theirs.
            outgoing = link.await_writer(outgoing);
            if outgoing.is_due() {
                outgoing = link.drain(outgoing, Patience::Linger, u32::MAX);
            }
            drop(outgoing);
            link.shut_down();
            return;
        }
        if outgoing.is_due() {
            outgoing = link.drain(outgoing, Patience::Linger, u32::MAX);
            idle = 0;
        } else if idle < IDLE_TICKS {
            // Not parked yet, so a thread that posts finds `Awake` and makes no system
            // call.
            idle += 1;
            outgoing = link.await_work(outgoing, Some(TICK));
        } else {
            outgoing = link.await_work(outgoing, None);
            idle = 0;
        }
    }
}
