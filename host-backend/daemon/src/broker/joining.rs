//! Sessions that begin while those of their VM move together: they move along. If one stayed, its
//! program could not share memory with the others.
//!
//! During pre-copy, such a session begins and is ordered to move like the others. Later, the
//! others are stopped or gone, so it must not execute a call here: its worker gets the order before
//! the session ([`ToWorker::Migrate`](paragpu_control::worker::ToWorker::Migrate)). If its move
//! fails, it continues here.

use super::Broker;
use super::migration::Part;
use super::order::{Kind, Ordered};
use crate::session::Session;

/// A session's part in a move.
#[derive(Debug)]
pub(super) struct Joins {
    /// The migration.
    id: u64,
    part: Part,
    /// Whether its worker has the order.
    ordered: Result<bool, String>,
}

impl Broker {
    /// The move that a new session joins. If pre-copy is over, its worker, which is idle, gets the
    /// order now.
    pub(super) fn joins(&mut self, session: &mut Session) -> Option<Joins> {
        let facts = &session.facts;
        // A connection for queries cannot follow.
        if session.arrives || facts.guest_pid == 0 {
            return None;
        }
        let mut migrations = self.operations.migrations.iter();
        let (id, part, joining) = migrations.find_map(|(id, migration)| {
            let joining = migration.joining.as_ref()?;
            let part = migration.part_of_new().filter(|_| joining.vm == facts.vm)?;
            Some((*id, part, joining))
        })?;
        let ordered = match part {
            Part::First | Part::Joined => Ok(false),
            Part::Late => {
                let (links, tls) = (&self.operations.links, self.listeners.tls.as_ref());
                let gates = Some(&joining.gates);
                let departure = joining.options.announce(session, links, tls, gates);
                departure.and_then(|departure| {
                    let (message, fds) = (&departure.message, departure.descriptors());
                    let sent = self.workers.send(session.worker, message, &fds);
                    sent.map(|()| true).map_err(|error| error.to_string())
                })
            }
        };
        Some(Joins { id, part, ordered })
    }

    /// Records that a session has begun, and joins a move.
    pub(super) fn join(&mut self, joins: Joins, session: u64) {
        let Joins { id, part, ordered } = joins;
        let member = self.member(session, part);
        let Some(migration) = self.operations.migrations.get_mut(&id) else {
            return;
        };
        let console = migration.console;
        let Some(joining) = migration.joining.take() else {
            return;
        };
        let key = match ordered {
            Ok(true) => self.orderable(session).inspect(|key| {
                let ordered = Ordered::new(console, Kind::Migration(id));
                self.operations.begin(*key, ordered);
            }),
            Ok(false) => {
                let (options, gates) = (&joining.options, &joining.gates);
                self.depart(console, id, session, options, Some(gates))
            }
            Err(reason) => Err(reason),
        };
        let Some(migration) = self.operations.migrations.get_mut(&id) else {
            return;
        };
        migration.joining = Some(joining);
        match key {
            Ok(key) => {
                tracing::info!(session, ?part, "a new session moves with those of its VM");
                migration.members.insert(key, member);
            }
            Err(reason) => {
                tracing::info!(session, reason, "a new session does not move with its VM");
                migration.over.push(member.over(Err(reason)));
            }
        }
    }
}
