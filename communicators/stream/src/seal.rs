//! Encrypts what is written, if TLS protects the connection.

use std::io::IoSlice;

use paragpu_communicator::Error;
use paragpu_communicator_secure::{Error as SecureError, Sealer};

/// Maximum number of buffers in one write.
pub(crate) const PARTS: usize = 16;
/// Bytes that are protected before they are written: the peer opens records
/// while the next are made.
const PIECE: usize = 64 << 10;

/// Records on their way.
#[derive(Debug)]
pub(crate) struct Sealing {
    sealer: Sealer,
    records: Vec<u8>,
    /// Of `records`.
    sent: usize,
    /// Bytes that are in `records`.
    holds: usize,
}

impl Sealing {
    pub(crate) fn new(sealer: Sealer) -> Self {
        Self {
            sealer,
            records: Vec::new(),
            sent: 0,
            holds: 0,
        }
    }

    /// Sealed bytes for the socket, and how many of them it took.
    pub(crate) fn records(&mut self) -> (&[u8], &mut usize) {
        (&self.records, &mut self.sent)
    }

    /// All of it was written: how many bytes it held.
    pub(crate) fn sent(&mut self) -> usize {
        self.records.clear();
        self.sent = 0;
        std::mem::take(&mut self.holds)
    }

    /// Protects a piece of `slices`, from the byte `from` on; false at its end.
    pub(crate) fn seal(&mut self, slices: &[IoSlice<'_>], mut from: usize) -> Result<bool, Error> {
        let mut chosen: [&[u8]; PARTS] = [&[]; PARTS];
        for (place, slice) in chosen.iter_mut().zip(slices) {
            let bytes: &[u8] = slice;
            let rest = bytes.get(from..).unwrap_or(&[]);
            from -= bytes.len() - rest.len();
            let rest = rest.get(..PIECE - self.holds).unwrap_or(rest);
            self.holds += rest.len();
            *place = rest;
        }
        self.sealer
            .seal(&chosen, &mut self.records)
            .map_err(broken)?;
        Ok(self.holds > 0)
    }

    pub(crate) fn sealer(&self) -> &Sealer {
        &self.sealer
    }
}

/// Why TLS ended a connection. What was damaged may come whole over another
/// connection, so it is a loss like any other.
pub(crate) fn broken(error: SecureError) -> Error {
    match error {
        SecureError::Alert(_) | SecureError::Ended => Error::Closed,
        SecureError::Io(errno) => Error::io("cannot read from the socket", errno),
        error => Error::io(
            "TLS ended the connection",
            std::io::Error::new(std::io::ErrorKind::ConnectionAborted, error),
        ),
    }
}
