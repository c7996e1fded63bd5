//! Process exit: says goodbye to every host, then writes the statistics.

use std::sync::{Arc, Once};

use parking_lot::Mutex;

use crate::statistics;
use crate::sys::process;

/// A session to be closed when the process exits.
pub(crate) trait Ending: Send + Sync {
    /// Says goodbye.
    fn end(&self);
}

static KEPT: Mutex<Vec<Arc<dyn Ending>>> = Mutex::new(Vec::new());

/// Keeps a session until the process exits; objects of the program may outlive
/// every other owner.
pub(crate) fn keep(session: Arc<dyn Ending>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| process::at_end(say_goodbye));
    KEPT.lock().push(session);
}

fn say_goodbye() {
    // A copy of the list: closing wakes threads that may get here themselves. The list stays,
    // because threads may still be inside a call of a session.
    let sessions = KEPT.lock().clone();
    for session in &sessions {
        session.end();
    }
    statistics::write_at_end();
}
