//! The state of a junction: where the work of a context's streams comes together
//! ([`crate::junction`]).

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::objects::event::Event;
use crate::objects::stream::Stream;

/// Where the work of a context's streams comes together.
#[derive(Debug, Default)]
pub(crate) struct Junction {
    stream: Mutex<Option<Arc<Stream>>>,
    barrier: Mutex<Option<Arc<Event>>>,
}

impl Junction {
    /// Its own stream, made at the first use; held while events are recorded in
    /// it.
    pub(crate) fn stream(&self) -> MutexGuard<'_, Option<Arc<Stream>>> {
        self.stream.lock()
    }

    /// The event that all streams wait for, kept for new streams.
    pub(crate) fn barrier(&self) -> MutexGuard<'_, Option<Arc<Event>>> {
        self.barrier.lock()
    }
}
