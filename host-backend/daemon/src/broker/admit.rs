//! Admits connections and turns them into sessions.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use paragpu_config::host::{Limits, Shm};
use paragpu_control::socket::ControlError;
use paragpu_control::worker::{self, Route, Terms, ToWorker};

use super::arrivals::Waiting;
use super::token::{same, token};
use super::{ACCEPT_PAUSE, Broker, GRACE};
use crate::handshake::{Guest, Pending, Progress, SessionRequest};
use crate::listener::Peer;
use crate::protection::Certified;
use crate::session::{Facts, Session, now};
use crate::tenants::DeviceProcess;
use crate::worker::{State, Worker};

impl Broker {
    pub(super) fn accept(&mut self, position: usize) {
        let Some(listener) = self.listeners.guests.get(position) else {
            return;
        };
        let (socket, peer) = match listener.accept() {
            Ok(Some(connection)) => connection,
            Ok(None) => return,
            Err(error) => return self.pause_accepting(&error),
        };
        match (&self.listeners.guest_tls, &peer) {
            (Some(tls), Peer::Remote(_)) => match tls.server() {
                Ok(server) => self.greet_under_tls(socket, peer, server),
                Err(reason) => tracing::error!(reason, "TLS refuses guests"),
            },
            _ => self.await_hello(Guest::new(socket, peer)),
        }
    }

    /// Accepts a connection of another host's daemon.
    pub(super) fn accept_link(&mut self) {
        let (Some(listener), Some(tls)) = (&self.listeners.far, &self.listeners.tls) else {
            return;
        };
        let at = listener.address();
        let (socket, from) = match listener.accept() {
            Ok(Some((socket, Peer::Remote(from)))) => (socket, from),
            Ok(_) => return,
            Err(error) => return self.pause_accepting(&error),
        };
        let own = own_address(&socket).or(at).unwrap_or(from);
        match self.operations.links.accept(socket, from, tls) {
            Ok(socket) => {
                let peer = Peer::Host { from, at: own };
                self.await_hello(Guest::new(socket, peer));
            }
            Err(reason) => tracing::warn!(%from, reason, "a link is refused"),
        }
    }

    /// Reads the first frame of a connection. If all of it has arrived, the connection
    /// need not wait.
    fn await_hello(&mut self, guest: Guest) {
        let mut pending = Pending::new(guest, self.patience());
        match pending.advance() {
            Progress::More => {
                let key = self.counts.key();
                self.arrivals.reception.enter(key, pending, self.slots());
                self.recognize(key);
            }
            progress => self.first_frame(pending.guest, progress),
        }
    }

    /// Deadline for the hello of a new connection.
    pub(super) fn patience(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.host.limits.hello.into())
    }

    /// Maximum number of connections without a hello.
    pub(super) fn slots(&self) -> usize {
        usize::try_from(self.host.limits.pending).unwrap_or(usize::MAX)
    }

    /// Stops accepting for a while, because the system is out of descriptors or memory.
    pub(super) fn pause_accepting(&mut self, error: &std::io::Error) {
        tracing::warn!(%error, "a connection cannot be accepted");
        self.listeners.pause(Instant::now() + ACCEPT_PAUSE);
    }

    /// Continues with a first frame of which more has arrived.
    pub(super) fn advance(&mut self, key: u64) {
        if self.arrivals.reception.queue(key) {
            return self.hand_out();
        }
        let Some(pending) = self.arrivals.reception.get_mut(key) else {
            return;
        };
        match pending.advance() {
            Progress::More => self.recognize(key),
            progress => {
                if let Some(Pending { guest, .. }) = self.arrivals.reception.remove(key) {
                    self.first_frame(guest, progress);
                }
            }
        }
    }

    /// Prioritizes a connection that presents the token of a session of this host.
    pub(super) fn recognize(&mut self, key: u64) {
        let named = self
            .arrivals
            .reception
            .get_mut(key)
            .and_then(|it| it.token());
        let known = |token: &[u8; 16]| {
            *token != [0; 16] && self.sessions.values().any(|one| same(&one.token, token))
        };
        if named.is_some_and(|token| known(&token)) {
            self.arrivals.reception.recognize(key, self.slots());
        }
    }

    /// Handles a first frame that is complete or never will be.
    pub(super) fn first_frame(&mut self, guest: Guest, progress: Progress) {
        match progress {
            Progress::More => {}
            Progress::Complete(request) => self.admit(guest, request),
            Progress::Refused(reason) => self.refuse(guest, &reason),
            Progress::Invalid(what) => {
                tracing::info!(peer = %guest.peer, "a connection {what}");
            }
            Progress::Left => {
                tracing::debug!(peer = %guest.peer, "a connection ended before its hello");
            }
        }
    }

    /// Closes connections whose hello did not arrive in time.
    pub(super) fn give_up_on_silent(&mut self, now: Instant) {
        for source in self.arrivals.reception.overdue(now) {
            tracing::info!(?source, "a connection did not send its hello in time");
        }
    }

    pub(super) fn admit(&mut self, guest: Guest, mut request: Box<SessionRequest>) {
        if let Peer::Cid(cid) = guest.peer
            && let Some(vm) = self.host.vm_of_cid(cid)
        {
            request.vm = vm.to_owned();
        }
        if let Peer::Device { pid, .. } = guest.peer
            && let Err(reason) = DeviceProcess::of_peer(&guest, pid)
                .and_then(|process| self.tenants.claim(&request.vm, process))
        {
            self.refuse(guest, &reason);
            return;
        }
        if request.arrives.is_some()
            && let Err(reason) = self.leases.admit_arrival(&request.vm)
        {
            return self.refuse(guest, &reason);
        }
        if let Peer::Certified(Certified { identity, .. }) = &guest.peer {
            if let Err(reason) = self.leases.admit(identity) {
                let vm = identity.vm.clone();
                return match self.expects(identity) {
                    true => self.keep_for_agent(vm, guest, request),
                    false => self.refuse(guest, &reason),
                };
            }
            self.tenants.certify(identity, &self.host);
        }
        if request.hello.token != [0; 16] {
            if let Some((guest, request)) = self.park(guest, request) {
                self.resume(guest, &request);
            }
            return;
        }
        let limit = u64::from(self.host.limits.sessions);
        // A session that moves between devices of this host is already counted.
        let arrives = request.arrives.as_ref();
        let moves = arrives.is_some_and(|arrival| {
            let mut sessions = self.sessions.values();
            sessions.any(|session| same(&session.token, &arrival.token))
        });
        if let Err(reason) = self.home(&guest, &request) {
            return self.refuse(guest, &reason);
        }
        if moves {
            return self.arrivals.waiting.push_back(Waiting {
                guest,
                request,
                placed: None,
            });
        }
        if (self.sessions.len() + self.arrivals.waiting.len()) as u64 >= limit {
            let reason = format!(
                "the host already serves {limit} sessions, its limit: try again when one has \
                 ended, or raise limits.sessions in its host.toml"
            );
            self.refuse(guest, &reason);
            return;
        }
        let certified = self.tenants.certified_sessions(&request.vm);
        let quota = self.tenants.session_limit(&self.host, &request.vm);
        if quota > 0 && self.sessions_of(&request.vm) >= u64::from(quota) {
            let own = self.host.vm.get(&request.vm).map_or(0, |vm| vm.sessions);
            let key = match own {
                _ if quota == certified => "the limit in its certificate".to_owned(),
                0 => "limits.per_vm".to_owned(),
                _ => format!("vm.{}.sessions", request.vm),
            };
            let reason = format!(
                "{} already has {quota} sessions on this host, its limit: end a program, or raise \
                 {key} in the host's host.toml",
                request.vm
            );
            self.refuse(guest, &reason);
            return;
        }
        let placed = None;
        self.arrivals.waiting.push_back(Waiting {
            guest,
            request,
            placed,
        });
    }

    /// Hands a reconnecting guest to the worker of its session. The token is the
    /// authorization: it is the session's secret, and over another communicator the
    /// guest may have another name.
    pub(super) fn resume(&mut self, guest: Guest, request: &SessionRequest) {
        let token = request.hello.token;
        let named = self.sessions.values();
        let mut named = named.filter(|session| same(&session.token, &token));
        let vm = named.next().map(|session| session.facts.vm.clone());
        let device_count = self.devices_of(&vm.unwrap_or_default());
        // During a move between devices of this host, two workers have its token. The
        // older one has its guest.
        let found = self
            .sessions
            .values_mut()
            .filter(|session| same(&session.token, &token))
            .min_by_key(|session| session.arrives);
        if let Some(session) = &found
            && let Err(reason) = may_resume(&session.facts, &guest.peer, &request.vm)
        {
            return self.refuse(guest, reason);
        }
        let Some(session) = found.filter(|found| found.facts.ordinal == request.hello.device)
        else {
            let guest = match request.channel {
                // A device process passes on no descriptors.
                Some(_) => Some(guest),
                None => self.redirect(guest, &token),
            };
            let Some(guest) = guest else { return };
            // A worker has no control socket to a later daemon.
            let orphaned = self.sessions.values().any(|session| {
                let worker = self.workers.get(&session.worker);
                session.facts.vm == request.vm && worker.is_some_and(|it| it.control.is_none())
            });
            let reason = match orphaned {
                true => {
                    "the host's daemon was restarted since the session began: the session gets no \
                     new connection"
                }
                false => "the session that the guest resumes has ended",
            };
            self.refuse(guest, reason);
            return;
        };
        let worker = self.workers.get(&session.worker);
        let limits = &self.host.limits;
        let shm = &self.host.shm;
        let sent = worker
            .filter(|worker| !worker.finished && !worker.ending)
            .map_or(Err(ControlError::Closed), |worker| {
                let terms = terms(&session.facts, token, device_count, limits, shm, request);
                let guest_is = described(&guest, request);
                let fds = descriptors(&guest, request);
                let control = worker.control.as_ref().ok_or(ControlError::Closed)?;
                control.try_send(
                    &ToWorker::Resume {
                        terms,
                        guest: guest_is,
                    },
                    &fds,
                )
            });
        match sent {
            Ok(()) => {}
            // The guest retries: it finds this connection closed and reconnects.
            Err(ControlError::Full) => return,
            Err(_) => {
                self.refuse(guest, "the session that the guest resumes has ended");
                return;
            }
        }
        tracing::info!(
            session = session.facts.session,
            vm = session.facts.vm,
            gpu = session.facts.device,
            communicator = request.communicator,
            "session continues over another connection"
        );
        session.facts.communicator = request.communicator.to_owned();
        if let Some(expires) = expiry(&guest.peer) {
            session.facts.expires = Some(expires);
            self.notes.renew(&session.facts);
        }
        let key = session.worker;
        self.followed(key, request.communicator);
    }

    /// The route by which the guest of an arriving session can reach it here; `None` if
    /// it need not be notified.
    fn home(&self, guest: &Guest, request: &SessionRequest) -> Result<Option<Route>, String> {
        let Some(arrival) = &request.arrives else {
            return Ok(None);
        };
        if !arrival.local && self.host.limits.reconnect == 0 {
            return Err(
                "sessions of the destination end with their connections, so none can come from \
                 another host: set limits.reconnect in its host.toml above 0"
                    .into(),
            );
        }
        match self.address(request.communicator, &request.vm, &guest.peer) {
            Ok(address) => Ok(Some(Route {
                communicator: request.communicator.to_owned(),
                address,
            })),
            Err(reason) if arrival.follows => Err(reason),
            Err(_) => Ok(None),
        }
    }

    /// The address at which guests of `vm` reach this daemon over a communicator.
    pub(super) fn address(
        &self,
        communicator: &str,
        vm: &str,
        peer: &Peer,
    ) -> Result<String, String> {
        let (address, key) = match communicator {
            "unix" | "shm" => (
                Some(self.host.daemon.socket.to_string_lossy().into_owned()),
                "daemon.socket",
            ),
            "vsock" => (self.vsock_port(vm), "vsock.port or vsock.unix"),
            "tcp" => (self.tcp_address(peer), "tcp.listen"),
            // The guest's own device file.
            _ => (Some(String::new()), ""),
        };
        address.ok_or_else(|| {
            format!(
                "no guests are taken over {communicator} there: set {key} in that host's \
                 host.toml, or give another --communicator"
            )
        })
    }

    fn vsock_port(&self, vm: &str) -> Option<String> {
        if self.host.vsock.port != 0 {
            return Some(self.host.vsock.port.to_string());
        }
        let sockets = &self.host.vsock.unix.0;
        let socket = sockets.iter().find(|socket| socket.vm == vm)?;
        let (_, port) = socket.path.to_str()?.rsplit_once('_')?;
        port.parse::<u32>().ok().map(|port| port.to_string())
    }

    fn tcp_address(&self, peer: &Peer) -> Option<String> {
        if let Some(address) = &self.host.tcp.announce.0 {
            return Some(address.clone());
        }
        let mut address = self.listeners.tcp()?;
        if let Peer::Host { at, .. } = peer
            && address.ip().is_unspecified()
        {
            address.set_ip(at.ip());
        }
        Some(address.to_string())
    }

    /// Number of sessions of a VM, user or address, including waiting guests.
    fn sessions_of(&self, vm: &str) -> u64 {
        let running = self.sessions.values().map(|session| &session.facts.vm);
        let waiting = self
            .arrivals
            .waiting
            .iter()
            .map(|waiting| &waiting.request.vm);
        running.chain(waiting).filter(|other| *other == vm).count() as u64
    }

    /// Removes a waiting guest that has disconnected.
    pub(super) fn gave_up(&mut self, index: usize) {
        if let Some(waiting) = self.arrivals.waiting.remove(index) {
            tracing::debug!(
                vm = waiting.request.vm,
                "a guest left before it had a worker"
            );
        }
    }

    /// Assigns workers to waiting guests: VMs take turns, and each VM's guests are in order.
    /// Refuses those that cannot get one.
    pub(super) fn match_waiting(&mut self) {
        for mut waiting in self.arrivals.take_waiting() {
            if let Some(reason) = self.refusal_reason(&mut waiting) {
                self.refuse(waiting.guest, &reason);
            } else if let Some(waiting) = self.assign(waiting) {
                self.arrivals.waiting.push_back(waiting);
            }
        }
    }

    /// Why the guest cannot get a worker; `None` if it may. A guest whose GPU
    /// cannot be opened is placed on another if its limits allow.
    fn refusal_reason(&self, waiting: &mut Waiting) -> Option<String> {
        if let Some(problem) = self.devices.problem() {
            return Some(format!("the host has no GPU for guests: {problem}"));
        }
        let position = match waiting.placed.as_ref()? {
            Ok(position) => *position,
            Err(reason) => return Some(reason.clone()),
        };
        let device = self.devices.get(position)?;
        let problem = device.problem.as_ref()?;
        let coming = self.workers.values().any(|worker| {
            worker.ordinal == position && matches!(worker.state, State::Starting | State::Idle)
        });
        if coming || device.retry.is_none() {
            return None;
        }
        if self.works_elsewhere(&waiting.request) {
            waiting.placed = None;
            return None;
        }
        let label = self.devices.label(position);
        Some(format!(
            "the host's device {label} cannot be opened: {problem}"
        ))
    }

    /// Hands a guest to an idle worker of its device. Returns the guest if there is
    /// none.
    fn assign(&mut self, waiting: Waiting) -> Option<Waiting> {
        let Some(Ok(position)) = waiting.placed else {
            return Some(waiting);
        };
        loop {
            let Some(key) = self.idle_on(position) else {
                return Some(waiting);
            };
            if let Err(reason) = self.own(key, &waiting.request.vm) {
                self.refuse(waiting.guest, &reason);
                return None;
            }
            if self.hand_over(key, &waiting) {
                return None;
            }
        }
    }

    /// An idle worker on the GPU with this index.
    pub(super) fn idle_on(&self, position: u32) -> Option<u64> {
        let idle = |worker: &Worker| worker.ordinal == position && worker.state == State::Idle;
        let mut found = self.workers.iter().filter(|(_, worker)| idle(worker));
        found.next().map(|(key, _)| *key)
    }

    /// Gives a session to an idle worker: records it, charges it to its VM, and sends the
    /// worker the message. Returns the worker's process, `None` if the worker is lost.
    pub(super) fn begin_session(
        &mut self,
        key: u64,
        facts: &Facts,
        message: &ToWorker,
        fds: &[BorrowedFd<'_>],
    ) -> Option<u32> {
        let software = self.devices.software();
        let worker = self.workers.get_mut(&key)?;
        // Recorded first, so that a later daemon finds every running session.
        self.notes.write(facts, worker.pid);
        let sent = worker.control.as_ref().is_some_and(|control| {
            let process = (worker.pid, &**control);
            let granted =
                self.tenants
                    .grant(&self.host, software, &facts.vm, facts.session, process);
            granted.is_ok() && control.try_send(message, fds).is_ok()
        });
        if !sent {
            self.tenants.release(&facts.vm, facts.session);
            self.notes.remove(facts.session);
            return None;
        }
        worker.state = State::Serving(facts.session);
        let (pid, ordinal) = (worker.pid, worker.ordinal);
        self.make_room(key, ordinal);
        Some(pid)
    }

    fn hand_over(&mut self, key: u64, waiting: &Waiting) -> bool {
        let Waiting { guest, request, .. } = waiting;
        if let Peer::Certified(Certified { identity, .. }) = &guest.peer {
            // Again: a certificate's limits end with the VM's last session, which may have
            // been while this guest waited.
            self.tenants.certify(identity, &self.host);
        }
        let session = self.counts.next_session();
        let device_count = self.devices_of(&request.vm);
        let route = self.home(guest, request).unwrap_or_default();
        let Some(worker) = self.workers.get(&key) else {
            return false;
        };
        let device = self.devices.label(worker.ordinal);
        let arrival = request.arrives.as_ref();
        let token = arrival.map_or_else(token, |arrival| arrival.token);
        let fds = descriptors(guest, request);
        let facts = Facts {
            session,
            vm: request.vm.clone(),
            guest_pid: request.hello.pid,
            ordinal: request.hello.device,
            device,
            communicator: request.communicator.to_owned(),
            begun: now(),
            expires: expiry(&guest.peer),
        };
        let limits = &self.host.limits;
        let terms = terms(&facts, token, device_count, limits, &self.host.shm, request);
        let assign = match arrival {
            Some(arrival) => ToWorker::Arrive {
                terms,
                route,
                follows: arrival.follows,
            },
            None => ToWorker::Assign {
                terms,
                guest: described(guest, request),
            },
        };
        let Some(pid) = self.begin_session(key, &facts, &assign, &fds) else {
            if let Some(worker) = self.workers.get_mut(&key) {
                // It just died, or is about to.
                worker.dismiss(Instant::now() + GRACE);
            }
            return false;
        };
        // The session may be back.
        self.operations.departed.remove(&token);
        tracing::info!(
            session,
            worker = pid,
            vm = facts.vm,
            pid = facts.guest_pid,
            gpu = facts.device,
            communicator = facts.communicator,
            "session begins"
        );
        self.sessions.insert(
            session,
            Session {
                facts,
                token: if self.host.limits.reconnect == 0 {
                    [0; 16]
                } else {
                    token
                },
                worker: key,
                arrives: request.arrives.is_some(),
                counters: None,
            },
        );
        self.counts.session_began();
        self.join_turns(session);
        true
    }

    fn refuse(&mut self, guest: Guest, reason: &str) {
        tracing::info!(peer = %guest.peer, reason, "a guest is refused");
        self.counts.refused += 1;
        guest.refuse(reason);
    }
}

/// When a guest's certificate expires.
fn expiry(peer: &Peer) -> Option<u64> {
    match peer {
        Peer::Certified(Certified { identity, .. }) => Some(identity.expires),
        _ => None,
    }
}

/// Checks that the guest at `peer`, accounted as `vm`, may continue the session whose
/// token it presented. A certificate is valid for the sessions of its VM. A session that
/// began under a certificate does not continue over a connection without one, unless this
/// host itself knows that the connection is of the same VM, or its peer may end the
/// session anyway.
fn may_resume(facts: &Facts, peer: &Peer, vm: &str) -> Result<(), &'static str> {
    let own = rustix::process::geteuid().as_raw();
    let may = match peer {
        Peer::Certified(_) => facts.vm == vm,
        _ if facts.expires.is_none() => true,
        Peer::Remote(_) | Peer::Host { .. } => false,
        Peer::Local { uid, .. } if *uid == 0 || *uid == own => true,
        _ => facts.vm == vm,
    };
    match may {
        true => Ok(()),
        false => Err(
            "the session that the guest resumes belongs to another VM, by its \
             certificate",
        ),
    }
}

/// The local address of the connection.
fn own_address(socket: &OwnedFd) -> Option<std::net::SocketAddr> {
    rustix::net::getsockname(socket)
        .ok()
        .and_then(|own| std::net::SocketAddr::try_from(own).ok())
}

/// The message that hands a guest to a worker.
fn described(guest: &Guest, request: &SessionRequest) -> worker::Guest {
    worker::Guest {
        secured: guest.keys(),
        transport: request.transport,
        received: request.hello.received,
        pid: request.hello.pid,
        channel: request.channel.as_ref().map(|channel| worker::Channel {
            number: channel.number,
            offset: channel.offset,
            size: channel.size,
            lists: channel.lists,
        }),
    }
}

/// The limits of a session.
fn terms(
    facts: &Facts,
    token: [u8; 16],
    device_count: u32,
    limits: &Limits,
    shm: &Shm,
    request: &SessionRequest,
) -> Terms {
    Terms {
        session: facts.session,
        token,
        ordinal: request.hello.device,
        device_count,
        device_memory: limits.memory.0,
        host_memory: 0,
        window: shm.window.0,
        // Without a token no guest could reconnect.
        reconnect: if token == [0; 16] {
            0
        } else {
            limits.reconnect
        },
        vm: request.vm.clone(),
    }
}

/// The descriptors for that message.
fn descriptors<'a>(guest: &'a Guest, request: &'a SessionRequest) -> Vec<BorrowedFd<'a>> {
    let mut fds = Vec::new();
    if let Some(channel) = &request.channel {
        fds.extend(channel.fds.iter().map(|fd| fd.as_fd()));
    }
    // For a channel of the PCI device it is the fourth. The device process holds the
    // other end, waits there for the worker to exit, and shuts it down when the guest is
    // gone.
    fds.push(guest.as_fd());
    if let Some(channel) = &request.channel {
        fds.extend(channel.memory.iter().map(|fd| fd.as_fd()));
    }
    fds
}
