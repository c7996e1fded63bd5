//! The daemon's orders to a running session.

use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paragpu_communicator::Wake;
pub use paragpu_control::worker::{Figures, Phase, Progress, Report, Route, Step};

/// An order.
#[derive(Debug)]
pub enum Order {
    /// Write the session's state.
    Checkpoint {
        /// Where to.
        target: CheckpointTarget,
        /// End the session when it is written.
        end: bool,
    },
    /// Continue in another worker.
    Migrate(Departure),
}

/// Where a session's state is written.
#[derive(Debug)]
pub enum CheckpointTarget {
    /// Into a file of this directory, which is made if it does not exist.
    Directory(PathBuf),
    /// Into this file, which the daemon gives its name.
    File(File),
}

/// How a session leaves: [`Migrate`](paragpu_control::worker::Migrate).
#[derive(Debug)]
pub struct Departure {
    /// Leads to the destination's daemon.
    pub link: OwnedFd,
    /// Descriptors pass the link.
    pub local: bool,
    /// Which of the destination's devices.
    pub wanted: u32,
    /// The communicator over which the guest continues there; empty for its
    /// connection as it is.
    pub follows: String,
    /// Of sessions that move together: pipes that let it stop, and commit.
    pub gates: Option<[OwnedFd; 2]>,
    /// Copy memory while the program runs.
    pub precopy: bool,
    /// Hand device memory over where both ends are on one GPU.
    pub hand_over: bool,
}

/// Microseconds of [`Figures`].
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The queue of a session's orders.
pub struct Orders {
    waiting: AtomicBool,
    order: Mutex<Option<Order>>,
    wake: Mutex<Option<Arc<dyn Wake>>>,
    report: Box<dyn Fn(Report) + Send + Sync>,
}

impl std::fmt::Debug for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orders").finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Orders {
    /// Orders whose reports go to `report`.
    pub fn new(report: impl Fn(Report) + Send + Sync + 'static) -> Self {
        Self {
            waiting: AtomicBool::new(false),
            order: Mutex::new(None),
            wake: Mutex::new(None),
            report: Box::new(report),
        }
    }

    /// Leaves an order; false where another one waits.
    pub fn give(&self, order: Order) -> bool {
        let mut place = locked(&self.order);
        if place.is_some() {
            return false;
        }
        *place = Some(order);
        self.waiting.store(true, Ordering::Release);
        drop(place);
        self.wake();
        true
    }

    /// Ends the session's wait for calls.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &*locked(&self.wake) {
            wake.wake();
        }
    }

    /// Takes the order that waits.
    pub(crate) fn take(&self) -> Option<Order> {
        if !self.waiting.load(Ordering::Relaxed) {
            return None;
        }
        let order = locked(&self.order).take();
        self.waiting.store(false, Ordering::Release);
        order
    }

    /// Interrupts the session's wait for calls.
    pub(crate) fn wakes(&self, wake: Arc<dyn Wake>) {
        *locked(&self.wake) = Some(wake);
    }

    pub(crate) fn report(&self, report: Report) {
        (self.report)(report);
    }
}
