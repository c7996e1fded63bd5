//! A sender without a connection.

use crate::{Error, Sender};

/// The [`Sender`] of a session that has no connection yet. All calls return
/// [`Error::Closed`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Nowhere;

impl Sender for Nowhere {
    fn try_send(&self, _: u16, _: u16, _: Option<u64>, _: &[&[u8]]) -> Result<u64, Error> {
        Err(Error::Closed)
    }

    fn wait_for_room(&self, _: usize) -> Result<(), Error> {
        Err(Error::Closed)
    }

    fn flush(&self) -> Result<(), Error> {
        Err(Error::Closed)
    }

    fn close(&self) {}
}
