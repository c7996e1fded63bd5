//! How the kernel and the loader would take an object's file. `paragpu doctor` asks, because it
//! runs no program.

use object::LittleEndian as Little;
use object::elf::{
    DF_1_PIE, DT_FLAGS_1, DT_NULL, Dyn64, ET_DYN, ET_EXEC, FileHeader64, PT_DYNAMIC, PT_INTERP,
    PT_LOAD, ProgramHeader64,
};

use crate::image::{MAX_DYNAMIC, Raw, value};

/// What starts an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The dynamic loader that it names.
    Dynamic,
    /// The kernel alone: nothing can be preloaded into it (`-static`, `-static-pie`).
    Static,
    /// It is a library, or no program at all.
    Other,
}

/// An object's file, by its program headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// What starts it.
    pub kind: Kind,
    /// Bytes that its file must have.
    pub length: u64,
}

impl Program {
    /// The program of an ELF file; `None` if its program headers are not all there.
    pub fn of_file<R: Raw>(raw: &R) -> Option<Self> {
        let header: FileHeader64<Little> = value(raw, 0)?;
        let size = size_of::<ProgramHeader64<Little>>() as u64;
        let (mut length, mut interpreted, mut is_pie) = (0, false, false);
        for index in 0..u64::from(header.e_phnum.get(Little)) {
            let place = header.e_phoff.get(Little).checked_add(index * size)?;
            let segment: ProgramHeader64<Little> = value(raw, place)?;
            let (offset, size) = (segment.p_offset.get(Little), segment.p_filesz.get(Little));
            match segment.p_type.get(Little) {
                // Overflow is beyond every file's end.
                PT_LOAD if size > 0 => length = length.max(offset.saturating_add(size)),
                PT_INTERP => interpreted = true,
                PT_DYNAMIC => is_pie = says_pie(raw, offset),
                _ => {}
            }
        }
        let starts = match header.e_type.get(Little) {
            ET_EXEC => true,
            ET_DYN => is_pie,
            _ => false,
        };
        let kind = match (interpreted, starts) {
            (true, _) => Kind::Dynamic,
            (false, true) => Kind::Static,
            (false, false) => Kind::Other,
        };
        Some(Self { kind, length })
    }
}

/// Whether the dynamic section at an offset is a program's, not a library's.
fn says_pie<R: Raw>(raw: &R, offset: u64) -> bool {
    let entry = |index: u64| {
        let place = offset.checked_add(index * size_of::<Dyn64<Little>>() as u64)?;
        value::<Dyn64<Little>, R>(raw, place)
    };
    (0..MAX_DYNAMIC)
        .map_while(entry)
        .take_while(|entry| entry.d_tag.get(Little) != DT_NULL)
        .any(|entry| {
            entry.d_tag.get(Little) == DT_FLAGS_1 && entry.d_val.get(Little) & DF_1_PIE.0 != 0
        })
}
