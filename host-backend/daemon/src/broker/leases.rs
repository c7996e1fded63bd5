//! Leases, which agents claim and hold over the lease socket.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paragpu_communicator_secure::Identity;
use paragpu_communicator_secure::issue::Authority;
use paragpu_config::host::Engine;
use paragpu_control::admin::{MAX_EVERY, Migrate, Request, Response};
use paragpu_control::lease::{Claim, Lease, MAX_GRACE, Name, PREFIX};
use paragpu_control::turn::MAX_WEIGHT;

use super::Broker;
use super::arrivals::Early;
use super::order::NOBODY;
use super::orders::TOO_SELDOM;
use crate::console::Console;
use crate::handshake::{Guest, SessionRequest};
use crate::jobs::Running;
use crate::leases::{self, Grant, Hold, Leased, Verdict};
use crate::session::now;

/// How long agents have to reconnect to a restarted daemon.
const RETURN: Duration = Duration::from_secs(30);
/// Maximum number of guests that wait for their leases' agents.
const MAX_EARLY: usize = 256;
/// Retry interval of a session that could not be checkpointed.
const RETRY: Duration = Duration::from_millis(500);

impl Broker {
    /// Whether this is the certificate of a lease that an agent may still reclaim. A
    /// restarted daemon has no leases at first, and guests may reconnect before the
    /// agents.
    pub(super) fn expects(&self, identity: &Identity) -> bool {
        identity.lease != 0
            && self.leases.get(&identity.vm).is_none()
            && Instant::now() < self.counts.started + RETURN
    }

    /// Keeps a guest until the agent of its lease reclaims it, or the time limit for that
    /// is over.
    pub(super) fn keep_for_agent(
        &mut self,
        vm: String,
        guest: Guest,
        request: Box<SessionRequest>,
    ) {
        tracing::info!(peer = %guest.peer, vm, "a guest waits for its lease's agent");
        let displaced = self.arrivals.keep(Early { vm, guest, request }, MAX_EARLY);
        if let Some(Early { vm, .. }) = displaced {
            // Its program connects again.
            tracing::info!(vm, "the VM's guests have too many places: one is closed");
        }
    }

    /// Admits or refuses the waiting guests of `vm`, whose lease exists now. Without
    /// `vm`, all of them, because no more agents are expected.
    fn admit_early(&mut self, vm: Option<&str>) {
        let early = std::mem::take(&mut self.arrivals.early);
        let (ready, early): (Vec<_>, Vec<_>) = early
            .into_iter()
            .partition(|one| vm.is_none_or(|vm| one.vm == vm));
        self.arrivals.early = early;
        for Early { guest, request, .. } in ready {
            self.admit(guest, request);
        }
    }

    /// Checks that this connection may make a request. An agent may only hold its
    /// lease.
    pub(super) fn may(&self, key: u64, request: &Request) -> Result<(), String> {
        let is_agent = self.is_agent(key);
        match request {
            Request::Claim(_) | Request::Version {} => Ok(()),
            Request::Carry { to, .. } if is_agent && !to.starts_with("tcp://") => {
                // This process would pass the lease's memory to a socket of the agent's
                // choice, by descriptor.
                Err("a lease can only move to another host: `to` must be tcp://HOST:PORT".into())
            }
            Request::Carry { .. } | Request::Release {} if self.leases.of(key).is_some() => Ok(()),
            Request::Restore {
                directory,
                copies: None,
            } if is_agent => {
                let own = self.leases.of(key).and_then(|vm| self.states_of(vm));
                let own = own.is_some_and(|own| is_two_below(directory, &own));
                own.then_some(()).ok_or_else(|| {
                    "an agent may only restore checkpoints of its own lease".to_owned()
                })
            }
            Request::Carry { .. } | Request::Release {} => {
                Err("this connection has no lease".into())
            }
            _ if is_agent => Err("agents of leases may not send this request".into()),
            _ => Ok(()),
        }
    }

    /// Whether a connection is of the lease socket.
    pub(super) fn is_agent(&self, key: u64) -> bool {
        let console = self.inquiries.consoles.get(&key);
        console.is_some_and(|console| console.is_agent)
    }

    /// Handles a claim of a lease. `None` while the engine is queried.
    pub(super) fn claim(&mut self, key: u64, claim: Claim) -> Option<Response> {
        let refused = |error: &str| {
            Some(Response::Error {
                error: error.into(),
            })
        };
        if self.host.lease.authority.as_os_str().is_empty() {
            return refused("this host grants no leases: see lease.socket in host.toml");
        }
        if claim.checkpoint > MAX_EVERY {
            return refused(TOO_SELDOM);
        }
        let uid = self.inquiries.consoles.get(&key).and_then(Console::agent);
        let own = rustix::process::geteuid().as_raw();
        match (self.host.lease.engine, claim.job) {
            (Engine::Slurm, Some(job)) => {
                let node = leases::node(&self.host.lease);
                let uid = uid.unwrap_or(own);
                self.leases.enqueue(key, uid, claim, job, node);
                None
            }
            (Engine::Slurm, None) => refused("leases of this host require a Slurm job"),
            (Engine::None, _) if claim.weight > MAX_WEIGHT || claim.grace > MAX_GRACE => {
                refused("a weight must be 1 to 1000, a grace period at most 600 seconds")
            }
            (Engine::None, _) if uid.is_none_or(|uid| uid == 0 || uid == own) => {
                let grant = Grant {
                    uid: uid.unwrap_or(own),
                    memory: claim.memory,
                    gpu: claim.gpu,
                    weight: claim.weight,
                    grace: Duration::from_secs(claim.grace.into()),
                };
                Some(self.grant(key, &claim, Ok(grant)))
            }
            (Engine::None, _) => refused("without an engine only root may claim leases"),
        }
    }

    /// Handles the engine's answers.
    pub(super) fn verdicts(&mut self) {
        for verdict in self.leases.verdicts() {
            match verdict {
                Verdict::Claim {
                    holder,
                    claim,
                    grant,
                } => {
                    if self.inquiries.consoles.contains_key(&holder) {
                        let response = self.grant(holder, &claim, grant);
                        self.answer(holder, &response);
                        self.requests(holder);
                    }
                }
                Verdict::Drains {
                    drains, running, ..
                } => {
                    if drains == Some(true) {
                        self.announce_drain();
                    }
                    if let Some(running) = running {
                        self.end_leases_without_jobs(&running);
                    }
                }
            }
        }
    }

    fn grant(&mut self, key: u64, claim: &Claim, grant: Result<Grant, String>) -> Response {
        let own = rustix::process::geteuid().as_raw();
        let uid = self.inquiries.consoles.get(&key).and_then(Console::agent);
        let given = grant.and_then(|grant| {
            // Users of the control socket may claim leases for others.
            let may = uid.is_none_or(|uid| uid == grant.uid || uid == 0 || uid == own);
            if !may {
                return Err("the job belongs to another user".into());
            }
            let weight = grant.weight;
            let (vm, leased) = self.leases.enter(key, claim, grant)?;
            let given = self.describe(&vm, &leased, &claim.key);
            match (&given, &claim.again) {
                (Ok(_), _) => {}
                (Err(_), Some(_)) => self.end_lease(key),
                // No connection holds it.
                (Err(_), None) => drop(self.leases.end(&vm)),
            }
            Ok((given?, weight))
        });
        match given {
            Ok((lease, weight)) => {
                tracing::info!(
                    vm = lease.name.vm,
                    memory = lease.memory,
                    gpu = lease.gpu,
                    job = claim.job,
                    "a lease begins"
                );
                self.tenants.lease(&lease.name.vm, lease.memory, &self.host);
                self.shares.lease(&lease.name.vm, lease.memory, weight);
                self.follow_shares();
                self.admit_early(Some(&lease.name.vm));
                Response::Lease(lease)
            }
            Err(error) => {
                tracing::info!(job = claim.job, error, "a lease is refused");
                Response::Error { error }
            }
        }
    }

    fn describe(&self, vm: &str, leased: &Leased, key: &str) -> Result<Lease, String> {
        let Leased { serial, grant, .. } = leased;
        if self.devices.position_of(grant.gpu).is_none() && self.devices.ready() {
            return Err(format!("this host does not offer GPU {}", grant.gpu));
        }
        let expires = now().saturating_add(self.host.lease.valid.into());
        let identity = Identity {
            vm: vm.to_owned(),
            memory: grant.memory,
            sessions: 0,
            lease: *serial,
            expires,
        };
        let failed = |error| format!("the host's authority for leases fails: {error}");
        let authority = Authority::load(&self.host.lease.authority).map_err(failed)?;
        let address = self.guest_addresses().of_leases()?;
        let arrivals = self.listeners.arrivals();
        let machine = address.rsplit_once(':').map_or("", |(machine, _)| machine);
        Ok(Lease {
            name: Name {
                vm: vm.to_owned(),
                serial: *serial,
            },
            memory: grant.memory,
            gpu: grant.gpu,
            arrivals: arrivals.map(|at| format!("tcp://{machine}:{}", at.port())),
            authority: authority.certificate().map_err(failed)?,
            certificate: authority.lease(&identity, key).map_err(failed)?,
            expires,
            written: self
                .states_of(vm)
                .map(|path| leases::written(&path))
                .unwrap_or_default(),
            address,
        })
    }

    /// The directory of checkpoints of a lease's sessions.
    fn states_of(&self, vm: &str) -> Option<PathBuf> {
        let serial = self.leases.get(vm)?.serial;
        leases::directory(&self.host.lease.checkpoints, vm, serial)
    }

    /// Moves a lease's sessions to another host. `None` while they move.
    pub(super) fn move_lease(
        &mut self,
        key: u64,
        to: String,
        most_pause_ms: Option<u64>,
    ) -> Option<Response> {
        let vm = self.leases.of(key)?.to_owned();
        if !self.workers.sessions().any(|it| it.facts.vm == vm) {
            let sessions = Vec::new();
            return Some(Response::Moved { sessions });
        }
        let migrate = Migrate {
            vm: Some(vm),
            to: Some(to),
            most_pause_ms,
            ..Migrate::default()
        };
        match self.order_migration(key, &migrate) {
            Ok(()) => None,
            Err(error) => Some(Response::Error { error }),
        }
    }

    fn announce_drain(&mut self) {
        let unnotified = self.leases.iter().filter(|(_, leased)| !leased.notified);
        let holders: Vec<(String, u64)> = unnotified
            .filter_map(|(vm, leased)| match leased.hold {
                Hold::By(holder) => Some((vm.clone(), holder)),
                Hold::Until(_) => None,
            })
            .collect();
        for (vm, holder) in holders {
            if let Some(leased) = self.leases.get_mut(&vm) {
                leased.notified = true;
            }
            let reason = "it drains".to_owned();
            self.answer(holder, &Response::Leave { reason });
        }
    }

    /// Handles the loss of a connection. Its lease ends, immediately or after its grace
    /// period.
    pub(super) fn end_lease(&mut self, key: u64) {
        if let Some(vm) = self.leases.leave(key, Instant::now()) {
            self.lease_over(&vm);
        }
    }

    /// Ends the leases whose jobs are over, and closes their connections: an agent that is
    /// not of the job would keep its own open.
    fn end_leases_without_jobs(&mut self, running: &Running) {
        for (vm, hold) in self.leases.over(running) {
            tracing::warn!(vm, "the job of a lease is over");
            self.lease_over(&vm);
            if let Hold::By(holder) = hold {
                self.close(holder);
            }
        }
    }

    /// Ends a lease at its holder's request.
    pub(super) fn release(&mut self, key: u64) -> Response {
        if let Some(vm) = self.leases.of(key).map(str::to_owned) {
            self.lease_over(&vm);
        }
        Response::Released {}
    }

    fn lease_over(&mut self, vm: &str) {
        let states = self.states_of(vm);
        if self.leases.end(vm).is_none() {
            return;
        }
        tracing::info!(vm, "a lease ended");
        self.tenants.end_lease(vm);
        self.shares.end_lease(vm);
        self.workers.end_sessions_of(vm);
        if let Some(states) = states {
            remove(vm, states.join(leases::node(&self.host.lease)));
        }
    }

    /// Removes the checkpoint of a session that is over, if it is a lease's: one session
    /// after the other would fill the disk that all leases share.
    pub(super) fn remove_written(&self, vm: &str, session: u64) {
        if self.leases.get(vm).is_some_and(|it| it.checkpoint > 0)
            && let Some(states) = self.states_of(vm)
        {
            let own = states.join(leases::node(&self.host.lease));
            remove(vm, own.join(session.to_string()));
        }
    }

    /// Handles deadlines of leases. Returns the next one.
    pub(super) fn keep_leases(&mut self, now: Instant) -> Option<Instant> {
        let (over, next_over) = self.leases.unclaimed(now);
        for vm in over {
            self.lease_over(&vm);
        }
        let looks = self.leases.look(now, &self.host.lease);
        let writes = self.write_leased(now);
        let ends = self.end_unclaimed(now);
        [looks, writes, ends, next_over].into_iter().flatten().min()
    }

    /// Ends sessions of leases that no agent reclaimed after this daemon's start.
    fn end_unclaimed(&mut self, now: Instant) -> Option<Instant> {
        let until = self.counts.started + RETURN;
        if now >= until {
            self.admit_early(None);
        }
        let sessions = self.workers.sessions().map(|session| &session.facts.vm);
        let unclaimed: Vec<String> = sessions
            .filter(|vm| vm.starts_with(PREFIX) && self.leases.get(vm).is_none())
            .cloned()
            .collect();
        if unclaimed.is_empty() && self.arrivals.early.is_empty() {
            return None;
        }
        if now < until {
            return Some(until);
        }
        for vm in unclaimed {
            let ending = |worker: u64| self.workers.get(worker).is_none_or(|it| it.ending);
            if self
                .workers
                .sessions()
                .any(|it| it.facts.vm == vm && !ending(it.worker))
            {
                tracing::warn!(vm, "no agent has claimed the lease of a session");
                self.workers.end_sessions_of(&vm);
            }
        }
        None
    }

    /// Orders the checkpoints that leases require and do not have yet.
    fn write_leased(&mut self, now: Instant) -> Option<Instant> {
        let node = leases::node(&self.host.lease);
        let mut orders = Vec::new();
        let mut next = None;
        for it in self.workers.sessions() {
            let (session, vm) = (it.facts.session, &it.facts.vm);
            let Some(leased) = self.leases.get(vm).filter(|leased| leased.checkpoint > 0) else {
                continue;
            };
            if self.operations.schedules.contain(session) || it.arrives {
                continue;
            }
            if leased.next_try > now {
                next = Some(next.map_or(leased.next_try, |at: Instant| at.min(leased.next_try)));
            } else if let Some(states) = self.states_of(vm) {
                let directory = states.join(&node).join(session.to_string());
                orders.push((session, vm.clone(), directory, leased.checkpoint));
            }
        }
        for (session, vm, directory, every) in orders {
            // Only this host's user can read them.
            let made = directory.parent().map_or(Ok(()), make);
            let ordered = made.and_then(|()| {
                self.order_checkpoint(NOBODY, session, &directory, false, Some(every))
            });
            if let Err(error) = ordered {
                tracing::debug!(session, error, "a session has no checkpoint yet");
            }
            if let Some(leased) = self.leases.get_mut(&vm) {
                leased.next_try = now + RETRY;
                next = Some(next.map_or(leased.next_try, |at| at.min(leased.next_try)));
            }
        }
        next
    }
}

/// Removes checkpoints of a lease in a thread: the disk is shared, and may be slow.
fn remove(vm: &str, directory: PathBuf) {
    let remove = move || drop(std::fs::remove_dir_all(directory));
    let thread = std::thread::Builder::new().name("states".into());
    if let Err(error) = thread.spawn(remove) {
        tracing::warn!(vm, %error, "checkpoints of a lease cannot be removed");
    }
}

fn make(directory: &Path) -> Result<(), String> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    let made = builder.create(directory);
    made.map_err(|error| format!("cannot create {}: {error}", directory.display()))
}

/// Whether it is HOST/SESSION in `own`.
fn is_two_below(directory: &Path, own: &Path) -> bool {
    let Ok(rest) = directory.strip_prefix(own) else {
        return false;
    };
    let plain = |part| matches!(part, std::path::Component::Normal(_));
    rest.components().count() == 2 && rest.components().all(plain)
}
