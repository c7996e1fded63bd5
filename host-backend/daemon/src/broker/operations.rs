//! Moves, checkpoints and restores in progress.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use paragpu_control::admin::{Activity, Figures};
use paragpu_control::worker::Route;

use super::migration::{Departed, Migration};
use super::order::{Kind, NOBODY, Ordered, Outcome, Parked, Restoring, Silence};
use super::schedules::Schedules;
use super::workers::Workers;
use crate::handshake::{Guest, SessionRequest};
use crate::link::Links;
use crate::notes::Notes;
use crate::session::Session;

/// How long the guest of a checkpointed session may wait.
pub(super) const KEPT: Duration = Duration::from_secs(600);
/// How long a guest may take to reconnect over another communicator.
const RELOCATES: Duration = Duration::from_secs(60);
/// How long guests are redirected to a session that moved away.
const SENT_ON: Duration = Duration::from_secs(600);

/// A guest that presents a token.
type Comer = (Guest, Box<SessionRequest>);

/// Moves, checkpoints and restores in progress.
#[derive(Debug, Default)]
pub(super) struct Operations {
    /// Connections to daemons of other hosts.
    pub links: Links,
    /// Periodic checkpoints.
    pub schedules: Schedules,
    /// Workers of an earlier daemon that have not come back, by key, and what identifies the
    /// accounts of their sessions.
    pub returning: BTreeMap<u64, Vec<u64>>,
    /// Moves that wait for their members.
    pub migrations: BTreeMap<u64, Migration>,
    /// What workers were ordered to do, by key of the worker.
    orders: BTreeMap<u64, Ordered>,
    /// The destinations of sessions that left, by token.
    departed: BTreeMap<[u8; 16], Departed>,
    parked: Vec<Parked>,
    restores: Vec<Restoring>,
}

impl Operations {
    /// Whether this connection of the control socket waits for an operation.
    pub fn are_awaited_by(&self, console: u64) -> bool {
        self.orders.values().any(|it| it.console == console)
            || self.restores.iter().any(|it| it.console == console)
            || self.migrations.values().any(|it| it.console == console)
    }

    /// The activity of a session besides serving its program.
    pub fn activity(&self, session: &Session) -> Activity {
        match self.order(session.worker) {
            _ if session.arrives => Activity::Arriving,
            Some(Kind::State { .. } | Kind::Restore | Kind::Copy(_)) => Activity::Writing,
            Some(Kind::Migration(_) | Kind::Relocation { .. }) => Activity::Moving,
            None => Activity::Serving,
        }
    }

    /// What a worker was ordered to do, if it has not completed that.
    pub fn order(&self, key: u64) -> Option<&Kind> {
        self.orders.get(&key).map(|ordered| &ordered.kind)
    }

    /// The connection of the control socket that gave a worker its order.
    pub fn console(&self, key: u64) -> Option<u64> {
        self.orders.get(&key).map(|ordered| ordered.console)
    }

    /// Records what a worker was ordered to do.
    pub fn begin(&mut self, key: u64, ordered: Ordered) {
        self.orders.insert(key, ordered);
    }

    /// The order of a worker, to record that its session has moved.
    pub fn ordered_mut(&mut self, key: u64) -> Option<&mut Ordered> {
        self.orders.get_mut(&key)
    }

    /// The figures of a worker's session that has moved.
    pub fn moved(&self, key: u64) -> Option<Figures> {
        self.orders.get(&key)?.moved
    }

    /// Removes the order of a worker.
    pub fn finish(&mut self, key: u64) -> Option<Ordered> {
        self.orders.remove(&key)
    }

    /// Records that a worker sent something.
    pub fn hear(&mut self, key: u64) {
        if let Some(ordered) = self.orders.get_mut(&key) {
            ordered.silence.hear(Instant::now());
        }
    }

    /// The workers that have been silent for so long that something is due.
    pub fn silent(&mut self, now: Instant) -> Vec<(u64, Silence)> {
        let orders = self.orders.iter_mut();
        let due = orders.filter_map(|(key, it)| Some((*key, it.silence.advance(now)?)));
        due.collect()
    }

    /// Lets nobody wait for a worker's order any longer. Returns who did.
    pub fn abandon(&mut self, key: u64) -> Option<(u64, &Kind)> {
        let ordered = self.orders.get_mut(&key)?;
        let console = std::mem::replace(&mut ordered.console, NOBODY);
        Some((console, &ordered.kind))
    }

    /// The migration that a worker was ordered to take part in.
    pub fn migration_of(&mut self, key: u64) -> Option<(u64, &mut Migration)> {
        match self.orders.get(&key)?.kind {
            Kind::Migration(id) => Some((id, self.migrations.get_mut(&id)?)),
            _ => None,
        }
    }

    /// Whether the session of this worker moves together with others, and has not left.
    pub fn is_leaving(&self, key: u64) -> bool {
        let migrations = self.migrations.values();
        let mut undecided = migrations.filter(|it| it.stage.is_undecided());
        undecided.any(|it| it.members.contains_key(&key))
    }

    /// Records that the program of a moving session exited: the others need not wait for
    /// it. The report omits it, because it did not stay.
    pub fn member_ended(&mut self, id: u64, key: u64) {
        let Some(migration) = self.migrations.get_mut(&id) else {
            return;
        };
        if let Some(member) = migration.members.remove(&key)
            && migration.single
        {
            let reason = "its program ended in the meantime".to_owned();
            migration.over.push(member.over(Err(reason)));
        }
    }

    /// Lets sessions stay that should move together and take too long. Returns the workers
    /// whose guests take too long to change their communicator, and why that fails.
    pub fn give_up(&mut self, now: Instant) -> Vec<(u64, String)> {
        for migration in self.migrations.values_mut() {
            if let Some(reason) = migration.stage.overdue(now) {
                tracing::warn!(reason, "sessions that should move together stay");
                migration.why = Some(reason);
                migration.stage.give_up();
            }
        }
        let late = self.relocations().filter(|(_, until)| *until <= now);
        let reason = || {
            format!(
                "its program did not reconnect within {} s: it may be stopped, and follows when it \
                 runs again",
                RELOCATES.as_secs()
            )
        };
        late.map(|(key, _)| (key, reason())).collect()
    }

    /// The workers whose guests are changing their communicator, and until when they may.
    fn relocations(&self) -> impl Iterator<Item = (u64, Instant)> {
        let orders = self.orders.iter();
        orders.filter_map(|(key, ordered)| match &ordered.kind {
            Kind::Relocation { began, .. } => Some((*key, *began + RELOCATES)),
            _ => None,
        })
    }

    /// When an operation is given up, or a checkpoint is due.
    pub fn deadline(&self) -> Option<Instant> {
        let migrations = self.migrations.values();
        let together = migrations.filter_map(|migration| migration.stage.deadline());
        let restores = self.restores.iter().map(|waiting| waiting.until);
        let relocations = self.relocations().map(|(_, until)| until);
        let silences = self.orders.values();
        let silences = silences.filter_map(|ordered| ordered.silence.deadline());
        let all = together.chain(restores).chain(relocations).chain(silences);
        all.chain(self.schedules.next()).min()
    }

    /// How the change of a worker's guest to this communicator went, if it was ordered.
    pub fn followed(&self, key: u64, communicator: &str) -> Option<Outcome> {
        match self.order(key)? {
            Kind::Relocation {
                communicator: wanted,
                began,
                ..
            } if wanted == communicator => Some(Ok(Figures {
                total_ms: began.elapsed().as_secs_f64() * 1e3,
                ..Figures::default()
            })),
            _ => None,
        }
    }

    /// Records where the session with this token went.
    pub fn depart(&mut self, token: [u8; 16], route: Route) {
        let until = Instant::now() + SENT_ON;
        self.departed.insert(token, Departed { route, until });
    }

    /// Forgets where sessions went: all those of which it is too long ago.
    pub fn forget_departed(&mut self) {
        let now = Instant::now();
        self.departed.retain(|_, departed| departed.until > now);
    }

    /// Records that a session is here, perhaps again.
    pub fn is_back(&mut self, token: &[u8; 16]) {
        self.departed.remove(token);
    }

    /// Redirects a guest whose session moved away. Returns the guest if it did not.
    pub fn redirect(&self, guest: Guest, token: &[u8; 16]) -> Option<Guest> {
        let departed = self.departed.get(token);
        let Some(departed) = departed.filter(|departed| departed.until > Instant::now()) else {
            return Some(guest);
        };
        tracing::info!(
            peer = %guest.peer, communicator = departed.route.communicator,
            "a guest is redirected to the new host of its session"
        );
        guest.redirect(&departed.route.communicator, &departed.route.address);
        None
    }

    /// Ends a session's periodic checkpoints into a directory. A checkpoint that is being
    /// written is the last one.
    ///
    /// # Errors
    /// As [`Schedules::end`].
    pub fn end_schedule(
        &mut self,
        workers: &Workers,
        session: u64,
        directory: &Path,
    ) -> Result<(), String> {
        let order = workers.session(session).map(|found| found.worker);
        let order = order.and_then(|key| self.orders.get_mut(&key));
        let is_first = match order.map(|ordered| &mut ordered.kind) {
            Some(Kind::State {
                directory: into,
                every,
                ..
            }) if into == directory => every.take().is_some() && !self.schedules.contain(session),
            _ => false,
        };
        match is_first {
            true => Ok(()),
            false => self.schedules.end(session, directory),
        }
    }

    /// Has a restore wait for a worker.
    pub fn await_worker(&mut self, restoring: Restoring) {
        self.restores.push(restoring);
    }

    /// Takes the restores that wait for a worker.
    pub fn take_restores(&mut self) -> Vec<Restoring> {
        std::mem::take(&mut self.restores)
    }

    /// Number of restores that wait for a worker of a GPU.
    pub fn restores_on(&self, position: u32) -> usize {
        let restores = self.restores.iter();
        restores
            .filter(|waiting| waiting.position == Some(position))
            .count()
    }

    /// Adopts sessions that an earlier daemon had checkpointed: their guests may
    /// reconnect.
    pub fn adopt(&mut self, notes: &Notes) {
        let parked = notes.parked().into_iter();
        self.parked = parked
            .map(|(token, left)| Parked::new(token, left.min(KEPT)))
            .collect();
    }

    /// Records that a session was checkpointed and ended: its guest may reconnect. Likewise
    /// if there were copies of it: further guests may wait for others.
    pub fn put_away(&mut self, token: [u8; 16], notes: &Notes) {
        self.forget_parked(notes);
        notes.park(token, KEPT);
        let mut parked = self.parked.iter_mut();
        match parked.find(|parked| parked.token == token) {
            Some(parked) => parked.until = Instant::now() + KEPT,
            None => self.parked.push(Parked::new(token, KEPT)),
        }
    }

    /// Forgets checkpointed sessions whose guests may no longer reconnect, and their records.
    fn forget_parked(&mut self, notes: &Notes) {
        let now = Instant::now();
        self.parked.retain(|parked| {
            let waits = parked.until > now;
            if !waits {
                notes.unpark(&parked.token);
            }
            waits
        });
    }

    /// The guests that wait for a session that is checkpointed.
    pub fn parked_guests(&self) -> impl Iterator<Item = &Guest> {
        let guests = self.parked.iter().flat_map(|parked| &parked.guests);
        guests.map(|(guest, _)| guest)
    }

    /// Forgets those of them that have disconnected.
    pub fn forget_disconnected(&mut self) {
        for parked in &mut self.parked {
            parked.guests.retain(|(guest, _)| guest.is_connected());
        }
    }

    /// Keeps a guest whose session is checkpointed. Returns the guest if it is not. Of more
    /// than `most` the oldest loses its place.
    pub fn park(
        &mut self,
        guest: Guest,
        request: Box<SessionRequest>,
        notes: &Notes,
        most: usize,
    ) -> Option<(Guest, Box<SessionRequest>)> {
        self.forget_parked(notes);
        let token = request.hello.token;
        let mut parked = self.parked.iter_mut();
        match parked.find(|parked| parked.token == token) {
            Some(parked) => {
                parked.guests.retain(|(guest, _)| guest.is_connected());
                if parked.guests.len() >= most.max(1) {
                    parked.guests.remove(0);
                }
                parked.guests.push((guest, request));
                None
            }
            None => Some((guest, request)),
        }
    }

    /// Takes the guests of sessions that are restored, and as many as there are copies. The
    /// others of a session that is restored itself come second: it is the last one's.
    pub fn take_restored(&mut self, workers: &Workers, notes: &Notes) -> [Vec<Comer>; 2] {
        let (mut back, mut others) = (Vec::new(), Vec::new());
        let orders = &self.orders;
        self.parked.retain_mut(|parked| {
            parked.guests.retain(|(guest, _)| guest.is_connected());
            let restored = workers.with_token(&parked.token);
            if restored.is_some_and(|found| !orders.contains_key(&found.worker)) {
                notes.unpark(&parked.token);
                back.extend(parked.guests.pop());
                others.append(&mut parked.guests);
                return false;
            }
            let copies = workers.claimed_by(&parked.token);
            let ready = copies.filter(|copy| !orders.contains_key(&copy.worker));
            let count = ready.count().min(parked.guests.len());
            back.extend(parked.guests.drain(..count));
            true
        });
        [back, others]
    }

    /// Whether a copy is complete.
    pub fn is_ready(&self, copy: &Session) -> bool {
        !self.orders.contains_key(&copy.worker)
    }
}
