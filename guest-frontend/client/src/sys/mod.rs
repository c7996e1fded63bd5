//! The crate's unsafe code: raw memory of the program, system calls.
#![allow(unsafe_code)]

pub mod bare_call;
pub(crate) mod map_query;
pub mod memory;
pub(crate) mod moved_pages;
pub mod process;
pub mod reservation;
pub(crate) mod shared_file;
pub mod shared_page;
pub(crate) mod standard_streams;
#[cfg(test)]
pub(crate) mod test_window;
pub(crate) mod uncancelled;
pub(crate) mod userfault;
pub(crate) mod zeros;
