//! Orders to running sessions, from the control socket: checkpoint, restore,
//! migrate. The workers do the work; the daemon passes words on.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paragpu_protocol::codec::{Bytes, Text};
use paragpu_worker::control::{Assign, Checkpoint, Migrate, Restore, ToWorker};
use paragpu_worker::transfer::checkpoint::identity;

use super::Broker;
use crate::admin::Response;
use crate::handshake::{Asked, Guest};
use crate::session::{Facts, Session, now};
use crate::worker::State;

/// How long a guest whose session was put away is kept waiting.
const KEPT: Duration = Duration::from_secs(600);

/// Who waits for the end of an order.
#[derive(Debug)]
pub(super) struct Ordered {
    console: u64,
    /// The session is put away when it is done.
    puts_away: bool,
}

/// A session that was put away into a directory, and may come back.
#[derive(Debug)]
pub(super) struct Parked {
    token: [u8; 16],
    until: Instant,
    guest: Option<(Guest, Box<Asked>)>,
}

impl Broker {
    /// Does this connection of the control socket wait for an order?
    pub(super) fn awaits_order(&self, console: u64) -> bool {
        self.orders
            .values()
            .any(|ordered| ordered.console == console)
    }

    fn order(
        &mut self,
        console: u64,
        session: u64,
        puts_away: bool,
        message: &ToWorker<'_>,
    ) -> Result<(), String> {
        let found = self.sessions.get(&session);
        let key = found
            .map(|session| session.worker)
            .ok_or_else(|| format!("there is no session {session}"))?;
        if self.orders.contains_key(&key) {
            return Err(format!(
                "session {session} is being moved or written already"
            ));
        }
        let control = self
            .workers
            .get(&key)
            .filter(|worker| !worker.told && !worker.finished)
            .and_then(|worker| worker.control.as_ref())
            .ok_or_else(|| {
                format!("session {session} ends, or began under an earlier daemon: it stays")
            })?;
        control
            .send(message, &[])
            .map_err(|error| format!("the worker of session {session} is lost: {error}"))?;
        self.orders.insert(key, Ordered { console, puts_away });
        Ok(())
    }

    pub(super) fn order_checkpoint(
        &mut self,
        console: u64,
        session: u64,
        directory: &Path,
        end: bool,
    ) -> Result<(), String> {
        let directory = absolute(directory)?;
        let message = ToWorker::Checkpoint(Checkpoint {
            directory: Text(&directory),
            end: u8::from(end),
        });
        self.order(console, session, end, &message)
    }

    pub(super) fn order_migration(
        &mut self,
        console: u64,
        session: u64,
        to: &Path,
        precopy: bool,
    ) -> Result<(), String> {
        let to = absolute(to)?;
        let message = ToWorker::Migrate(Migrate {
            to: Text(&to),
            precopy: u8::from(precopy),
        });
        self.order(console, session, false, &message)
    }

    /// Gives the session of a directory to an idle worker.
    pub(super) fn order_restore(&mut self, console: u64, directory: &Path) -> Result<(), String> {
        let path = absolute(directory)?;
        let identity = identity(directory).map_err(|error| error.to_string())?;
        let alive = self
            .sessions
            .values()
            .find(|session| session.token == identity.token);
        if let Some(alive) = alive {
            return Err(format!(
                "session {} of this host is the one that {path} holds",
                alive.facts.session
            ));
        }
        if identity.token == [0; 16] {
            return Err("the session in this directory ended with its connection".into());
        }
        let limit = u64::from(self.host.limits.sessions);
        if self.sessions.len() as u64 >= limit {
            return Err(format!("the host serves {limit} sessions already"));
        }
        let ordinal = identity.ordinal;
        let idle = self
            .workers
            .iter_mut()
            .find(|(_, worker)| worker.ordinal == ordinal && worker.state == State::Idle);
        let Some((&key, worker)) = idle else {
            return Err(format!(
                "no worker of device {ordinal} is idle: try again, or raise pool.warm"
            ));
        };
        let session = self.next_session;
        let facts = Facts {
            session,
            vm: identity.vm.clone(),
            guest_pid: identity.guest_pid,
            ordinal,
            device: self.devices.label(ordinal),
            communicator: "none".into(),
            begun: now(),
        };
        let restore = ToWorker::Restore(Restore {
            assign: Assign {
                session,
                token: identity.token,
                ordinal,
                device_count: identity.device_count,
                device_memory: self.host.limits.memory.0,
                host_memory: 0,
                window: self.host.shm.window.0,
                channel_offset: 0,
                channel_size: 0,
                list_offset: 0,
                channel: 0,
                reconnect: u32::try_from(KEPT.as_millis()).unwrap_or(u32::MAX),
                vm: Text(&identity.vm),
                hello: Bytes(&[]),
            },
            directory: Text(&path),
        });
        self.notes.write(&facts, worker.pid);
        let sent = worker
            .control
            .as_ref()
            .is_some_and(|control| control.send(&restore, &[]).is_ok());
        if !sent {
            self.notes.remove(session);
            return Err("the worker is lost: try again".into());
        }
        worker.state = State::Serving(session);
        tracing::info!(session, directory = path, "session comes from a directory");
        self.sessions.insert(
            session,
            Session {
                facts,
                token: identity.token,
                worker: key,
                counters: None,
            },
        );
        self.next_session += 1;
        self.totals.begun += 1;
        let puts_away = false;
        self.orders.insert(key, Ordered { console, puts_away });
        Ok(())
    }

    /// A worker says how far it is.
    pub(super) fn order_progress(&mut self, key: u64, progress: &Response) {
        if let Some(ordered) = self.orders.get(&key) {
            let console = ordered.console;
            self.answer(console, progress);
        }
    }

    /// An order is over, well or not.
    pub(super) fn order_over(&mut self, key: u64, response: &Response) {
        let session = self
            .workers
            .get(&key)
            .and_then(|worker| match worker.state {
                State::Serving(session) => self.sessions.get_mut(&session),
                _ => None,
            });
        let Some(ordered) = self.orders.remove(&key) else {
            return;
        };
        let done = matches!(response, Response::Done { .. });
        if let Some(session) = session {
            tracing::info!(
                session = session.facts.session,
                done,
                "an order to a session is over"
            );
            if done && ordered.puts_away && session.token != [0; 16] {
                let token = std::mem::take(&mut session.token);
                self.parked.push(Parked {
                    token,
                    until: Instant::now() + KEPT,
                    guest: None,
                });
            }
        }
        self.answer(ordered.console, response);
        self.bring_back();
        self.requests(ordered.console);
    }

    /// A guest wants to go on with a session that was put away: it waits.
    /// Gives the guest back where it was not.
    pub(super) fn park(&mut self, guest: Guest, asked: Box<Asked>) -> Option<(Guest, Box<Asked>)> {
        let now = Instant::now();
        self.parked.retain(|parked| parked.until > now);
        let token = asked.hello.token;
        match self.parked.iter_mut().find(|parked| parked.token == token) {
            Some(parked) => {
                parked.guest = Some((guest, asked));
                None
            }
            None => Some((guest, asked)),
        }
    }

    /// Gives guests that waited the sessions that are back.
    fn bring_back(&mut self) {
        let mut back = Vec::new();
        for mut parked in std::mem::take(&mut self.parked) {
            let here = self
                .sessions
                .values()
                .any(|session| session.token == parked.token);
            match (here, parked.guest.take()) {
                (true, Some(guest)) => back.push(guest),
                (true, None) => {}
                (false, guest) => {
                    parked.guest = guest;
                    self.parked.push(parked);
                }
            }
        }
        for (guest, asked) in back {
            self.resume(guest, &asked);
        }
    }
}

fn absolute(path: &Path) -> Result<String, String> {
    let text = path
        .is_absolute()
        .then(|| PathBuf::from(path).into_os_string().into_string().ok());
    text.flatten()
        .ok_or_else(|| format!("{} is not an absolute path", path.display()))
}
