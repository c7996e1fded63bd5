//! Admits connections and turns them into sessions.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use paragpu_config::host::{Limits, Shm};
use paragpu_control::socket::ControlError;
use paragpu_control::terminal::counted;
use paragpu_control::worker::{self, Terms, ToWorker};

use super::arrivals::{Waiting, patience, slots};
use super::order::Kind;
use super::token::token;
use super::{ACCEPT_PAUSE, Broker};
use crate::handshake::{Arrival, Guest, Pending, Progress, SessionRequest};
use crate::listener::{Peer, canonical};
use crate::protection::Certified;
use crate::session::{Facts, Session, since_boot};
use crate::tenants::{DeviceProcess, Memory, check_tenant};
use crate::worker::{GRACE, State, Worker};

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
        let mut pending = Pending::new(guest, patience(&self.host.limits));
        match pending.advance() {
            Progress::More => {
                let key = self.counts.key();
                let limits = &self.host.limits;
                self.arrivals.reception.enter(key, pending, slots(limits));
                self.arrivals.recognize(key, &self.workers, limits);
            }
            progress => self.first_frame(pending.guest, progress),
        }
    }

    /// Stops accepting for a while, because the system is out of descriptors or memory.
    pub(super) fn pause_accepting(&mut self, error: &std::io::Error) {
        tracing::warn!(%error, "a connection cannot be accepted");
        self.listeners.pause(Instant::now() + ACCEPT_PAUSE);
    }

    /// Continues with a first frame of which more has arrived.
    pub(super) fn advance(&mut self, key: u64) {
        match self.arrivals.advance(key) {
            Some((guest, progress)) => self.first_frame(guest, progress),
            None => self
                .arrivals
                .recognize(key, &self.workers, &self.host.limits),
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
        if let Some(arrival) = &request.arrives {
            // What this daemon knows about a session of this host counts.
            if let Some(session) = self.workers.with_token(&arrival.token) {
                request.vm = session.facts.vm.clone();
            }
            let admitted = check_tenant(&request.vm);
            let admitted = admitted.and_then(|()| self.leases.admit_arrival(&request.vm));
            if let Err(reason) = admitted.and_then(|()| self.check_twins(&arrival.token)) {
                return self.refuse(guest, &reason);
            }
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
            if self.claimable(&request).is_some() {
                self.resume(guest, &request);
                return;
            }
            let most = slots(&self.host.limits);
            let parked = self.operations.park(guest, request, &self.notes, most);
            if let Some((guest, request)) = parked {
                self.resume(guest, &request);
            }
            return;
        }
        // A session that moves between devices of this host is already counted. One that has
        // itself not arrived yet is no such session: a hostile host may announce it repeatedly.
        let arrives = request.arrives.as_ref();
        let moves = arrives.and_then(|arrival| self.workers.with_token(&arrival.token));
        let moves = moves.is_some_and(|session| !session.arrives);
        if moves && arrives.is_some_and(|arrival| arrival.reconnects) {
            // The guest would find the source, which has the same token.
            return self.refuse(
                guest,
                "the session is at this daemon already: to move it to another GPU, give \
                 --to-gpu N without --to",
            );
        }
        if let Err(reason) = self.guest_addresses().home(&guest, &request) {
            return self.refuse(guest, &reason);
        }
        if moves {
            return self.arrivals.wait(guest, request);
        }
        match self.room_for(&request.vm) {
            Ok(()) => self.arrivals.wait(guest, request),
            Err(reason) => self.refuse(guest, &reason),
        }
    }

    /// Checks that no program with the token of a session that arrives would find another one
    /// here: one that continues it already, or was restored from a checkpoint of it.
    fn check_twins(&self, token: &[u8; 16]) -> Result<(), String> {
        if let Some(copy) = self.workers.claimed_by(token).next() {
            return Err(format!(
                "session {} of that daemon is a copy of it and waits for a clone of its program: \
                 end the copy first",
                copy.facts.session
            ));
        }
        let Some(twin) = self.workers.with_token(token) else {
            return Ok(());
        };
        let number = twin.facts.session;
        match self.operations.order(twin.worker) {
            // It moves within this host.
            Some(Kind::Migration(_)) => Ok(()),
            _ if twin.facts.is_unclaimed() => Err(format!(
                "session {number} of that daemon is restored from a checkpoint of it and waits \
                 for the same program: end that one first"
            )),
            // An earlier attempt to move it here is not over.
            _ if twin.arrives => Ok(()),
            _ => Err(format!(
                "session {number} of that daemon continues it already, from a checkpoint: end one \
                 of the two"
            )),
        }
    }

    /// Checks that the host and a VM may have one more session. Guests that wait for a worker
    /// count.
    pub(super) fn room_for(&self, vm: &str) -> Result<(), String> {
        let limit = u64::from(self.host.limits.sessions);
        if (self.workers.sessions().len() + self.arrivals.waiting.len()) as u64 >= limit {
            return Err(format!(
                "the host already serves {}, its limit: try again when one has ended, or \
                 raise limits.sessions in its host.toml",
                counted(limit, "session")
            ));
        }
        let certified = self.tenants.certified_sessions(vm);
        let quota = self.tenants.session_limit(&self.host, vm);
        let own = self.workers.sessions_of(vm).len() + self.arrivals.waiting_of(vm);
        if quota == 0 || (own as u64) < u64::from(quota) {
            return Ok(());
        }
        let limit = match self.host.vm.get(vm).map_or(0, |vm| vm.sessions) {
            _ if quota == certified => "the limit in its certificate".to_owned(),
            0 => "limits.per_vm in the host's host.toml".to_owned(),
            _ => format!("sessions under [vm.{vm:?}] in the host's host.toml"),
        };
        Err(format!(
            "{vm} already has {} on this host, its limit: end a program, or raise {limit}",
            counted(quota, "session")
        ))
    }

    /// Hands a reconnecting guest to the worker of its session. The token is the
    /// authorization: it is the session's secret, and over another communicator the
    /// guest may have another name. A guest whose session has copies gets one of them,
    /// and the token of that copy.
    pub(super) fn resume(&mut self, guest: Guest, request: &SessionRequest) {
        let token = request.hello.token;
        let found = self.workers.with_token(&token);
        let found = found.or_else(|| self.claimable(request));
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
                None => self.operations.redirect(guest, &token),
            };
            let Some(guest) = guest else { return };
            // One that did not come back to this daemon.
            let mut of_vm = self.workers.sessions_of(&request.vm).into_iter();
            let orphaned = of_vm.any(|session| {
                let worker = self.workers.of(session);
                worker.is_some_and(|worker| worker.control.is_none())
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
        let limits = &self.host.limits;
        let device_count = self.placing().devices_of(&session.facts.vm);
        let shm = &self.host.shm;
        let worker = self.workers.get(session.worker);
        let resume = ToWorker::Resume {
            terms: terms(
                &session.facts,
                session.token,
                device_count,
                limits,
                shm,
                request,
            ),
            guest: described(&guest, request),
        };
        let fds = descriptors(&guest, request);
        let expires = expiry(&guest.peer);
        let facts = Facts {
            claim: [0; 16],
            communicator: request.communicator.to_owned(),
            expires: expires.or(session.facts.expires),
            ..session.facts.clone()
        };
        // First, so that no later daemon offers a claimed copy to another program.
        if expires.is_some() || session.facts.is_unclaimed() {
            self.notes.renew(&facts);
        }
        let sent = match worker.is_some_and(Worker::serves) {
            true => self.workers.send(session.worker, &resume, &fds),
            false => Err(ControlError::Closed),
        };
        let number = session.facts.session;
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
        let Some(session) = self.workers.session_mut(number) else {
            return;
        };
        session.facts = facts;
        let key = session.worker;
        self.followed(key, request.communicator);
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
        // One may have been restored while it waited.
        if let Some(arrival) = &waiting.request.arrives
            && let Err(reason) = self.check_twins(&arrival.token)
        {
            return Some(reason);
        }
        let position = match waiting.placed.as_ref()? {
            Ok(position) => *position,
            Err(reason) => return Some(reason.clone()),
        };
        let device = self.devices.get(position)?;
        let problem = device.problem.as_ref()?;
        let count = |state| self.workers.count(position, state);
        let coming = count(State::Starting) + count(State::Idle) > 0;
        if coming || device.retry.is_none() {
            return None;
        }
        if self.placing().works_elsewhere(&waiting.request) {
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
            let Some(key) = self.workers.idle_on(position) else {
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

    /// Gives an idle worker its session: records it, charges it to its VM, and sends the
    /// worker the message. Returns the worker's process, `None` if the worker is lost.
    pub(super) fn begin_session(
        &mut self,
        session: Session,
        message: &ToWorker,
        fds: &[BorrowedFd<'_>],
    ) -> Option<u32> {
        let (facts, key) = (&session.facts, session.worker);
        let source = self.workers.with_token(&session.identity());
        let source = source.filter(|source| !source.arrives && source.facts.vm == facts.vm);
        let numbers = (facts.session, source.map(|source| source.facts.session));
        let worker = self.workers.get_mut(key)?;
        let device = self.devices.get(worker.ordinal);
        let gpu = match device.filter(|_| self.devices.software()) {
            Some(device) => Memory::Host {
                label: &facts.device,
                bytes: device.gpu.memory,
            },
            None => Memory::Driver,
        };
        let accounts = self.tenants.open(&self.host, &facts.vm, &gpu);
        // Recorded first, so that a later daemon finds every running session.
        let accounts = accounts.map(|accounts| self.notes.write(facts, worker.pid, accounts));
        let sent = worker.control.as_ref().zip(accounts.ok());
        let sent = sent.is_some_and(|(control, door)| {
            let process = (worker.pid, &**control);
            let granted = self.tenants.grant(&facts.vm, numbers, &gpu, process);
            if let Some(door) = door {
                // If the worker is lost, the next message detects it.
                let _ = control.try_send(&ToWorker::Door, &[door.as_fd()]);
            }
            granted.is_ok() && control.try_send(message, fds).is_ok()
        });
        if !sent {
            self.tenants.release(&facts.vm, facts.session);
            self.notes.remove(facts.session);
            return None;
        }
        worker.state = State::Serving(facts.session);
        let pid = worker.pid;
        self.workers.make_room(key, self.host.pool.warm as usize);
        self.shares.join(facts.session, &facts.vm, &facts.device);
        self.workers.begin(session);
        self.counts.session_began();
        self.follow_shares();
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
        let device_count = self.placing().devices_of(&request.vm);
        let route = self
            .guest_addresses()
            .home(guest, request)
            .unwrap_or_default();
        let Some(worker) = self.workers.get(key) else {
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
            begun: since_boot().as_secs(),
            expires: match arrival {
                Some(arrival) => self.expiry_of(arrival),
                None => expiry(&guest.peer),
            },
            claim: [0; 16],
        };
        // One that moves within this host, and has no token.
        let source = self.workers.with_token(&token);
        let is_marked = source.is_some_and(|source| source.token == [0; 16]);
        let (token, mark) = match is_marked {
            true => ([0; 16], token),
            false => (token, [0; 16]),
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
        let kept = match self.host.limits.reconnect {
            0 => [0; 16],
            _ => token,
        };
        let gpu = facts.device.clone();
        let mut begun = Session {
            facts,
            process: waiting.process(),
            token: kept,
            mark,
            worker: key,
            arrives: arrival.is_some(),
            counters: None,
        };
        let joins = self.joins(&mut begun);
        let Some(pid) = self.begin_session(begun, &assign, &fds) else {
            if let Some(worker) = self.workers.get_mut(key) {
                // It just died, or is about to.
                worker.dismiss(Instant::now() + GRACE);
            }
            return false;
        };
        self.operations.is_back(&token);
        tracing::info!(
            session,
            worker = pid,
            vm = request.vm,
            pid = request.hello.pid,
            gpu,
            communicator = request.communicator,
            "session begins"
        );
        if let Some(joins) = joins {
            self.join(joins, session);
        }
        true
    }

    /// When the certificate of an arriving session's guest expires. What this daemon knows
    /// about a session of this host counts.
    fn expiry_of(&self, arrival: &Arrival) -> Option<u64> {
        match self.workers.with_token(&arrival.token) {
            Some(session) => session.facts.expires,
            None => arrival.expires,
        }
    }

    pub(super) fn refuse(&mut self, guest: Guest, reason: &str) {
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
        .map(canonical)
}

/// The message that hands a guest to a worker.
fn described(guest: &Guest, request: &SessionRequest) -> worker::Guest {
    worker::Guest {
        secured: guest.keys(),
        transport: request.transport,
        received: request.hello.received,
        pid: request.hello.pid,
        windows: (request.hello.window, request.hello.room),
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
