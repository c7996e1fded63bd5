//! Gathers the chapters of the description into one table of texts.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let mut table = String::new();
    for folder in ["driver", "runtime", "nvml", "calls"] {
        println!("cargo:rerun-if-changed={folder}");
        let name = folder.to_uppercase();
        let _ = writeln!(table, "const {name}: &[Text] = &[");
        for path in chapters(&root.join(folder))? {
            let chapter = path.file_stem().unwrap_or_default().to_string_lossy();
            let _ = writeln!(table, "    ({chapter:?}, include_str!({path:?})),");
        }
        table.push_str("];\n");
    }
    fs::write(out.join("chapters.rs"), table)
}

/// The files of one part, by name.
fn chapters(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if !folder.is_dir() {
        return Ok(files);
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
