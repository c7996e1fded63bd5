//! Connections that query the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::workers::Workers;
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

impl Inquiries {
    /// Asks the workers of sessions for their counters, to answer when they have come.
    pub(super) fn begin_listing(&mut self, audience: Audience, workers: &mut Workers) {
        self.listings.push(Listing {
            audience,
            asked: Instant::now(),
            queried: workers.query(),
        });
    }

    /// Takes the listings whose workers have all answered or are too slow.
    pub(super) fn take_answerable(&mut self, workers: &Workers, now: Instant) -> Vec<Listing> {
        // Encoding metrics takes the event loop's time: it is done at most once in PATIENCE,
        // however many ask.
        let encoded = self.metrics.as_ref().map(|(at, _)| *at);
        let too_soon = |listing: &Listing| {
            matches!(listing.audience, Audience::Scrape(_))
                && encoded.is_some_and(|at| at < listing.asked && now < at + PATIENCE)
        };
        let awaited = |key: &u64| {
            let worker = workers.get(*key);
            worker.is_some_and(|worker| worker.queried && worker.control.is_some())
        };
        let (over, open) = std::mem::take(&mut self.listings)
            .into_iter()
            .partition(|listing| {
                listing.deadline() <= now
                    || !too_soon(listing) && !listing.queried.iter().any(awaited)
            });
        self.listings = open;
        over
    }

    /// When a listing is answered in any case, or a connection is closed.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let listings = self.listings.iter().map(Listing::deadline);
        let scrapes = self.scrapes.values().map(|scrape| scrape.deadline);
        listings.chain(scrapes).min()
    }

    /// Closes connections for metrics that take too long.
    pub(super) fn give_up_on_scrapes(&mut self, now: Instant) {
        self.scrapes.retain(|_, scrape| scrape.deadline > now);
        let scrapes = &self.scrapes;
        self.listings.retain(|listing| match listing.audience {
            Audience::Scrape(key) => scrapes.contains_key(&key),
            Audience::Console(_) => true,
        });
    }

    /// Closes a connection for metrics.
    pub(super) fn forget_scrape(&mut self, key: u64) {
        self.scrapes.remove(&key);
        self.forget(Audience::Scrape(key));
    }

    /// Drops what a closed connection waits for.
    pub(super) fn forget(&mut self, audience: Audience) {
        self.listings.retain(|listing| listing.audience != audience);
    }

    /// The users and keys of the control socket's connections.
    pub(super) fn commanders(&self) -> Vec<(u32, u64)> {
        let commanders = self.consoles.iter().filter(|(_, it)| !it.is_agent);
        commanders.map(|(key, it)| (it.owner, *key)).collect()
    }

    /// The connections of agents.
    pub(super) fn agents(&self) -> impl Iterator<Item = (u64, &Console)> {
        let consoles = self.consoles.iter().map(|(key, it)| (*key, it));
        consoles.filter(|(_, it)| it.is_agent)
    }
}
