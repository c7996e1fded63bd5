//! The state of a junction: where the work of a context's streams joins
//! ([`crate::junction`]).

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::objects::event::Event;
use crate::objects::stream::Stream;

/// Where the work of a context's streams joins.
#[derive(Debug, Default)]
pub(crate) struct Junction {
    stream: Mutex<Option<Arc<Stream>>>,
    barrier: Mutex<Option<Arc<Event>>>,
}

impl Junction {
    /// Its stream, created at the first use. The lock is held while events are recorded
    /// in it.
    pub(crate) fn stream(&self) -> MutexGuard<'_, Option<Arc<Stream>>> {
        self.stream.lock()
    }

    /// The event that all streams wait for, kept for new streams.
    pub(crate) fn barrier(&self) -> MutexGuard<'_, Option<Arc<Event>>> {
        self.barrier.lock()
    }
}
