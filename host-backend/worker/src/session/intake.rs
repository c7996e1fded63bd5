//! How calls are taken in: each in its place in the session, executed in
//! order, or put by while one before it waits for staging memory.
//!
//! What a host function's end needs does not wait its turn. The device stands
//! still until it has come, and it comes behind all that the program's other
//! threads posted: so, while a host function runs, calls are taken in ahead of
//! being executed. What the program did to shadows before is taken with it: in
//! memory that a device reaches itself it would be there already, too.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use paragpu_communicator::{Error as TravelError, Receiver, Wait};
use paragpu_protocol::call::{WireCall, info};
use paragpu_protocol::codec::{Bytes, decode_all};
use paragpu_protocol::frame::{ACKNOWLEDGE_EVERY, CONTROL, Control, FrameHeader, HEADER_LEN};
use paragpu_protocol::handshake::Stays;
use paragpu_protocol::table::{
    Call, CopyToDevice, HostFuncDone, ShadowPatch, ShadowRead, ShadowWrite,
};

use super::{BATCH, Session, Waiting};
use crate::answer::At;
use crate::error::{End, Fault};
use crate::staging::{Arrivals, Arrived, InPlace};
use crate::transfer::orders::Report;

/// Bytes of calls taken in while one waits for staging memory.
const BACKLOG: usize = 16 << 20;
/// The same while the guest runs host functions, whose end may be among them.
const MOST_BACKLOG: usize = 256 << 20;
/// Bytes, and calls, taken in ahead while host functions run.
const AHEAD: usize = 64 << 10;
const CALLS_AHEAD: usize = 256;
/// Longest wait for room in staging memory between two looks at the rest.
const STAGED: Duration = Duration::from_micros(50);
/// After so long without any, calls are taken in all the same: the device may
/// be waiting for one of them.
const CROWDED: Duration = Duration::from_millis(20);
/// How often a guest that is not listened to is asked whether it lives.
const PROBE: Duration = Duration::from_secs(1);

impl Session {
    /// Where large calls are received.
    fn arrivals(&mut self) -> Arrivals<'_> {
        Arrivals {
            inbound: &mut self.inbound,
            device: self.device.as_mut(),
            events: &mut self.events,
            streams: &self.streams,
            legacy: &self.legacy,
        }
    }

    /// Takes a frame, a large copy to the device by way of staging memory, or
    /// in its place; false where none came.
    pub(super) fn take_next(
        &mut self,
        receiver: &mut dyn Receiver,
        wait: Wait,
    ) -> Result<bool, End> {
        let mut arrivals = self.arrivals();
        let Some(frame) = receiver.receive_into(wait, &mut arrivals)? else {
            return Ok(false);
        };
        let (header, payload) = (frame.header, frame.payload);
        if frame.landed == 0 {
            self.take(header, payload)?;
            return Ok(true);
        }
        match self.inbound.arrived() {
            None => return Err(TravelError::protocol("a call landed where no memory is").into()),
            Some(Arrived::Slot(memory, offset)) => {
                self.take(header, memory.bytes(offset, header.payload_len()))?;
            }
            Some(Arrived::Place(place)) => self.take_in_place(header, &place)?,
        }
        self.inbound.clear();
        Ok(true)
    }

    /// Has the device no room for more bytes? Then it is waited for a little:
    /// what the connection holds need not be taken in to lie here. A host
    /// function's end may be what the device waits for, and is let in; so may
    /// be what another thread of the program will write, once it gets on.
    pub(super) fn is_staged_up(&mut self) -> bool {
        let device = self.device.as_mut();
        let Some(stream) = self.inbound.awaits(device, &mut self.events) else {
            self.crowded = None;
            return false;
        };
        let since = *self.crowded.get_or_insert_with(Instant::now);
        if self.host_functions.are_running() || since.elapsed() > CROWDED {
            return false;
        }
        // Its error is found by whoever waits for the work that failed.
        let _ = self.device.stream_doze(stream, STAGED);
        true
    }

    /// Before frames are received otherwise than by [`take_next`](Self::take_next).
    pub(crate) fn recall(&mut self, receiver: &mut dyn Receiver) {
        receiver.recall(&self.arrivals());
        self.inbound.clear();
    }

    /// Checks a frame's place in the session, then executes it.
    pub(crate) fn take(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), End> {
        if header.kind == Control::Goodbye.kind() {
            return Err(End::Goodbye);
        }
        if header.kind == Control::Received.kind() {
            let count = decode_all(payload).map_err(|source| End::Malformed {
                name: "Received",
                number: header.kind,
                source,
            })?;
            return if self.sender.received(count) {
                Ok(())
            } else {
                Err(End::Received)
            };
        }
        if header.kind == Control::Stays.kind() {
            self.orders.report(Report::Stayed(why_it_stays(payload)?));
            return Ok(());
        }
        if header.kind >= CONTROL {
            return Err(End::Kind(header.kind));
        }
        self.admit(header)?;
        if !self.in_turn(header, |session| session.execute(header, payload))? {
            self.put_back(header, payload, false)?;
        }
        self.taken_in(payload.len())
    }

    /// Takes a copy to the device whose data is where it belongs.
    fn take_in_place(&mut self, header: FrameHeader, place: &InPlace) -> Result<(), End> {
        self.admit(header)?;
        let call = Call::CopyToDevice(CopyToDevice {
            destination: place.destination,
            stream: place.stream,
            data: Bytes(place.data.as_ref()),
        });
        if !self.in_turn(header, |session| session.carry_out(header, &call, &[]))? {
            return Err(TravelError::protocol("a copy without a source waits").into());
        }
        self.taken_in(header.payload_len())
    }

    /// Checks a call's place in the session.
    fn admit(&mut self, header: FrameHeader) -> Result<(), End> {
        let expected = self.received + 1;
        if header.sequence != expected {
            return Err(End::Sequence {
                got: header.sequence,
                expected,
            });
        }
        self.received = expected;
        self.begins(header.slot);
        Ok(())
    }

    /// Tells the guest from time to time what it need not keep.
    fn taken_in(&mut self, length: usize) -> Result<(), End> {
        self.untold += HEADER_LEN + length;
        if self.untold < ACKNOWLEDGE_EVERY || self.reconnect.is_none() || self.is_copied {
            return Ok(());
        }
        self.untold = 0;
        let taken = self.received.to_le_bytes();
        self.send(Control::Taken.kind(), 0, &[&taken])
    }

    /// Takes a frame as [`serve`](Self::serve) does, and looks what is over.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn offer(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), End> {
        if self.backlog.is_empty() {
            self.take(header, payload)?;
        } else {
            self.take_behind(header, payload)?;
        }
        self.look()
    }

    /// Has a call executed behind all before it; false where it waits for
    /// staging memory.
    fn in_turn(
        &mut self,
        header: FrameHeader,
        execute: impl FnOnce(&mut Self) -> Result<bool, End>,
    ) -> Result<bool, End> {
        // The call's own reply acknowledges it.
        let before = self.executed();
        self.executed.store(header.sequence, Ordering::Relaxed);
        let done = execute(self)?;
        if !done {
            self.executed.store(before, Ordering::Relaxed);
        }
        Ok(done)
    }

    /// Executes a call; false where it waits for staging memory.
    fn execute(&mut self, header: FrameHeader, payload: &[u8]) -> Result<bool, End> {
        let call = Call::decode(header.kind, payload).map_err(|source| End::Malformed {
            name: info(header.kind).map_or("unknown", |info| info.name),
            number: header.kind,
            source,
        })?;
        self.carry_out(header, &call, payload)
    }

    /// The same for a call that was decoded.
    fn carry_out(
        &mut self,
        header: FrameHeader,
        call: &Call<'_>,
        payload: &[u8],
    ) -> Result<bool, End> {
        let at = At {
            slot: header.slot,
            call: header.kind,
        };
        let done = match self.dispatch(at, call) {
            Ok(done) => done,
            Err(Fault::Stall) => return Ok(false),
            Err(Fault::End(end)) => return Err(end),
            Err(Fault::Call(error)) => {
                self.defer(at.call, &error);
                false
            }
        };
        if done {
            self.live.apply(call, header.kind, payload);
        }
        if at.slot == 0 {
            self.statistics.posted.add(1);
        } else {
            self.statistics.synchronous.add(1);
        }
        Ok(true)
    }

    /// A call was taken in; somebody waits for it unless its slot is 0.
    fn begins(&mut self, slot: u16) {
        if slot == 0 || !self.latency {
            return;
        }
        let place = usize::from(slot);
        if place >= self.began.len() {
            self.began.resize(place + 1, None);
        }
        if let Some(began) = self.began.get_mut(place) {
            *began = Some(Instant::now());
        }
    }

    /// The call of this slot is answered.
    pub(crate) fn ends(&mut self, slot: u16) {
        if !self.latency {
            return;
        }
        let began = self.began.get_mut(usize::from(slot));
        if let Some(began) = began.and_then(Option::take) {
            self.statistics.answered(began.elapsed());
        }
    }

    fn put_back(&mut self, header: FrameHeader, payload: &[u8], executed: bool) -> Result<(), End> {
        self.backlog_bytes += payload.len();
        if self.backlog_bytes > MOST_BACKLOG {
            return Err(End::TooMuch("bytes to copy behind a host function"));
        }
        self.backlog.push_back(Waiting {
            header,
            payload: payload.to_vec(),
            executed,
        });
        Ok(())
    }

    /// Takes in what has come while a host function runs: its end may be
    /// among it.
    pub(super) fn take_ahead(&mut self, receiver: &mut dyn Receiver) -> Result<(), End> {
        if !self.host_functions.are_running() {
            return Ok(());
        }
        self.recall(receiver);
        while self.backlog_bytes < AHEAD
            && self.backlog.len() < CALLS_AHEAD
            && let Some(frame) = receiver.receive(Wait::Poll)?
        {
            self.take_behind(frame.header, frame.payload)?;
        }
        Ok(())
    }

    /// A turn while calls were put by: executes some. Where one waits for
    /// staging memory, takes more in: the end of a host function that the
    /// device waits for may be among them.
    pub(super) fn turn_behind(&mut self, receiver: &mut dyn Receiver) -> Result<(), End> {
        let mut stalled = false;
        for _ in 0..BATCH {
            if self.backlog.is_empty() {
                break;
            }
            stalled = !self.execute_first()?;
            if stalled {
                break;
            }
            self.take_ahead(receiver)?;
        }
        self.look()?;
        self.flush()?;
        if !stalled {
            return Ok(());
        }
        let wait = self.pace();
        if !self.takes_more() {
            return self.sit_out(wait);
        }
        self.recall(receiver);
        let Some(frame) = receiver.receive(wait)? else {
            return Ok(());
        };
        self.take_behind(frame.header, frame.payload)
    }

    /// Executes the first of the calls that were put by; false where it waits
    /// for staging memory, or there is none.
    fn execute_first(&mut self) -> Result<bool, End> {
        let Some(next) = self.backlog.pop_front() else {
            return Ok(false);
        };
        if next.executed {
            self.executed.store(next.header.sequence, Ordering::Relaxed);
        } else if !self.in_turn(next.header, |session| {
            session.execute(next.header, &next.payload)
        })? {
            self.backlog.push_front(next);
            return Ok(false);
        }
        self.backlog_bytes -= next.payload.len();
        self.pacer.reset();
        Ok(true)
    }

    /// Is there room for more calls that wait?
    pub(crate) fn takes_more(&self) -> bool {
        let most = if self.host_functions.are_running() {
            MOST_BACKLOG
        } else {
            BACKLOG
        };
        self.backlog_bytes < most
    }

    /// Waits without taking anything in, but notices a guest that is gone.
    fn sit_out(&mut self, wait: Wait) -> Result<(), End> {
        if let Wait::Until(end) = wait {
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
        }
        if self.probed.elapsed() > PROBE {
            self.probed = Instant::now();
            self.send(Control::Output.kind(), 0, &[&1_u32.to_le_bytes()])?;
            self.flush()?;
        }
        Ok(())
    }

    /// Puts a call by, but for what a host function's end needs.
    pub(crate) fn take_behind(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), End> {
        if header.kind >= CONTROL {
            return self.take(header, payload);
        }
        self.admit(header)?;
        let executed = self.is_for_host_functions(header.kind) && self.execute(header, payload)?;
        let kept = if executed { &[] } else { payload };
        self.put_back(header, kept, executed)?;
        self.taken_in(payload.len())
    }

    /// Is it what a host function's end needs? Writes to shadows are so whether
    /// one runs or not, and none overtakes another. A read is answered, which
    /// is too late where the state of the session was copied: no host function
    /// runs then.
    fn is_for_host_functions(&self, call: u16) -> bool {
        call == HostFuncDone::INFO.number
            || call == ShadowWrite::INFO.number
            || call == ShadowPatch::INFO.number
            || call == ShadowRead::INFO.number && self.host_functions.are_running()
    }
}

/// Why the guest cannot follow its session, as its frame says.
pub(crate) fn why_it_stays(payload: &[u8]) -> Result<String, End> {
    let stays: Stays<'_> = decode_all(payload).map_err(|source| End::Malformed {
        name: "Stays",
        number: Control::Stays.kind(),
        source,
    })?;
    Ok(stays.reason.0.to_owned())
}
