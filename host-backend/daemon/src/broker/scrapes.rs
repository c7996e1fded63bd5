//! Serves the metrics endpoint.

use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::process::{Resource, getrlimit};

use super::Broker;
use super::inquiries::Audience;
use crate::metrics::{Board, Gpu, Paced, Report, Totals, VmMemory};
use crate::scrape::{Scrape, Step};
use crate::worker::State;

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of connections without a request.
const MAX_SILENT: usize = 16;
/// Maximum number of connections.
const MAX_CONNECTIONS: u64 = 256;
/// The part of the daemon's descriptors that all connections may take.
const CONNECTIONS_PART: u64 = 8;

impl Broker {
    pub(super) fn accept_scrape(&mut self) {
        let Some(metrics) = &self.listeners.metrics else {
            return;
        };
        match metrics.accept() {
            Ok(Some((socket, _))) => {
                if let Some(loser) = self.loser() {
                    self.inquiries.forget_scrape(loser);
                }
                let key = self.counts.key();
                let scrape = Scrape::new(socket, Instant::now() + PATIENCE);
                self.inquiries.scrapes.insert(key, scrape);
            }
            Ok(None) => {}
            Err(error) => self.pause_accepting(&error),
        }
    }

    /// The connection that makes room for another, if there are too many. Any user of the host
    /// may connect: those that send no request must not keep out others, which do so at once.
    fn loser(&self) -> Option<u64> {
        let scrapes = &self.inquiries.scrapes;
        let silent = || scrapes.iter().filter(|(_, scrape)| scrape.reading());
        if silent().count() >= MAX_SILENT {
            return silent().next().map(|(key, _)| *key);
        }
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = MAX_CONNECTIONS.min(limit / CONNECTIONS_PART);
        let oldest = scrapes.keys().next().copied();
        oldest.filter(|_| scrapes.len() as u64 >= most)
    }

    pub(super) fn scrape(&mut self, key: u64, flags: PollFlags) {
        let Some(scrape) = self.inquiries.scrapes.get_mut(&key) else {
            return;
        };
        let step = match flags.contains(PollFlags::OUT) {
            true => scrape.write(),
            false => match scrape.read() {
                Step::Answering => scrape.write(),
                step => step,
            },
        };
        match step {
            Step::Asked => {
                let audience = Audience::Scrape(key);
                self.inquiries.begin_listing(audience, &mut self.workers);
            }
            Step::Over => self.inquiries.forget_scrape(key),
            Step::More | Step::Answering => {}
        }
    }

    /// Answers once the workers have reported their counters. One text serves all requests
    /// that came before it was encoded.
    pub(super) fn answer_scrape(&mut self, key: u64, asked: Instant) {
        let last = self.inquiries.metrics.take();
        let (encoded, text) = last
            .filter(|(encoded, _)| *encoded >= asked)
            .unwrap_or_else(|| (Instant::now(), self.report().encode()));
        let (_, text) = self.inquiries.metrics.insert((encoded, text));
        if let Some(scrape) = self.inquiries.scrapes.get_mut(&key) {
            scrape.answer(text);
            if scrape.write() == Step::Over {
                self.inquiries.scrapes.remove(&key);
            }
        }
    }

    fn report(&self) -> Report {
        let mut report = Report::new(&self.counts.ended);
        for session in self.workers.sessions() {
            let facts = &session.facts;
            report.session(&facts.vm, &facts.device, session.counters.as_ref());
            if let Some(turns) = self.shares.info(facts.session) {
                report.turns.push(Paced {
                    vm: facts.vm.clone(),
                    gpu: facts.device.clone(),
                    session: facts.session,
                    turns,
                });
            }
            let memory = VmMemory {
                used: self.tenants.memory(&facts.vm),
                limit: self.tenants.memory_limit(&self.host, &facts.vm),
            };
            report.vms.insert(facts.vm.clone(), memory);
        }
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        for (position, device) in self.devices.iter().take(self.devices.count() as usize) {
            let board = Board {
                index: device.index,
                uuid: device.gpu.uuid.clone(),
                model: device.gpu.name.clone(),
                host: host.clone().into_owned(),
                memory: device.gpu.memory,
                used: 0,
                percent: Some(0),
            };
            report.boards.insert(self.devices.label(position), board);
            let count = |state| self.workers.count(position, state) as u64;
            let gpu = Gpu {
                memory: device.gpu.memory,
                idle: count(State::Idle),
                starting: count(State::Starting),
            };
            report.gpus.insert(self.devices.label(position), gpu);
        }
        report.moves = self.counts.moves;
        report.totals = Totals {
            sessions_begun: self.counts.begun,
            guests_refused: self.counts.refused,
            workers_crashed: self.counts.crashed,
            guests_waiting: self.arrivals.waiting.len() as u64,
            connections_pending: self.arrivals.reception.len() as u64,
        };
        report
    }
}
