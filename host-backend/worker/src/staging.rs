//! Pinned memory through which bytes pass on their way between a stream
//! connection and the device. It does not grow with what passes.

use paragpu_device::{Device, EventId, StreamId};
use paragpu_protocol::status::Status;

use crate::error::{Outcome, fail};
use crate::events::Events;
use crate::sys::mapping::Mapping;

/// Bytes of a slot: what one frame can bring, or more.
pub(crate) const SLOT: u64 = 256 * 1024;
/// Slots for bytes to the device.
const INBOUND: u64 = 32;
/// Slots for bytes from the device.
const OUTBOUND: u64 = 16;

fn pinned(device: &mut dyn Device, slots: u64) -> Outcome<Mapping> {
    let mapping = match Mapping::anywhere(slots * SLOT) {
        Ok(mapping) => mapping,
        Err(errno) => {
            return fail(
                Status::OUT_OF_MEMORY,
                format!("the host has no staging memory: {errno}"),
            );
        }
    };
    device.host_register(mapping.address(), mapping.len())?;
    Ok(mapping)
}

/// One slot that holds bytes of several copies to the device.
#[derive(Debug, Default)]
struct Filling {
    used: u64,
    /// The last copy from this slot in each stream.
    marks: Vec<(StreamId, EventId)>,
}

/// Staging to the device. Copies fill slots one after the other; a slot is
/// free again when all copies from it are over, whatever other slots wait for.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    mapping: Option<Mapping>,
    slots: Vec<Filling>,
    current: usize,
}

/// Bytes staged for one copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Staged {
    /// Where the device reads them.
    pub(crate) address: u64,
    slot: usize,
}

impl Inbound {
    /// Copies bytes in; `None` while all slots wait for the device.
    pub(crate) fn stage(
        &mut self,
        device: &mut dyn Device,
        events: &mut Events,
        bytes: &[u8],
    ) -> Outcome<Option<Staged>> {
        self.stage_by(device, events, bytes.len() as u64, |room| {
            room.copy_from_slice(bytes);
            Ok(())
        })
    }

    /// Stages `length` bytes that `fill` writes; `None`, and nothing written,
    /// while all slots wait for the device.
    pub(crate) fn stage_by(
        &mut self,
        device: &mut dyn Device,
        events: &mut Events,
        length: u64,
        fill: impl FnOnce(&mut [u8]) -> Outcome<()>,
    ) -> Outcome<Option<Staged>> {
        if length > SLOT {
            return fail(Status::INVALID_VALUE, "more bytes than a frame carries");
        }
        if self.mapping.is_none() {
            self.mapping = Some(pinned(device, INBOUND)?);
            self.slots.resize_with(INBOUND as usize, Filling::default);
        }
        let fits = |slot: &Filling| slot.used + length <= SLOT;
        if !self.slots.get(self.current).is_some_and(fits) {
            // The first free one: a device that keeps up has few in use, and
            // these stay in the processor's caches.
            let mut slots = self.slots.iter_mut();
            let Some(free) = slots.position(|slot| slot.reclaim(device, events)) else {
                return Ok(None);
            };
            self.current = free;
        }
        let (Some(slot), Some(mapping)) = (self.slots.get_mut(self.current), &mut self.mapping)
        else {
            return Ok(None);
        };
        let offset = self.current as u64 * SLOT + slot.used;
        let Some(room) = usize::try_from(length)
            .ok()
            .and_then(|length| mapping.bytes_mut(offset, length))
        else {
            return Ok(None);
        };
        fill(room)?;
        // Device copies like aligned sources.
        slot.used = (slot.used + length).next_multiple_of(64);
        Ok(Some(Staged {
            address: mapping.address() + offset,
            slot: self.current,
        }))
    }

    /// The copy from `staged` was given to `stream`.
    pub(crate) fn given(
        &mut self,
        device: &mut dyn Device,
        events: &mut Events,
        staged: Staged,
        stream: StreamId,
    ) -> Outcome<()> {
        let Some(slot) = self.slots.get_mut(staged.slot) else {
            return Ok(());
        };
        match slot.marks.iter().find(|(marked, _)| *marked == stream) {
            Some((_, event)) => device.event_record(*event, stream)?,
            None => slot.marks.push((stream, events.mark(device, stream)?)),
        }
        Ok(())
    }
}

impl Filling {
    /// Empties the slot if all copies from it are over.
    fn reclaim(&mut self, device: &mut dyn Device, events: &mut Events) -> bool {
        while let Some(&(_, event)) = self.marks.last() {
            // After an error nothing reads the slot any more.
            if let Ok(false) = device.event_query(event) {
                return false;
            }
            events.free(event);
            self.marks.pop();
        }
        self.used = 0;
        true
    }
}

/// Staging from the device: whole slots.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    mapping: Option<Mapping>,
    free: Vec<u64>,
}

/// A slot in use; to be given back by [`Outbound::free`].
#[derive(Debug)]
pub(crate) struct OutSlot(u64);

impl Outbound {
    /// A slot and its address; `None` while all are in use.
    pub(crate) fn take(&mut self, device: &mut dyn Device) -> Outcome<Option<(OutSlot, u64)>> {
        if self.mapping.is_none() {
            self.mapping = Some(pinned(device, OUTBOUND)?);
            self.free.extend((0..OUTBOUND).rev());
        }
        let (Some(mapping), Some(slot)) = (&self.mapping, self.free.pop()) else {
            return Ok(None);
        };
        Ok(Some((OutSlot(slot), mapping.address() + slot * SLOT)))
    }

    /// The first `length` bytes of a slot whose transfer is over.
    pub(crate) fn bytes(&self, slot: &OutSlot, length: usize) -> &[u8] {
        self.mapping
            .as_ref()
            .map_or(&[], |mapping| mapping.bytes(slot.0 * SLOT, length))
    }

    pub(crate) fn free(&mut self, slot: OutSlot) {
        self.free.push(slot.0);
    }
}
