//! Names of the variables in an image.

use std::collections::BTreeSet;

use object::elf::STT_OBJECT;

use super::{ELF_MAGIC, ImageError, code, machine_code, names, u32_at};

/// What a search of an image's code found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// Names of all variables that the code defines or refers to: `__device__`, `__constant__` and string literals
    /// alike, mangled as in the image. What is not a variable of the form that the device runs may be among them.
    pub variables: BTreeSet<String>,
    /// Whether the code may refer to one of the symbols: it names those that it leaves to the driver.
    pub symbols: bool,
}

/// Searches an image for its variables and for `symbols`. `arch` is as for [`callers`](crate::callers()): a library
/// may have a gigabyte of code for eight architectures, and each is decompressed once.
///
/// # Errors
/// [`ImageError`] where a form cannot be read, where all together have more than `most` bytes, or where the device
/// can run none: a variable may be missed then.
pub fn search(
    image: &[u8],
    symbols: &[&str],
    arch: Option<u32>,
    most: u64,
) -> Result<Found, ImageError> {
    let mut found = Found::default();
    u32_at(image, 0)?;
    let mut forms = code(image, arch, most)?.peekable();
    if forms.peek().is_none() {
        return Err(ImageError::NoBinary);
    }
    for form in forms {
        let form = form?;
        found.symbols = found.symbols || names(&form, symbols);
        of_form(&form, &mut found.variables)?;
    }
    Ok(found)
}

fn of_form(form: &[u8], names: &mut BTreeSet<String>) -> Result<(), ImageError> {
    if u32_at(form, 0) == Ok(ELF_MAGIC) {
        of_machine_code(form, names)
    } else {
        of_text(form, names);
        Ok(())
    }
}

/// The data objects.
fn of_machine_code(file: &[u8], names: &mut BTreeSet<String>) -> Result<(), ImageError> {
    let symbols = machine_code::read(file, None)?.symbols;
    let objects = symbols
        .iter()
        .filter(|symbol| symbol.kind == STT_OBJECT && symbol.is_defined);
    names.extend(objects.map(|symbol| String::from_utf8_lossy(symbol.name).into_owned()));
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
    use crate::{CONTAINER_MAGIC, WRAPPER_MAGIC};

    #[test]
    fn declarations_of_text() {
        let text = b".version 8.0\n.target sm_75\n.address_size 64\n\
            .visible .global .align 4 .u32 counter;\n\
            .global .align 1 .b8 $str[4] = {97, 98, 99, 0}; // {\n\
            .const .align 8 .f64 table[2] = {0d3FF0000000000000,\n 0d4000000000000000};\n\
            .visible .entry kernel(.param .u64 p)\n{\n .reg .b32 %r<3>;\n\
            .shared .align 4 .b8 inside[64];\n { .global .u32 deep; }\n ret;\n}\n\
            .extern .global .u32 elsewhere;\n.weak .global .v4 .f32 vector;\n";
        let found = search(text, &["inside"], None, 1 << 20).unwrap();
        assert!(found.symbols);
        let found: Vec<&str> = found.variables.iter().map(String::as_str).collect();
        assert_eq!(found, ["$str", "counter", "elsewhere", "table", "vector"]);
    }

    #[test]
    fn what_is_too_large_is_no_guess() {
        assert!(search(b".global .u32 a;", &[], None, 4).is_err());
        assert!(search(&[], &[], None, 4).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>, magic in 0_usize..3) {
            let magic = [ELF_MAGIC, CONTAINER_MAGIC, WRAPPER_MAGIC][magic];
            let bytes = [&magic.to_le_bytes(), bytes.as_slice()].concat();
            let _ = search(&bytes, &["malloc"], Some(90), 1 << 16);
        }
    }
}
