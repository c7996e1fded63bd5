//! The call table and the wire of paragpu.
//!
//! No I/O and no unsafe code live here: bytes in, checked values out.
//! [`table`] declares every call once; [`frame`], [`handshake`] and [`reply`]
//! are what travels around them; [`layout`] is where addresses lie.
#![forbid(unsafe_code)]

pub mod call;
pub mod codec;
pub mod frame;
pub mod handle;
pub mod handshake;
pub mod layout;
pub mod reply;
pub mod status;
pub mod table;
pub mod types;
