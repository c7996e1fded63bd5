//! The contents of a session's memory, chunk by chunk, on any device.
//!
//! Both sides list the chunks of the same objects in the same order, so that a
//! hash at a place of one side's list is about the same bytes as that of the
//! other's.

use std::collections::VecDeque;

use paragpu_device::{ArrayId, CopyEnd, EventId, StreamId};
use paragpu_protocol::codec::{Bytes, Field, Reader};
use paragpu_protocol::handle::ObjectKind;
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::table::Call;
use paragpu_protocol::types::ArrayShape;

use super::state::StateError;
use crate::rect::{Piece, piece};
use crate::session::Session;
use crate::sys::mapping::Mapping;

/// CU_STREAM_NON_BLOCKING: waits for nobody's work.
const NON_BLOCKING: u32 = 1;
/// CU_EVENT_DISABLE_TIMING.
const UNTIMED: u32 = 2;
/// Chunks under way between device and staging memory.
const SLOTS: u64 = 8;

/// What a chunk is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Place {
    /// A mapped range of device memory.
    Linear,
    /// A variable of a module, at its address.
    Variable,
    /// A mipmap level of the array with this handle.
    Array {
        /// Its level.
        level: u32,
    },
    /// What the device sees of a shadow.
    Shadow,
    /// What both sides agreed on last of a shadow.
    Agreed,
    /// Pinned memory of the window.
    Window,
}

/// Some bytes of a session's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Chunk {
    place: Place,
    /// Address, handle or offset of the whole.
    name: u64,
    /// Bytes from its begin, packed.
    offset: u64,
    /// Bytes, at most [`CHUNK`].
    size: u64,
}

paragpu_protocol::record! {
    /// Bytes of a chunk, as they travel; several make a record.
    Part<'a> {
        /// 1 linear, 2 array, 3 shadow, 4 agreed copy of a shadow, 5 window, 6 variable.
        place: u8,
        /// Of an array.
        level: u32,
        /// Address, handle or offset of the whole.
        name: u64,
        /// Bytes from its begin, packed.
        offset: u64,
        /// The bytes.
        data: Bytes<'a>,
    }
}

impl Chunk {
    /// May it have begun with other bytes than zeros?
    pub(crate) fn is_variable(&self) -> bool {
        self.place == Place::Variable
    }

    /// Its bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Appends the chunk to a record's payload.
    pub(crate) fn put(&self, data: &[u8], out: &mut Vec<u8>) {
        let (place, level) = match self.place {
            Place::Linear => (1, 0),
            Place::Variable => (6, 0),
            Place::Array { level } => (2, level),
            Place::Shadow => (3, 0),
            Place::Agreed => (4, 0),
            Place::Window => (5, 0),
        };
        let part = Part {
            place,
            level,
            name: self.name,
            offset: self.offset,
            data: Bytes(data),
        };
        let tail = part.encode(out);
        out.extend_from_slice(tail);
    }
}

/// The chunks of a record's payload.
pub(crate) fn parts(payload: &[u8]) -> Result<Vec<(Chunk, &[u8])>, StateError> {
    let mut reader = Reader::new(payload);
    let mut parts = Vec::new();
    while reader.remaining() > 0 {
        let part: Part<'_> = reader.field()?;
        let place = match part.place {
            1 => Place::Linear,
            2 => Place::Array { level: part.level },
            3 => Place::Shadow,
            4 => Place::Agreed,
            5 => Place::Window,
            6 => Place::Variable,
            _ => return Err(StateError::Order("contents of an unknown kind of memory")),
        };
        let chunk = Chunk {
            place,
            name: part.name,
            offset: part.offset,
            size: part.data.0.len() as u64,
        };
        parts.push((chunk, part.data.0));
    }
    Ok(parts)
}

fn cut(place: Place, name: u64, size: u64, out: &mut Vec<Chunk>) {
    for offset in (0..size).step_by(CHUNK as usize) {
        out.push(Chunk {
            place,
            name,
            offset,
            size: CHUNK.min(size - offset),
        });
    }
}

/// Bytes of a row, rows and slices of a level of an array; `None` for formats
/// whose layout is not known here.
fn extent(shape: &ArrayShape, level: u32) -> Option<[u64; 3]> {
    const LAYERED: u32 = 1;
    const CUBEMAP: u32 = 4;
    let element = match shape.format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return None,
    };
    let half = |size: u64| (size.checked_shr(level).unwrap_or(0)).max(1);
    let layers = shape.flags & (LAYERED | CUBEMAP) != 0;
    let depth = if layers {
        shape.depth.max(1)
    } else {
        half(shape.depth)
    };
    let row = half(shape.width) * element * u64::from(shape.channels);
    Some([row, half(shape.height), depth])
}

impl Session {
    fn shape(&self, array: u64) -> Result<ArrayShape, StateError> {
        let lost = StateError::Order("contents of an array that is not there");
        let Some(recorded) = self.live.created((ObjectKind::Array, array)) else {
            return Err(lost);
        };
        match Call::decode(recorded.number, &recorded.payload)? {
            Call::ArrayCreate(create) => Ok(create.shape),
            _ => Err(lost),
        }
    }

    /// All chunks of the session's memory, in order; that of the window only
    /// where `window`.
    pub(crate) fn chunks(&mut self, window: bool) -> Result<Vec<Chunk>, StateError> {
        let mut chunks = Vec::new();
        for name in self.live.names(ObjectKind::Memory) {
            if let Some(recorded) = self.live.created((ObjectKind::Memory, name))
                && let Call::MemMap(map) = Call::decode(recorded.number, &recorded.payload)?
            {
                cut(Place::Linear, name, map.size, &mut chunks);
            }
        }
        let modules: Vec<u64> = self.live.names(ObjectKind::Module).collect();
        for name in modules {
            let Ok(module) = self.modules.get(name).map(|module| module.id) else {
                continue;
            };
            let mut variables = device(self.device.module_variables(module))?;
            variables.sort_unstable();
            for variable in variables {
                cut(
                    Place::Variable,
                    variable.address,
                    variable.size,
                    &mut chunks,
                );
            }
        }
        let arrays: Vec<u64> = self.live.names(ObjectKind::Array).collect();
        for name in arrays {
            let shape = self.shape(name)?;
            for level in 0..shape.levels.max(1) {
                let Some(extent) = extent(&shape, level) else {
                    return Err(StateError::Impossible(format!(
                        "the session has an array of format {:#x}, which cannot move yet",
                        shape.format
                    )));
                };
                let all: u64 = extent.iter().product();
                let mut offset = 0;
                while offset < all {
                    let size = piece(extent, offset, CHUNK).bytes();
                    chunks.push(Chunk {
                        place: Place::Array { level },
                        name,
                        offset,
                        size,
                    });
                    offset += size;
                }
            }
        }
        for (&address, shadow) in &self.shadows {
            cut(Place::Shadow, address, shadow.len(), &mut chunks);
            cut(Place::Agreed, address, shadow.len(), &mut chunks);
        }
        if window {
            for (&offset, &size) in &self.host_maps {
                cut(Place::Window, offset, size, &mut chunks);
            }
        }
        Ok(chunks)
    }

    /// Where a chunk lies, for the device.
    fn end(&self, chunk: &Chunk) -> Result<(CopyEnd, [u64; 3]), StateError> {
        Ok(match chunk.place {
            Place::Array { level } => {
                let shape = self.shape(chunk.name)?;
                let Some(whole) = extent(&shape, level) else {
                    return Err(StateError::Order("contents of an array"));
                };
                let all: u64 = whole.iter().product();
                let Piece { origin, extent } = if chunk.offset < all {
                    piece(whole, chunk.offset, CHUNK)
                } else {
                    return Err(StateError::Order("contents past an array's end"));
                };
                let array: ArrayId = self
                    .arrays
                    .get(chunk.name)
                    .map_err(|_| StateError::Order("contents of an array that is not there"))?
                    .id;
                let end = CopyEnd::Array {
                    array,
                    level,
                    origin,
                };
                if extent.iter().product::<u64>() != chunk.size {
                    return Err(StateError::Order("a piece of an array"));
                }
                (end, extent)
            }
            _ => {
                let base = match (chunk.place, &self.window) {
                    (Place::Window, Some(window)) => window.address(),
                    _ => 0,
                };
                let address = base
                    .checked_add(chunk.name)
                    .and_then(|start| start.checked_add(chunk.offset))
                    .ok_or(StateError::Order("contents past the end of memory"))?;
                let end = CopyEnd::Linear {
                    address,
                    pitch: chunk.size,
                    rows: 1,
                };
                (end, [chunk.size, 1, 1])
            }
        })
    }
}

fn device<T>(result: paragpu_device::Result<T>) -> Result<T, StateError> {
    result.map_err(|error| StateError::Impossible(error.to_string()))
}

/// A chunk on its way between the device and a slot.
#[derive(Debug)]
struct UnderWay {
    chunk: Chunk,
    slot: u64,
    mark: EventId,
}

/// Carries chunks between the device and memory that this process sees, in a
/// stream of its own, several at a time.
#[derive(Debug)]
pub(crate) struct Mover {
    staging: Mapping,
    stream: StreamId,
    marks: Vec<EventId>,
    under_way: VecDeque<UnderWay>,
    next: u64,
}

impl Mover {
    /// Takes staging memory and a stream.
    pub(crate) fn new(session: &mut Session) -> Result<Self, StateError> {
        let staging = Mapping::anywhere(SLOTS * CHUNK)
            .map_err(|errno| StateError::Impossible(format!("no staging memory: {errno}")))?;
        let gpu = session.device.as_mut();
        device(gpu.host_register(staging.address(), staging.len()))?;
        let stream = device(gpu.stream_create(NON_BLOCKING, 0))?;
        let mut marks = Vec::new();
        for _ in 0..SLOTS {
            marks.push(device(gpu.event_create(UNTIMED))?);
        }
        Ok(Self {
            staging,
            stream,
            marks,
            under_way: VecDeque::new(),
            next: 0,
        })
    }

    /// Gives everything back, as far as the device takes it.
    pub(crate) fn release(self, session: &mut Session) {
        let gpu = session.device.as_mut();
        while let Some(one) = self.under_way.back() {
            match gpu.event_query(one.mark) {
                Ok(false) => {
                    let _ = gpu.stream_doze(self.stream, std::time::Duration::from_millis(1));
                }
                Ok(true) => break,
                // The device may write for ever: the memory stays.
                Err(_) => {
                    std::mem::forget(self.staging);
                    return;
                }
            }
        }
        for mark in self.marks {
            let _ = gpu.event_destroy(mark);
        }
        let _ = gpu.stream_destroy(self.stream);
        if gpu.host_unregister(self.staging.address()).is_err() {
            std::mem::forget(self.staging);
        }
    }

    /// Is there a slot for another chunk?
    pub(crate) fn has_room(&self) -> bool {
        (self.under_way.len() as u64) < SLOTS
    }

    /// Is nothing under way?
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Begins to bring a chunk into a slot; there is room.
    pub(crate) fn begin_read(
        &mut self,
        session: &mut Session,
        chunk: Chunk,
    ) -> Result<(), StateError> {
        let slot = self.next % SLOTS;
        let address = self.staging.address() + slot * CHUNK;
        match chunk.place {
            // Not the device's to copy.
            Place::Agreed => {
                let bytes = session.agreed(chunk.name, chunk.offset, chunk.size)?;
                if !self.staging.copy_in(slot * CHUNK, bytes) {
                    return Err(StateError::Order("a chunk too large"));
                }
            }
            _ => {
                let (source, extent) = session.end(&chunk)?;
                let to = linear(address, extent);
                self.copy(session, to, source, extent)?;
            }
        }
        self.mark(session, chunk, slot)
    }

    fn mark(&mut self, session: &mut Session, chunk: Chunk, slot: u64) -> Result<(), StateError> {
        let Some(&mark) = self.marks.get(slot as usize) else {
            return Err(StateError::Order("a slot that is not there"));
        };
        device(session.device.event_record(mark, self.stream))?;
        self.next += 1;
        self.under_way.push_back(UnderWay { chunk, slot, mark });
        Ok(())
    }

    fn copy(
        &self,
        session: &mut Session,
        to: CopyEnd,
        from: CopyEnd,
        extent: [u64; 3],
    ) -> Result<(), StateError> {
        if let (CopyEnd::Linear { address: to, .. }, CopyEnd::Linear { address: from, .. }) =
            (to, from)
        {
            return device(session.device.copy(to, from, extent[0], self.stream));
        }
        device(session.device.copy_rect(to, from, extent, self.stream))
    }

    /// The next chunk that was read, if it is there; `wait` for it.
    pub(crate) fn finish_read(
        &mut self,
        session: &mut Session,
        wait: bool,
    ) -> Result<Option<(Chunk, &[u8])>, StateError> {
        let Some(first) = self.under_way.front() else {
            return Ok(None);
        };
        while !device(session.device.event_query(first.mark))? {
            if !wait {
                return Ok(None);
            }
            let most = std::time::Duration::from_micros(200);
            device(session.device.stream_doze(self.stream, most))?;
        }
        let Some(UnderWay { chunk, slot, .. }) = self.under_way.pop_front() else {
            return Ok(None);
        };
        let bytes = self.staging.bytes(slot * CHUNK, chunk.size as usize);
        Ok(Some((chunk, bytes)))
    }

    /// Reads all `chunks` and shows each.
    pub(crate) fn read_all(
        &mut self,
        session: &mut Session,
        chunks: &[Chunk],
        mut show: impl FnMut(usize, &Chunk, &[u8]) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut begun = chunks.iter();
        let mut done = 0;
        loop {
            while self.has_room()
                && let Some(chunk) = begun.next()
            {
                self.begin_read(session, *chunk)?;
            }
            let Some((chunk, bytes)) = self.finish_read(session, true)? else {
                return Ok(());
            };
            show(done, &chunk, bytes)?;
            done += 1;
        }
    }

    /// Begins to write a chunk, waiting for a slot.
    pub(crate) fn write(
        &mut self,
        session: &mut Session,
        chunk: Chunk,
        bytes: &[u8],
    ) -> Result<(), StateError> {
        if chunk.size > CHUNK || chunk.size != bytes.len() as u64 {
            return Err(StateError::Order("a chunk too large"));
        }
        if chunk.place == Place::Agreed {
            return session.set_agreed(chunk.name, chunk.offset, bytes);
        }
        if !self.has_room() {
            self.finish_read(session, true)?;
        }
        let slot = self.next % SLOTS;
        if !self.staging.copy_in(slot * CHUNK, bytes) {
            return Err(StateError::Order("a chunk too large"));
        }
        let (destination, extent) = session.end(&chunk)?;
        let from = linear(self.staging.address() + slot * CHUNK, extent);
        self.copy(session, destination, from, extent)?;
        self.mark(session, chunk, slot)
    }

    /// Waits until all that was begun is over.
    pub(crate) fn settle(&mut self, session: &mut Session) -> Result<(), StateError> {
        while self.finish_read(session, true)?.is_some() {}
        Ok(())
    }
}

fn linear(address: u64, [width, height, _]: [u64; 3]) -> CopyEnd {
    CopyEnd::Linear {
        address,
        pitch: width,
        rows: height,
    }
}
