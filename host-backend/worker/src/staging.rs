//! Pinned staging memory between a stream connection and the device. Its size does
//! not depend on the size of copies.
//!
//! Large calls are received into it ([`Arrivals`]), and data stays in it until the
//! guest acknowledges it ([`OutSlot`]), so each side of the device costs one copy.
//! If device memory is memory of this process, and the copy would not have to wait,
//! data bypasses staging.

use parking_lot::Mutex;
use std::sync::Arc;

use paragpu_communicator::Landing;
use paragpu_device::{EventId, StreamId};
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::FrameHeader;
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::CopyToDevice;

use crate::error::{Outcome, fail};
use crate::session::gpu::Gpu;
use crate::session::stream::Streams;
use crate::sys::device_bytes::DeviceBytes;
use crate::sys::mapping::Mapping;

/// Size of a slot: at least the payload of one frame.
pub(crate) const SLOT: u64 = 256 * 1024;
/// Slots for bytes to the device.
pub(crate) const INBOUND: u64 = 32;
/// Slots for bytes from the device.
pub(crate) const OUTBOUND: u64 = 16;

/// Memory of this many slots that the device can access.
///
/// # Errors
/// `OUT_OF_MEMORY`; errors of the device.
pub(crate) fn pinned(gpu: &mut Gpu, slots: u64) -> Outcome<Mapping> {
    let mapping = match Mapping::anywhere(slots * SLOT) {
        Ok(mapping) => mapping,
        Err(errno) => {
            return fail(
                Status::OUT_OF_MEMORY,
                format!("the host has no staging memory: {errno}"),
            );
        }
    };
    gpu.host_register(mapping.address(), mapping.len())?;
    Ok(mapping)
}

/// One slot that holds bytes of several copies to the device.
#[derive(Debug, Default)]
struct Filling {
    used: u64,
    /// The last copy from this slot in each stream.
    marks: Vec<(StreamId, EventId)>,
}

/// Bytes before the data in a [`CopyToDevice`].
const HEAD: usize = 20;
/// Alignment of sources at which device copies are fast.
const ALIGN: u64 = 64;

/// A call that is being received into a slot, with its head and its data.
#[derive(Debug, Clone, Copy)]
struct InSlot {
    slot: usize,
    /// Offset in the mapping.
    offset: u64,
    length: usize,
}

/// A call whose data is received at its destination: device memory is memory of
/// this process, and the copy would not have to wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InPlace {
    pub(crate) destination: u64,
    pub(crate) stream: StreamHandle,
    pub(crate) data: DeviceBytes,
}

/// A call that is being received.
#[derive(Debug, Clone, Copy)]
enum Receiving {
    Slot(InSlot),
    Place(InPlace),
}

/// A call whose data landed.
#[derive(Debug)]
pub(crate) enum Arrived {
    /// The memory and the offset in it.
    Slot(Arc<Mapping>, u64),
    Place(InPlace),
}

/// Staging to the device. Copies fill one slot after another. A slot is free again when
/// all copies from it are complete, regardless of other slots.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    mapping: Option<Arc<Mapping>>,
    slots: Vec<Filling>,
    current: usize,
    landed: Option<Receiving>,
}

/// Bytes staged for one copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Staged {
    /// Their address for the device.
    pub(crate) address: u64,
    slot: usize,
}

impl Inbound {
    /// Stages bytes for the device. Bytes that landed here are not copied. `None`
    /// while all slots are in use.
    pub(crate) fn stage(&mut self, gpu: &mut Gpu, bytes: &[u8]) -> Outcome<Option<Staged>> {
        if let Some(staged) = self.staged(bytes) {
            return Ok(Some(staged));
        }
        let length = bytes.len() as u64;
        let Some(offset) = self.room(gpu, length)? else {
            return Ok(None);
        };
        let Some(mapping) = &self.mapping else {
            return Ok(None);
        };
        if !mapping.copy_in(offset, bytes) {
            return Ok(None);
        }
        let address = mapping.address() + offset;
        let slot = self.current;
        self.fill(slot, offset + length);
        Ok(Some(Staged { address, slot }))
    }

    /// Stages `length` bytes that `fill` writes. `None`, without calling `fill`,
    /// while all slots are in use.
    pub(crate) fn stage_by(
        &mut self,
        gpu: &mut Gpu,
        length: u64,
        fill: impl FnOnce(&mut [u8]) -> Outcome<()>,
    ) -> Outcome<Option<Staged>> {
        let Some(offset) = self.room(gpu, length)? else {
            return Ok(None);
        };
        let (Some(mapping), Ok(size)) = (&self.mapping, usize::try_from(length)) else {
            return Ok(None);
        };
        let mut filled = Ok(());
        if !mapping.fill(offset, size, |room| filled = fill(room)) {
            return Ok(None);
        }
        filled?;
        let address = mapping.address() + offset;
        let slot = self.current;
        self.fill(slot, offset + length);
        Ok(Some(Staged { address, slot }))
    }

    /// The stream whose copies must complete before there is room for a large call;
    /// `None` if there is room.
    pub(crate) fn awaits(&mut self, gpu: &mut Gpu) -> Option<StreamId> {
        if self.slots.iter().any(|slot| slot.used == 0) {
            return None;
        }
        let over = |slot: &mut Filling| slot.reclaim(gpu);
        if self.slots.iter_mut().any(over) {
            return None;
        }
        let slot = self.slots.first()?;
        slot.marks.first().map(|(stream, _)| *stream)
    }

    /// Finds room for `length` bytes. `None` while all slots are in use.
    fn room(&mut self, gpu: &mut Gpu, length: u64) -> Outcome<Option<u64>> {
        if length > SLOT {
            return fail(Status::INVALID_VALUE, "more bytes than a frame carries");
        }
        if self.mapping.is_none() {
            self.mapping = Some(Arc::new(pinned(gpu, INBOUND)?));
            self.slots.resize_with(INBOUND as usize, Filling::default);
        }
        let fits = |slot: &Filling| slot.used + length <= SLOT;
        if !self.slots.get(self.current).is_some_and(fits) {
            // The first free slot: if the device keeps up, few slots are in use, and
            // these stay in the processor's caches.
            let mut slots = self.slots.iter_mut();
            let Some(free) = slots.position(|slot| slot.reclaim(gpu)) else {
                return Ok(None);
            };
            self.current = free;
        }
        let slot = self.slots.get(self.current);
        Ok(slot.map(|slot| self.current as u64 * SLOT + slot.used))
    }

    /// Records that a slot is in use up to `end` of the mapping.
    fn fill(&mut self, slot: usize, end: u64) {
        if let Some(filling) = self.slots.get_mut(slot) {
            filling.used = (end - slot as u64 * SLOT).next_multiple_of(ALIGN);
        }
    }

    /// Whether this is the data of a call that landed at its destination.
    pub(crate) fn is_in_place(&self, bytes: &[u8]) -> bool {
        matches!(self.landed, Some(Receiving::Place(place)) if place.data.as_ref().as_ptr() == bytes.as_ptr())
    }

    /// The staged form of bytes that belong to the call whose data landed.
    fn staged(&mut self, bytes: &[u8]) -> Option<Staged> {
        let Some(Receiving::Slot(landed)) = self.landed else {
            return None;
        };
        let mapping = self.mapping.as_ref()?;
        let address = bytes.as_ptr() as u64;
        let first = mapping.address() + landed.offset;
        let inside =
            address >= first && address + bytes.len() as u64 <= first + landed.length as u64;
        if !inside {
            return None;
        }
        self.landed = None;
        self.fill(landed.slot, landed.offset + landed.length as u64);
        Some(Staged {
            address,
            slot: landed.slot,
        })
    }

    /// The call whose data landed.
    pub(crate) fn arrived(&self) -> Option<Arrived> {
        Some(match self.landed? {
            Receiving::Slot(landed) => {
                Arrived::Slot(Arc::clone(self.mapping.as_ref()?), landed.offset)
            }
            Receiving::Place(place) => Arrived::Place(place),
        })
    }

    /// Removes the call whose data landed or was about to.
    pub(crate) fn clear(&mut self) {
        self.landed = None;
    }

    /// Records that the copy from `staged` was submitted to `stream`.
    pub(crate) fn given(&mut self, gpu: &mut Gpu, staged: Staged, stream: StreamId) -> Outcome<()> {
        let Some(slot) = self.slots.get_mut(staged.slot) else {
            return Ok(());
        };
        match slot.marks.iter().find(|(marked, _)| *marked == stream) {
            Some((_, event)) => gpu.event_record(*event, stream)?,
            None => slot.marks.push((stream, gpu.mark(stream)?)),
        }
        Ok(())
    }
}

impl Filling {
    /// Frees the slot if all copies from it are complete.
    fn reclaim(&mut self, gpu: &mut Gpu) -> bool {
        while let Some(&(_, event)) = self.marks.last() {
            // After an error nothing reads the slot.
            if let Ok(false) = gpu.event_query(event) {
                return false;
            }
            gpu.free_mark(event);
            self.marks.pop();
        }
        self.used = 0;
        true
    }
}

/// Receives large copies to the device into staging memory, or at their
/// destination.
pub(crate) struct Arrivals<'a> {
    pub(crate) inbound: &'a mut Inbound,
    pub(crate) gpu: &'a mut Gpu,
    pub(crate) streams: &'a Streams,
}

impl Arrivals<'_> {
    /// Finds memory for a call with this head.
    fn begin(&mut self, head: &[u8], length: usize) -> Option<Receiving> {
        if let Some(place) = self.place(head, length) {
            return Some(Receiving::Place(place));
        }
        self.slot(head, length).map(Receiving::Slot)
    }

    /// The destination of the data, if it may be written now.
    fn place(&mut self, head: &[u8], length: usize) -> Option<InPlace> {
        let mut reader = Reader::new(head);
        let destination = reader.field().ok()?;
        let stream: StreamHandle = reader.field().ok()?;
        let count: u32 = reader.field().ok()?;
        let id = self.streams.id(stream).ok()?;
        let whole = usize::try_from(count).is_ok_and(|count| count == length);
        let data = whole
            .then(|| DeviceBytes::of(self.gpu.device(), destination, count.into(), id))
            .flatten()?;
        Some(InPlace {
            destination,
            stream,
            data,
        })
    }

    /// Memory in a slot that aligns the data.
    fn slot(&mut self, head: &[u8], length: usize) -> Option<InSlot> {
        let lead = ALIGN - HEAD as u64;
        let length = head.len() + length;
        let Self { inbound, gpu, .. } = self;
        let place = inbound.room(gpu, length as u64 + lead);
        let offset = place.ok().flatten()? + lead;
        let copied = inbound.mapping.as_ref()?.copy_in(offset, head);
        copied.then_some(InSlot {
            slot: inbound.current,
            offset,
            length,
        })
    }
}

impl Landing for Arrivals<'_> {
    fn head(&self, header: &FrameHeader) -> Option<usize> {
        (header.kind == CopyToDevice::INFO.number).then_some(HEAD)
    }

    fn land(
        &mut self,
        header: &FrameHeader,
        head: &[u8],
        at: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        if at == 0 {
            let length = header.payload_len() - head.len();
            self.inbound.landed = self.begin(head, length);
        }
        match self.inbound.landed {
            None => false,
            Some(Receiving::Place(place)) => {
                let mut count = 0;
                place.data.fill(at, |memory| count = read(memory));
                self.gpu.host_wrote(place.data.address(at), count as u64);
                true
            }
            Some(Receiving::Slot(landed)) => self.inbound.mapping.as_ref().is_some_and(|mapping| {
                let from = HEAD + at;
                let rest = landed.length.saturating_sub(from);
                mapping.fill(landed.offset + from as u64, rest, |memory| {
                    read(memory);
                })
            }),
        }
    }

    fn landed(&self, count: usize) -> &[u8] {
        match (&self.inbound.landed, &self.inbound.mapping) {
            (Some(Receiving::Place(place)), _) => place.data.first(count),
            (Some(Receiving::Slot(landed)), Some(mapping)) if HEAD + count <= landed.length => {
                mapping.bytes(landed.offset + HEAD as u64, count)
            }
            _ => &[],
        }
    }
}

/// Staging from the device: whole slots.
#[derive(Debug)]
pub(crate) struct Outbound {
    slots: u64,
    /// Once there was a copy.
    pool: Option<Arc<Pool>>,
}

#[derive(Debug)]
struct Pool {
    mapping: Mapping,
    free: Mutex<Vec<u64>>,
}

/// A slot in use. Dropping it frees the slot; a slot that the device may still
/// write is leaked instead.
#[derive(Debug)]
pub(crate) struct OutSlot {
    pool: Arc<Pool>,
    offset: u64,
    length: usize,
}

impl Outbound {
    /// Staging with this many slots.
    pub(crate) fn new(slots: u64) -> Self {
        Self { slots, pool: None }
    }

    /// A slot; `None` while all are in use.
    pub(crate) fn take(&mut self, gpu: &mut Gpu) -> Outcome<Option<OutSlot>> {
        let pool = match &self.pool {
            Some(pool) => pool,
            None => self.pool.insert(Arc::new(Pool {
                mapping: pinned(gpu, self.slots)?,
                free: Mutex::new((0..self.slots).rev().map(|slot| slot * SLOT).collect()),
            })),
        };
        let free = pool.free.lock().pop();
        Ok(free.map(|offset| OutSlot {
            pool: Arc::clone(pool),
            offset,
            length: 0,
        }))
    }
}

impl OutSlot {
    /// The address to which the device writes.
    pub(crate) fn address(&self) -> u64 {
        self.pool.mapping.address() + self.offset
    }

    /// Sets the number of bytes that the device writes.
    pub(crate) fn holds(&mut self, length: u64) {
        self.length = usize::try_from(length.min(SLOT)).unwrap_or(0);
    }
}

/// The bytes of a completed transfer.
impl AsRef<[u8]> for OutSlot {
    fn as_ref(&self) -> &[u8] {
        self.pool.mapping.bytes(self.offset, self.length)
    }
}

impl Drop for OutSlot {
    fn drop(&mut self) {
        self.pool.free.lock().push(self.offset);
    }
}

/// Bytes in transit from the device to the guest.
#[derive(Debug)]
pub(crate) enum Lent {
    Slot(OutSlot),
    /// In device memory.
    Place(DeviceBytes),
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Slot(slot) => slot.as_ref(),
            Self::Place(bytes) => bytes.as_ref(),
        }
    }
}
