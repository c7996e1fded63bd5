//! The forms of the code in an object, without reading the code: libraries have
//! gigabytes of it.

use std::collections::BTreeSet;

use crate::{
    CONTAINER_HEADER, CONTAINER_MAGIC, ENTRY_HEADER, EntryHeader, ImageError, KIND_ELF, KIND_PTX,
    u16_at, u32_at, u64_at,
};

/// A form of code, for an architecture times ten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// PTX.
    Text(u32),
    /// Machine code.
    Machine(u32),
    /// Code that is only linked.
    Intermediate(u32),
}

/// The code of one object or several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forms {
    /// All forms.
    pub forms: BTreeSet<Form>,
    /// Fat binaries.
    pub containers: usize,
    /// Those of them that have PTX.
    pub with_text: usize,
}

impl Forms {
    /// Adds another object's.
    pub fn add(&mut self, other: Self) {
        self.forms.extend(other.forms);
        self.containers += other.containers;
        self.with_text += other.with_text;
    }
}

/// Lists the forms of the containers in `length` bytes, as a section `.nv_fatbin` has
/// them. `read` fills a buffer from an offset on, and says whether it could.
///
/// # Errors
/// [`ImageError::Truncated`] or [`ImageError::NotAnImage`] when a header does not hold.
pub fn forms(length: u64, read: impl Fn(u64, &mut [u8]) -> bool) -> Result<Forms, ImageError> {
    let mut found = Forms::default();
    let mut at = 0;
    let mut header = [0; CONTAINER_HEADER];
    while length - at >= header.len() as u64 {
        if !read(at, &mut header) {
            return Err(ImageError::Truncated);
        }
        match u32_at(&header, 0)? {
            CONTAINER_MAGIC => {}
            // Containers are aligned.
            0 => {
                at += 8;
                continue;
            }
            _ => return Err(ImageError::NotAnImage),
        }
        let begin = u64::from(u16_at(&header, 6)?);
        if begin < header.len() as u64 {
            return Err(ImageError::Truncated);
        }
        let entries = at.checked_add(begin).ok_or(ImageError::Truncated)?;
        let end = entries
            .checked_add(u64_at(&header, 8)?)
            .filter(|&end| end <= length)
            .ok_or(ImageError::Truncated)?;
        let has_text = container(entries, end, &read, &mut found.forms)?;
        found.containers += 1;
        found.with_text += usize::from(has_text);
        at = end;
    }
    Ok(found)
}

/// The entries of one container; whether one is PTX.
fn container(
    mut at: u64,
    end: u64,
    read: &impl Fn(u64, &mut [u8]) -> bool,
    found: &mut BTreeSet<Form>,
) -> Result<bool, ImageError> {
    let mut has_text = false;
    let mut header = [0; ENTRY_HEADER];
    while end - at >= header.len() as u64 {
        if !read(at, &mut header) {
            return Err(ImageError::Truncated);
        }
        let entry = EntryHeader::read(&header)?;
        has_text |= entry.kind == KIND_PTX;
        found.insert(match entry.kind {
            KIND_PTX => Form::Text(entry.sm),
            KIND_ELF => Form::Machine(entry.sm),
            _ => Form::Intermediate(entry.sm),
        });
        at = at
            .checked_add(entry.header)
            .and_then(|at| at.checked_add(entry.padded))
            .filter(|&at| at <= end)
            .ok_or(ImageError::Truncated)?;
    }
    Ok(has_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u16, sm: u32, payload: u64) -> Vec<u8> {
        let mut bytes = vec![0; ENTRY_HEADER];
        bytes[0..2].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&(ENTRY_HEADER as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&payload.to_le_bytes());
        bytes[28..32].copy_from_slice(&sm.to_le_bytes());
        bytes.extend(vec![0xee; payload as usize]);
        bytes
    }

    fn in_container(entries: &[u8]) -> Vec<u8> {
        let mut bytes = CONTAINER_MAGIC.to_le_bytes().to_vec();
        bytes.extend([1, 0, 16, 0]);
        bytes.extend((entries.len() as u64).to_le_bytes());
        bytes.extend(entries);
        bytes
    }

    fn of(bytes: &[u8]) -> Result<Forms, ImageError> {
        let read = |at: u64, into: &mut [u8]| {
            let from = bytes
                .get(at as usize..)
                .and_then(|rest| rest.get(..into.len()));
            from.is_some_and(|from| {
                into.copy_from_slice(from);
                true
            })
        };
        forms(bytes.len() as u64, read)
    }

    #[test]
    fn every_container_of_a_section_is_read() {
        let mut bytes = in_container(&[entry(2, 75, 24), entry(1, 80, 8)].concat());
        bytes.extend([0; 8]);
        bytes.extend(in_container(&[entry(2, 90, 0), entry(8, 90, 16)].concat()));
        let expected = [
            Form::Text(80),
            Form::Machine(75),
            Form::Machine(90),
            Form::Intermediate(90),
        ];
        let expected = Forms {
            forms: expected.into(),
            containers: 2,
            with_text: 1,
        };
        assert_eq!(of(&bytes), Ok(expected));
    }

    #[test]
    fn false_sizes_are_errors() {
        let good = in_container(&entry(1, 80, 8));
        for cut in [17, 40, good.len() - 1] {
            assert_eq!(of(&good[..cut]), Err(ImageError::Truncated), "{cut}");
        }
        let mut huge = good.clone();
        huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(of(&huge), Err(ImageError::Truncated));
        let mut beyond = good.clone();
        beyond[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(of(&beyond), Err(ImageError::Truncated));
        assert_eq!(of(b"something else, longer"), Err(ImageError::NotAnImage));
        assert_eq!(of(&[]), Ok(Forms::default()));
    }
}
