//! Writes a stub for every symbol of `symbols.txt` that the sources do not
//! define, so that each name which NVIDIA's library exports exists in ours,
//! and the table of all names for cuGetProcAddress.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// Names after `fn ` and `|` in one source line, if they are the driver's.
fn exported(line: &str) -> Vec<&str> {
    let line = line.trim_start();
    let Some(rest) = line.strip_prefix("fn ").or(line.strip_prefix("early fn ")) else {
        return Vec::new();
    };
    let head = rest.split('(').next().unwrap_or(rest);
    head.split('|')
        .map(str::trim)
        .filter(|name| is_driver(name))
        .collect()
}

fn is_driver(name: &str) -> bool {
    let third = name.chars().nth(2);
    name.starts_with("cu") && third.is_some_and(|letter| letter.is_ascii_uppercase())
}

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let sources = root.join("src/sys");
    println!("cargo:rerun-if-changed=symbols.txt");
    println!("cargo:rerun-if-changed=src/sys");

    let list = read(&root.join("symbols.txt"));
    let rows: Vec<Vec<&str>> = list
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split(' ').collect())
        .collect();
    let wanted: BTreeSet<&str> = rows.iter().filter_map(|row| row.first().copied()).collect();
    let mut served = BTreeSet::new();
    for entry in fs::read_dir(&sources).expect("src/sys is readable") {
        let path = entry.expect("src/sys is readable").path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = read(&path);
            for name in text.lines().flat_map(exported) {
                if !wanted.contains(name) {
                    fail(&format!("{}: {name} is not in symbols.txt", path.display()));
                }
                if !served.insert(name.to_owned()) {
                    fail(&format!("{}: {name} is defined twice", path.display()));
                }
            }
        }
    }
    let stubs: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|name| !served.contains(*name))
        .collect();
    let stubs = format!("stubs! {{ {} }}\n", stubs.join(", "));
    let mut table = String::from("symbols! {\n");
    for row in &rows {
        let [symbol, base, version, whose] = row[..] else {
            fail(&format!(
                "symbols.txt: {row:?} is not symbol, name, version, stream"
            ));
        };
        let own = match whose {
            "own" => true,
            "legacy" => false,
            _ => fail(&format!("symbols.txt: {whose} is neither own nor legacy")),
        };
        let served = served.contains(symbol);
        table += &format!("    {symbol} {base:?} {version} {own} {served};\n");
    }
    table += "}\n";
    fs::write(out.join("stubs.rs"), stubs).expect("OUT_DIR is writable");
    fs::write(out.join("symbols.rs"), table).expect("OUT_DIR is writable");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| fail(&format!("{}: {error}", path.display())))
}

fn fail(why: &str) -> ! {
    eprintln!("{why}");
    process::exit(1)
}
