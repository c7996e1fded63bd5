//! Receives frames.
//!
//! There is no receiver thread. Of the threads that wait for a reply, one at a time,
//! the leader, reads frames and routes them to the other threads' slots. A leader
//! that has received its own reply wakes another thread to lead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use paragpu_communicator::{Error as TravelError, Frame, Landing, Spin, Wait};
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::{ACKNOWLEDGE_EVERY, Control, FrameHeader, HEADER_LEN, is_counted};
use parking_lot::MutexGuard;

use super::reply_slots::{Misrouted, Slot, Slots};
use super::state::State;
use super::{GLANCE, Incoming, LOST, Link};
use crate::sys::process;

/// The outcome for a thread that tried to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Led {
    /// Its own wait is over.
    Over,
    /// Somebody else reads.
    Busy,
}

/// Bytes that a call asked for, on their way into the program's memory.
struct Arrivals<'a>(&'a Slots);

impl Landing for Arrivals<'_> {
    fn head(&self, header: &FrameHeader) -> Option<usize> {
        (header.kind == Control::Data.kind()).then_some(size_of::<u64>())
    }

    fn land(
        &mut self,
        header: &FrameHeader,
        head: &[u8],
        at: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        let Ok(offset) = Reader::new(head).field::<u64>() else {
            return false;
        };
        let length = header.payload_len() - head.len();
        self.0
            .get(header.slot)
            .is_some_and(|slot| slot.land(offset, length, at, read))
    }

    /// Nobody takes a guest's connection over.
    fn landed(&self, _count: usize) -> &[u8] {
        &[]
    }
}

/// Raises a number that only the thread which reads changes.
fn advance(number: &AtomicU64, to: u64) {
    if number.load(Ordering::Relaxed) < to {
        number.store(to, Ordering::Relaxed);
    }
}

impl Link {
    /// Reads frames for as long as `wanted` says, so that host functions are
    /// heard of while nobody waits.
    pub(crate) fn read_while(&self, wanted: impl Fn() -> bool) {
        while wanted() && !self.state.is_ended() {
            let mut incoming = self.incoming.lock();
            let mut outcome = Ok(true);
            while outcome.is_ok() && wanted() && self.state.may_read() {
                outcome = self.receive_one(&mut incoming, Wait::Forever);
            }
            self.stop_reading(incoming, outcome.err());
        }
    }

    /// Ends a wait in [`read_while`](Self::read_while).
    pub(crate) fn wake_reader(&self) {
        self.waker.lock().wake();
    }

    /// Routes what has come, or comes within `first`; false if somebody
    /// else reads.
    pub(super) fn drain(&self, first: Wait) -> bool {
        let Some(mut incoming) = self.incoming.try_lock() else {
            return false;
        };
        let mut wait = first;
        let lost = loop {
            if !self.state.may_read() {
                break None;
            }
            match self.receive_one(&mut incoming, wait) {
                Ok(true) => wait = Wait::Poll,
                Ok(false) => break None,
                Err(error) => break Some(error),
            }
        };
        self.stop_reading(incoming, lost);
        true
    }

    /// Lets another thread read, after a lost connection over the next one.
    fn stop_reading(&self, incoming: MutexGuard<'_, Incoming>, lost: Option<TravelError>) {
        let generation = incoming.generation;
        drop(incoming);
        if let Some(error) = lost {
            // What it comes to is told to every call.
            let _ = self.recover(generation, &error);
        } else if self.state.get() == State::MoveOrdered {
            let _ = self.relocate(generation);
        }
        self.pass_on();
    }

    /// Waits until the slot's wait is over.
    pub(super) fn wait(&self, index: u16, slot: &Slot) {
        let mut spin = Spin::new(self.spin, None);
        loop {
            if slot.is_over() || self.state.is_ended() {
                return;
            }
            if self.lead(slot) == Led::Over {
                return;
            }
            if spin.again() {
                continue;
            }
            self.parked.lock().push(index);
            // A leader that left before the push saw nobody to wake.
            let led = self.lead(slot) == Led::Over;
            if !led && !slot.is_over() && !self.state.is_ended() {
                std::thread::park();
            }
            let mut parked = self.parked.lock();
            let chosen = match parked.iter().position(|&other| other == index) {
                Some(mine) => {
                    parked.swap_remove(mine);
                    false
                }
                None => true,
            };
            drop(parked);
            if chosen && (led || slot.is_over()) {
                // Woken to lead, but with nothing left to wait for.
                self.pass_on();
            }
            if led {
                return;
            }
        }
    }

    /// Reads frames until the slot's wait is over, unless somebody else reads
    /// already.
    fn lead(&self, slot: &Slot) -> Led {
        loop {
            let Some(mut incoming) = self.incoming.try_lock() else {
                return Led::Busy;
            };
            let mut outcome = Ok(true);
            while outcome.is_ok() && !slot.is_over() && self.state.may_read() {
                outcome = self.receive_one(&mut incoming, Wait::Forever);
            }
            self.stop_reading(incoming, outcome.err());
            if slot.is_over() || self.state.is_ended() {
                return Led::Over;
            }
            if self.state.get() == State::Reconnecting {
                return Led::Busy;
            }
        }
    }

    /// Wakes one of the sleeping threads, so that it leads.
    pub(super) fn pass_on(&self) {
        let next = self.parked.lock().pop();
        if let Some(slot) = next.and_then(|index| self.slots.get(index)) {
            slot.unpark();
        }
    }

    /// Receives and routes one frame; false where none came.
    ///
    /// # Errors
    /// Of the connection.
    pub(super) fn receive_one(
        &self,
        incoming: &mut Incoming,
        wait: Wait,
    ) -> std::result::Result<bool, TravelError> {
        let owes = self.recovery.is_some() && incoming.untold >= ACKNOWLEDGE_EVERY;
        let wait = match wait {
            Wait::Forever if owes => Wait::Until(Instant::now() + GLANCE),
            other => other,
        };
        let mut landing = Arrivals(&self.slots);
        let came = match incoming.receiver.receive_into(wait, &mut landing)? {
            Some(frame) => {
                if is_counted(frame.header.kind) {
                    incoming.received += 1;
                    incoming.untold += HEADER_LEN + frame.header.payload_len();
                }
                if let Err(reason) = self.route(&frame) {
                    self.end(LOST, &reason);
                    return Ok(false);
                }
                true
            }
            None => false,
        };
        if self.recovery.is_some() && incoming.untold >= ACKNOWLEDGE_EVERY {
            self.tell_received(incoming);
        }
        Ok(came)
    }

    /// Tells the host what it need not keep, if there is room.
    fn tell_received(&self, incoming: &mut Incoming) {
        let kind = Control::Received.kind();
        let count = incoming.received.to_le_bytes();
        match self.sender().try_send(kind, 0, Some(0), &[&count]) {
            Err(TravelError::Full) => {}
            // A lost connection needs no word: the next begins with it.
            _ => incoming.untold = 0,
        }
    }

    fn route(&self, frame: &Frame<'_>) -> Result<(), String> {
        let header = &frame.header;
        advance(&self.heard.executed, header.sequence);
        advance(&self.heard.taken, header.sequence);
        let slot = || {
            self.slots
                .get(header.slot)
                .ok_or_else(|| format!("the host answers slot {}, which nobody has", header.slot))
        };
        let told = |misrouted| match misrouted {
            Misrouted::Unasked => format!(
                "the host sent a frame of kind {:#06x} that nobody asked for",
                header.kind
            ),
            Misrouted::OutOfBounds => "the host sent more bytes than were asked for".to_owned(),
        };
        if header.replied_call().is_some() {
            return slot()?.deliver(header.kind, frame.payload).map_err(told);
        }
        if frame.landed > 0 {
            // Only bytes of data do, and are where they belong.
            return Ok(());
        }
        let mut reader = Reader::new(frame.payload);
        let malformed = |error| format!("a frame of kind {:#06x}: {error}", header.kind);
        match Control::from_kind(header.kind) {
            Some(Control::Data) => {
                let offset: u64 = reader.field().map_err(malformed)?;
                let bytes = reader.bytes(reader.remaining()).map_err(malformed)?;
                slot()?.write(offset, bytes).map_err(told)
            }
            Some(Control::HostFunc) => {
                let id: u64 = reader.field().map_err(malformed)?;
                if let Some(sink) = self.host_functions.get() {
                    sink(id);
                }
                Ok(())
            }
            Some(Control::Output) => {
                let to: u32 = reader.field().map_err(malformed)?;
                let bytes = reader.bytes(reader.remaining()).map_err(malformed)?;
                process::print(to == 2, bytes);
                Ok(())
            }
            Some(Control::Taken) => {
                let taken: u64 = reader.field().map_err(malformed)?;
                advance(&self.heard.taken, taken);
                Ok(())
            }
            Some(Control::Move) => {
                let goal = reader.field().map_err(malformed)?;
                self.note_move(&goal);
                Ok(())
            }
            Some(Control::Home) => {
                let home = reader.field().map_err(malformed)?;
                self.note_home(&home);
                Ok(())
            }
            Some(Control::Pinned) => {
                if let Some(pinned) = self.pinned() {
                    pinned.settle_contents();
                }
                Ok(())
            }
            Some(Control::Goodbye) => {
                self.end(LOST, "the host ended the session");
                Ok(())
            }
            _ => Err(format!(
                "the host sent a frame of unknown kind {:#06x}",
                header.kind
            )),
        }
    }
}
