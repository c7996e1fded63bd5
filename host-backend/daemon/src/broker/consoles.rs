//! Serves the control socket.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use paragpu_control::admin::{DeviceInfo, Request, Response, SessionInfo, Stats, VmInfo};
use paragpu_protocol::handshake::VERSION;
use rustix::event::PollFlags;
use rustix::process::{Resource, getrlimit};

use super::Broker;
use super::inquiries::Audience;
use super::turns::ShareRequest;
use crate::console::Console;
use crate::listener::Peer;
use crate::slots::oldest_of_largest;
use crate::worker::State;

/// Maximum number of connections of the control socket.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of connections of the lease socket per user.
const MAX_AGENTS: usize = 1024;
/// The part of the daemon's descriptors that all connections of the lease socket may take.
const AGENTS_PART: u64 = 8;
/// How long an agent may have neither a lease nor a pending claim.
const AGENT_PATIENCE: Duration = Duration::from_secs(30);

impl Broker {
    pub(super) fn accept_console(&mut self) {
        let Some(commands) = &self.listeners.commands else {
            return;
        };
        match commands.accept() {
            Ok(Some((socket, Peer::Local { uid, owner, .. }))) => {
                // A user with many idle connections must not keep others from the socket.
                let commanders = self.inquiries.commanders();
                if commanders.len() >= MAX_CONNECTIONS
                    && let Some(oldest) = oldest_of_largest(commanders)
                {
                    self.close(oldest);
                }
                let key = self.counts.key();
                self.inquiries
                    .consoles
                    .insert(key, Console::new(socket, uid, owner));
            }
            Ok(_) => {}
            Err(error) => self.pause_accepting(&error),
        }
    }

    /// Accepts a connection of a lease's agent.
    pub(super) fn accept_agent(&mut self) {
        let Some(agents) = &self.listeners.agents else {
            return;
        };
        match agents.accept() {
            Ok(Some((socket, Peer::Local { uid, owner, .. }))) => {
                let mut console = Console::new(socket, uid, owner);
                let agents = self.inquiries.agents();
                if agents.filter(|(_, it)| it.owner == owner).count() < MAX_AGENTS {
                    let key = self.counts.key();
                    console.is_agent = true;
                    self.inquiries.consoles.insert(key, console);
                    self.make_room_for_agents();
                }
            }
            Ok(_) => {}
            Err(error) => self.pause_accepting(&error),
        }
    }

    /// Closes a connection of the lease socket if there are too many. Those that hold a lease
    /// stay.
    fn make_room_for_agents(&mut self) {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if self.inquiries.agents().count() as u64 <= limit / AGENTS_PART {
            return;
        }
        let holders = self.leases.holders();
        let others = self.inquiries.agents();
        let others = others.filter(|(key, _)| !holders.contains(key));
        if let Some(oldest) = oldest_of_largest(others.map(|(key, it)| (it.owner, key))) {
            self.close(oldest);
        }
    }

    /// Closes connections of agents that have neither a lease nor a pending claim. Returns
    /// when the next one is closed.
    pub(super) fn close_idle_agents(&mut self, now: Instant) -> Option<Instant> {
        self.inquiries.agents().next()?;
        let (holders, claimants) = (self.leases.holders(), self.leases.claimants());
        let idle = self.inquiries.agents();
        let idle = idle.filter(|(key, _)| !holders.contains(key) && !claimants.contains(key));
        let idle = idle.map(|(key, it)| (it.active + AGENT_PATIENCE, key));
        let (over, left): (Vec<_>, Vec<_>) = idle.partition(|(deadline, _)| *deadline <= now);
        for (_, key) in over {
            self.close(key);
        }
        left.into_iter().map(|(deadline, _)| deadline).min()
    }

    /// Closes a connection, drops what it waits for, and ends the lease that it held.
    pub(super) fn close(&mut self, key: u64) {
        self.inquiries.consoles.remove(&key);
        self.inquiries.forget(Audience::Console(key));
        self.leases.forget(key);
        self.end_lease(key);
    }

    pub(super) fn console(&mut self, key: u64, flags: PollFlags) {
        let Some(console) = self.inquiries.consoles.get_mut(&key) else {
            return;
        };
        let done = if flags.contains(PollFlags::OUT) {
            console.write()
        } else {
            console.read()
        };
        if done.is_err() {
            self.close(key);
            return;
        }
        self.requests(key);
    }

    /// Carries out the requests of a console, as long as none waits for its response.
    pub(super) fn requests(&mut self, key: u64) {
        loop {
            // One listing at a time, so that answers keep their order.
            let audience = Audience::Console(key);
            let mut listings = self.inquiries.listings.iter();
            let console = self.inquiries.consoles.get(&key);
            if listings.any(|listing| listing.audience == audience)
                // Output that the client does not read must not accumulate.
                || console.is_some_and(Console::writing)
                || self.operations.are_awaited_by(key)
                || self.leases.has_claim(key)
            {
                return;
            }
            let Some(request) = self
                .inquiries
                .consoles
                .get_mut(&key)
                .and_then(Console::request)
            else {
                return;
            };
            let request = request.and_then(|request| self.may(key, &request).map(|()| request));
            let response = match request {
                Ok(request) => self.carry_out(key, request),
                Err(error) => Some(Response::Error { error }),
            };
            if let Some(response) = response {
                self.answer(key, &response);
            }
        }
    }

    /// Carries out a request. `None` if its response comes later.
    fn carry_out(&mut self, key: u64, request: Request) -> Option<Response> {
        let begun = |ordered: Result<(), String>| match ordered {
            Ok(()) => None,
            Err(error) => Some(Response::Error { error }),
        };
        Some(match request {
            Request::List {} => {
                let audience = Audience::Console(key);
                self.inquiries.begin_listing(audience, &mut self.workers);
                return None;
            }
            Request::End { session } if self.workers.end(session) => Response::Ending { session },
            Request::End { session } => Response::Error {
                error: format!("there is no session {session}: see `paragpu list`"),
            },
            Request::Checkpoint {
                session,
                directory,
                every: Some(0),
                ..
            } => self.end_checkpoints(session, &directory),
            Request::Checkpoint {
                session,
                directory,
                end,
                every,
            } => return begun(self.order_checkpoint(key, session, &directory, end, every)),
            Request::Restore { directory, copies } => {
                return begun(self.order_restore(key, &directory, copies));
            }
            Request::Migrate(migrate) => return begun(self.order_migration(key, &migrate)),
            Request::Claim(claim) => return self.claim(key, claim),
            Request::Carry { to, most_pause_ms } => {
                return self.move_lease(key, to, most_pause_ms);
            }
            Request::Release {} => self.release(key),
            Request::Share {
                session,
                vm,
                weight,
                cap,
                priority,
            } => {
                let wish = ShareRequest {
                    weight,
                    cap,
                    priority,
                };
                self.order_share(session, vm, &wish)
            }
            Request::Stats {} => Response::Stats(self.stats()),
            Request::Version {} => Response::Version {
                daemon: env!("CARGO_PKG_VERSION").to_owned(),
                protocol: VERSION.to_string(),
                pid: std::process::id(),
                shared_user: self.spawning.shared_user(&self.host, &self.devices),
                ungrouped: self.tenants.ungrouped().map(str::to_owned),
            },
        })
    }

    pub(super) fn answer(&mut self, key: u64, response: &Response) {
        if let Some(console) = self.inquiries.consoles.get_mut(&key) {
            console.answer(response);
            if console.write().is_err() {
                self.close(key);
            }
        }
    }

    /// Answers the listings whose workers have all answered or are too slow.
    pub(super) fn answer_listings(&mut self, now: Instant) {
        for listing in self.inquiries.take_answerable(&self.workers, now) {
            match listing.audience {
                Audience::Console(console) => {
                    let sessions = self.list(&listing.queried);
                    self.answer(console, &Response::Sessions { sessions });
                    self.requests(console);
                }
                Audience::Scrape(scrape) => self.answer_scrape(scrape, listing.asked),
            }
        }
    }

    fn list(&self, queried: &BTreeSet<u64>) -> Vec<SessionInfo> {
        self.workers
            .sessions()
            .filter_map(|session| {
                let worker = self.workers.get(session.worker)?;
                let counted = queried.contains(&session.worker)
                    && !worker.queried
                    && session.counters.is_some();
                let activity = self.operations.activity(session);
                let mut info = session.info(worker.pid, counted, worker.ending, activity);
                info.checkpoint = self.operations.schedules.info(info.id);
                info.turns = self.shares.info(info.id);
                info.job = self.leases.get(&info.vm).and_then(|leased| leased.job);
                Some(info)
            })
            .collect()
    }

    fn vms(&self) -> Vec<VmInfo> {
        let mut sessions: BTreeMap<&str, u64> = BTreeMap::new();
        for session in self.workers.sessions() {
            *sessions.entry(&session.facts.vm).or_default() += 1;
        }
        let info = |(vm, sessions): (&str, u64)| VmInfo {
            vm: vm.to_owned(),
            sessions,
            session_limit: self.tenants.session_limit(&self.host, vm).into(),
            device_memory: self.tenants.memory(vm),
            device_memory_limit: self.tenants.memory_limit(&self.host, vm),
        };
        sessions.into_iter().map(info).collect()
    }

    fn stats(&self) -> Stats {
        let on_it = |label: &str| {
            let sessions = self.workers.sessions();
            let there = sessions.filter(|session| session.facts.device == label);
            there.count() as u64
        };
        let devices = self
            .devices
            .iter()
            .take(self.devices.count() as usize)
            .map(|(ordinal, device)| DeviceInfo {
                ordinal,
                device: self.devices.label(ordinal),
                name: device.gpu.name.clone(),
                memory: device.gpu.memory,
                uuid: device.gpu.uuid.clone(),
                compute_capability: device.gpu.compute_capability.clone(),
                cuda_version: device.gpu.cuda_version.clone(),
                idle: self.workers.count(ordinal, State::Idle) as u64,
                starting: self.workers.count(ordinal, State::Starting) as u64,
                sessions: on_it(&self.devices.label(ordinal)),
                problem: device.problem.clone(),
            })
            .collect();
        Stats {
            sessions: self.workers.sessions().len() as u64,
            session_limit: self.host.limits.sessions.into(),
            waiting: self.arrivals.waiting.len() as u64,
            pending: self.arrivals.reception.len() as u64,
            begun: self.counts.begun,
            refused: self.counts.refused,
            crashed: self.counts.crashed,
            uptime: self.counts.started.elapsed().as_secs_f64(),
            ready: self.devices.ready(),
            devices,
            vms: self.vms(),
            problem: self.devices.standing_problem().map(str::to_owned),
        }
    }
}
