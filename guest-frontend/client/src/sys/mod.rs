//! The crate's unsafe code: raw memory of the program, system calls.
#![allow(unsafe_code)]

pub mod memory;
pub mod process;
