//! Names of the variables in an image.

use std::borrow::Cow;
use std::collections::BTreeSet;

use object::Endianness;
use object::elf::{FileHeader64, SHN_UNDEF, SHT_SYMTAB, STT_OBJECT};
use object::read::elf::{FileHeader as _, Sym as _};

use super::{
    CONTAINER_MAGIC, ELF_MAGIC, ImageError, WRAPPER_MAGIC, WRAPPER_SIZE, contents, entries, u32_at,
};

/// Names of all variables that code of the image defines or refers to, whichever of its forms the device runs:
/// `__device__`, `__constant__` and string literals alike, mangled as in the image.
///
/// What is not a variable of the form that the device runs may be among them.
///
/// # Errors
/// [`ImageError`] where a form cannot be read, or where all together have more than `most` bytes: a variable may
/// be missed then.
pub fn variables(image: &[u8], most: u64) -> Result<BTreeSet<String>, ImageError> {
    let mut names = BTreeSet::new();
    let container = match u32_at(image, 0)? {
        CONTAINER_MAGIC => image,
        WRAPPER_MAGIC => image.get(WRAPPER_SIZE..).ok_or(ImageError::Truncated)?,
        _ if image.len() as u64 > most => return Err(ImageError::TooLarge),
        _ => {
            of_form(image, &mut names)?;
            return Ok(names);
        }
    };
    let mut left = most;
    for entry in entries(container)? {
        let form: Cow<'_, [u8]> = contents(&entry, left)?;
        left = left
            .checked_sub(form.len() as u64)
            .ok_or(ImageError::TooLarge)?;
        of_form(&form, &mut names)?;
    }
    Ok(names)
}

fn of_form(form: &[u8], names: &mut BTreeSet<String>) -> Result<(), ImageError> {
    if u32_at(form, 0) == Ok(ELF_MAGIC) {
        of_machine_code(form, names)
    } else {
        of_text(form, names);
        Ok(())
    }
}

/// The data objects of an ELF file (System V ABI, Symbol Table).
fn of_machine_code(file: &[u8], names: &mut BTreeSet<String>) -> Result<(), ImageError> {
    let corrupt = |_| ImageError::Truncated;
    let header = FileHeader64::<Endianness>::parse(file).map_err(corrupt)?;
    let endian = header.endian().map_err(corrupt)?;
    let sections = header.sections(endian, file).map_err(corrupt)?;
    let symbols = sections
        .symbols(endian, file, SHT_SYMTAB)
        .map_err(corrupt)?;
    for symbol in symbols.iter() {
        if symbol.st_type() != STT_OBJECT || symbol.st_shndx(endian) == SHN_UNDEF {
            continue;
        }
        let name = symbol.name(endian, symbols.strings()).map_err(corrupt)?;
        names.insert(String::from_utf8_lossy(name).into_owned());
    }
    Ok(())
}

/// The declarations of PTX text outside functions, in the state spaces `.global` and `.const` (PTX ISA, Kernel
/// and Function Directives; Variables).
fn of_text(text: &[u8], names: &mut BTreeSet<String>) {
    let text = String::from_utf8_lossy(text);
    let mut depth = 0_usize;
    let mut statement = String::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or("");
        for letter in line.chars().chain(['\n']) {
            match letter {
                // An initializer's braces are part of its declaration.
                '{' if !statement.contains('=') => depth += 1,
                '}' if depth > 0 => {
                    depth -= 1;
                    statement.clear();
                }
                ';' if depth == 0 => {
                    names.extend(declared(&statement));
                    statement.clear();
                }
                // Only a declaration's begin matters.
                _ if depth == 0 && statement.len() < MAX_DECLARATION => statement.push(letter),
                _ => {}
            }
        }
    }
}

/// Bytes of a declaration's head: its name is at most 1024 characters long.
const MAX_DECLARATION: usize = 4096;

/// The name that `.global .align 4 .b8 name[16] = {...}` declares.
fn declared(statement: &str) -> Option<String> {
    let head = statement.split(['=', '[']).next()?;
    let mut words = head.split_whitespace();
    let in_memory = words.any(|word| matches!(word, ".global" | ".const"));
    let name = head.split_whitespace().last()?;
    (in_memory && !name.starts_with('.')).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_of_text() {
        let text = b".version 8.0\n.target sm_75\n.address_size 64\n\
            .visible .global .align 4 .u32 counter;\n\
            .global .align 1 .b8 $str[4] = {97, 98, 99, 0}; // {\n\
            .const .align 8 .f64 table[2] = {0d3FF0000000000000,\n 0d4000000000000000};\n\
            .visible .entry kernel(.param .u64 p)\n{\n .reg .b32 %r<3>;\n\
            .shared .align 4 .b8 inside[64];\n { .global .u32 deep; }\n ret;\n}\n\
            .extern .global .u32 elsewhere;\n.weak .global .v4 .f32 vector;\n";
        let found = variables(text, 1 << 20).unwrap();
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        assert_eq!(found, ["$str", "counter", "elsewhere", "table", "vector"]);
    }

    #[test]
    fn what_is_too_large_is_no_guess() {
        assert!(variables(b".global .u32 a;", 4).is_err());
        assert!(variables(&[], 4).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>, magic in 0_usize..3) {
            let magic = [ELF_MAGIC, CONTAINER_MAGIC, WRAPPER_MAGIC][magic];
            let bytes = [&magic.to_le_bytes(), bytes.as_slice()].concat();
            let _ = variables(&bytes, 1 << 16);
        }
    }
}
