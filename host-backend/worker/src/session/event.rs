//! The guest's events, and the times of events that were recorded on another device.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use paragpu_abi::CU_EVENT_BLOCKING_SYNC;
use paragpu_device::{EventId, Result, StreamId};
use paragpu_protocol::handle::EventHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{EventCreate, EventDestroy, EventElapsedTime};

use super::gpu::Gpu;
use crate::error::Outcome;
use crate::handles::Table;

/// Times of events that were recorded before the session moved to this device.
#[derive(Debug, Default)]
struct EarlierTimes {
    /// Milliseconds before the session left the device, by the guest's handle.
    before: BTreeMap<u64, f32>,
    /// Milliseconds for which it was then on no device. Added to the ages, days of it would
    /// cost the times between two earlier events their precision.
    away: f32,
    /// An event of this device, reached when the session arrived.
    epoch: Option<EventId>,
}

impl EarlierTimes {
    /// Removes an event that is recorded again or destroyed.
    fn forget(&mut self, event: EventHandle) {
        if !self.before.is_empty() {
            self.before.remove(&event.0);
        }
    }
}

/// An event of the guest.
#[derive(Debug)]
struct Event {
    id: EventId,
    /// CUevent_flags.
    flags: u32,
    /// Graphs may record it, and know it by its identifier.
    is_in_graphs: Cell<bool>,
}

/// The events of a session.
///
/// A thread that waits for an event waits for the record that was last when it began to wait. So
/// if the event is recorded again meanwhile, the pending calls keep the device's event, and the
/// guest's gets another one.
#[derive(Debug)]
pub(crate) struct Events {
    table: Table<Event>,
    /// Events of the device that only pending calls wait for.
    left: Vec<EventId>,
    past: EarlierTimes,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new("event"),
            left: Vec::new(),
            past: EarlierTimes::default(),
        }
    }

    /// The device's identifier of an event.
    pub(crate) fn id(&self, event: EventHandle) -> Outcome<EventId> {
        Ok(self.table.get(event.0)?.id)
    }

    /// As [`id`](Self::id), for a graph that records the event. It keeps the identifier.
    pub(crate) fn id_for_graph(&self, event: EventHandle) -> Outcome<EventId> {
        let event = self.table.get(event.0)?;
        event.is_in_graphs.set(true);
        Ok(event.id)
    }

    /// Leaves the device's event to the pending calls that wait for it, before a later record. One
    /// that graphs record stays, so those calls wait for the later record.
    pub(crate) fn leave_to_waits(&mut self, gpu: &mut Gpu, event: EventHandle) -> Outcome<()> {
        let event = self.table.get_mut(event.0)?;
        if !event.is_in_graphs.get() {
            let later = gpu.event_create(event.flags)?;
            self.left.push(std::mem::replace(&mut event.id, later));
        }
        Ok(())
    }

    /// Destroys the events that were left to pending calls, of which none waits any more.
    pub(crate) fn end_waits(&mut self, gpu: &mut Gpu, waits_for: impl Fn(EventId) -> bool) {
        self.left.retain(|event| {
            let keeps = waits_for(*event);
            if !keeps {
                // It fails only with the context, which ends with all its events.
                let _ = gpu.event_destroy(*event);
            }
            keeps
        });
    }

    /// Whether threads that wait for the event sleep, so that this side should, too.
    pub(crate) fn is_slept_for(&self, event: EventHandle) -> Outcome<bool> {
        Ok(self.table.get(event.0)?.flags & CU_EVENT_BLOCKING_SYNC != 0)
    }

    pub(crate) fn event_create(&mut self, gpu: &mut Gpu, call: &EventCreate) -> Outcome<()> {
        self.table.check_free(call.event.0)?;
        let event = Event {
            id: gpu.event_create(call.flags)?,
            flags: call.flags,
            is_in_graphs: Cell::new(false),
        };
        self.table.insert(call.event.0, event);
        Ok(())
    }

    pub(crate) fn event_destroy(&mut self, gpu: &mut Gpu, call: &EventDestroy) -> Outcome<()> {
        let event = self.table.remove(call.event.0)?;
        self.past.forget(call.event);
        Ok(gpu.event_destroy(event.id)?)
    }

    /// Records that the event was recorded on this device.
    pub(crate) fn recorded(&mut self, event: EventHandle) {
        self.past.forget(event);
    }

    /// Milliseconds between two events.
    pub(crate) fn event_elapsed_time(
        &self,
        gpu: &mut Gpu,
        call: &EventElapsedTime,
    ) -> Outcome<f32> {
        let EventElapsedTime { start, end } = *call;
        let (from, to) = (self.id(start)?, self.id(end)?);
        let before = (
            self.earlier(gpu, start.0, from)?,
            self.earlier(gpu, end.0, to)?,
        );
        Ok(match before {
            (None, None) => gpu.event_elapsed_time(from, to)?,
            (Some((start, _)), Some((end, _))) => start - end,
            (Some((start, epoch)), None) => {
                start + self.past.away + gpu.event_elapsed_time(epoch, to)?
            }
            (None, Some((end, epoch))) => {
                -(end + self.past.away + gpu.event_elapsed_time(epoch, from)?)
            }
        })
    }

    /// The event's age when the session left an earlier device, and this device's epoch, if it was
    /// last recorded on an earlier device. A graph that records it here does not say so, and
    /// recreating the event recorded it before the epoch, if at all.
    fn earlier(
        &self,
        gpu: &mut Gpu,
        handle: u64,
        event: EventId,
    ) -> Result<Option<(f32, EventId)>> {
        let (Some(before), Some(epoch)) = (self.past.before.get(&handle), self.past.epoch) else {
            return Ok(None);
        };
        match gpu.event_elapsed_time(epoch, event) {
            Ok(since) if since > 0.0 => Ok(None),
            Ok(_) => Ok(Some((*before, epoch))),
            // It was never recorded on this device.
            Err(error) if error.status == Status::INVALID_HANDLE => Ok(Some((*before, epoch))),
            Err(error) => Err(error),
        }
    }

    /// The age in milliseconds of each event in `handles`. Events without timing and
    /// those never recorded are left out. No work may be in flight.
    pub(crate) fn ages(
        &self,
        gpu: &mut Gpu,
        handles: impl Iterator<Item = u64>,
    ) -> Result<Vec<(u64, f32)>> {
        let now = reached_now(gpu)?;
        while !gpu.event_query(now)? {
            let most = Duration::from_micros(200);
            gpu.stream_doze(StreamId::LEGACY, most)?;
        }
        let epoch_age = match self.past.epoch {
            Some(epoch) => self.past.away + gpu.event_elapsed_time(epoch, now)?,
            None => 0.0,
        };
        let mut ages = Vec::new();
        for handle in handles {
            let Ok(event) = self.table.get(handle) else {
                continue;
            };
            let age = match self.earlier(gpu, handle, event.id)? {
                Some((before, _)) => Some(before + epoch_age),
                None => gpu.event_elapsed_time(event.id, now).ok(),
            };
            ages.extend(age.map(|age| (handle, age)));
        }
        let _ = gpu.event_destroy(now);
        Ok(ages)
    }

    /// Adopts the ages of the events of a session that arrived.
    pub(crate) fn adopt(&mut self, gpu: &mut Gpu, ages: BTreeMap<u64, f32>) -> Result<()> {
        self.past = EarlierTimes {
            before: ages,
            away: 0.0,
            epoch: Some(reached_now(gpu)?),
        };
        Ok(())
    }

    /// Notes for how long a session that arrived was on no device.
    pub(crate) fn set_away(&mut self, time: Duration) {
        self.past.away = time.as_secs_f32() * 1e3;
    }
}

/// An event behind all submitted work.
fn reached_now(gpu: &mut Gpu) -> Result<EventId> {
    let event = gpu.event_create(0)?;
    gpu.event_record(event, StreamId::LEGACY)?;
    Ok(event)
}
