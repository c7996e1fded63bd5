//! Reconnects after a lost connection, over the same communicator or another.
//!
//! One thread reconnects while the others wait. The host reports which calls it has
//! received, the guest which frames it has received, and each side resends the rest. So
//! each call is executed once and each reply arrives once, wherever the connection broke.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::{Error as TravelError, Sender, Wait};
use paragpu_config::guest::Guest;
use paragpu_protocol::codec::{Text, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{Move, Stays, Welcome};
use parking_lot::Mutex;

use super::connect::{Connected, Dialer, Resume};
use super::{Content, Incoming, LOST, Link, Outgoing};
use crate::error::{Error, Result, chain};
use crate::notice::notice;
use crate::sys::process;
use crate::sys::uncancelled::Uncancelled;

/// How long to try at least to reach a lost host, which may keep sessions for less: it notices
/// the loss later.
const PATIENCE: Duration = Duration::from_secs(30);
/// Minimum and maximum pause between two attempts.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));

/// A connection that breaks this soon, and over which neither side received anything, was a failed
/// attempt: something between the two ends may cut every connection.
const BRIEF: Duration = Duration::from_secs(1);

/// Attempts to reach the host, until one succeeds.
#[derive(Debug)]
struct Attempts {
    deadline: Instant,
    /// The pause before the next one.
    pause: Duration,
    /// The calls that the host is known to have received, and the frames that this side has.
    reached: (u64, u64),
    /// When the last one seemed to succeed.
    connected: Option<Instant>,
}

impl Attempts {
    fn new(patience: Duration, reached: (u64, u64)) -> Self {
        Self {
            deadline: Instant::now() + patience,
            pause: PAUSE.0,
            reached,
            connected: None,
        }
    }

    /// Whether a connection that is lost now was one of the failed attempts.
    fn go_on(&self, reached: (u64, u64)) -> bool {
        let was_brief = self.connected.is_some_and(|at| at.elapsed() < BRIEF);
        was_brief && reached == self.reached
    }

    /// Pauses before the next attempt. False if there is none.
    fn pause(&mut self) -> bool {
        if Instant::now() >= self.deadline {
            return false;
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSE.1);
        true
    }
}

/// How a session reconnects.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// That of the last welcome: a copy of a session has a token of its own.
    token: Mutex<[u8; 16]>,
    /// How long the host keeps the session, in milliseconds.
    kept: AtomicU32,
    dialer: Mutex<Dialer>,
    /// Whether the last connection came from the dialer: the session was there.
    at_home: AtomicBool,
    /// The destination to which the host sends the session.
    goal: Mutex<Option<Dialer>>,
    /// The last address from the configuration.
    configured: Mutex<Option<String>>,
    /// Held by the thread that reconnects.
    repair: Mutex<()>,
    /// The last ones.
    attempts: Mutex<Option<Attempts>>,
    reconnects: AtomicU64,
}

impl Recovery {
    /// For the session that began with `welcome`; `None` if the host does not keep
    /// sessions.
    pub(crate) fn new(config: &Guest, ordinal: u32, welcome: &Welcome) -> Option<Self> {
        if welcome.token == [0; 16] {
            return None;
        }
        Some(Self {
            token: Mutex::new(welcome.token),
            kept: AtomicU32::new(welcome.reconnect),
            dialer: Mutex::new(Dialer::new(config, ordinal)?),
            at_home: AtomicBool::new(true),
            goal: Mutex::new(None),
            configured: Mutex::new(config.tcp.address.0.clone()),
            repair: Mutex::new(()),
            attempts: Mutex::new(None),
            reconnects: AtomicU64::new(0),
        })
    }

    /// Attempts that begin now or, if a connection `is_lost` that was a failed one, go on. `None`
    /// if they took too long.
    fn attempts(&self, is_lost: bool, reached: (u64, u64)) -> Option<Attempts> {
        match self.attempts.lock().take() {
            Some(mut last) if is_lost && last.go_on(reached) => last.pause().then_some(last),
            _ => Some(Attempts::new(self.patience(), reached)),
        }
    }

    /// Notes that the last attempt succeeded, unless its connection breaks at once.
    fn seem_to_succeed(&self, attempts: Attempts, reached: (u64, u64)) {
        let mut attempts = match attempts.reached == reached {
            true => attempts,
            // The connection before was none of them: the host received a call over it.
            false => Attempts::new(self.patience(), reached),
        };
        attempts.connected = Some(Instant::now());
        *self.attempts.lock() = Some(attempts);
    }

    fn patience(&self) -> Duration {
        patience(self.kept.load(Ordering::Relaxed))
    }

    /// Rereads the configuration while the host does not answer: a lease whose host is
    /// lost may have moved or ended. Returns the reason if it ended.
    fn reread_configuration(&self) -> Option<String> {
        let config = Guest::load().ok()?;
        if !config.tcp.over.is_empty() {
            return Some(config.tcp.over);
        }
        let mut configured = self.configured.lock();
        if let Some(address) = &config.tcp.address.0
            && configured.as_ref() != Some(address)
        {
            let mut dialer = self.dialer.lock();
            let home = Move {
                communicator: Text("tcp"),
                address: Text(address),
            };
            if let Ok(destination) = dialer.for_destination(&home) {
                *dialer = destination;
                self.at_home.store(false, Ordering::Relaxed);
            }
            configured.clone_from(&config.tcp.address.0);
        }
        None
    }
}

/// How long to try to reach a lost host that keeps the session for so many milliseconds.
fn patience(kept: u32) -> Duration {
    PATIENCE.max(Duration::from_millis(kept.into()))
}

/// Why a new connection failed.
enum Broken {
    /// Try again.
    Again,
    /// The session is over.
    Over(String),
}

/// Why no connection lasts.
const BREAKS: &str = "the connection keeps breaking";

/// Interval at which an idle link is polled.
const LISTENS: Duration = Duration::from_secs(1);

/// Receives the host's messages while the program is idle, so that its session can
/// move.
pub(crate) fn listen(link: &Arc<Link>) {
    let link = Arc::downgrade(link);
    process::spawn("paragpu-listen", move || {
        loop {
            std::thread::sleep(LISTENS);
            let Some(link) = link.upgrade().filter(|link| link.check().is_ok()) else {
                return;
            };
            link.drain(Wait::Poll);
        }
    });
}

impl Link {
    /// Number of reconnects.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.recovery
            .as_ref()
            .map_or(0, |recovery| recovery.reconnects.load(Ordering::Relaxed))
    }

    /// Records that the host sends the session elsewhere.
    pub(super) fn note_move(&self, goal: &Move<'_>) {
        let Some(recovery) = &self.recovery else {
            return;
        };
        let destination = recovery.dialer.lock().for_destination(goal);
        match destination {
            Ok(dialer) => {
                *recovery.goal.lock() = Some(dialer);
                self.state.order_move();
            }
            Err(error) => self.report_refusal(&chain(&error)),
        }
    }

    /// Records that the session moved behind this connection. If it breaks, the next one
    /// goes to the new host.
    pub(super) fn record_new_host(&self, home: &Move<'_>) {
        let Some(recovery) = &self.recovery else {
            return;
        };
        let mut dialer = recovery.dialer.lock();
        // If it is invalid, the earlier address may still be reachable.
        if let Ok(destination) = dialer.for_destination(home) {
            *dialer = destination;
            recovery.at_home.store(false, Ordering::Relaxed);
        }
    }

    /// Reports to user and host that the guest could not follow the move.
    fn report_refusal(&self, why: &str) {
        notice(format_args!("the session stays where it is: {why}"));
        let stays = encode_all(&Stays { reason: Text(why) });
        let sender = self.sender();
        // The session cannot stay on a connection that is lost, or full of calls
        // that the host does not receive.
        let _ = sender.try_send(Control::Stays.kind(), 0, Some(0), &[&stays]);
        let _ = sender.flush();
    }

    /// Reconnects to where the host sends the session. If that fails, the current
    /// connection stays.
    pub(super) fn relocate(&self, generation: u64) -> Result<()> {
        self.reconnect(generation, None)
    }

    /// Reconnects after `error`, unless another thread has done so since connection
    /// `generation`.
    ///
    /// # Errors
    /// The error that every call returns from now on.
    pub(super) fn recover(&self, generation: u64, error: &TravelError) -> Result<()> {
        if self.recovery.is_none() || !error.is_loss() || process::forked() {
            return Err(self.end_lost(error));
        }
        self.reconnect(generation, Some(error))
    }

    fn reconnect(&self, generation: u64, lost: Option<&TravelError>) -> Result<()> {
        let _uncancelled = Uncancelled::begin();
        let Some(recovery) = &self.recovery else {
            return self.check();
        };
        // Lock order: `repair`, `incoming`, `outgoing`. Many threads notice a loss at the
        // same time. The first one reconnects. The others wait here and then find a newer
        // generation.
        let _repair = recovery.repair.lock();
        self.state.check()?;
        // A reading thread sees the state when it is woken, and releases the
        // receiving half.
        self.state.begin_reconnecting();
        self.waker.lock().wake();
        let mut incoming = self.incoming.lock();
        // Held until everything is resent: a new call must not overtake the old ones.
        let mut outgoing = self.outgoing.lock();
        let result = if incoming.generation != generation && recovery.goal.lock().is_none() {
            // Another thread did it while this one waited for `repair`.
            Ok(())
        } else {
            self.repair(recovery, &mut incoming, &mut outgoing, lost)
        };
        // While this thread holds the receiving half no other thread receives
        // orders, so none is lost between the check and the change.
        self.state.end_reconnecting(recovery.goal.lock().is_some());
        drop((incoming, outgoing));
        // Threads that waited for the receiving half are asleep; wake one.
        self.pass_on();
        result
    }

    fn repair(
        &self,
        recovery: &Recovery,
        incoming: &mut Incoming,
        outgoing: &mut Outgoing,
        lost: Option<&TravelError>,
    ) -> Result<()> {
        // Frames received before the connection ended are valid, and may contain a move.
        while let Ok(true) = self.receive_one(incoming, Wait::Poll) {}
        let reached = |incoming: &Incoming| {
            let taken = self.positions.taken.load(Ordering::Relaxed);
            (taken, incoming.received)
        };
        let Some(mut attempts) = recovery.attempts(lost.is_some(), reached(incoming)) else {
            return Err(self.end(LOST, BREAKS));
        };
        loop {
            self.state.check()?;
            let mut goal = recovery.goal.lock().take();
            if goal.is_none() && lost.is_none() {
                return Ok(());
            }
            let moves = goal.is_some();
            let resume = Resume {
                token: *recovery.token.lock(),
                received: incoming.received,
                window: self.pinned().and_then(|pinned| pinned.window()),
                room: self.pinned().and_then(|pinned| pinned.room()),
            };
            let dialed = match &goal {
                Some(dialer) => dialer.dial(resume),
                None => recovery.dialer.lock().dial(resume),
            };
            let why = match dialed {
                Ok(connected) => {
                    // The host that sends the welcome has the session, even if this
                    // connection breaks.
                    if let Some(dialer) = goal.take() {
                        *recovery.dialer.lock() = dialer;
                    }
                    match self.install(recovery, incoming, outgoing, connected) {
                        Ok(()) => {
                            recovery.at_home.store(true, Ordering::Relaxed);
                            recovery.reconnects.fetch_add(1, Ordering::Relaxed);
                            recovery.seem_to_succeed(attempts, reached(incoming));
                            return Ok(());
                        }
                        // The next use detects the loss.
                        Err(Broken::Again) if lost.is_none() => return Ok(()),
                        Err(Broken::Again) => BREAKS.to_owned(),
                        Err(Broken::Over(why)) => return Err(self.end(LOST, &why)),
                    }
                }
                // The session moved while this side was not receiving. The next
                // attempt goes there.
                Err(Error::Elsewhere {
                    communicator,
                    address,
                }) if !moves => {
                    self.record_new_host(&Move {
                        communicator: Text(&communicator),
                        address: Text(&address),
                    });
                    "the hosts redirect the session in a loop".to_owned()
                }
                Err(error @ (Error::Refused(_) | Error::Handshake(_))) if !moves => {
                    return Err(self.end(LOST, &chain(&error)));
                }
                // The sessions of a device end with it, unless they have moved.
                Err(error @ Error::DeviceGone { .. })
                    if !moves && recovery.at_home.load(Ordering::Relaxed) =>
                {
                    return Err(self.end(LOST, &chain(&error)));
                }
                Err(error) => {
                    if let Some(why) = recovery.reread_configuration().filter(|_| lost.is_some()) {
                        return Err(self.end(LOST, &why));
                    }
                    chain(&error)
                }
            };
            if moves && lost.is_none() {
                self.report_refusal(&why);
                return Ok(());
            }
            if !attempts.pause() {
                return Err(self.end(LOST, &why));
            }
        }
    }

    /// Continues over `connected`: resends calls that the host has not received.
    fn install(
        &self,
        recovery: &Recovery,
        incoming: &mut Incoming,
        outgoing: &mut Outgoing,
        connected: Connected,
    ) -> std::result::Result<(), Broken> {
        let Connected {
            connection,
            welcome,
            ..
        } = connected;
        let taken = welcome.taken;
        // A host cannot have received calls that were never sent, nor lose calls that it
        // confirmed: resending those would execute them twice.
        if taken > outgoing.sequence || taken < self.positions.taken.load(Ordering::Relaxed) {
            return Err(Broken::Over(format!(
                "the host acknowledges call {taken}: it was never sent, or a later one was already \
                 acknowledged"
            )));
        }
        let pinned = self.pinned();
        let has_window = pinned.as_ref().is_some_and(|it| it.window().is_some());
        let leaves = has_window && !welcome.shares_window;
        if (leaves && !welcome.wants_pinned) || (welcome.shares_window && !has_window) {
            return Err(Broken::Over(
                "the host has other memory where the session has its pinned memory".into(),
            ));
        }
        // The host found a copy of the session by the token that all clones of this process
        // have. From now on only this one finds it.
        if welcome.token != [0; 16] {
            *recovery.token.lock() = welcome.token;
        }
        recovery.kept.store(welcome.reconnect, Ordering::Relaxed);
        self.positions.taken.fetch_max(taken, Ordering::Relaxed);
        outgoing.kept.trim(|header| header.sequence <= taken);
        // Ends threads that still wait for room in the old connection.
        self.disconnect(&*outgoing.sender);
        self.process
            .store(process::note_connected(), Ordering::Relaxed);
        outgoing.generation += 1;
        self.gathers
            .store(connection.sender.gathers(), Ordering::Relaxed);
        outgoing.sender = connection.sender;
        *self.current.lock() = Arc::clone(&outgoing.sender);
        *self.waker.lock() = connection.receiver.waker();
        *incoming = Incoming {
            receiver: connection.receiver,
            received: incoming.received,
            untold: 0,
            generation: outgoing.generation,
        };
        let sender = Arc::clone(&outgoing.sender);
        let mut contents = Vec::new();
        if let Some(pinned) = pinned {
            if leaves {
                pinned.leave_window().map_err(|error| {
                    Broken::Over(format!("its pinned memory is gone: {}", chain(&error)))
                })?;
            }
            match welcome.wants_pinned {
                true => contents = pinned.missing(),
                // Its confirmation may have been lost.
                false => pinned.settle_contents(),
            }
            if let Some(window) = connection.window {
                pinned.adopt_window(window);
            }
        }
        if welcome.wants_pinned {
            // Before the calls that may use it.
            self.send_pinned(incoming, &*sender, &contents)?;
        }
        outgoing.kept.each(|header, payload| {
            let numbers = (header.kind, header.slot, header.sequence);
            self.send_again(incoming, &*sender, numbers, &payload)
        })?;
        // If it breaks again, the next use detects it.
        let _ = sender.flush();
        Ok(())
    }

    /// Resends a frame over a new connection.
    fn send_again(
        &self,
        incoming: &mut Incoming,
        sender: &dyn Sender,
        (kind, slot, sequence): (u16, u16, u64),
        payload: &[&[u8]],
    ) -> std::result::Result<(), Broken> {
        loop {
            match sender.try_send(kind, slot, Some(sequence), payload) {
                Ok(_) => return Ok(()),
                Err(TravelError::Full) => {
                    // The host also resends, and may be waiting for room.
                    let soon = Wait::Until(Instant::now() + PAUSE.0);
                    let read = self.receive_one(incoming, soon);
                    if read.is_err() || self.state.check().is_err() {
                        return Err(Broken::Again);
                    }
                }
                Err(_) => return Err(Broken::Again),
            }
        }
    }

    /// Sends pinned memory to a host that has zeros there.
    fn send_pinned(
        &self,
        incoming: &mut Incoming,
        sender: &dyn Sender,
        contents: &[Content],
    ) -> std::result::Result<(), Broken> {
        let numbers = (Control::Pinned.kind(), 0, 0);
        for content in contents {
            for (address, bytes) in content.pieces() {
                let address = address.to_le_bytes();
                self.send_again(incoming, sender, numbers, &[&address, bytes])?;
            }
        }
        self.send_again(incoming, sender, numbers, &[&[0; 8]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_breaks_at_once_is_a_failed_attempt() {
        let mut attempts = Attempts::new(PATIENCE, (7, 3));
        assert!(!attempts.go_on((7, 3)), "there was no connection");
        attempts.connected = Some(Instant::now());
        assert!(attempts.go_on((7, 3)));
        assert!(!attempts.go_on((8, 3)), "the host received a call");
        assert!(!attempts.go_on((7, 4)), "this side received a reply");
        attempts.connected = Instant::now().checked_sub(BRIEF);
        assert!(!attempts.go_on((7, 3)), "it lasted for a while");
        let pause = attempts.pause;
        assert!(attempts.pause() && attempts.pause > pause);
        attempts.deadline = Instant::now();
        assert!(!attempts.pause());
    }

    #[test]
    fn a_host_is_looked_for_as_long_as_it_keeps_the_session() {
        assert_eq!(patience(600_000), Duration::from_mins(10));
        assert_eq!(patience(5), PATIENCE);
        assert_eq!(patience(0), PATIENCE);
    }
}
