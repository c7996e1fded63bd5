//! The event loop. It waits for descriptors and deadlines, never for a peer.
#![forbid(unsafe_code)]

mod addresses;
mod admit;
mod arrivals;
mod checkpoints;
mod consoles;
mod counts;
mod departure;
mod exchange;
mod handshakes;
mod inquiries;
mod joining;
mod leases;
mod listeners;
mod migration;
mod migrations;
mod operations;
mod operator;
mod order;
mod orders;
mod placing;
mod queries;
mod reload;
mod restores;
mod schedules;
mod scrapes;
mod signals;
mod spawning;
mod supervise;
mod survivors;
mod token;
mod turns;
mod unnamed_checkpoint;
mod workers;

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use paragpu_config::Endpoint;
use paragpu_config::host::Host;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::arrivals::Arrivals;
use self::counts::Counts;
use self::inquiries::Inquiries;
use self::listeners::{Listeners, retry};
use self::operations::Operations;
use self::operator::Operator;
use self::signals::Signals;
use self::spawning::Spawning;
use self::workers::Workers;
use crate::arguments::Arguments;
use crate::cgroup::Groups;
use crate::device::Devices;
use crate::handshake_threads::HandshakeThreads;
use crate::leases::Leases;
use crate::notes::Notes;
use crate::received_fd::ReceivedFd;
use crate::reception::Reception;
use crate::shares::Shares;
use crate::spawner::Spawner;
use crate::tenants::Tenants;
use crate::users::{Users, worker_program};
use crate::{Error, confine, logging, sys};

/// How long to accept no connections when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of peers' descriptors that are not closed yet; beyond it no
/// connections are accepted.
const UNCLOSED: usize = 1024;

/// The owner of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Polled {
    Guests(usize),
    Links,
    Commands,
    Agents,
    Verdicts,
    Terminate,
    Reload,
    Pending(u64),
    Handshakes,
    Waiting(usize),
    Parked,
    Control(u64),
    Process(u64),
    Emptied,
    Console(u64),
    Metrics,
    Scrape(u64),
}

/// The daemon. Each part owns its state. The submodules contain the parts, and the steps that
/// involve several of them.
#[derive(Debug)]
pub struct Broker {
    host: Host,
    operator: Operator,
    notes: Notes,
    listeners: Listeners,
    arrivals: Arrivals,
    devices: Devices,
    tenants: Tenants,
    shares: Shares,
    leases: Leases,
    spawning: Spawning,
    workers: Workers,
    operations: Operations,
    inquiries: Inquiries,
    counts: Counts,
}

impl Broker {
    /// Adopts the sessions of an earlier daemon, and listens.
    ///
    /// # Errors
    /// [`Error`] if the configuration cannot be applied.
    pub fn new(
        host: Host,
        log: logging::Handle,
        arguments: Arguments,
        users: Result<Option<Users>, String>,
    ) -> Result<Self, Error> {
        if let Err(reason) = &users {
            tracing::warn!(reason, "workers run as the daemon's user");
        }
        if let Err(reason) = confine::no_namespaces() {
            tracing::warn!(reason, "the daemon's own system calls are not filtered");
        }
        let program = worker_program(&host);
        // Before there is another thread.
        if let Err(reason) = confine::keep_to_data(&program, &host.own_directories()) {
            tracing::warn!(
                reason,
                "the files that the daemon may change are not restricted"
            );
        }
        sys::close_inherited_on_exec().map_err(Error::system("set up descriptors"))?;
        // The daemon knows every session's token. Workers may have the same user,
        // and a compromised worker must not be able to read the daemon's memory.
        let hidden = rustix::process::DumpableBehavior::NotDumpable;
        rustix::process::set_dumpable_behavior(hidden).map_err(Error::system("hide its memory"))?;
        raise_descriptor_limit();
        let spawner =
            Spawner::start().map_err(Error::system("start the thread that starts workers"))?;
        let handshakes =
            HandshakeThreads::start().map_err(Error::system("start threads for handshakes"))?;
        let signals = Signals::receive()?;
        let notes = retry(|| Notes::open(&host.state_directory()))?;
        let leases = Leases::new().map_err(Error::system("create a socket pair"))?;
        let devices = Devices::new(&host);
        let tenants = Tenants::new(Groups::find());
        if let Some(reason) = tenants.ungrouped() {
            tracing::debug!(reason, "VMs have no control groups");
        }
        let mut broker = Self {
            listeners: Listeners::open(&host)?,
            spawning: Spawning::new(&host, spawner, users),
            devices,
            host,
            operator: Operator {
                arguments,
                log,
                signals,
            },
            shares: Shares::default(),
            notes,
            arrivals: Arrivals {
                reception: Reception::default(),
                handshakes,
                waiting: VecDeque::new(),
                early: Vec::new(),
                last_position: None,
            },
            tenants,
            leases,
            workers: Workers::default(),
            operations: Operations::default(),
            inquiries: Inquiries::default(),
            counts: Counts::default(),
        };
        broker.adopt();
        broker.operations.adopt(&broker.notes);
        tracing::info!(
            socket = %broker.host.daemon.socket.display(),
            control = %broker.host.daemon.control.display(),
            tcp = broker.listeners.tcp().map(tracing::field::display),
            migration = broker.listeners.arrivals().map(tracing::field::display),
            vsock = (broker.host.vsock.port != 0).then_some(broker.host.vsock.port),
            vms = broker.listeners.guests.iter().filter(|listener| listener.of_vm().is_some()).count(),
            device = %broker.host.device.kind,
            "listening"
        );
        // There may be no service manager.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        Ok(broker)
    }

    /// One line of JSON with the daemon's addresses and process ID.
    #[must_use]
    pub fn addresses(&self) -> String {
        let tcp = self.listeners.tcp();
        serde_json::json!({
            "socket": self.host.daemon.socket,
            "control": self.host.daemon.control,
            "metrics": match (&self.host.metrics.listen, &self.listeners.metrics) {
                (Endpoint::Unix(path), _) => Some(path.display().to_string()),
                (_, Some(listener)) => listener.address().map(|address| address.to_string()),
                _ => None,
            },
            "tcp": tcp.map(|address| address.to_string()),
            "vsock": self.host.vsock.port,
            "migration": self.listeners.arrivals().map(|address| address.to_string()),
            "pid": std::process::id(),
        })
        .to_string()
    }

    /// Serves until SIGTERM or SIGINT has ended everything.
    ///
    /// # Errors
    /// [`Error::System`] if waiting fails.
    pub fn run(&mut self) -> Result<(), Error> {
        loop {
            let deadline = self.settle();
            if self.operator.signals.is_ending() && self.workers.have_ended() {
                let stuck = self.workers.iter().count();
                tracing::info!(stuck = (stuck > 0).then_some(stuck), "ended");
                return Ok(());
            }
            for (source, flags) in self.wait(deadline)? {
                self.handle(source, flags);
            }
        }
    }

    /// Waits for descriptors until `deadline`. Indices are in descending order
    /// within each kind, so that they stay valid while entries are removed.
    fn wait(&self, deadline: Option<Instant>) -> Result<Vec<(Polled, PollFlags)>, Error> {
        let mut list: Vec<(Polled, PollFd<'_>)> = Vec::new();
        let read = PollFlags::IN;
        let mut add = |source, fd, flags| list.push((source, PollFd::from_borrowed_fd(fd, flags)));
        add(Polled::Terminate, self.operator.signals.terminate(), read);
        add(Polled::Reload, self.operator.signals.reload(), read);
        add(Polled::Verdicts, self.leases.woken().as_fd(), read);
        for (key, worker) in self.workers.iter() {
            if let Some(control) = &worker.control {
                add(Polled::Control(key), control.as_fd(), read);
            }
            add(Polled::Process(key), worker.pidfd.as_fd(), read);
        }
        add(
            Polled::Handshakes,
            self.arrivals.handshakes.woken().as_fd(),
            read,
        );
        for process in self.spawning.emptying() {
            add(Polled::Emptied, process, read);
        }
        for (key, pending) in self.arrivals.reception.listening() {
            add(Polled::Pending(key), pending.guest.as_fd(), read);
        }
        for (position, waiting) in self.arrivals.waiting.iter().enumerate().rev() {
            let flags = PollFlags::RDHUP;
            add(Polled::Waiting(position), waiting.guest.as_fd(), flags);
        }
        for guest in self.operations.parked_guests() {
            add(Polled::Parked, guest.as_fd(), PollFlags::RDHUP);
        }
        for (key, scrape) in &self.inquiries.scrapes {
            if scrape.writing() {
                add(Polled::Scrape(*key), scrape.as_fd(), PollFlags::OUT);
            } else if scrape.reading() {
                add(Polled::Scrape(*key), scrape.as_fd(), read);
            }
        }
        for (key, console) in &self.inquiries.consoles {
            let flags = if console.writing() {
                PollFlags::OUT
            } else {
                read
            };
            add(Polled::Console(*key), console.as_fd(), flags);
        }
        if self.listeners.accepts() {
            if let Some(commands) = &self.listeners.commands {
                add(Polled::Commands, commands.as_fd(), read);
            }
            if let Some(agents) = &self.listeners.agents {
                add(Polled::Agents, agents.as_fd(), read);
            }
            if let Some(metrics) = &self.listeners.metrics {
                add(Polled::Metrics, metrics.as_fd(), read);
            }
            if let Some(far) = &self.listeners.far {
                add(Polled::Links, far.as_fd(), read);
            }
            for (position, listener) in self.listeners.guests.iter().enumerate() {
                add(Polled::Guests(position), listener.as_fd(), read);
            }
        }
        let patience = deadline.map(|deadline| {
            // Rounded up, so that the loop does not spin through the last fraction of a
            // millisecond.
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec::try_from(left + Duration::from_micros(100)).unwrap_or(Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            })
        });
        let (sources, mut fds): (Vec<_>, Vec<_>) = list.into_iter().unzip();
        match poll(&mut fds, patience.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(errno) => return Err(Error::system("wait for events")(errno)),
        }
        Ok(sources
            .into_iter()
            .zip(fds.iter().map(PollFd::revents))
            .filter(|(_, flags)| !flags.is_empty())
            .collect())
    }

    fn handle(&mut self, source: Polled, flags: PollFlags) {
        match source {
            Polled::Guests(position) => self.accept(position),
            Polled::Links => self.accept_link(),
            Polled::Commands => self.accept_console(),
            Polled::Agents => self.accept_agent(),
            Polled::Verdicts => self.verdicts(),
            Polled::Terminate => self.stop(),
            Polled::Reload => self.reload(),
            Polled::Pending(key) => self.advance(key),
            Polled::Handshakes => self.finish_handshake_steps(),
            Polled::Waiting(position) => self.arrivals.gave_up(position),
            Polled::Parked => self.operations.forget_disconnected(),
            Polled::Control(key) => self.receive_from_worker(key, supervise::MESSAGES),
            Polled::Process(key) => self.exited(key),
            Polled::Emptied => self.spawning.empty_leftovers(),
            Polled::Console(key) => self.console(key, flags),
            Polled::Metrics => self.accept_scrape(),
            Polled::Scrape(key) => self.scrape(key, flags),
        }
    }

    /// Acts on the last events and on deadlines: matches guests with workers,
    /// starts and dismisses workers. Returns the next deadline.
    fn settle(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut pause = self.listeners.pause_at(now);
        if ReceivedFd::unclosed() > UNCLOSED {
            self.listeners.pause(now + ACCEPT_PAUSE);
            pause = pause.or(Some(now + ACCEPT_PAUSE));
        }
        self.devices.retry(now);
        self.arrivals.give_up_on_silent(now);
        self.inquiries.give_up_on_scrapes(now);
        // A guest whose worker cannot be started is refused, or placed on another GPU, at once.
        // A GPU is not tried again before its pause ends, so this ends.
        let refill = loop {
            self.place_waiting();
            self.match_waiting();
            self.match_restores(now);
            if let Ok(refill) = self.refill(now) {
                break refill;
            }
        };
        let retry = self.devices.retry(now);
        self.spawning.empty_leftovers();
        self.workers.kill_overdue(now);
        self.answer_listings(now);
        self.end_overdue_migrations(now);
        self.end_silence(now);
        let expiry = self.workers.end_expired(now);
        let leases = self.keep_leases(now);
        let agents = self.close_idle_agents(now);
        self.write_checkpoints(now);
        let next_turn = self.take_turns(now);
        [
            pause,
            next_turn,
            retry,
            self.arrivals.reception.deadline(),
            self.workers.deadline(),
            self.inquiries.deadline(),
            self.operations.deadline(),
            expiry,
            leases,
            agents,
            refill,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// SIGTERM: ends every session, then the daemon.
    fn stop(&mut self) {
        if !self.operator.signals.take_terminate() {
            return;
        }
        tracing::info!(sessions = self.workers.sessions().len(), "ending");
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        self.listeners.close();
        self.inquiries.scrapes.clear();
        self.arrivals.reception.clear();
        for waiting in std::mem::take(&mut self.arrivals.waiting) {
            waiting.guest.refuse("the host's daemon is ending");
        }
        self.workers.end_all();
    }
}

/// Raises the limit of open descriptors: each session needs a few.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the descriptor limit is unchanged");
    }
}
