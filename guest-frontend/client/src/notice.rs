//! What the libraries tell the user of a program.

use std::fmt::Arguments;
use std::io::Write as _;

/// Prints a line on standard error. Unlike `eprintln!` it does not panic if that fails, on a full
/// disk for example: no CUDA call may fail because of it.
pub fn notice(text: Arguments<'_>) {
    let line = format!("paragpu: {text}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
