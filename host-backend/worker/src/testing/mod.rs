//! A small device for tests and fuzzing: memory and copies are real, kernels
//! are a few built-in functions, and the test decides when streams continue.

pub mod device;
#[cfg(test)]
pub(crate) mod exchange;
#[cfg(test)]
pub mod guest;
mod memory_unsafe;

use std::io;
use std::sync::Arc;

use paragpu_control::account::{Account, Book, Share};

/// The share of a session whose VM may have this many bytes of host memory.
///
/// # Errors
/// If the system has no memory for the account.
pub fn share_of_host_memory(limit: u64) -> io::Result<Share> {
    let account = Account::new()?;
    account.clear(0);
    account.limit_to(Book::Host, limit);
    Ok(Share::new(Arc::new(account), 0))
}

#[cfg(test)]
pub(crate) use memory_unsafe::{read, write};
