//! The contents of a session's memory as chunks, independent of the device.
//!
//! Both sides list the chunks of the same objects in the same order, so the n-th hashes
//! of both sides cover the same bytes.

use std::collections::BTreeSet;

use paragpu_abi::array_element_bytes;
use paragpu_device::CopyEnd;
use paragpu_protocol::call::WireCall as _;
use paragpu_protocol::codec::{Bytes, Field, Reader, decode_all};
use paragpu_protocol::handle::ObjectKind;
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::table::{ArrayCreate, MemMap};
use paragpu_protocol::types::ArrayShape;

use super::state::{StateError, device};
use crate::live::Name;
use crate::rect::{Piece, piece};
use crate::session::Session;
use crate::session::objects::Objects;

/// The object that a chunk belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum MemoryKind {
    /// A mapped range of device memory.
    Linear,
    /// A variable of a module, at its address.
    Variable,
    /// A mipmap level of the array with this handle.
    Array {
        /// Its level.
        level: u32,
    },
    /// The device's copy of a shadow.
    Shadow,
    /// The agreed state of a shadow.
    Agreed,
}

/// A piece of a session's memory, of at most [`CHUNK`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Chunk {
    pub(super) kind: MemoryKind,
    /// Address, handle or offset of the object.
    pub(super) name: u64,
    /// Packed offset in the object.
    pub(super) offset: u64,
    /// Size, at most [`CHUNK`].
    pub(super) size: u64,
}

paragpu_protocol::record! {
    /// A chunk with its bytes, on the wire; a record contains several.
    Part<'a> {
        /// 1 linear, 2 array, 3 shadow, 4 agreed copy of a shadow, 6 variable.
        place: u8,
        /// The level, for an array.
        level: u32,
        /// Address, handle or offset of the object.
        name: u64,
        /// Packed offset in the object.
        offset: u64,
        /// The bytes.
        data: Bytes<'a>,
    }
}

paragpu_protocol::record! {
    /// A chunk without its bytes; a record contains several.
    Span {
        /// As in a [`Part`].
        place: u8,
        /// The level, for an array.
        level: u32,
        /// Address, handle or offset of the object.
        name: u64,
        /// Packed offset in the object.
        offset: u64,
        /// Size.
        size: u64,
    }
}

paragpu_protocol::record! {
    /// A chunk of a file; a record contains several.
    Sealed {
        /// The chunk.
        span: Span,
        /// The BLAKE3 of its bytes.
        hash: [u8; 32],
    }
}

fn kind(number: u8, level: u32) -> Result<MemoryKind, StateError> {
    Ok(match number {
        1 => MemoryKind::Linear,
        2 => MemoryKind::Array { level },
        3 => MemoryKind::Shadow,
        4 => MemoryKind::Agreed,
        6 => MemoryKind::Variable,
        _ => return Err(StateError::Order("contents of an unknown kind of memory")),
    })
}

impl Chunk {
    /// Whether its initial contents may be nonzero.
    pub(crate) fn is_variable(&self) -> bool {
        self.kind == MemoryKind::Variable
    }

    /// Whether it is mapped device memory.
    pub(crate) fn is_memory(&self) -> bool {
        self.kind == MemoryKind::Linear
    }

    /// Its size.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The address of a chunk of device memory or of a variable, for which a device
    /// tracks writes.
    pub(crate) fn address(&self) -> Option<u64> {
        matches!(self.kind, MemoryKind::Linear | MemoryKind::Variable)
            .then(|| self.name.wrapping_add(self.offset))
    }

    /// A part of a chunk that has an address.
    pub(crate) fn part(&self, address: u64, size: u64) -> Self {
        Self {
            offset: address.wrapping_sub(self.name),
            size,
            ..*self
        }
    }

    /// Its object; for a variable, some module.
    pub(crate) fn owner(&self) -> Name {
        let kind = match self.kind {
            MemoryKind::Linear => ObjectKind::Memory,
            MemoryKind::Variable => ObjectKind::Module,
            MemoryKind::Array { .. } => ObjectKind::Array,
            MemoryKind::Shadow | MemoryKind::Agreed => ObjectKind::Shadow,
        };
        (kind, self.name)
    }

    fn numbers(&self) -> (u8, u32) {
        match self.kind {
            MemoryKind::Linear => (1, 0),
            MemoryKind::Array { level } => (2, level),
            MemoryKind::Shadow => (3, 0),
            MemoryKind::Agreed => (4, 0),
            MemoryKind::Variable => (6, 0),
        }
    }

    /// Appends the chunk to a record's payload.
    pub(crate) fn put(&self, data: &[u8], out: &mut Vec<u8>) {
        let (place, level) = self.numbers();
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

    /// What the chunk is part of, and where it begins in that.
    fn place(&self) -> ((u8, u32, u64), u64) {
        let (place, level) = self.numbers();
        match self.kind {
            MemoryKind::Array { .. } => ((place, level, self.name), self.offset),
            // By address; variables lie beside other device memory.
            _ => {
                let place = if self.address().is_some() { 0 } else { place };
                ((place, 0, 0), self.name.saturating_add(self.offset))
            }
        }
    }

    /// Whether some byte of memory is in several of `chunks`.
    pub(crate) fn overlap(chunks: impl Iterator<Item = Self>) -> bool {
        let mut places: Vec<_> = chunks.map(|chunk| (chunk.place(), chunk.size)).collect();
        places.sort_unstable();
        let mut last = None;
        places.into_iter().any(|((part, start), size)| {
            let overlaps = last.is_some_and(|(before, end)| before == part && end > start);
            last = Some((part, start.saturating_add(size)));
            overlaps
        })
    }

    /// Appends the chunk without its bytes.
    pub(crate) fn put_name(&self, out: &mut Vec<u8>) {
        let span = self.span();
        let tail = span.encode(out);
        out.extend_from_slice(tail);
    }

    /// Appends the chunk with the hash of its bytes.
    pub(crate) fn put_sealed(&self, hash: [u8; 32], out: &mut Vec<u8>) {
        let span = self.span();
        let sealed = Sealed { span, hash };
        let tail = sealed.encode(out);
        out.extend_from_slice(tail);
    }

    fn span(&self) -> Span {
        let (place, level) = self.numbers();
        Span {
            place,
            level,
            name: self.name,
            offset: self.offset,
            size: self.size,
        }
    }

    /// Its parts of at most `most` bytes. A piece of an array stays whole.
    pub(crate) fn cut(&self, most: u64) -> impl Iterator<Item = Self> {
        let whole = *self;
        let step = match self.kind {
            MemoryKind::Array { .. } => self.size,
            _ => most,
        };
        (0..self.size)
            .step_by(usize::try_from(step.max(1)).unwrap_or(usize::MAX))
            .map(move |from| Self {
                offset: whole.offset + from,
                size: step.min(whole.size - from),
                ..whole
            })
    }

    /// This chunk with `next`, if that follows it in the same linear memory; the size may exceed
    /// [`CHUNK`].
    pub(crate) fn joined(&self, next: &Self) -> Option<Self> {
        let follows = (self.kind, self.name) == (next.kind, next.name)
            && self.kind == MemoryKind::Linear
            && self.offset.checked_add(self.size) == Some(next.offset);
        follows.then(|| Self {
            size: self.size + next.size,
            ..*self
        })
    }

    fn of_span(span: &Span) -> Result<Self, StateError> {
        if span.size > CHUNK {
            return Err(StateError::Order("a chunk too large"));
        }
        Ok(Self {
            kind: kind(span.place, span.level)?,
            name: span.name,
            offset: span.offset,
            size: span.size,
        })
    }
}

/// The chunks listed in a payload, each of at most [`CHUNK`] bytes.
pub(crate) fn named(payload: &[u8]) -> Result<Vec<Chunk>, StateError> {
    let mut reader = Reader::new(payload);
    let mut chunks = Vec::new();
    while reader.remaining() > 0 {
        chunks.push(Chunk::of_span(&reader.field()?)?);
    }
    Ok(chunks)
}

/// The chunks listed in a payload with the hashes of their bytes.
pub(crate) fn sealed(payload: &[u8]) -> Result<Vec<(Chunk, [u8; 32])>, StateError> {
    let mut reader = Reader::new(payload);
    let mut chunks = Vec::new();
    while reader.remaining() > 0 {
        let Sealed { span, hash } = reader.field()?;
        chunks.push((Chunk::of_span(&span)?, hash));
    }
    Ok(chunks)
}

/// The chunks of a record's payload.
pub(crate) fn parts(payload: &[u8]) -> Result<Vec<(Chunk, &[u8])>, StateError> {
    let mut reader = Reader::new(payload);
    let mut parts = Vec::new();
    while reader.remaining() > 0 {
        let part: Part<'_> = reader.field()?;
        let chunk = Chunk {
            kind: kind(part.place, part.level)?,
            name: part.name,
            offset: part.offset,
            size: part.data.0.len() as u64,
        };
        parts.push((chunk, part.data.0));
    }
    Ok(parts)
}

fn cut(kind: MemoryKind, name: u64, size: u64, out: &mut Vec<Chunk>) {
    for offset in (0..size).step_by(CHUNK as usize) {
        out.push(Chunk {
            kind,
            name,
            offset,
            size: CHUNK.min(size - offset),
        });
    }
}

/// The extent of a level of an array: bytes per row, rows, slices. `None` for
/// formats of unknown layout.
fn extent(shape: &ArrayShape, level: u32) -> Option<[u64; 3]> {
    const LAYERED: u32 = 1;
    const CUBEMAP: u32 = 4;
    let element = u64::from(array_element_bytes(shape.format, shape.channels)?);
    let half = |size: u64| (size.checked_shr(level).unwrap_or(0)).max(1);
    let layers = shape.flags & (LAYERED | CUBEMAP) != 0;
    let depth = if layers {
        shape.depth.max(1)
    } else {
        half(shape.depth)
    };
    let row = half(shape.width) * element;
    Some([row, half(shape.height), depth])
}

impl Objects {
    fn shape(&self, array: u64) -> Result<ArrayShape, StateError> {
        let lost = StateError::Order("contents of an array that does not exist");
        let Some(recorded) = self.live.created((ObjectKind::Array, array)) else {
            return Err(lost);
        };
        match recorded.number == ArrayCreate::INFO.number {
            true => Ok(decode_all::<ArrayCreate>(&recorded.payload)?.shape),
            false => Err(lost),
        }
    }
}

impl Session {
    /// All chunks of the session's memory but the window's, in order.
    pub(crate) fn chunks(&mut self) -> Result<Vec<Chunk>, StateError> {
        let mut chunks = Vec::new();
        for name in self.objects.live.names(ObjectKind::Memory) {
            if let Some(recorded) = self.objects.live.created((ObjectKind::Memory, name)) {
                let map: MemMap = decode_all(&recorded.payload)?;
                cut(MemoryKind::Linear, name, map.size, &mut chunks);
            }
        }
        let modules: Vec<u64> = self.objects.live.names(ObjectKind::Module).collect();
        for name in modules {
            let Ok(module) = self.objects.modules.id(name) else {
                continue;
            };
            let mut variables = device(self.gpu.module_variables(module))?;
            variables.sort_unstable();
            for variable in variables {
                cut(
                    MemoryKind::Variable,
                    variable.address,
                    variable.size,
                    &mut chunks,
                );
            }
        }
        let arrays: Vec<u64> = self.objects.live.names(ObjectKind::Array).collect();
        for name in arrays {
            let shape = self.objects.shape(name)?;
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
                        kind: MemoryKind::Array { level },
                        name,
                        offset,
                        size,
                    });
                    offset += size;
                }
            }
        }
        // Those that the program has destroyed remain while work in flight may use them.
        let live: BTreeSet<u64> = self.objects.live.names(ObjectKind::Shadow).collect();
        let is_live = |(address, _): &(u64, u64)| live.contains(address);
        for (address, size) in self.host.shadows().filter(is_live) {
            cut(MemoryKind::Shadow, address, size, &mut chunks);
            cut(MemoryKind::Agreed, address, size, &mut chunks);
        }
        Ok(chunks)
    }

    /// The location of a chunk, for a copy by the device.
    pub(super) fn end(&self, chunk: &Chunk) -> Result<(CopyEnd, [u64; 3]), StateError> {
        Ok(match chunk.kind {
            MemoryKind::Array { level } => {
                let shape = self.objects.shape(chunk.name)?;
                let Some(whole) = extent(&shape, level) else {
                    return Err(StateError::Order("contents of an array"));
                };
                let all: u64 = whole.iter().product();
                let Piece { origin, extent } = if chunk.offset < all {
                    piece(whole, chunk.offset, CHUNK)
                } else {
                    return Err(StateError::Order("contents past an array's end"));
                };
                let array = self.objects.textures.array(chunk.name);
                let array = array
                    .map_err(|_| StateError::Order("contents of an array that does not exist"))?;
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
                let address = chunk
                    .name
                    .checked_add(chunk.offset)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_every_served_format_move() {
        let shape = |format, channels| ArrayShape {
            width: 33,
            height: 17,
            depth: 0,
            format,
            channels,
            flags: 0,
            levels: 0,
        };
        // Plain ones; UNORM of 10, 10, 10 and 2 bits; UNORM and SNORM, which have a number of
        // channels of their own.
        for (format, channels, element) in [
            (0x01, 2, 2),
            (0x10, 4, 8),
            (0x20, 4, 16),
            (0x50, 4, 4),
            (0xc0, 1, 1),
            (0xc2, 4, 4),
            (0xc5, 4, 8),
            (0xc6, 1, 1),
            (0xca, 2, 4),
        ] {
            let whole = extent(&shape(format, channels), 0);
            assert_eq!(whole, Some([33 * element, 17, 1]), "{format:#x}");
        }
        // CU_AD_FORMAT_BC1_UNORM, CU_AD_FORMAT_NV12.
        assert_eq!(extent(&shape(0x91, 4), 0), None);
        assert_eq!(extent(&shape(0xb0, 4), 0), None);
    }
}
