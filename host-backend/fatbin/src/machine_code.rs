//! The symbols of machine code: an ELF file (System V ABI, Symbol Table).

use object::Endianness;
use object::elf::{FileHeader64, SHN_UNDEF, SHT_SYMTAB, SymbolType};
use object::read::elf::{FileHeader as _, SectionHeader as _, Sym as _};

use super::ImageError;

/// A symbol.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol<'a> {
    pub(super) name: &'a [u8],
    /// STT_FUNC, STT_OBJECT, …
    pub(super) kind: SymbolType,
    pub(super) is_defined: bool,
}

/// What is read of a file.
#[derive(Debug)]
pub(super) struct MachineCode<'a> {
    /// All symbols, by number.
    pub(super) symbols: Vec<Symbol<'a>>,
    /// The contents of the section that was asked for, if there is one.
    pub(super) section: Option<&'a [u8]>,
}

/// Reads the symbols, and the section with a name.
///
/// # Errors
/// [`ImageError::Truncated`] when a header does not hold. [`ImageError::TooLarge`] if the names of
/// symbols or sections have more bytes than the file: they overlap, so that all together may have
/// any number.
pub(super) fn read<'a>(
    file: &'a [u8],
    section: Option<&[u8]>,
) -> Result<MachineCode<'a>, ImageError> {
    let corrupt = |_| ImageError::Truncated;
    let header = FileHeader64::<Endianness>::parse(file).map_err(corrupt)?;
    let endian = header.endian().map_err(corrupt)?;
    let sections = header.sections(endian, file).map_err(corrupt)?;
    let mut left = file.len();
    let mut found = None;
    for entry in sections.iter() {
        // A file without names of sections is a file without those sections.
        let name = sections.section_name(endian, entry).unwrap_or_default();
        left = left.checked_sub(name.len()).ok_or(ImageError::TooLarge)?;
        if found.is_none() && section == Some(name) {
            found = Some(entry.data(endian, file).map_err(corrupt)?);
        }
    }
    let table = sections
        .symbols(endian, file, SHT_SYMTAB)
        .map_err(corrupt)?;
    let mut left = file.len();
    let symbols = table.iter().map(|symbol| {
        let name = symbol.name(endian, table.strings()).map_err(corrupt)?;
        left = left.checked_sub(name.len()).ok_or(ImageError::TooLarge)?;
        Ok(Symbol {
            name,
            kind: symbol.st_type(),
            is_defined: symbol.st_shndx(endian) != SHN_UNDEF,
        })
    });
    Ok(MachineCode {
        symbols: symbols.collect::<Result<_, ImageError>>()?,
        section: found,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with `count` symbols whose names begin one byte apart in one string.
    fn overlapping(count: u32) -> Vec<u8> {
        const HEADER: u64 = 64;
        let strings = [vec![0], vec![b'a'; count as usize], vec![0]].concat();
        let symbols_at = HEADER + strings.len() as u64;
        let symbols: Vec<u8> = (0..count)
            .flat_map(|at| [(1 + at).to_le_bytes().to_vec(), vec![0x12], vec![0; 19]].concat())
            .collect();
        let sections_at = symbols_at + symbols.len() as u64;
        let section = |kind: u32, at: u64, size: usize, link: u32, entry: u64| {
            let (kind, link) = (kind.to_le_bytes(), link.to_le_bytes());
            let (at, size) = (at.to_le_bytes(), (size as u64).to_le_bytes());
            let zeros = [0; 16];
            [
                &zeros[..4],
                &kind,
                &zeros,
                &at,
                &size,
                &link,
                &zeros[..4],
                &zeros[..8],
                &entry.to_le_bytes(),
            ]
            .concat()
        };
        let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
        file.resize(HEADER as usize, 0);
        file[40..48].copy_from_slice(&sections_at.to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&3_u16.to_le_bytes());
        file[62..64].copy_from_slice(&1_u16.to_le_bytes());
        file.extend(&strings);
        file.extend(&symbols);
        file.extend(section(0, 0, 0, 0, 0));
        file.extend(section(3, HEADER, strings.len(), 0, 0));
        file.extend(section(SHT_SYMTAB.0, symbols_at, symbols.len(), 1, 24));
        file
    }

    /// A file with `count` sections whose names begin one byte apart in one string of as many
    /// bytes.
    fn sections(count: u16) -> Vec<u8> {
        let mut file = overlapping(count.into());
        let at = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
        // The names are those of symbols.
        let strings = file[at + 64..at + 128].to_vec();
        file.truncate(at + 64);
        for name in 1..count {
            file.extend(u32::from(name).to_le_bytes());
            file.extend(&strings[4..]);
        }
        file[60..62].copy_from_slice(&count.to_le_bytes());
        file
    }

    #[test]
    fn overlapping_names_of_sections_are_not_multiplied() {
        assert!(
            read(&sections(8), Some(b"aaaaaaaa"))
                .unwrap()
                .section
                .is_some()
        );
        assert_eq!(
            read(&sections(1000), Some(b"b")).unwrap_err(),
            ImageError::TooLarge
        );
    }

    #[test]
    fn overlapping_names_are_not_multiplied() {
        let few = overlapping(8);
        let names = read(&few, None).unwrap().symbols;
        assert_eq!(names.len(), 8);
        assert_eq!(names[0].name, [b'a'; 8]);
        let many = overlapping(1000);
        assert_eq!(read(&many, None).unwrap_err(), ImageError::TooLarge);
    }
}
