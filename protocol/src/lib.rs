//! The call table and the wire of paragpu.
//!
//! No I/O and no unsafe code live here: bytes in, checked values out.
#![forbid(unsafe_code)]

pub mod frame;
