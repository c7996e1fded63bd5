//! The example files: every key with its meaning and default, commented out.

use std::fmt::{Result, Write as _};

use crate::{Configuration, Key};

/// An example file of configuration `T`, with every key explained and commented out
/// at its default.
#[must_use]
pub fn example<T: Configuration>() -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write::<T>(&mut out);
    out
}

fn write<T: Configuration>(out: &mut String) -> Result {
    let (file, fragments, prefix) = (T::FILE, T::FRAGMENTS, T::PREFIX);
    writeln!(
        out,
        "# {file} and the files in {fragments}, in order of their names,"
    )?;
    writeln!(
        out,
        "# then variables of the environment ({prefix}SECTION_KEY): later wins."
    )?;
    writeln!(out, "# Each key stands here at its default.")?;
    let mut section = String::new();
    for key in Key::all::<T>() {
        // Comment out the headers of `[vm.NAME]` too: a header alone would create the section.
        let comment = if key.is_named() { "# " } else { "" };
        if key.section() != section {
            section = key.section();
            writeln!(out)?;
            if key.is_named() {
                prose(out, "", key.about)?;
                writeln!(out, "#")?;
            }
            writeln!(out, "{comment}[{section}]")?;
        } else if !key.is_named() {
            writeln!(out)?;
        }
        prose(out, comment, key.doc)?;
        let comment = if key.is_named() { "# " } else { "#" };
        if let Ok(default) = toml::Value::try_from(key.default) {
            writeln!(out, "{comment}{} = {default}", key.own_name())?;
        }
    }
    Ok(())
}

fn prose(out: &mut String, before: &str, lines: &[&str]) -> Result {
    lines
        .iter()
        .try_for_each(|line| writeln!(out, "{before}# {}", line.trim()))
}
