//! The loop: waits for descriptors and deadlines, never for a peer.
#![forbid(unsafe_code)]

mod admit;
mod checkpoints;
mod consoles;
mod leases;
mod migrations;
mod orders;
mod placing;
mod scrapes;
mod supervise;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use paragpu_communicator_secure::Credentials;
use paragpu_config::host::Host;
use paragpu_config::{Endpoint, VmSocket};
use paragpu_control::socket::Inbox;
use paragpu_protocol::handshake::device_socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::arguments::Arguments;
use crate::console::Console;
use crate::device::Devices;
use crate::giving::Given;
use crate::handshake::{Asked, Guest};
use crate::leases::Leases;
use crate::link::Links;
use crate::listener::{Listener, group};
use crate::metrics::{Ended, Moves};
use crate::notes::Notes;
use crate::reception::Reception;
use crate::scrape::Scrape;
use crate::session::Session;
use crate::spawner::Spawner;
use crate::tenants::Tenants;
use crate::tls;
use crate::worker::{State, Worker};
use crate::{Error, logging, sys};

/// From being told to end to being killed.
const GRACE: Duration = Duration::from_secs(1);
/// Pause of accepting when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Most descriptors of peers that wait to be closed, before peers wait in turn.
const UNCLOSED: usize = 1024;

/// A guest that waits for a worker.
#[derive(Debug)]
struct Waiting {
    guest: Guest,
    asked: Box<Asked>,
    /// Place of its GPU, or why it gets none; `None` until the devices are found.
    placed: Option<Result<u32, String>>,
}

/// Totals since the start.
#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    begun: u64,
    refused: u64,
    crashed: u64,
    /// Moves of sessions that left.
    moves: Moves,
}

/// What a descriptor belongs to.
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
    Waiting(usize),
    Control(u64),
    Process(u64),
    Console(u64),
    Metrics,
    Scrape(u64),
}

/// The daemon.
#[derive(Debug)]
pub struct Broker {
    host: Host,
    program: PathBuf,
    arguments: Arguments,
    log: logging::Handle,
    guests: Vec<Listener>,
    commands: Option<Listener>,
    /// Where agents of leases connect.
    agents: Option<Listener>,
    leases: Leases,
    metrics: Option<Listener>,
    spawner: Spawner,
    terminate: UnixStream,
    reload: UnixStream,
    notes: Notes,
    devices: Devices,
    tenants: Tenants,
    /// Place of the GPU that the last session got.
    last_place: Option<u32>,
    /// What sessions that are over counted.
    ended: Ended,
    workers: BTreeMap<u64, Worker>,
    sessions: BTreeMap<u64, Session>,
    reception: Reception,
    waiting: VecDeque<Waiting>,
    consoles: BTreeMap<u64, Console>,
    scrapes: BTreeMap<u64, Scrape>,
    listings: Vec<consoles::Listing>,
    /// Where daemons of other hosts connect.
    far: Option<Listener>,
    /// What other hosts are shown.
    tls: Option<Credentials>,
    /// What guests at tcp.listen are shown.
    guest_tls: Option<Credentials>,
    links: Links,
    /// By key of the worker.
    orders: BTreeMap<u64, orders::Ordered>,
    migrations: BTreeMap<u64, migrations::Migration>,
    /// Where sessions went, by their secret.
    departed: BTreeMap<[u8; 16], migrations::Departed>,
    parked: Vec<orders::Parked>,
    /// By session.
    checkpoints: BTreeMap<u64, checkpoints::Periodic>,
    inbox: Inbox,
    totals: Totals,
    started: Instant,
    /// Keys of workers, connections and consoles.
    next_key: u64,
    next_session: u64,
    /// No connection is accepted until then.
    accept_pause: Option<Instant>,
    /// When what is left is killed, once the daemon ends.
    stopping: Option<Instant>,
}

impl Broker {
    /// Takes up what an earlier daemon left and listens.
    ///
    /// # Errors
    /// [`Error`]: what the configuration asks for cannot be had.
    pub fn new(host: Host, log: logging::Handle, arguments: Arguments) -> Result<Self, Error> {
        sys::close_inherited_on_exec().map_err(Error::system("set up descriptors"))?;
        // It knows every session's token. Workers are its user's, and a worker
        // that is taken over must not read them.
        let hidden = rustix::process::DumpableBehavior::NotDumpable;
        rustix::process::set_dumpable_behavior(hidden).map_err(Error::system("hide its memory"))?;
        if let Err(error) = sys::fix_addresses_of_children() {
            tracing::warn!(
                %error,
                "workers run with address-space randomisation: sessions that use module \
                 globals may not be movable"
            );
        }
        raise_descriptor_limit();
        let spawner = Spawner::start().map_err(Error::system("start the thread for workers"))?;
        let terminate = signal(&[rustix::process::Signal::TERM, rustix::process::Signal::INT])?;
        let reload = signal(&[rustix::process::Signal::HUP])?;
        let state = host.state_directory();
        let control_group = group(&host.daemon.control_group)?;
        let guest_group = group(&host.daemon.group)?;
        let notes = patiently(|| Notes::open(&state))?;
        let commands = patiently(|| Listener::unix(&host.daemon.control, control_group))?;
        let agents = match host.lease.socket.as_os_str().is_empty() {
            true => None,
            false => Some(patiently(|| Listener::agents(&host.lease.socket))?),
        };
        let leases = Leases::new().map_err(Error::system("make a socket pair"))?;
        let mut guests = vec![patiently(|| {
            Listener::unix(&host.daemon.socket, guest_group)
        })?];
        guests.push(patiently(|| {
            Listener::devices(&device_socket(&host.daemon.socket))
        })?);
        if let Some(address) = host.tcp.listen.0 {
            guests.push(Listener::tcp(address)?);
        }
        if host.vsock.port != 0 {
            guests.push(Listener::vsock(host.vsock.port)?);
        }
        let vsock_group = group(&host.vsock.group)?;
        for socket in &host.vsock.unix.0 {
            guests.push(patiently(|| Listener::vm(socket, vsock_group))?);
        }
        let metrics = match &host.metrics.listen {
            Endpoint::Nowhere => None,
            Endpoint::Tcp(address) => Some(Listener::tcp(*address)?),
            Endpoint::Unix(path) => Some(patiently(|| Listener::unix(path, None))?),
        };
        let tls = tls::among_hosts(&host.migration)?;
        let guest_tls = tls::for_guests(&host)?;
        let far = host.migration.listen.0.map(Listener::tcp).transpose()?;
        let mut broker = Self {
            program: worker_program(&host),
            devices: Devices::new(&host),
            host,
            arguments,
            log,
            guests,
            commands: Some(commands),
            agents,
            leases,
            metrics,
            tenants: Tenants::default(),
            last_place: None,
            ended: Ended::default(),
            scrapes: BTreeMap::new(),
            spawner,
            terminate,
            reload,
            notes,
            workers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            reception: Reception::default(),
            waiting: VecDeque::new(),
            consoles: BTreeMap::new(),
            listings: Vec::new(),
            far,
            tls,
            guest_tls,
            links: Links::default(),
            orders: BTreeMap::new(),
            migrations: BTreeMap::new(),
            departed: BTreeMap::new(),
            parked: Vec::new(),
            checkpoints: BTreeMap::new(),
            inbox: Inbox::default(),
            totals: Totals::default(),
            started: Instant::now(),
            next_key: 1,
            next_session: 1,
            accept_pause: None,
            stopping: None,
        };
        broker.adopt();
        broker.take_up_parked();
        tracing::info!(
            socket = %broker.host.daemon.socket.display(),
            control = %broker.host.daemon.control.display(),
            tcp = broker.guests.iter().find_map(Listener::address).map(tracing::field::display),
            migration = broker.far.as_ref().and_then(Listener::address).map(tracing::field::display),
            vsock = (broker.host.vsock.port != 0).then_some(broker.host.vsock.port),
            vms = broker.guests.iter().filter(|listener| listener.of_vm().is_some()).count(),
            device = %broker.host.device.kind,
            "listening"
        );
        // There may be no service manager to tell.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        Ok(broker)
    }

    /// One line of JSON: where the daemon listens, and its process.
    #[must_use]
    pub fn addresses(&self) -> String {
        let tcp = self.guests.iter().find_map(Listener::address);
        serde_json::json!({
            "socket": self.host.daemon.socket,
            "control": self.host.daemon.control,
            "metrics": match (&self.host.metrics.listen, &self.metrics) {
                (Endpoint::Unix(path), _) => Some(path.display().to_string()),
                (_, Some(listener)) => listener.address().map(|address| address.to_string()),
                _ => None,
            },
            "tcp": tcp.map(|address| address.to_string()),
            "vsock": self.host.vsock.port,
            "migration": self.far.as_ref().and_then(Listener::address).map(|address| address.to_string()),
            "pid": std::process::id(),
        })
        .to_string()
    }

    /// Serves until SIGTERM or SIGINT has ended everything.
    ///
    /// # Errors
    /// [`Error::System`] where waiting itself fails.
    pub fn run(&mut self) -> Result<(), Error> {
        loop {
            let deadline = self.settle();
            if self.stopping.is_some() && self.workers.is_empty() {
                tracing::info!("ended");
                return Ok(());
            }
            for (source, flags) in self.wait(deadline)? {
                self.handle(source, flags);
            }
        }
    }

    /// Waits for descriptors until `deadline`. Descending within each kind, so
    /// that positions stay true while entries are taken out.
    fn wait(&self, deadline: Option<Instant>) -> Result<Vec<(Polled, PollFlags)>, Error> {
        let mut list: Vec<(Polled, PollFd<'_>)> = Vec::new();
        let read = PollFlags::IN;
        let mut add = |source, fd, flags| list.push((source, PollFd::from_borrowed_fd(fd, flags)));
        add(Polled::Terminate, self.terminate.as_fd(), read);
        add(Polled::Reload, self.reload.as_fd(), read);
        add(Polled::Verdicts, self.leases.woken().as_fd(), read);
        for (key, worker) in &self.workers {
            if let Some(control) = &worker.control {
                add(Polled::Control(*key), control.as_fd(), read);
            }
            add(Polled::Process(*key), worker.pidfd.as_fd(), read);
        }
        for (key, pending) in self.reception.iter() {
            add(Polled::Pending(key), pending.guest.as_fd(), read);
        }
        for (place, waiting) in self.waiting.iter().enumerate().rev() {
            let flags = PollFlags::RDHUP;
            add(Polled::Waiting(place), waiting.guest.as_fd(), flags);
        }
        for (key, scrape) in &self.scrapes {
            if scrape.writing() {
                add(Polled::Scrape(*key), scrape.as_fd(), PollFlags::OUT);
            } else if scrape.reading() {
                add(Polled::Scrape(*key), scrape.as_fd(), read);
            }
        }
        for (key, console) in &self.consoles {
            let flags = if console.writing() {
                PollFlags::OUT
            } else {
                read
            };
            add(Polled::Console(*key), console.as_fd(), flags);
        }
        if self.accept_pause.is_none() {
            if let Some(commands) = &self.commands {
                add(Polled::Commands, commands.as_fd(), read);
            }
            if let Some(agents) = &self.agents {
                add(Polled::Agents, agents.as_fd(), read);
            }
            if let Some(metrics) = &self.metrics {
                add(Polled::Metrics, metrics.as_fd(), read);
            }
            if let Some(far) = &self.far {
                add(Polled::Links, far.as_fd(), read);
            }
            for (place, listener) in self.guests.iter().enumerate() {
                add(Polled::Guests(place), listener.as_fd(), read);
            }
        }
        let patience = deadline.map(|deadline| {
            // Rounded up, so that the loop does not spin through the last fraction.
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
            Polled::Guests(place) => self.accept(place),
            Polled::Links => self.accept_link(),
            Polled::Commands => self.accept_console(),
            Polled::Agents => self.accept_agent(),
            Polled::Verdicts => self.verdicts(),
            Polled::Terminate => self.stop(),
            Polled::Reload => self.reload(),
            Polled::Pending(key) => self.advance(key),
            Polled::Waiting(place) => self.gave_up(place),
            Polled::Control(key) => self.hear(key),
            Polled::Process(key) => self.exited(key),
            Polled::Console(key) => self.console(key, flags),
            Polled::Metrics => self.accept_scrape(),
            Polled::Scrape(key) => self.scrape(key, flags),
        }
    }

    /// Does what the last events made possible or due: matches guests with
    /// workers, starts and dismisses workers, meets deadlines. Returns the
    /// next deadline.
    fn settle(&mut self) -> Option<Instant> {
        let now = Instant::now();
        if self.accept_pause.is_some_and(|pause| pause <= now) {
            self.accept_pause = None;
        }
        if Given::unclosed() > UNCLOSED {
            self.accept_pause.get_or_insert(now + ACCEPT_PAUSE);
        }
        let retry = self.devices.retry(now);
        self.give_up_on_silent(now);
        self.give_up_on_scrapes(now);
        self.place_waiting();
        self.match_waiting();
        self.refill(now);
        self.kill_overdue(now);
        self.answer_listings(now);
        self.end_overdue_migrations(now);
        let expiry = self.end_expired(now);
        let leases = self.keep_leases(now);
        self.write_checkpoints(now);
        [
            self.accept_pause,
            retry,
            self.reception
                .iter()
                .map(|(_, pending)| pending.deadline)
                .min(),
            self.workers
                .values()
                .filter_map(|worker| worker.deadline)
                .min(),
            self.listings.iter().map(|listing| listing.deadline).min(),
            self.scrapes.values().map(|scrape| scrape.deadline).min(),
            self.next_migration_deadline(),
            self.next_checkpoint(),
            expiry,
            leases,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// SIGTERM: ends every session, then the daemon.
    fn stop(&mut self) {
        if let Ok(0) | Err(_) = drain(&self.terminate) {
            return;
        }
        if self.stopping.is_some() {
            return;
        }
        tracing::info!(sessions = self.sessions.len(), "ending");
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let deadline = Instant::now() + GRACE;
        self.stopping = Some(deadline);
        self.guests.clear();
        self.far = None;
        self.commands = None;
        self.agents = None;
        self.metrics = None;
        self.scrapes.clear();
        self.reception.clear();
        for waiting in std::mem::take(&mut self.waiting) {
            waiting.guest.refuse("the host's daemon is ending");
        }
        for worker in self.workers.values_mut() {
            match worker.state {
                State::Serving(_) => worker.end(deadline),
                _ => worker.dismiss(deadline),
            }
        }
    }

    /// SIGHUP: limits, placement, pool, sockets of VMs, certificates and log level anew.
    fn reload(&mut self) {
        if let Ok(0) | Err(_) = drain(&self.reload) {
            return;
        }
        let new = match self.arguments.sources().load::<Host>() {
            Ok(loaded) => loaded.values,
            Err(error) => {
                tracing::error!(%error, "the configuration is refused; the old one stands");
                return;
            }
        };
        let applied = Host {
            limits: new.limits.clone(),
            vm: new.vm.clone(),
            device: paragpu_config::host::Device {
                placement: new.device.placement,
                ..self.host.device.clone()
            },
            pool: new.pool.clone(),
            confine: new.confine.clone(),
            log: new.log.clone(),
            shm: new.shm.clone(),
            cache: new.cache.clone(),
            vsock: paragpu_config::host::Vsock {
                port: self.host.vsock.port,
                ..new.vsock.clone()
            },
            tcp: paragpu_config::host::Tcp {
                listen: self.host.tcp.listen,
                allow_remote: self.host.tcp.allow_remote,
                announce: self.host.tcp.announce.clone(),
                ..new.tcp.clone()
            },
            migration: paragpu_config::host::Migration {
                listen: self.host.migration.listen,
                ..new.migration.clone()
            },
            ..self.host.clone()
        };
        if applied != new {
            tracing::warn!(
                "sockets, devices, metrics and worker program change with a restart only"
            );
        }
        self.host = applied;
        self.tenants.limit(&self.host);
        match tls::among_hosts(&self.host.migration) {
            Ok(tls) => self.tls = tls,
            Err(error) => tracing::error!(%error, "the earlier certificate stays"),
        }
        match tls::for_guests(&self.host) {
            // What was promised to guests is not taken back under them.
            Ok(None) if self.guest_tls.is_some() => {
                tracing::warn!("guests leave TLS with a restart only");
            }
            Ok(tls) => self.guest_tls = tls,
            Err(error) => tracing::error!(%error, "the earlier certificate stays"),
        }
        if let Err(error) = self.follow_vm_sockets() {
            tracing::error!(%error, "a socket of a VM is not listened at");
        }
        if let Err(error) = self.log.reload(logging::filter(self.host.log.level)) {
            tracing::warn!(%error, "the log level stays");
        }
        tracing::info!("configuration read again");
    }

    /// Listens at the sockets of VMs that are configured now, and no longer at
    /// others. Sessions go on.
    fn follow_vm_sockets(&mut self) -> Result<(), Error> {
        let wanted = &self.host.vsock.unix.0;
        let is = |listener: &Listener, socket: &VmSocket| {
            listener.of_vm() == Some((socket.vm.as_str(), socket.path.as_path()))
        };
        self.guests.retain(|listener| {
            listener.of_vm().is_none() || wanted.iter().any(|socket| is(listener, socket))
        });
        let group = group(&self.host.vsock.group)?;
        let mut failed = Ok(());
        for socket in wanted {
            if self.guests.iter().any(|listener| is(listener, socket)) {
                continue;
            }
            match Listener::vm(socket, group) {
                Ok(listener) => self.guests.push(listener),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    fn key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }
}

/// Tries again for a second where another daemon seems to run: one that was
/// killed while it started a worker lives on in that worker until its exec.
fn patiently<T>(try_it: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 0..20 {
        match try_it() {
            Err(Error::Running(_)) => std::thread::sleep(Duration::from_millis(50)),
            other => return other,
        }
    }
    try_it()
}

/// The worker program: as configured, else beside this one.
fn worker_program(host: &Host) -> PathBuf {
    if !host.daemon.worker.as_os_str().is_empty() {
        return host.daemon.worker.clone();
    }
    let name = "paragpu-worker";
    std::env::current_exe().map_or_else(|_| name.into(), |own| own.with_file_name(name))
}

/// A socket that is readable once one of `signals` came.
fn signal(signals: &[rustix::process::Signal]) -> Result<UnixStream, Error> {
    let failed = || "receive signals";
    let (read, write) = UnixStream::pair().map_err(Error::system(failed()))?;
    read.set_nonblocking(true)
        .map_err(Error::system(failed()))?;
    for signal in signals {
        let write = write.try_clone().map_err(Error::system(failed()))?;
        signal_hook::low_level::pipe::register(signal.as_raw(), write)
            .map_err(Error::system(failed()))?;
    }
    Ok(read)
}

/// Takes what a signal wrote.
fn drain(mut socket: &UnixStream) -> std::io::Result<usize> {
    std::io::Read::read(&mut socket, &mut [0; 64])
}

/// Each session takes a few descriptors.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of descriptors stays");
    }
}
