//! Waits of a stream for events of another device (CUDA Driver API, Stream Management).
//!
//! One worker cannot wait for another's work. But if one device can access the other's
//! memory, streams use [`Words`](crate::objects::words::Words): a separate stream of the
//! event's device, its relay, waits for the event and then writes the number of a record,
//! and the waiting stream waits for that word. No call waits, unless the event's device has
//! shadows of the program's memory: what it wrote there must be in the program's memory
//! before the waiting stream, which has other shadows or none, continues.

use paragpu_abi::CU_STREAM_NON_BLOCKING;
use std::sync::Arc;

use crate::Session;
use crate::error::Result;
use crate::event::Event;
use crate::objects::stream::{Relay, Stream};
use crate::objects::words::PeerWords;

impl Session {
    /// Makes a stream of this session wait for an event of `owner`, this session or another
    /// device's. If neither device reaches the other's memory, or `owner` has shadows, the
    /// call waits for another device's event instead.
    ///
    /// # Errors
    /// As [`Link::check`](crate::connection::Link::check); `CAPTURED_EVENT` of an event
    /// that was last recorded in a capture.
    pub fn wait_event_of(&self, stream: &Stream, owner: &Self, event: &Event) -> Result<()> {
        if std::ptr::eq(self, owner) {
            return self.wait_event(stream, event);
        }
        event.check_not_captured()?;
        let complete = owner.streams().progress().complete();
        if event.shared().is_none() && event.outstanding(complete).is_none() {
            return owner.check();
        }
        if owner.streams().have_shadows() {
            return owner.synchronize_event(event);
        }
        let holder = if owner.memory().reaches(self.memory()) {
            self
        } else if self.memory().reaches(owner.memory()) {
            owner
        } else {
            return owner.synchronize_event(event);
        };
        let words = holder.peer_words()?;
        let record = owner.report(event, &words)?;
        let wait = words.words().wait(record);
        self.copies().operate(vec![wait], Vec::new(), stream)
    }

    /// Has a relay write the number of a new record once the event is reached. Events of one
    /// stream are reached in order, so those of one relay never delay each other.
    fn report(&self, event: &Event, words: &PeerWords) -> Result<u64> {
        let recorded = event.stream();
        let source = recorded.as_ref().unwrap_or(self.streams().legacy());
        // A thread that destroys the stream, and its relay, waits until all of this is posted.
        let mut slot = source.relay();
        if let Relay::Made(relay) = &*slot {
            return self.report_in(relay, event, words);
        }
        let made = self.streams().create(CU_STREAM_NON_BLOCKING, 0)?;
        if let Relay::None = *slot {
            *slot = Relay::Made(Arc::clone(&made));
            return self.report_in(&made, event, words);
        }
        // Nothing would destroy it later. What was posted to it still runs.
        let reported = self.report_in(&made, event, words);
        let destroyed = self.streams().destroy(&made);
        reported.and_then(|record| destroyed.map(|()| record))
    }

    fn report_in(&self, relay: &Stream, event: &Event, words: &PeerWords) -> Result<u64> {
        self.wait_event(relay, event)?;
        let (record, _order) = words.number();
        let write = words.words().write(record);
        self.copies().operate(write, Vec::new(), relay)?;
        Ok(record)
    }

    fn peer_words(&self) -> Result<Arc<PeerWords>> {
        self.memory()
            .peer_words(|| self.zeroed(PeerWords::BYTES).map(PeerWords::new))
    }

    /// Allocates memory of zeros.
    pub(crate) fn zeroed(&self, size: u64) -> Result<u64> {
        // The legacy stream would wait for the program's work.
        let stream = self.streams().create(CU_STREAM_NON_BLOCKING, 0)?;
        let zeroed = self.zeroed_in(&stream, size);
        let destroyed = self.streams().destroy(&stream);
        zeroed.and_then(|address| destroyed.map(|()| address))
    }

    fn zeroed_in(&self, stream: &Stream, size: u64) -> Result<u64> {
        let address = self.memory().allocate(size)?;
        let filled = self
            .copies()
            .memset(address, size, 0, 1, size, 1, stream)
            .and_then(|()| self.streams().synchronize(stream));
        if let Err(status) = filled {
            // The first error is the one to report.
            let _ = self.memory().free(address);
            return Err(status);
        }
        Ok(address)
    }
}
