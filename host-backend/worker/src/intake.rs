//! Call intake: checks each call's sequence number, then executes the call, or
//! queues it while an earlier call waits for staging memory.
//!
//! The completion of a host function must not queue. Its stream stalls until the
//! guest reports completion, and the report is behind everything that the program's
//! other threads posted. So while a host function runs, the worker receives calls
//! before it can execute them, and executes the report out of order. It also
//! executes the writes to shadows before the report: in memory that device and
//! guest share, they would already be visible. Reads of shadows precede a function,
//! so they are executed out of order, too, while one runs.

use std::time::{Duration, Instant};

use paragpu_communicator::{Error as TravelError, Receiver, Wait};
use paragpu_protocol::call::Class;
use paragpu_protocol::codec::{DecodeError, decode_all, encode_all};
use paragpu_protocol::frame::{CONTROL, Control, FrameHeader};
use paragpu_protocol::handshake::Stays;

use crate::calls::{execute, handler};
use crate::error::{Fault, SessionEnd};
use crate::session::Session;
use crate::session::host_function::HostFunctions;
use crate::session::link::At;
use crate::staging::{Arrivals, Arrived};
use crate::transfer::orders::Report;

/// Maximum number of calls executed between two polls of the pending ones.
pub(crate) const BATCH: usize = 64;
/// Maximum number of frames received before the loop continues. Frames that fill no queue may
/// arrive faster than they are taken.
const FRAMES: usize = 1024;
/// Maximum wait for room in staging memory before the loop continues.
const STAGED: Duration = Duration::from_micros(50);
/// If staging memory has been full for this long, calls are received anyway: the
/// device may be waiting for one of them.
const CROWDED: Duration = Duration::from_millis(20);

impl Session {
    /// The destinations of large payloads.
    fn arrivals(&mut self) -> Arrivals<'_> {
        Arrivals {
            inbound: &mut self.copies.inbound,
            gpu: &mut self.gpu,
            streams: &self.objects.streams,
        }
    }

    /// Receives and executes one frame. A large copy to the device lands in staging
    /// memory or at its destination. Returns false if no frame arrived.
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
        let arrived = self.copies.inbound.arrived();
        let nowhere = || TravelError::protocol("a call landed without a destination");
        self.take_landed(header, &arrived.ok_or_else(nowhere)?)?;
        self.copies.inbound.clear();
        Ok(true)
    }

    /// Whether staging memory is full. If so, this waits briefly for the device: data can
    /// stay in the connection until there is room. It does not wait while a host function
    /// runs or if memory has been full for long, because the device may be waiting for a
    /// call that has not been received: the completion of a host function, or a later
    /// write by another thread of the program.
    pub(crate) fn is_staging_full(&mut self) -> bool {
        let Some(stream) = self.copies.inbound.awaits(&mut self.gpu) else {
            self.intake.note_room();
            return false;
        };
        let full_for = self.intake.note_full();
        if self.objects.host_functions.are_running() || full_for > CROWDED {
            return false;
        }
        // A wait for the failed work reports its error.
        let _ = self.gpu.stream_doze(stream, STAGED);
        true
    }

    /// Withdraws the destinations that [`take_next`](Self::take_next) offered, so that
    /// frames can be received by other means.
    pub(crate) fn recall(&mut self, receiver: &mut dyn Receiver) {
        receiver.recall(&self.arrivals());
        self.copies.inbound.clear();
    }

    /// Checks a frame's sequence number, then executes it.
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
            return if self.replies.link.sender().received(count) {
                Ok(())
            } else {
                Err(SessionEnd::Received)
            };
        }
        if header.kind == Control::Stays.kind() {
            let reason = refusal_reason(payload)?;
            // A guest may say so without being asked, as often as it likes.
            if self.replies.link.sender().take_query() {
                self.transfer.orders().report(Report::Stayed(reason));
            }
            return Ok(());
        }
        if header.kind >= CONTROL {
            return Err(SessionEnd::Kind(header.kind));
        }
        self.intake.admit(header, &mut self.replies.link)?;
        if !self.in_turn(header, |session| session.execute(header, payload))? {
            self.intake.queue(header, payload, false)?;
        }
        self.intake
            .acknowledge(payload.len(), &mut self.replies.link)
    }

    /// Executes a copy to the device whose data landed.
    fn take_landed(&mut self, header: FrameHeader, arrived: &Arrived) -> Result<(), SessionEnd> {
        self.intake.admit(header, &mut self.replies.link)?;
        let call = arrived.call();
        let copy = |session: &mut Self| {
            session.executed(header, |session, at| execute(session, at, &call, &[]))
        };
        if !self.in_turn(header, copy)? {
            self.intake.queue(header, &encode_all(&call), false)?;
        }
        self.intake
            .acknowledge(header.payload_len(), &mut self.replies.link)
    }

    /// Handles a frame as [`serve`](Self::serve) does, and answers complete calls.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn offer(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), SessionEnd> {
        if self.intake.is_empty() {
            self.take(header, payload)?;
        } else {
            self.queue_or_execute(header, payload)?;
        }
        self.answer_completed()
    }

    /// Executes a call in sequence. Returns false if it must wait for staging memory.
    fn in_turn(
        &mut self,
        header: FrameHeader,
        execute: impl FnOnce(&mut Self) -> Result<bool, SessionEnd>,
    ) -> Result<bool, SessionEnd> {
        // The call's own reply acknowledges it.
        let before = self.replies.link.executed();
        self.replies.link.set_executed(header.sequence);
        let done = execute(self)?;
        if !done {
            self.replies.link.set_executed(before);
        }
        Ok(done)
    }

    /// Executes a call. Returns false if it must wait for staging memory.
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

    /// [`execute`](Self::execute) with the function that executes it.
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
        self.replies.gather_failure(&mut self.gpu);
        match executed {
            Ok(_) => {}
            Err(Fault::Stall) => return Ok(false),
            Err(Fault::End(end)) => return Err(end),
            Err(Fault::Call(error)) => self.replies.errors.defer(at.call, &error),
        }
        if at.slot == 0 {
            self.statistics.posted.add(1);
        } else {
            self.statistics.synchronous.add(1);
        }
        Ok(true)
    }

    /// Receives calls early while a host function runs: its completion may be among
    /// them.
    pub(crate) fn take_early(&mut self, receiver: &mut dyn Receiver) -> Result<(), SessionEnd> {
        if !self.objects.host_functions.need_report() {
            return Ok(());
        }
        self.recall(receiver);
        let nothing = |_: FrameHeader, _: &[u8]| Ok(None::<()>);
        self.queue_arrived(receiver, |session| session.intake.takes_early(), nothing)?;
        Ok(())
    }

    /// Takes frames that have arrived while the session `takes` them, at most [`FRAMES`], and
    /// queues their calls. Ends at a frame for which `finds` has a value, which it returns; that
    /// frame is not queued.
    pub(crate) fn queue_arrived<T>(
        &mut self,
        receiver: &mut dyn Receiver,
        takes: impl Fn(&mut Self) -> bool,
        finds: impl Fn(FrameHeader, &[u8]) -> Result<Option<T>, SessionEnd>,
    ) -> Result<Option<T>, SessionEnd> {
        for _ in 0..FRAMES {
            if !takes(self) {
                break;
            }
            let Some(frame) = receiver.receive(Wait::Poll)? else {
                break;
            };
            let found = finds(frame.header, frame.payload)?;
            if found.is_some() {
                return Ok(found);
            }
            self.queue_or_execute(frame.header, frame.payload)?;
        }
        Ok(None)
    }

    /// One iteration of the loop while calls are queued: executes some. If one waits for
    /// staging memory, receives more calls: the device may be waiting for the completion
    /// of a host function among them.
    pub(crate) fn turn_with_queue(
        &mut self,
        receiver: &mut dyn Receiver,
    ) -> Result<(), SessionEnd> {
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
        if stalled {
            self.execute_overtakers()?;
        }
        self.answer_completed()?;
        self.replies.link.flush()?;
        if !stalled {
            return Ok(());
        }
        let wait = match self.pacing.rest(!self.replies.completion.is_empty()) {
            Some(rest) => Wait::Until(Instant::now() + rest),
            None => self.pace(),
        };
        if !self.takes_more() {
            return self.wait_without_receiving(wait);
        }
        self.recall(receiver);
        let Some(frame) = receiver.receive(wait)? else {
            return Ok(());
        };
        self.queue_or_execute(frame.header, frame.payload)
    }

    /// Executes the first queued call. Returns false if there is none, or if it must wait
    /// for staging memory.
    pub(crate) fn execute_first(&mut self) -> Result<bool, SessionEnd> {
        let Some(next) = self.intake.next() else {
            return Ok(false);
        };
        if next.executed {
            self.replies.link.set_executed(next.header.sequence);
        } else if !self.in_turn(next.header, |session| {
            session.execute(next.header, &next.payload)
        })? {
            self.intake.put_back(next);
            return Ok(false);
        }
        self.replies.completion.pacer().reset();
        Ok(true)
    }

    /// Whether more calls may be queued.
    pub(crate) fn takes_more(&mut self) -> bool {
        let host_functions_run = self.objects.host_functions.are_running();
        self.intake.takes_more(host_functions_run)
    }

    /// Waits without receiving anything, but detects that the guest is gone.
    fn wait_without_receiving(&mut self, wait: Wait) -> Result<(), SessionEnd> {
        if let Wait::Until(end) = wait {
            match self.pacing.awaits_turn() {
                true => self.pacing.await_turn(end),
                false => std::thread::sleep(end.saturating_duration_since(Instant::now())),
            }
        }
        if self.intake.is_probe_due() {
            self.replies
                .link
                .send(Control::Output.kind(), 0, &[&1_u32.to_le_bytes()])?;
            self.replies.link.flush()?;
        }
        Ok(())
    }

    /// Queues a call, or executes it immediately if a host function's completion depends
    /// on it.
    pub(crate) fn queue_or_execute(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<(), SessionEnd> {
        if header.kind >= CONTROL {
            return self.take(header, payload);
        }
        self.intake.admit(header, &mut self.replies.link)?;
        let executed =
            is_for(&self.objects.host_functions, header.kind) && self.execute(header, payload)?;
        let kept = if executed { &[] } else { payload };
        self.intake.queue(header, kept, executed)?;
        self.intake
            .acknowledge(payload.len(), &mut self.replies.link)
    }

    /// Executes queued calls that host functions depend on, once one runs. A thread may
    /// have started to read a shadow, and keeps it locked until the reply arrives, while
    /// the call at the head of the queue waits for the function.
    pub(crate) fn execute_overtakers(&mut self) -> Result<(), SessionEnd> {
        while self.objects.host_functions.are_running()
            && let Some((index, header, payload)) = self.intake.overtaker()
            && self.execute(header, &payload)?
        {
            self.intake.mark_executed(index);
        }
        Ok(())
    }
}

/// Whether a call may be executed before the calls queued ahead of it, because the
/// completion of one of these host functions depends on it. Writes to shadows qualify even
/// if no host function runs, so that none overtakes another. A read qualifies only while
/// one runs: a read has a reply, and a reply after the session's state was copied would be
/// too late.
fn is_for(functions: &HostFunctions, call: u16) -> bool {
    handler(call).is_some_and(|handler| {
        handler.info.early && (handler.info.class == Class::Posted || functions.are_running())
    })
}

/// Decodes the reason for which the guest cannot follow its session.
pub(crate) fn refusal_reason(payload: &[u8]) -> Result<String, SessionEnd> {
    let stays: Stays<'_> = decode_all(payload).map_err(|source| SessionEnd::Malformed {
        name: "Stays",
        number: Control::Stays.kind(),
        source,
    })?;
    Ok(stays.reason.0.to_owned())
}
