//! Images as programs carry them: fat binaries and PTX text.
//!
//! A fat binary is a container of entries, one per form of the same code (PTX text, machine
//! code, link-time intermediate code), each possibly compressed. The software GPU uses the
//! PTX entry with the highest architecture that it can claim ([`ptx_of`]). A worker needs to
//! know which kernels of a module can print ([`callers`]), and which variables a session that
//! moves must copy ([`search`]). The bytes come from the guest: every offset is checked,
//! and decompression is bounded.

// This code parses untrusted input, so it must not panic.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic
    )
)]
#![forbid(unsafe_code)]

mod callers;
mod error;
mod forms;
mod machine_code;
mod variables;

pub use callers::{Callers, callers};
pub use error::ImageError;
pub use forms::{Form, Forms, forms};
pub use variables::{Found, search};

use std::borrow::Cow;
use std::io::Read;

const WRAPPER_MAGIC: u32 = 0x4662_43B1;
const CONTAINER_MAGIC: u32 = 0xBA55_ED50;
const ELF_MAGIC: u32 = 0x464C_457F;
const WRAPPER_SIZE: usize = 24;
const CONTAINER_HEADER: usize = 16;
const ENTRY_HEADER: usize = 64;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
const KIND_PTX: u16 = 1;
const KIND_ELF: u16 = 2;

/// Upper bound of one decompressed PTX text, in bytes.
pub const MAX_PTX: u64 = 64 << 20;

/// The contents of a container entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// 1 PTX, 2 ELF, 8 link-time code.
    pub kind: u16,
    /// Architecture times ten, without suffix: 75 for sm_75.
    pub sm: u32,
    /// Compression flags.
    pub flags: u64,
    /// Size after decompression (0 when stored).
    pub uncompressed: u64,
    /// Payload as stored.
    pub payload: &'a [u8],
}

impl Entry<'_> {
    /// Whether a device of this compute capability, times ten, can run it. Text is
    /// compiled for it, machine code runs on later devices of its generation, and
    /// other entries are not run.
    fn may_run_on(&self, arch: u32) -> bool {
        self.sm <= arch && (self.kind != KIND_ELF || self.sm / 10 == arch / 10)
    }
}

fn bytes<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], ImageError> {
    let end = at.checked_add(N).ok_or(ImageError::Truncated)?;
    let slice = data.get(at..end).ok_or(ImageError::Truncated)?;
    slice.try_into().map_err(|_| ImageError::Truncated)
}

fn u16_at(data: &[u8], at: usize) -> Result<u16, ImageError> {
    bytes(data, at).map(u16::from_le_bytes)
}

fn u32_at(data: &[u8], at: usize) -> Result<u32, ImageError> {
    bytes(data, at).map(u32::from_le_bytes)
}

fn u64_at(data: &[u8], at: usize) -> Result<u64, ImageError> {
    bytes(data, at).map(u64::from_le_bytes)
}

fn size(value: u64) -> Result<usize, ImageError> {
    usize::try_from(value).map_err(|_| ImageError::Truncated)
}

/// The header of an entry.
struct EntryHeader {
    kind: u16,
    /// Its own size.
    header: u64,
    /// Size of the payload in the container, padded.
    padded: u64,
    /// Compressed size of the payload, if it is compressed.
    compressed: u32,
    sm: u32,
    flags: u64,
    uncompressed: u64,
}

impl EntryHeader {
    /// From at least [`ENTRY_HEADER`] bytes.
    fn read(data: &[u8]) -> Result<Self, ImageError> {
        let header = u64::from(u32_at(data, 4)?);
        if header < ENTRY_HEADER as u64 {
            return Err(ImageError::Truncated);
        }
        Ok(Self {
            kind: u16_at(data, 0)?,
            header,
            padded: u64_at(data, 8)?,
            compressed: u32_at(data, 16)?,
            sm: u32_at(data, 28)?,
            flags: u64_at(data, 40)?,
            uncompressed: u64_at(data, 56)?,
        })
    }
}

/// Lists the entries of the containers that start at `data`.
///
/// # Errors
/// [`ImageError::Truncated`] or [`ImageError::NotAnImage`] when a header does not hold.
pub fn entries(data: &[u8]) -> Result<Vec<Entry<'_>>, ImageError> {
    let mut found = Vec::new();
    let mut rest = data;
    let mut first = true;
    while rest.len() >= CONTAINER_HEADER {
        if u32_at(rest, 0)? != CONTAINER_MAGIC {
            if first {
                return Err(ImageError::NotAnImage);
            }
            break;
        }
        first = false;
        let header = usize::from(u16_at(rest, 6)?);
        let body = size(u64_at(rest, 8)?)?;
        if header < CONTAINER_HEADER {
            return Err(ImageError::Truncated);
        }
        let end = header.checked_add(body).ok_or(ImageError::Truncated)?;
        let mut body = rest.get(header..end).ok_or(ImageError::Truncated)?;
        while body.len() >= ENTRY_HEADER {
            let entry = EntryHeader::read(body)?;
            let begin = size(entry.header)?;
            let end = begin
                .checked_add(size(entry.padded)?)
                .ok_or(ImageError::Truncated)?;
            let payload = body.get(begin..end).ok_or(ImageError::Truncated)?;
            let payload = if entry.flags & (FLAG_LZ4 | FLAG_ZSTD) != 0 {
                let compressed = size(u64::from(entry.compressed))?;
                payload.get(..compressed).ok_or(ImageError::Truncated)?
            } else {
                payload
            };
            found.push(Entry {
                kind: entry.kind,
                sm: entry.sm,
                flags: entry.flags,
                uncompressed: entry.uncompressed,
                payload,
            });
            body = body.get(end..).ok_or(ImageError::Truncated)?;
        }
        rest = rest.get(end..).ok_or(ImageError::Truncated)?;
    }
    if first {
        return Err(ImageError::Truncated);
    }
    Ok(found)
}

fn text(raw: Vec<u8>) -> Result<String, ImageError> {
    let mut raw = raw;
    if let Some(end) = raw.iter().position(|&b| b == 0) {
        raw.truncate(end);
    }
    String::from_utf8(raw).map_err(|_| ImageError::NotText)
}

/// The bytes of an entry, decompressed where they are compressed: at most `most`.
fn contents<'a>(entry: &Entry<'a>, most: u64) -> Result<Cow<'a, [u8]>, ImageError> {
    let corrupt = |error: &dyn std::fmt::Display| ImageError::Compression(error.to_string());
    if entry.flags & (FLAG_ZSTD | FLAG_LZ4) == 0 {
        return Ok(Cow::Borrowed(entry.payload));
    }
    if entry.uncompressed > most {
        return Err(ImageError::TooLarge);
    }
    if entry.flags & FLAG_LZ4 != 0 {
        let out = lz4_flex::block::decompress(entry.payload, size(entry.uncompressed)?);
        return out.map(Cow::Owned).map_err(|error| corrupt(&error));
    }
    let decoder =
        ruzstd::decoding::StreamingDecoder::new(entry.payload).map_err(|error| corrupt(&error))?;
    let mut out = Vec::new();
    // What holds more than it says is not believed: accounts count what is said.
    decoder
        .take(entry.uncompressed + 1)
        .read_to_end(&mut out)
        .map_err(|error| corrupt(&error))?;
    if out.len() as u64 > entry.uncompressed {
        return Err(ImageError::TooLarge);
    }
    Ok(Cow::Owned(out))
}

fn decompress(entry: &Entry<'_>) -> Result<String, ImageError> {
    text(contents(entry, MAX_PTX)?.into_owned())
}

/// Whether an image is text: neither a container nor machine code.
#[must_use]
pub fn is_text(image: &[u8]) -> bool {
    !matches!(
        u32_at(image, 0),
        Ok(CONTAINER_MAGIC | WRAPPER_MAGIC | ELF_MAGIC)
    )
}

/// Decompressed size of the code in an image that a device of one compute capability may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unpacked {
    /// Size of the longest PTX text.
    pub text: u64,
    /// Total size of machine code.
    pub binary: u64,
}

/// The decompressed size of an image's code, as its headers declare it; `arch` as for
/// [`callers`](callers()). Code that is larger than declared is refused when it is decompressed. An
/// image that is neither a container nor machine code is text.
///
/// # Errors
/// [`ImageError::Truncated`] when a header does not hold.
pub fn unpacked(image: &[u8], arch: Option<u32>) -> Result<Unpacked, ImageError> {
    let whole = image.len() as u64;
    let container = match u32_at(image, 0) {
        Ok(CONTAINER_MAGIC) => image,
        Ok(WRAPPER_MAGIC) => image.get(WRAPPER_SIZE..).ok_or(ImageError::Truncated)?,
        Ok(ELF_MAGIC) => {
            return Ok(Unpacked {
                text: 0,
                binary: whole,
            });
        }
        _ => {
            return Ok(Unpacked {
                text: whole,
                binary: 0,
            });
        }
    };
    let mut sum = Unpacked::default();
    let entries = entries(container)?;
    for entry in entries
        .iter()
        .filter(|entry| arch.is_none_or(|arch| entry.may_run_on(arch)))
    {
        let stored = entry.payload.len() as u64;
        let bytes = match entry.flags & (FLAG_ZSTD | FLAG_LZ4) {
            0 => stored,
            _ => entry.uncompressed,
        };
        match entry.kind {
            KIND_PTX => sum.text = sum.text.max(bytes),
            _ => sum.binary = sum.binary.saturating_add(bytes),
        }
    }
    Ok(sum)
}

/// The code of an image that a device may run, one form after the other, decompressed. `arch`
/// is the compute capability, times ten, of the device that loads the image; `None` stands for
/// all code. An image that is no container is one form.
///
/// An error ends the list: a form is corrupt, or all together have more than `most` bytes.
fn code(
    image: &[u8],
    arch: Option<u32>,
    most: u64,
) -> Result<impl Iterator<Item = Result<Cow<'_, [u8]>, ImageError>>, ImageError> {
    let container = match u32_at(image, 0) {
        Ok(CONTAINER_MAGIC) => Some(image),
        Ok(WRAPPER_MAGIC) => Some(image.get(WRAPPER_SIZE..).ok_or(ImageError::Truncated)?),
        _ => None,
    };
    let whole = Entry {
        kind: KIND_PTX,
        sm: 0,
        flags: 0,
        uncompressed: 0,
        payload: image,
    };
    let entries = container.map_or_else(|| Ok(vec![whole]), entries)?;
    let mut left = Some(most);
    Ok(entries
        .into_iter()
        .filter(move |entry| arch.is_none_or(|arch| entry.may_run_on(arch)))
        .map_while(move |entry| {
            let room = left.take()?;
            let form = contents(&entry, room);
            Some(form.and_then(|form| {
                let rest = room.checked_sub(form.len() as u64);
                left = Some(rest.ok_or(ImageError::TooLarge)?);
                Ok(form)
            }))
        }))
}

fn names(bytes: &[u8], symbols: &[&str]) -> bool {
    symbols
        .iter()
        .any(|symbol| memchr::memmem::find(bytes, symbol.as_bytes()).is_some())
}

/// Finds the PTX text of an image: PTX itself, a container, or a wrapper followed by its container.
///
/// `arch` is the compute capability times ten; of several PTX entries the newest not above it is taken.
///
/// # Errors
/// [`ImageError::NoBinary`] when the image holds no PTX this device can run; others when it is corrupt.
pub fn ptx_of(image: &[u8], arch: u32) -> Result<String, ImageError> {
    let magic = u32_at(image, 0)?;
    match magic {
        ELF_MAGIC => Err(ImageError::NoBinary),
        WRAPPER_MAGIC => from_container(
            image.get(WRAPPER_SIZE..).ok_or(ImageError::Truncated)?,
            arch,
        ),
        CONTAINER_MAGIC => from_container(image, arch),
        _ => {
            if image.len() as u64 > MAX_PTX {
                return Err(ImageError::TooLarge);
            }
            let text = text(image.to_vec())?;
            if text.contains(".version") {
                Ok(text)
            } else {
                Err(ImageError::NotAnImage)
            }
        }
    }
}

fn from_container(data: &[u8], arch: u32) -> Result<String, ImageError> {
    let all = entries(data)?;
    let best = all
        .iter()
        .filter(|e| e.kind == KIND_PTX && e.sm <= arch)
        .max_by_key(|e| e.sm)
        .ok_or(ImageError::NoBinary)?;
    decompress(best)
}
