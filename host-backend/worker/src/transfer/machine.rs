//! What of a session is neither an object nor memory.

use std::collections::BTreeMap;

use paragpu_device::StreamId;
use paragpu_protocol::codec::{Bytes, Field, Reader, Text};
use paragpu_protocol::handle::{EventHandle, ObjectKind};
use paragpu_protocol::status::Status;

use super::state::StateError;
use crate::answer::Deferred;
use crate::error::Outcome;
use crate::session::Session;

/// When an event was reached, for events that were recorded before the session
/// came to this device.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Milliseconds before `epoch`, by the guest's handle.
    before: BTreeMap<u64, f32>,
    /// An event of this device that was reached when the session came.
    epoch: Option<paragpu_device::EventId>,
}

impl Times {
    /// The event is recorded anew, or gone.
    pub(crate) fn forget(&mut self, event: u64) {
        if !self.before.is_empty() {
            self.before.remove(&event);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.before.is_empty()
    }
}

paragpu_protocol::record! {
    /// Numbers of a session.
    Numbers {
        /// Calls taken in.
        received: u64,
        /// Calls executed.
        executed: u64,
        /// Counted frames that the guest is known to have received.
        arrived: u64,
        /// Counted frames sent.
        sent: u64,
        /// 1 where kernels may have printed.
        may_print: u8,
    }

    /// An error that waits for a call to report it.
    Waiting<'a> {
        /// 0: of a posted call; else the bulk token whose transfer failed.
        token: u32,
        /// CUresult.
        status: Status,
        /// Number of the call that failed.
        call: u16,
        /// A sentence.
        detail: Text<'a>,
    }

    /// How long before the stop an event was reached.
    Reached {
        /// The event.
        event: u64,
        /// Milliseconds.
        before: f32,
    }

    /// A limit that the guest set.
    Limit {
        /// CUlimit.
        limit: u32,
        /// Its value.
        value: u64,
    }

    /// Lists, each [`Bytes`] of records.
    Lists<'a> {
        /// [`Numbers`].
        numbers: Numbers,
        /// [`Waiting`].
        errors: Bytes<'a>,
        /// [`Reached`].
        events: Bytes<'a>,
        /// [`Limit`].
        limits: Bytes<'a>,
    }
}

fn append<'a>(field: &impl Field<'a>, out: &mut Vec<u8>) {
    let tail = field.encode(out);
    out.extend_from_slice(tail);
}

fn all<'a, T: Field<'a>>(bytes: Bytes<'a>) -> Result<Vec<T>, StateError> {
    let mut reader = Reader::new(bytes.0);
    let mut list = Vec::new();
    while reader.remaining() > 0 {
        list.push(reader.field()?);
    }
    Ok(list)
}

impl Session {
    /// Milliseconds from this device's epoch to the event.
    fn position(&mut self, event: EventHandle) -> Outcome<f32> {
        if let Some(before) = self.times.before.get(&event.0) {
            return Ok(-before);
        }
        let Some(epoch) = self.times.epoch else {
            return Err(Status::INVALID_HANDLE.into());
        };
        let event = *self.guest_events.get(event.0)?;
        Ok(self.device.event_elapsed(epoch, event)?)
    }

    /// cuEventElapsedTime where one of the events was reached elsewhere.
    pub(crate) fn elapsed_across(&mut self, start: EventHandle, end: EventHandle) -> Outcome<f32> {
        Ok(self.position(end)? - self.position(start)?)
    }

    /// Writes the record; the session is drained.
    pub(crate) fn machine(&mut self) -> Result<Vec<u8>, StateError> {
        let gpu = |error: paragpu_device::Error| StateError::Impossible(error.to_string());
        let now = self.device.event_create(0).map_err(gpu)?;
        self.device
            .event_record(now, StreamId::LEGACY)
            .map_err(gpu)?;
        while !self.device.event_query(now).map_err(gpu)? {
            let most = std::time::Duration::from_micros(200);
            self.device
                .stream_doze(StreamId::LEGACY, most)
                .map_err(gpu)?;
        }
        let epoch_age = match self.times.epoch {
            Some(epoch) => self.device.event_elapsed(epoch, now).map_err(gpu)?,
            None => 0.0,
        };
        let mut events = Vec::new();
        let recorded: Vec<u64> = self.live.names(ObjectKind::Event).collect();
        for handle in recorded {
            let before = match self.times.before.get(&handle) {
                Some(before) => Some(before + epoch_age),
                None => match self.guest_events.get(handle) {
                    // An error: it has no time, or was never recorded.
                    Ok(&event) => self.device.event_elapsed(event, now).ok(),
                    Err(_) => None,
                },
            };
            if let Some(before) = before {
                append(
                    &Reached {
                        event: handle,
                        before,
                    },
                    &mut events,
                );
            }
        }
        let _ = self.device.event_destroy(now);
        let mut errors = Vec::new();
        let deferred = self.deferred.iter().map(|error| (0, error));
        for (token, error) in deferred.chain(self.tokens.failures()) {
            let waiting = Waiting {
                token,
                status: error.status,
                call: error.call,
                detail: Text(&error.detail),
            };
            append(&waiting, &mut errors);
        }
        let mut limits = Vec::new();
        for (&limit, &value) in &self.limits {
            append(&Limit { limit, value }, &mut limits);
        }
        let (received, executed) = self.position_in_calls();
        let (arrived, sent) = self.sender.counts();
        let lists = Lists {
            numbers: Numbers {
                received,
                executed,
                arrived,
                sent,
                may_print: u8::from(self.may_print),
            },
            errors: Bytes(&errors),
            events: Bytes(&events),
            limits: Bytes(&limits),
        };
        Ok(paragpu_protocol::codec::encode_all(&lists))
    }

    /// Takes the record over; the objects are there.
    pub(crate) fn become_machine(&mut self, payload: &[u8]) -> Result<(), StateError> {
        let gpu = |error: paragpu_device::Error| StateError::Impossible(error.to_string());
        let lists: Lists<'_> = paragpu_protocol::codec::decode_all(payload)?;
        let limits: Vec<Limit> = all(lists.limits)?;
        for Limit { limit, value } in limits {
            self.device.context_set_limit(limit, value).map_err(gpu)?;
            self.limits.insert(limit, value);
        }
        let errors: Vec<Waiting<'_>> = all(lists.errors)?;
        for waiting in errors {
            let error = Deferred {
                status: waiting.status,
                call: waiting.call,
                detail: waiting.detail.0.to_owned(),
            };
            if waiting.token == 0 {
                self.deferred = Some(error);
            } else {
                self.tokens.fail(waiting.token, error);
            }
        }
        let epoch = self.device.event_create(0).map_err(gpu)?;
        self.device
            .event_record(epoch, StreamId::LEGACY)
            .map_err(gpu)?;
        let reached: Vec<Reached> = all(lists.events)?;
        self.times = Times {
            before: reached
                .into_iter()
                .map(|reached| (reached.event, reached.before))
                .collect(),
            epoch: Some(epoch),
        };
        self.sender
            .set_counts(lists.numbers.arrived, lists.numbers.sent);
        self.may_print = lists.numbers.may_print != 0;
        self.set_position_in_calls(lists.numbers.received, lists.numbers.executed);
        Ok(())
    }
}
