//! Keeps other threads from sending, while one changes memory that several sessions use.

use parking_lot::MutexGuard;

use super::Link;
use crate::thread_number::ThreadNumber;

/// While it lives, only the thread that made it sends calls. Others wait in theirs, and may
/// hold locks meanwhile: the thread must not need any of these.
#[derive(Debug)]
pub(crate) struct Paused<'a> {
    link: &'a Link,
    _others_wait_for: MutexGuard<'a, ()>,
}

impl Link {
    /// Begins this, once a thread that is sending has sent its call.
    pub(crate) fn pause(&self) -> Paused<'_> {
        let held = self.turns.pausing.lock();
        self.outgoing.lock().paused_by = Some(ThreadNumber::own());
        Paused {
            link: self,
            _others_wait_for: held,
        }
    }

    /// Waits until the thread that paused the link has ended that.
    pub(super) fn await_resumed(&self) {
        drop(self.turns.pausing.lock());
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.link.outgoing.lock().paused_by = None;
    }
}

impl super::Outgoing {
    /// Whether another thread has paused the link.
    pub(super) fn is_paused(&self) -> bool {
        self.paused_by
            .is_some_and(|thread| thread != ThreadNumber::own())
    }
}
