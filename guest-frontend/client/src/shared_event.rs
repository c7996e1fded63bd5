//! Events that processes of a VM share (CUDA Driver API, cuIpc*).
//!
//! Each record of such an event has a number, and a page of guest memory holds the last
//! one. The processes share the [`Words`] by which streams learn of records.
//!
//! [`Words`]: crate::objects::words::Words

use std::sync::Arc;
use std::time::Duration;

use paragpu_abi::{CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS, CU_STREAM_NON_BLOCKING};
use paragpu_protocol::status::Status;

use crate::Session;
use crate::error::Result;
use crate::event::Event;
use crate::objects::event::SharedEvent;
use crate::objects::stream::Stream;
use crate::objects::words::Words;
use crate::report_once;
use crate::shared_memory::{HANDLE, Kind, SharedName};
use crate::sys::memory::HostRows;
use crate::sys::shared_page::SharedPage;
use crate::sys::uncancelled::Uncancelled;

/// First and longest pause between two reads of a word.
const SHORT: Duration = Duration::from_micros(20);
const LONG: Duration = Duration::from_millis(1);

impl Session {
    /// cuIpcGetEventHandle.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if the event is not interprocess, or of another process.
    pub fn share_event(&self, event: &Event) -> Result<[u8; HANDLE]> {
        if event.flags() & CU_EVENT_INTERPROCESS == 0 {
            return Err(Status::INVALID_HANDLE);
        }
        // If several threads ask, one of them shares it.
        let _order = event.sharing();
        if let Some(shared) = event.shared() {
            let own = shared.is_own.then_some(shared.name);
            return own.ok_or(Status::INVALID_HANDLE);
        }
        let shared = self.new_shared()?;
        let stream = self.reader(&shared)?;
        if event.recorded().is_some() {
            // Other processes wait for the record that was already made.
            self.streams().wait_event(stream, event)?;
            self.record_shared(&shared, stream)?;
        }
        let bytes = shared.name;
        event.share(shared);
        Ok(bytes)
    }

    fn new_shared(&self) -> Result<SharedEvent> {
        let page = SharedPage::create().map_err(|error| {
            let reason = format!("an event of several processes needs a page of /dev/shm: {error}");
            report_once(Status::OPERATING_SYSTEM, &reason);
            Status::OPERATING_SYSTEM
        })?;
        let words = self.zeroed(SharedEvent::BYTES)?;
        let offered = self
            .virtual_memory()
            .shared()
            .offer(words, Kind::Event, page.name());
        let name = match offered {
            Ok(name) => name,
            Err(status) => {
                self.memory().free(words)?;
                return Err(status);
            }
        };
        Ok(SharedEvent::new(page, words, name.to_bytes(), true))
    }

    /// cuIpcOpenEventHandle.
    ///
    /// # Errors
    /// `MAP_FAILED`, `INVALID_HANDLE`; `INVALID_CONTEXT` for an event of this process.
    pub fn open_event(&self, bytes: &[u8; HANDLE]) -> Result<Arc<Event>> {
        let found = SharedName::from_bytes(bytes, Kind::Event).ok();
        let name = found.filter(|name| name.length >= SharedEvent::BYTES);
        let name = name.ok_or(Status::MAP_FAILED)?;
        if name.is_own() {
            return Err(Status::INVALID_CONTEXT);
        }
        let page = SharedPage::open(name.note).map_err(|_| Status::MAP_FAILED)?;
        let words = self.virtual_memory().shared().open(&name)?;
        let event = self
            .events()
            .create(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)?;
        event.share(SharedEvent::new(page, words, *bytes, false));
        Ok(event)
    }

    /// The stream in which an event's words are read.
    fn reader<'a>(&self, shared: &'a SharedEvent) -> Result<&'a Arc<Stream>> {
        if let Some(stream) = shared.reader.get() {
            return Ok(stream);
        }
        let made = self.streams().create(CU_STREAM_NON_BLOCKING, 0)?;
        let kept = shared.reader.get_or_init(|| Arc::clone(&made));
        if !Arc::ptr_eq(kept, &made) {
            // Another thread was faster.
            self.streams().destroy(&made)?;
        }
        Ok(kept)
    }

    pub(crate) fn record_shared(&self, shared: &SharedEvent, stream: &Stream) -> Result<()> {
        let (record, _order) = shared.number();
        self.copies()
            .operate(shared.words.write(record), Vec::new(), stream)
    }

    pub(crate) fn wait_shared(&self, shared: &SharedEvent, stream: &Stream) -> Result<()> {
        let Some(record) = shared.outstanding() else {
            return self.check();
        };
        let wait = shared.words.wait(record);
        self.copies().operate(vec![wait], Vec::new(), stream)
    }

    pub(crate) fn query_shared(&self, shared: &SharedEvent) -> Result<()> {
        let Some(record) = shared.outstanding() else {
            return self.check();
        };
        let (mut word, mut noted) = ([0; Words::SIZE as usize], Vec::new());
        let place = HostRows::of(&mut word, &mut noted);
        let stream = self.reader(shared)?;
        self.copies()
            .from_device(place, shared.words.of(record), stream, true)?;
        if u64::from_le_bytes(word) < record {
            return Err(Status::NOT_READY);
        }
        shared.note_reached(record);
        Ok(())
    }

    pub(crate) fn synchronize_shared(&self, shared: &SharedEvent) -> Result<()> {
        let _uncancelled = Uncancelled::begin();
        let mut pause = SHORT;
        loop {
            match self.query_shared(shared) {
                Err(Status::NOT_READY) => std::thread::sleep(pause),
                over => return over,
            }
            pause = (2 * pause).min(LONG);
        }
    }

    /// The program destroys the event.
    pub(crate) fn end_shared(&self, shared: &SharedEvent) -> Result<()> {
        if let Some(stream) = shared.reader.get() {
            self.streams().destroy(stream)?;
        }
        match shared.is_own {
            true => self.memory().free(shared.words.address()),
            false => self.virtual_memory().shared().close(shared.words.address()),
        }
    }

    /// cuEventRecord, of any event.
    pub fn record_event(&self, event: &Event, stream: &Arc<Stream>) -> Result<()> {
        match event.shared() {
            Some(shared) if !stream.is_capturing() => self.record_shared(shared, stream),
            _ => self.events().record(event, stream),
        }
    }

    /// Makes the stream wait for an event of any kind.
    pub fn wait_event(&self, stream: &Stream, event: &Event) -> Result<()> {
        match event.shared() {
            Some(shared) if !stream.is_capturing() => self.wait_shared(shared, stream),
            _ => self.streams().wait_event(stream, event),
        }
    }

    /// cuEventQuery, of any event.
    ///
    /// # Errors
    /// `NOT_READY`; the error of failed work.
    pub fn query_event(&self, event: &Event) -> Result<()> {
        match event.shared() {
            Some(shared) => self.query_shared(shared),
            None => self.events().query(event),
        }
    }

    /// cuEventSynchronize, of any event.
    ///
    /// # Errors
    /// The error of failed work.
    pub fn synchronize_event(&self, event: &Event) -> Result<()> {
        match event.shared() {
            Some(shared) => self.synchronize_shared(shared),
            None => self.events().synchronize(event),
        }
    }

    /// cuEventDestroy, of any event.
    pub fn destroy_event(&self, event: &Event) -> Result<()> {
        if let Some(shared) = event.shared() {
            self.end_shared(shared)?;
        }
        self.events().destroy(event)
    }
}
