//! Connections for queries about a GPU (NVML): sessions without a process and memory.

use paragpu_control::admin::Migrate;

use super::Broker;
use crate::session::Facts;

impl Broker {
    /// Ends those of an order's sessions that are connections for queries and would have to
    /// `follow` by themselves. They cannot, and a program that queries all the time would keep
    /// all sessions of its VM here. Its next query opens another connection.
    ///
    /// # Errors
    /// One sentence, if the order names such a connection.
    pub(super) fn end_queries(
        &mut self,
        migrate: &Migrate,
        sessions: &mut Vec<u64>,
        follows: impl Fn(&Facts) -> bool,
    ) -> Result<(), String> {
        let workers = &mut self.workers;
        let facts = sessions.iter().filter_map(|it| workers.session(*it));
        let queries = facts.filter(|it| it.facts.guest_pid == 0 && follows(&it.facts));
        let queries: Vec<u64> = queries.map(|it| it.facts.session).collect();
        match queries.first() {
            Some(session) if migrate.session.is_some() => Err(format!(
                "session {session} is a connection for queries (NVML), which its program opens \
                 again where it needs one: end it instead"
            )),
            _ => {
                sessions.retain(|session| !queries.contains(session));
                for session in queries {
                    workers.end(session);
                }
                Ok(())
            }
        }
    }
}
