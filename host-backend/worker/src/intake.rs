//! Takes in calls: checks each one's position in the sequence, and executes it, or
//! queues it while an earlier call waits for staging memory.
//!
//! The completion of a host function must not queue. Its stream stalls until the
//! guest reports it, and the report is behind everything that the program's other
//! threads posted. So while a host function runs, calls are taken in before it is
//! their turn to execute. Earlier writes to shadows are executed with the report:
//! in memory that the device shares with the guest, they would be visible by
//! then.

use std::time::{Duration, Instant};

use paragpu_communicator::{Error as TravelError, Receiver, Wait};
use paragpu_protocol::call::Class;
use paragpu_protocol::codec::{Bytes, DecodeError, decode_all};
use paragpu_protocol::frame::{CONTROL, Control, FrameHeader};
use paragpu_protocol::handshake::Stays;
use paragpu_protocol::table::CopyToDevice;

use crate::calls::{execute, handler};
use crate::error::{Fault, SessionEnd};
use crate::session::Session;
use crate::session::link::At;
use crate::staging::{Arrivals, Arrived, InPlace};
use crate::transfer::orders::Report;

/// Calls executed before looking at what is over.
pub(crate) const BATCH: usize = 64;
/// Longest wait for room in staging memory between two looks at the rest.
const STAGED: Duration = Duration::from_micros(50);
/// After so long without any, calls are taken in all the same: the device may
/// be waiting for one of them.
const CROWDED: Duration = Duration::from_millis(20);

impl Session {
    /// Where large calls are received.
    fn arrivals(&mut self) -> Arrivals<'_> {
        Arrivals {
            inbound: &mut self.copies.inbound,
            gpu: &mut self.gpu,
            streams: &self.objects.streams,
        }
    }

    /// Takes a frame, a large copy to the device by way of staging memory, or
    /// in its place; false where none came.
    pub(crate) fn take_next(
        &mut self,
        receiver: &mut dyn Receiver,
        wait: Wait,
    ) -> Result<bool, SessionEnd> {
        let mut arrivals = self.arrivals();
        let Some(frame) = receiver.receive_into(wait, &mut arrivals)? else {
            return Ok(false);
        };
        let (header, payload) = (frame.header, frame.payload);
        if frame.landed == 0 {
            self.take(header, payload)?;
            return Ok(true);
        }
        match self.copies.inbound.arrived() {
            None => return Err(TravelError::protocol("a call landed where no memory is").into()),
            Some(Arrived::Slot(memory, offset)) => {
                self.take(header, memory.bytes(offset, header.payload_len()))?;
            }
            Some(Arrived::Place(place)) => self.take_in_place(header, &place)?,
        }
        self.copies.inbound.clear();
        Ok(true)
    }

    /// Has the device no room for more bytes? Then it is waited for a little:
    /// what the connection holds need not be taken in to lie here. A host
    /// function's end may be what the device waits for, and is let in; so may
    /// be what another thread of the program will write, once it gets on.
    pub(crate) fn is_staged_up(&mut self) -> bool {
        let Some(stream) = self.copies.inbound.awaits(&mut self.gpu) else {
            self.intake.has_room();
            return false;
        };
        let crowded = self.intake.crowded();
        if self.objects.host_functions.are_running() || crowded > CROWDED {
            return false;
        }
        // A wait for the work that failed finds its error.
        let _ = self.gpu.stream_doze(stream, STAGED);
        true
    }

    /// Before frames are received otherwise than by [`take_next`](Self::take_next).
    pub(crate) fn recall(&mut self, receiver: &mut dyn Receiver) {
        receiver.recall(&self.arrivals());
        self.copies.inbound.clear();
    }

    /// Checks a frame's place in the session, then executes it.
    pub(crate) fn take(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), SessionEnd> {
        if header.kind == Control::Goodbye.kind() {
            return Err(SessionEnd::Goodbye);
        }
        if header.kind == Control::Received.kind() {
            let count = decode_all(payload).map_err(|source| SessionEnd::Malformed {
                name: "Received",
                number: header.kind,
                source,
            })?;
            return if self.link.sender().received(count) {
                Ok(())
            } else {
                Err(SessionEnd::Received)
            };
        }
        if header.kind == Control::Stays.kind() {
            self.transfer
                .orders()
                .report(Report::Stayed(why_it_stays(payload)?));
            return Ok(());
        }
        if header.kind >= CONTROL {
            return Err(SessionEnd::Kind(header.kind));
        }
        self.admit(header)?;
        if !self.in_turn(header, |session| session.execute(header, payload))? {
            self.intake.put_by(header, payload, false)?;
        }
        self.taken_in(payload.len())
    }

    /// Takes a copy to the device whose data is where it belongs.
    fn take_in_place(&mut self, header: FrameHeader, place: &InPlace) -> Result<(), SessionEnd> {
        self.admit(header)?;
        let call = CopyToDevice {
            destination: place.destination,
            stream: place.stream,
            data: Bytes(place.data.as_ref()),
        };
        let copy = |session: &mut Self| {
            session.executed(header, |session, at| execute(session, at, &call, &[]))
        };
        if !self.in_turn(header, copy)? {
            return Err(TravelError::protocol("a copy without a source waits").into());
        }
        self.taken_in(header.payload_len())
    }

    /// Checks a call's place in the session.
    fn admit(&mut self, header: FrameHeader) -> Result<(), SessionEnd> {
        self.intake.admit(header.sequence)?;
        self.link.begins(header.slot);
        Ok(())
    }

    /// Tells the guest from time to time what it need not keep.
    fn taken_in(&mut self, length: usize) -> Result<(), SessionEnd> {
        match self.intake.taken_in(length, self.link.is_durable()) {
            Some(taken) => self
                .link
                .send(Control::Taken.kind(), 0, &[&taken.to_le_bytes()]),
            None => Ok(()),
        }
    }

    /// Takes a frame as [`serve`](Self::serve) does, and looks what is over.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn offer(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), SessionEnd> {
        if self.intake.is_empty() {
            self.take(header, payload)?;
        } else {
            self.take_behind(header, payload)?;
        }
        self.look()
    }

    /// Has a call executed behind all before it; false if it waits for
    /// staging memory.
    fn in_turn(
        &mut self,
        header: FrameHeader,
        execute: impl FnOnce(&mut Self) -> Result<bool, SessionEnd>,
    ) -> Result<bool, SessionEnd> {
        // The call's own reply acknowledges it.
        let before = self.link.executed();
        self.link.set_executed(header.sequence);
        let done = execute(self)?;
        if !done {
            self.link.set_executed(before);
        }
        Ok(done)
    }

    /// Executes a call; false if it waits for staging memory.
    fn execute(&mut self, header: FrameHeader, payload: &[u8]) -> Result<bool, SessionEnd> {
        let Some(handler) = handler(header.kind) else {
            return Err(SessionEnd::Malformed {
                name: "unknown",
                number: header.kind,
                source: DecodeError::UnknownCall(header.kind),
            });
        };
        self.executed(header, |session, at| {
            (handler.execute)(session, at, payload)
        })
    }

    /// The same by `execute`.
    fn executed(
        &mut self,
        header: FrameHeader,
        execute: impl FnOnce(&mut Self, At) -> Result<bool, Fault>,
    ) -> Result<bool, SessionEnd> {
        let at = At {
            slot: header.slot,
            call: header.kind,
        };
        let executed = execute(self, at);
        self.gather_failure();
        match executed {
            Ok(_) => {}
            Err(Fault::Stall) => return Ok(false),
            Err(Fault::End(end)) => return Err(end),
            Err(Fault::Call(error)) => self.errors.defer(at.call, &error),
        }
        if at.slot == 0 {
            self.statistics.posted.add(1);
        } else {
            self.statistics.synchronous.add(1);
        }
        Ok(true)
    }

    /// Takes in what has come while a host function runs: its end may be
    /// among it.
    pub(crate) fn take_early(&mut self, receiver: &mut dyn Receiver) -> Result<(), SessionEnd> {
        if !self.objects.host_functions.are_running() {
            return Ok(());
        }
        self.recall(receiver);
        while self.intake.takes_early()
            && let Some(frame) = receiver.receive(Wait::Poll)?
        {
            self.take_behind(frame.header, frame.payload)?;
        }
        Ok(())
    }

    /// A turn while calls were queued: executes some. Where one waits for
    /// staging memory, takes more in: the end of a host function that the
    /// device waits for may be among them.
    pub(crate) fn turn_behind(&mut self, receiver: &mut dyn Receiver) -> Result<(), SessionEnd> {
        let mut stalled = false;
        for _ in 0..BATCH {
            if self.intake.is_empty() {
                break;
            }
            stalled = !self.execute_first()?;
            if stalled {
                break;
            }
            self.take_early(receiver)?;
        }
        self.look()?;
        self.link.flush()?;
        if !stalled {
            return Ok(());
        }
        let wait = match self.pacing.rest(!self.completion.is_empty()) {
            Some(rest) => Wait::Until(Instant::now() + rest),
            None => self.pace(),
        };
        if !self.takes_more() {
            return self.sit_out(wait);
        }
        self.recall(receiver);
        let Some(frame) = receiver.receive(wait)? else {
            return Ok(());
        };
        self.take_behind(frame.header, frame.payload)
    }

    /// Executes the first of the calls that were queued; false if it waits
    /// for staging memory, or there is none.
    fn execute_first(&mut self) -> Result<bool, SessionEnd> {
        let Some(next) = self.intake.next() else {
            return Ok(false);
        };
        if next.executed {
            self.link.set_executed(next.header.sequence);
        } else if !self.in_turn(next.header, |session| {
            session.execute(next.header, &next.payload)
        })? {
            self.intake.put_back(next);
            return Ok(false);
        }
        self.completion.moved();
        Ok(true)
    }

    /// Is there room for more calls that wait?
    pub(crate) fn takes_more(&self) -> bool {
        let host_functions_run = self.objects.host_functions.are_running();
        self.intake.takes_more(host_functions_run)
    }

    /// Waits without taking anything in, but notices a guest that is gone.
    fn sit_out(&mut self, wait: Wait) -> Result<(), SessionEnd> {
        if let Wait::Until(end) = wait {
            match self.pacing.awaits_turn() {
                true => self.pacing.await_turn(end),
                false => std::thread::sleep(end.saturating_duration_since(Instant::now())),
            }
        }
        if self.intake.is_probe_due() {
            self.link
                .send(Control::Output.kind(), 0, &[&1_u32.to_le_bytes()])?;
            self.link.flush()?;
        }
        Ok(())
    }

    /// Puts a call by, but for what a host function's end needs.
    pub(crate) fn take_behind(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), SessionEnd> {
        if header.kind >= CONTROL {
            return self.take(header, payload);
        }
        self.admit(header)?;
        let executed = self.is_for_host_functions(header.kind) && self.execute(header, payload)?;
        let kept = if executed { &[] } else { payload };
        self.intake.put_by(header, kept, executed)?;
        self.taken_in(payload.len())
    }

    /// Is it what a host function's end needs? Writes to shadows are so whether
    /// one runs or not, and none overtakes another. A read is answered, which
    /// is too late where the state of the session was copied: no host function
    /// runs then.
    fn is_for_host_functions(&self, call: u16) -> bool {
        let runs = || self.objects.host_functions.are_running();
        handler(call).is_some_and(|handler| {
            handler.info.early && (handler.info.class == Class::Posted || runs())
        })
    }
}

/// Why the guest cannot follow its session, as its frame says.
pub(crate) fn why_it_stays(payload: &[u8]) -> Result<String, SessionEnd> {
    let stays: Stays<'_> = decode_all(payload).map_err(|source| SessionEnd::Malformed {
        name: "Stays",
        number: Control::Stays.kind(),
        source,
    })?;
    Ok(stays.reason.0.to_owned())
}
