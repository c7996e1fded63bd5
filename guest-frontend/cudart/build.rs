//! Writes a stub for every symbol of `symbols.txt` that the sources do not
//! define, so that each name which NVIDIA's library exports exists in ours.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// Names after `fn ` and `|` in one source line, if they are the runtime's.
fn exported(line: &str) -> Vec<&str> {
    let line = line.trim_start();
    let line = line.split("extern \"C\" ").last().unwrap_or(line);
    let Some(rest) = line.strip_prefix("fn ") else {
        return Vec::new();
    };
    let head = rest.split('(').next().unwrap_or(rest);
    head.split('|')
        .map(str::trim)
        .filter(|name| name.starts_with("cuda") || name.starts_with("__cuda"))
        .collect()
}

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let sources = root.join("src/sys");
    println!("cargo:rerun-if-changed=symbols.txt");
    println!("cargo:rerun-if-changed=src/sys");

    let list = read(&root.join("symbols.txt"));
    let wanted: BTreeSet<&str> = list.lines().filter(|line| !line.is_empty()).collect();
    let mut served = BTreeSet::new();
    for entry in fs::read_dir(&sources).expect("src/sys is readable") {
        let path = entry.expect("src/sys is readable").path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = read(&path);
            for name in text.lines().flat_map(exported) {
                if !wanted.contains(name) {
                    eprintln!("{}: {name} is not in symbols.txt", path.display());
                    process::exit(1);
                }
                if !served.insert(name.to_owned()) {
                    eprintln!("{}: {name} is defined twice", path.display());
                    process::exit(1);
                }
            }
        }
    }
    let stubs: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|name| !served.contains(*name))
        .collect();
    let text = format!("stubs! {{ {} }}\n", stubs.join(", "));
    fs::write(out.join("stubs.rs"), text).expect("OUT_DIR is writable");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| {
        eprintln!("{}: {error}", path.display());
        process::exit(1);
    })
}
