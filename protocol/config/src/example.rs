//! The example files: every key with its meaning and default, commented out.

use std::fmt::Write as _;

use crate::{Configuration, schema};

/// A file of configuration `T` in which every key is explained and commented
/// out at its default.
#[must_use]
pub fn example<T: Configuration>() -> String {
    let mut out = format!(
        "# {} and the files in {}, in order of their names,\n\
         # then variables of the environment ({}SECTION_KEY): later wins.\n\
         # Each key stands here at its default.\n",
        T::FILE,
        T::FRAGMENTS,
        T::PREFIX
    );
    let defaults = schema::table(&T::default());
    let mut section = "";
    for key in T::keys() {
        if key.section() != section {
            section = key.section();
            // Writing to a String cannot fail.
            let _ = write!(out, "\n[{section}]\n");
        } else {
            out.push('\n');
        }
        for line in key.doc.trim().lines() {
            let _ = writeln!(out, "# {}", line.trim());
        }
        let name = key.name.rsplit('.').next().unwrap_or_default();
        if let Some(default) = schema::find(&defaults, key.name) {
            let _ = writeln!(out, "#{name} = {default}");
        }
    }
    for tables in T::tables() {
        // A table that is there is one more, so the header is part of the prose.
        out.push('\n');
        for line in tables.doc.trim().lines() {
            let _ = writeln!(out, "# {}", line.trim());
        }
        let _ = writeln!(out, "#\n# [{}.NAME]", tables.section);
        let defaults = (tables.defaults)();
        for (name, doc) in tables.keys {
            for line in doc.trim().lines() {
                let _ = writeln!(out, "# # {}", line.trim());
            }
            if let Some(default) = defaults.get(*name) {
                let _ = writeln!(out, "# {name} = {default}");
            }
        }
    }
    out
}
