//! Receives frames.
//!
//! There is no receiver thread. Of the threads that wait for a reply, one at a time,
//! the leader, reads frames and routes them to the other threads' slots. A leader
//! that has received its own reply wakes another thread to lead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::{Error as TravelError, Frame, Landing, Spin, Wait};
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::{ACKNOWLEDGE_EVERY, Control, FrameHeader, HEADER_LEN, is_counted};
use parking_lot::MutexGuard;

use super::reply_slots::{Slot, SlotError, Slots};
use super::state::State;
use super::{Incoming, LOST, Link, POLL_INTERVAL};
use crate::sys::process;

/// The outcome for a thread that tried to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadAttempt {
    /// Its own wait is over.
    Over,
    /// Another thread is reading.
    Busy,
}

/// Receives data that a call requested directly into the program's memory.
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

    /// A guest's connection is never handed over.
    fn landed(&self, _count: usize) -> &[u8] {
        &[]
    }
}

impl Link {
    /// Reads frames while `wanted` returns true, so that requests for host
    /// functions are received while no thread waits.
    pub(crate) fn read_while(&self, wanted: impl Fn() -> bool) {
        while wanted() && !self.state.is_ended() {
            let mut incoming = self.incoming.lock();
            incoming.receiver.set_polls(!self.sleeps());
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

    /// Routes frames that have arrived or arrive within `first`. False if another
    /// thread is reading.
    pub(crate) fn drain(&self, first: Wait) -> bool {
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

    /// Lets another thread read. After a loss, it reads from the next connection.
    fn stop_reading(&self, incoming: MutexGuard<'_, Incoming>, lost: Option<TravelError>) {
        let generation = incoming.generation;
        drop(incoming);
        if let Some(error) = lost {
            // Every call returns the result.
            let _ = self.recover(generation, &error);
        } else if self.state.get() == State::MoveOrdered {
            let _ = self.relocate(generation);
        }
        self.pass_on();
    }

    /// Waits until the slot's wait is over. Sleeps after polling for `spin`.
    pub(super) fn wait(&self, index: u16, slot: &Slot, spin: Duration) {
        let polls = !spin.is_zero();
        let mut spin = Spin::new(spin, None);
        loop {
            if slot.is_over() || self.state.is_ended() {
                return;
            }
            if self.lead(slot, polls) == ReadAttempt::Over {
                return;
            }
            if spin.again() {
                continue;
            }
            self.parked.lock().push(index);
            // A leader that stopped before the push had no thread to wake.
            let led = self.lead(slot, polls) == ReadAttempt::Over;
            if !led && !self.state.is_ended() {
                slot.sleep();
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

    /// Reads frames until the slot's wait is over, unless another thread is
    /// reading. A thread that must not poll reads without polling for the others, too.
    fn lead(&self, slot: &Slot, polls: bool) -> ReadAttempt {
        loop {
            let Some(mut incoming) = self.incoming.try_lock() else {
                return ReadAttempt::Busy;
            };
            incoming.receiver.set_polls(polls);
            let mut outcome = Ok(true);
            while outcome.is_ok() && !slot.is_over() && self.state.may_read() {
                outcome = self.receive_one(&mut incoming, Wait::Forever);
            }
            self.stop_reading(incoming, outcome.err());
            if slot.is_over() || self.state.is_ended() {
                return ReadAttempt::Over;
            }
            if self.state.get() == State::Reconnecting {
                return ReadAttempt::Busy;
            }
        }
    }

    /// Wakes one of the sleeping threads, so that it leads.
    pub(super) fn pass_on(&self) {
        let next = self.parked.lock().pop();
        if let Some(slot) = next.and_then(|index| self.slots.get(index)) {
            slot.rouse();
        }
    }

    /// Receives and routes one frame. False if none arrived.
    ///
    /// # Errors
    /// The error of the connection.
    pub(super) fn receive_one(
        &self,
        incoming: &mut Incoming,
        wait: Wait,
    ) -> std::result::Result<bool, TravelError> {
        let owes = self.recovery.is_some() && incoming.untold >= ACKNOWLEDGE_EVERY;
        let wait = match wait {
            Wait::Forever if owes => Wait::Until(Instant::now() + POLL_INTERVAL),
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
            self.acknowledge(incoming);
        }
        Ok(came)
    }

    /// Acknowledges frames to the host, if there is room.
    fn acknowledge(&self, incoming: &mut Incoming) {
        let kind = Control::Received.kind();
        let count = incoming.received.to_le_bytes();
        match self.sender().try_send(kind, 0, Some(0), &[&count]) {
            Err(TravelError::Full) => {}
            // After a loss, the next connection starts with the acknowledgement.
            _ => incoming.untold = 0,
        }
    }

    /// Raises a position that the host reports and only the reading thread changes. An error if
    /// no call was sent at that position.
    fn advance(&self, position: &AtomicU64, to: u64) -> Result<(), String> {
        if position.load(Ordering::Relaxed) < to {
            if self.positions.issued.load(Ordering::Relaxed) < to {
                return Err(format!(
                    "the host acknowledges call {to}, which was never sent"
                ));
            }
            position.store(to, Ordering::Relaxed);
        }
        Ok(())
    }

    fn route(&self, frame: &Frame<'_>) -> Result<(), String> {
        let header = &frame.header;
        self.advance(&self.positions.executed, header.sequence)?;
        self.advance(&self.positions.taken, header.sequence)?;
        let slot = || {
            self.slots.get(header.slot).ok_or_else(|| {
                format!(
                    "the host replied to slot {}, which no thread has",
                    header.slot
                )
            })
        };
        let to_error = |misrouted| match misrouted {
            SlotError::Unasked => format!(
                "the host sent an unrequested frame of kind {:#06x}",
                header.kind
            ),
            SlotError::OutOfBounds => "the host sent more bytes than requested".to_owned(),
        };
        if header.replied_call().is_some() {
            return slot()?
                .deliver(header.kind, frame.payload)
                .map_err(to_error);
        }
        if frame.landed > 0 {
            // Only data frames land, at their destination.
            return Ok(());
        }
        let mut reader = Reader::new(frame.payload);
        let malformed = |error| format!("a frame of kind {:#06x}: {error}", header.kind);
        match Control::from_kind(header.kind) {
            Some(Control::Data) => {
                let offset: u64 = reader.field().map_err(malformed)?;
                let bytes = reader.bytes(reader.remaining()).map_err(malformed)?;
                slot()?.write(offset, bytes).map_err(to_error)
            }
            Some(Control::HostFunc) => {
                let id: u64 = reader.field().map_err(malformed)?;
                if let Some(sink) = self.users.host_functions.get() {
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
                self.advance(&self.positions.taken, taken)
            }
            Some(Control::Move) => {
                let goal = reader.field().map_err(malformed)?;
                self.note_move(&goal);
                Ok(())
            }
            Some(Control::Home) => {
                let home = reader.field().map_err(malformed)?;
                self.record_new_host(&home);
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
