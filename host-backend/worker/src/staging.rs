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
use paragpu_protocol::codec::{Bytes, Reader};
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

/// A copy whose data is being received. Its head was decoded from a private copy of it, and is
/// read nowhere else: a kernel of the guest may write to the memory where the data lands.
#[derive(Debug, Clone, Copy)]
struct Receiving {
    destination: u64,
    stream: StreamHandle,
    length: usize,
    place: Place,
}

/// Where data is received.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// In staging memory.
    Slot {
        slot: usize,
        /// Offset in the mapping.
        offset: u64,
    },
    /// At its destination: device memory is memory of this process, and the copy would not
    /// have to wait.
    Device(DeviceBytes),
}

/// A copy whose data landed.
#[derive(Debug)]
pub(crate) struct Arrived {
    destination: u64,
    stream: StreamHandle,
    data: Data,
}

#[derive(Debug)]
enum Data {
    /// Bytes at an offset in staging memory.
    Slot(Arc<Mapping>, u64, usize),
    Device(DeviceBytes),
}

impl Arrived {
    /// The copy. Its data may change; nothing here depends on the values.
    pub(crate) fn call(&self) -> CopyToDevice<'_> {
        let data = match &self.data {
            Data::Slot(mapping, offset, length) => mapping.bytes(*offset, *length),
            Data::Device(bytes) => bytes.as_ref(),
        };
        CopyToDevice {
            destination: self.destination,
            stream: self.stream,
            data: Bytes(data),
        }
    }
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
        let Some(Place::Device(data)) = self.landed.map(|landed| landed.place) else {
            return false;
        };
        data.as_ref().as_ptr() == bytes.as_ptr()
    }

    /// The staged form of bytes that are the data of the copy that landed.
    fn staged(&mut self, bytes: &[u8]) -> Option<Staged> {
        let landed = self.landed?;
        let Place::Slot { slot, offset } = landed.place else {
            return None;
        };
        let address = self.mapping.as_ref()?.address() + offset;
        if bytes.as_ptr() as u64 != address || bytes.len() != landed.length {
            return None;
        }
        self.landed = None;
        self.fill(slot, offset + landed.length as u64);
        Some(Staged { address, slot })
    }

    /// The copy whose data landed.
    pub(crate) fn arrived(&self) -> Option<Arrived> {
        let landed = self.landed?;
        let data = match landed.place {
            Place::Slot { offset, .. } => {
                Data::Slot(Arc::clone(self.mapping.as_ref()?), offset, landed.length)
            }
            Place::Device(data) => Data::Device(data),
        };
        Some(Arrived {
            destination: landed.destination,
            stream: landed.stream,
            data,
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
    /// Finds memory for the `length` bytes behind this head. `None` if the head says that there
    /// are others: decoding refuses the call.
    fn begin(&mut self, head: &[u8], length: usize) -> Option<Receiving> {
        let mut reader = Reader::new(head);
        let destination = reader.field().ok()?;
        let stream = reader.field().ok()?;
        let count: u32 = reader.field().ok()?;
        if usize::try_from(count) != Ok(length) {
            return None;
        }
        let place = match self.device(destination, stream, count) {
            Some(data) => Place::Device(data),
            None => self.slot(length)?,
        };
        Some(Receiving {
            destination,
            stream,
            length,
            place,
        })
    }

    /// The destination of the data, if it may be written now.
    fn device(
        &mut self,
        destination: u64,
        stream: StreamHandle,
        count: u32,
    ) -> Option<DeviceBytes> {
        let id = self.streams.id(stream).ok()?;
        DeviceBytes::of(self.gpu.device(), destination, count.into(), id)
    }

    /// Memory in a slot.
    fn slot(&mut self, length: usize) -> Option<Place> {
        let offset = self.inbound.room(self.gpu, length as u64).ok()??;
        Some(Place::Slot {
            slot: self.inbound.current,
            offset,
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
        let Some(landed) = self.inbound.landed else {
            return false;
        };
        match landed.place {
            Place::Device(data) => {
                let mut count = 0;
                data.fill(at, |memory| count = read(memory));
                self.gpu.host_wrote(data.address(at), count as u64);
                true
            }
            Place::Slot { offset, .. } => self.inbound.mapping.as_ref().is_some_and(|mapping| {
                let rest = landed.length.saturating_sub(at);
                mapping.fill(offset + at as u64, rest, |memory| {
                    read(memory);
                })
            }),
        }
    }

    fn landed(&self, count: usize) -> &[u8] {
        let Some(landed) = self.inbound.landed.as_ref().filter(|it| count <= it.length) else {
            return &[];
        };
        match (&landed.place, &self.inbound.mapping) {
            (Place::Device(data), _) => data.first(count),
            (Place::Slot { offset, .. }, Some(mapping)) => mapping.bytes(*offset, count),
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
