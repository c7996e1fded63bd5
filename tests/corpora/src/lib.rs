//! Shared by the tests of all crates: the seeds of the fuzz targets in `tests/fuzz`, which
//! plain tests run as well, and [`skip`].
//!
//! `make.py` writes the seeds: one line a seed, its name and its bytes in hexadecimal.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::Path;

/// Reports that the calling test cannot run. Rust's test programs know no skipped tests,
/// so the line bypasses their capture of output, and `make test` counts it.
pub fn skip(reason: &str) {
    let test = std::thread::current();
    let test = test.name().unwrap_or_default();
    // One write: tests in other threads print as well.
    let line = format!("skipped: {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Calls `run` with each seed of a target and its name; returns how many there are.
///
/// # Panics
/// Where the target has no seeds, or a line is not as above.
pub fn each(target: &str, mut run: impl FnMut(&str, &[u8])) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target)
        .with_extension("hex");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{} cannot be read: {error}", path.display()));
    let mut count = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, digits) = line.split_once(' ').unwrap_or((line, ""));
        let bytes: Option<Vec<u8>> = digits
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        run(
            name,
            &bytes.unwrap_or_else(|| panic!("{target}: {name} is not hexadecimal")),
        );
        count += 1;
    }
    assert!(count > 0, "{target} has no seeds");
    count
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_target_has_seeds() {
        let targets = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/fuzz_targets");
        for entry in std::fs::read_dir(targets).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let target = name.strip_suffix(".rs").unwrap();
            assert!(super::each(target, |_, _| ()) >= 3, "{target} has too few");
        }
    }
}
