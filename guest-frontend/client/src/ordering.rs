//! What a synchronous copy from pageable memory promises, kept without a wait
//! (CUDA Runtime API, API synchronization behavior).
//!
//! Such a copy returns when the bytes are taken, not when they have arrived.
//! With CUDA a program may then use them in any stream, so here:
//!
//! - before the bytes are taken, kernels and host functions of the copy's
//!   stream are waited for, if any may still run;
//! - work posted afterwards to a stream that would not wait for the copy is
//!   made to wait for it on the device.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_protocol::handle::{EventHandle, StreamHandle};
use paragpu_protocol::table::{EventCreate, EventDestroy, EventRecord, StreamWaitEvent};

use crate::error::Result;
use crate::event::DISABLE_TIMING;
use crate::session::Session;
use crate::slots::lock;
use crate::stream::Stream;

/// The last synchronous copy of a stream whose bytes may still be on their way.
#[derive(Debug, Clone, Copy)]
struct Taken {
    stream: StreamHandle,
    blocking: bool,
    position: u64,
}

/// Synchronous copies of a session.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// Position of the last one.
    last: AtomicU64,
    streams: Mutex<Vec<Taken>>,
}

impl Copies {
    /// Must work of `stream` be made to wait for copies of others?
    pub(crate) fn concern(&self, stream: &Stream) -> bool {
        self.last.load(Ordering::Acquire) > stream.ordered.load(Ordering::Relaxed)
    }

    fn note(&self, stream: &Stream, complete: u64) {
        let taken = Taken {
            stream: stream.handle(),
            blocking: stream.is_blocking(),
            position: stream.progress.posted(),
        };
        let mut streams = lock(&self.streams);
        streams.retain(|other| other.stream != taken.stream && other.position > complete);
        streams.push(taken);
        self.last.fetch_max(taken.position, Ordering::AcqRel);
    }

    fn forget(&self, stream: StreamHandle) -> Option<u64> {
        let mut streams = lock(&self.streams);
        let index = streams.iter().position(|taken| taken.stream == stream)?;
        Some(streams.swap_remove(index).position)
    }

    /// Streams whose copies `stream` would not wait for by itself.
    fn strangers(&self, stream: &Stream, complete: u64) -> Vec<StreamHandle> {
        let ordered = stream.ordered.load(Ordering::Relaxed).max(complete);
        let legacy = StreamHandle::LEGACY;
        lock(&self.streams)
            .iter()
            .filter(|taken| taken.position > ordered && taken.stream != stream.handle())
            .filter(|taken| {
                let implied = (taken.stream == legacy && stream.is_blocking())
                    || (stream.handle() == legacy && taken.blocking);
                !implied
            })
            .map(|taken| taken.stream)
            .collect()
    }
}

impl Session {
    /// Before the bytes of a synchronous copy are taken.
    pub(crate) fn before_taking(&self, stream: &Stream) -> Result<()> {
        let running = if stream.handle() == StreamHandle::LEGACY {
            self.running.load(Ordering::Acquire)
        } else {
            stream.running.load(Ordering::Acquire)
        };
        let complete = stream.progress.complete().max(self.progress.complete());
        if running > complete {
            self.stream_synchronize(stream)?;
        }
        Ok(())
    }

    /// After the bytes of a synchronous copy were taken.
    pub(crate) fn after_taking(&self, stream: &Stream) {
        self.copies.note(stream, self.progress.complete());
    }

    /// Makes what is posted to `stream` next wait for the copies of others.
    pub(crate) fn order_after_copies(&self, stream: &Stream) -> Result<()> {
        let last = self.copies.last.load(Ordering::Acquire);
        for other in self.copies.strangers(stream, self.progress.complete()) {
            let event = EventHandle(self.new_handle());
            self.link.post(&EventCreate {
                event,
                flags: DISABLE_TIMING,
            })?;
            self.link.post(&EventRecord {
                event,
                stream: other,
            })?;
            self.link.post(&StreamWaitEvent {
                stream: stream.handle(),
                event,
            })?;
            self.link.post(&EventDestroy { event })?;
        }
        stream.ordered.fetch_max(last, Ordering::AcqRel);
        Ok(())
    }

    /// Before a stream is destroyed: nobody could wait for its copies later.
    pub(crate) fn before_destroying(&self, stream: &Stream) -> Result<()> {
        match self.copies.forget(stream.handle()) {
            Some(position) if position > self.progress.complete() => {
                self.stream_synchronize(stream)
            }
            _ => Ok(()),
        }
    }
}
