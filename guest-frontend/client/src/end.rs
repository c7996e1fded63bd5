//! The end of the process: goodbye to every host, then the statistics.

use std::sync::{Arc, Mutex, Once};

use crate::session::Session;
use crate::slots::lock;
use crate::statistics;
use crate::sys::process;

static SESSIONS: Mutex<Vec<Arc<Session>>> = Mutex::new(Vec::new());

/// Keeps a session until the process ends; objects of the program may outlive
/// every other owner.
pub(crate) fn keep(session: &Arc<Session>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| process::at_end(say_goodbye));
    lock(&SESSIONS).push(Arc::clone(session));
}

fn say_goodbye() {
    // Taken out first: closing wakes threads that may come here themselves.
    let sessions = std::mem::take(&mut *lock(&SESSIONS));
    for session in &sessions {
        session.close();
    }
    statistics::write_at_end();
    // Threads may still be inside a call: the sessions stay where they are.
    std::mem::forget(sessions);
}
