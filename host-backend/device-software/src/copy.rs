//! Copies and fills, checked when they are submitted and executed as stream work.

use crate::error::invalid;
use crate::memory_unsafe::Memory;
use crate::shared::Peer;
use crate::texture::Array;
use paragpu_device::{Error, MemoryOperation};
use paragpu_protocol::status::Status;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// One end of a rectangular copy, with its array found.
#[derive(Debug, Clone)]
pub enum RectEnd {
    /// Address, bytes between rows, rows between slices.
    Linear(u64, u64, u64),
    /// Array, level, origin in bytes, rows, slices.
    Array(Arc<Array>, u32, [u64; 3]),
}

/// The error of a copy whose memory was unmapped after the check.
fn gone() -> Error {
    Error::new(
        Status::ILLEGAL_ADDRESS,
        "memory of a copy was unmapped before the copy ran",
    )
}

impl RectEnd {
    /// Checks that the extent is inside this end.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn check(&self, memory: &Memory, [width, rows, slices]: [u64; 3]) -> Result<(), Error> {
        match self {
            Self::Linear(address, pitch, between) => {
                if rows > 1 && *pitch < width || slices > 1 && *between < rows {
                    return Err(invalid(
                        "the pitch is smaller than a row, or the height than the rows",
                    ));
                }
                let slice = pitch.checked_mul(*between);
                let span = slice
                    .and_then(|s| {
                        if slices > 1 {
                            s.checked_mul(slices - 1)
                        } else {
                            Some(0)
                        }
                    })
                    .and_then(|s| s.checked_add(pitch.checked_mul(rows - 1)?))
                    .and_then(|s| s.checked_add(width));
                match span {
                    Some(span) if memory.reachable(*address, span) => Ok(()),
                    _ => Err(invalid("the copy exceeds the memory in which it starts")),
                }
            }
            Self::Array(array, level, [x, y, z]) => {
                let last = |a: u64, n: u64| a.checked_add(n - 1);
                let inside = last(*y, rows).zip(last(*z, slices));
                match inside.and_then(|(y, z)| array.offset(*level, *x, y, z, width)) {
                    Some(_) => Ok(()),
                    None => Err(invalid("the copy exceeds the array")),
                }
            }
        }
    }

    fn read(&self, memory: &Memory, y: u64, z: u64, out: &mut [u8]) -> bool {
        match self {
            Self::Linear(address, pitch, between) => {
                memory.read(address + (z * between + y) * pitch, out)
            }
            Self::Array(array, level, [x, oy, oz]) => {
                match array.offset(*level, *x, oy + y, oz + z, out.len() as u64) {
                    Some(offset) => {
                        array.read_bytes(offset, out);
                        true
                    }
                    None => false,
                }
            }
        }
    }

    fn write(&self, memory: &Memory, y: u64, z: u64, bytes: &[u8]) -> bool {
        match self {
            Self::Linear(address, pitch, between) => {
                memory.write(address + (z * between + y) * pitch, bytes)
            }
            Self::Array(array, level, [x, oy, oz]) => {
                match array.offset(*level, *x, oy + y, oz + z, bytes.len() as u64) {
                    Some(offset) => {
                        array.write_bytes(offset, bytes);
                        true
                    }
                    None => false,
                }
            }
        }
    }
}

/// Copies `extent` from `source` to `destination`.
///
/// # Errors
/// `ILLEGAL_ADDRESS` if memory was unmapped since the check.
pub fn rectangle(
    memory: &Memory,
    destination: &RectEnd,
    source: &RectEnd,
    extent: [u64; 3],
) -> Result<(), Error> {
    let [width, rows, slices] = extent;
    if let (RectEnd::Linear(d, dp, dr), RectEnd::Linear(s, sp, sr)) = (destination, source) {
        for z in 0..slices {
            for y in 0..rows {
                if !memory.copy(d + (z * dr + y) * dp, s + (z * sr + y) * sp, width) {
                    return Err(gone());
                }
            }
        }
        return Ok(());
    }
    let mut row = vec![0; usize::try_from(width).map_err(|_| gone())?];
    for z in 0..slices {
        for y in 0..rows {
            if !source.read(memory, y, z, &mut row) || !destination.write(memory, y, z, &row) {
                return Err(gone());
            }
        }
    }
    Ok(())
}

/// Copies `size` bytes.
///
/// # Errors
/// `ILLEGAL_ADDRESS` if memory was unmapped since the check.
pub fn linear(memory: &Memory, destination: u64, source: u64, size: u64) -> Result<(), Error> {
    if memory.copy(destination, source, size) {
        Ok(())
    } else {
        Err(gone())
    }
}

/// Copies `size` bytes from another GPU, which may write them concurrently.
///
/// # Errors
/// `ILLEGAL_ADDRESS` if memory was unmapped since the check, `OPERATING_SYSTEM`.
pub fn from_peer(
    memory: &Memory,
    destination: u64,
    peer: &Peer,
    offset: u64,
    size: u64,
) -> Result<(), Error> {
    let mut bytes = vec![0; 128 << 10];
    let mut done = 0;
    while done < size {
        let length = (size - done).min(bytes.len() as u64);
        let part = &mut bytes[..length as usize];
        peer.read(offset + done, part)
            .map_err(|error| Error::new(Status::OPERATING_SYSTEM, error.to_string()))?;
        if !memory.write(destination + done, part) {
            return Err(gone());
        }
        done += length;
    }
    Ok(())
}

/// Writes the BLAKE3 hash of each range (address, bytes) to `out`.
///
/// # Errors
/// `ILLEGAL_ADDRESS` if memory was unmapped since the check.
pub fn hash(memory: &Memory, ranges: &[(u64, u64)], out: u64) -> Result<(), Error> {
    let mut bytes = vec![0; 128 << 10];
    for (at, &(address, size)) in (0..).step_by(32).zip(ranges) {
        let mut hasher = blake3::Hasher::new();
        let mut done = 0;
        while done < size {
            let length = (size - done).min(bytes.len() as u64);
            let part = &mut bytes[..length as usize];
            if !memory.read(address + done, part) {
                return Err(gone());
            }
            hasher.update(part);
            done += length;
        }
        if !memory.write(out + at, hasher.finalize().as_bytes()) {
            return Err(gone());
        }
    }
    Ok(())
}

/// Fills `height` rows of `width` elements.
///
/// # Errors
/// `ILLEGAL_ADDRESS` if memory was unmapped since the check.
pub fn fill(
    memory: &Memory,
    at: u64,
    pitch: u64,
    value: u32,
    element: u8,
    width: u64,
    height: u64,
) -> Result<(), Error> {
    for y in 0..height {
        if !memory.fill(at + y * pitch, value, element, width) {
            return Err(gone());
        }
    }
    Ok(())
}

/// Executes an operation on memory. Returns false if it must wait.
///
/// # Errors
/// `ILLEGAL_ADDRESS` if the memory was unmapped meanwhile.
pub fn operate(memory: &Memory, operation: &MemoryOperation) -> Result<bool, Error> {
    let lost = || {
        Error::new(
            Status::ILLEGAL_ADDRESS,
            "a word of a stream operation is not mapped",
        )
    };
    match *operation {
        MemoryOperation::Write { word, value, .. } => {
            fence(Ordering::SeqCst);
            let width = if word.is_wide { 8 } else { 4 };
            match memory.store(word.address, width, value) {
                true => Ok(true),
                false => Err(lost()),
            }
        }
        MemoryOperation::Wait { word, value, until } => {
            let width = if word.is_wide { 8 } else { 4 };
            let there = memory.load(word.address, width).ok_or_else(lost)?;
            fence(Ordering::SeqCst);
            Ok(until.holds(there, value, word.is_wide))
        }
        MemoryOperation::Barrier { .. } => {
            fence(Ordering::SeqCst);
            Ok(true)
        }
    }
}
