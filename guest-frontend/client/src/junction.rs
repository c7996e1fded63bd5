//! Events of all work of a context, and waits of all of its streams
//! (cuCtxRecordEvent, cuCtxWaitEvent and those of green contexts).
//!
//! A separate stream, the junction, waits for each stream, and the event is
//! recorded there, so no stream of the program waits for another. For a wait, the
//! junction waits for the event, and all streams, including later ones, wait for an
//! event in the junction.

use paragpu_abi::{CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING};
use std::sync::Arc;

use crate::Session;
use crate::error::Result;
use crate::event::Event;
use crate::green::Green;
use crate::objects::junction::Junction;
use crate::objects::stream::Stream;
use crate::stream::Kept;

impl Session {
    /// The streams of a green context, or all streams. Refused if one of them captures.
    fn not_capturing(&self, of: Option<&Green>) -> Result<Kept<'_>> {
        let streams = self.streams().all(of.map(Green::handle));
        let mut refused = Ok(());
        for stream in streams.iter().filter(|stream| stream.is_capturing()) {
            refused = stream.cannot_capture();
        }
        refused.map(|()| streams)
    }

    /// The junction's stream.
    fn junction_stream(
        &self,
        of: Option<&Green>,
        cached: &mut Option<Arc<Stream>>,
    ) -> Result<Arc<Stream>> {
        if let Some(stream) = cached {
            return Ok(Arc::clone(stream));
        }
        let made = match of {
            Some(green) => self.streams().create_in(green.handle(), 0)?,
            None => self.streams().create(CU_STREAM_NON_BLOCKING, 0)?,
        };
        *cached = Some(Arc::clone(&made));
        Ok(made)
    }

    fn junction<'a>(&'a self, of: Option<&'a Green>) -> &'a Junction {
        of.map_or(self.streams().junction(), Green::junction)
    }

    /// cuGreenCtxRecordEvent; without a green context cuCtxRecordEvent.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` while a stream captures.
    pub fn record_all(&self, of: Option<&Green>, event: &Event) -> Result<()> {
        let streams = self.not_capturing(of)?;
        let mut slot = self.junction(of).stream();
        let junction = self.junction_stream(of, &mut slot)?;
        for stream in &*streams {
            if Arc::ptr_eq(stream, &junction) || self.streams().is_known_idle(stream) {
                continue;
            }
            let mark = self.events().create(CU_EVENT_DISABLE_TIMING)?;
            self.events().record(&mark, stream)?;
            self.streams().wait_event(&junction, &mark)?;
            self.events().destroy(&mark)?;
        }
        self.record_event(event, &junction)
    }

    /// cuGreenCtxWaitEvent; without a green context cuCtxWaitEvent. The event is of
    /// `owner`'s device.
    ///
    /// # Errors
    /// `STREAM_CAPTURE_UNSUPPORTED` while a stream captures, and for an event
    /// of a capture.
    pub fn wait_all(&self, of: Option<&Green>, owner: &Self, event: &Event) -> Result<()> {
        event.refuse_captured()?;
        let streams = self.not_capturing(of)?;
        let state = self.junction(of);
        let mut slot = state.stream();
        let junction = self.junction_stream(of, &mut slot)?;
        self.wait_event_of(&junction, owner, event)?;
        if self.streams().is_known_idle(&junction) {
            return Ok(());
        }
        let barrier = self.events().create(CU_EVENT_DISABLE_TIMING)?;
        self.events().record(&barrier, &junction)?;
        let earlier = state.barrier().replace(Arc::clone(&barrier));
        for stream in &*streams {
            if !Arc::ptr_eq(stream, &junction) {
                self.streams().wait_event(stream, &barrier)?;
            }
        }
        match earlier {
            Some(earlier) => self.events().destroy(&earlier),
            None => Ok(()),
        }
    }
}
