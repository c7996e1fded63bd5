//! Connections that query the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::console::Console;
use crate::scrape::Scrape;

/// How long a listing waits for busy workers.
pub(super) const PATIENCE: Duration = Duration::from_millis(250);

/// The receiver of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    /// A connection of the control socket.
    Console(u64),
    /// A connection of the endpoint for metrics.
    Scrape(u64),
}

/// A listing that waits for the workers' counters.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) audience: Audience,
    pub(super) asked: Instant,
    /// Workers that were asked.
    pub(super) queried: BTreeSet<u64>,
}

impl Listing {
    /// When it is answered without them.
    pub(super) fn deadline(&self) -> Instant {
        self.asked + PATIENCE
    }
}

/// Connections that query the daemon, and their pending answers.
#[derive(Debug, Default)]
pub(super) struct Inquiries {
    pub(super) consoles: BTreeMap<u64, Console>,
    pub(super) scrapes: BTreeMap<u64, Scrape>,
    /// The last metrics, and when they were encoded.
    pub(super) metrics: Option<(Instant, String)>,
    pub(super) listings: Vec<Listing>,
}
