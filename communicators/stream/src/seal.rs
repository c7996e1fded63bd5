//! Encrypts outgoing bytes, if TLS protects the connection.

use std::io::IoSlice;

use paragpu_communicator::Error;
use paragpu_communicator_secure::{Error as SecureError, Sealer};

/// Maximum number of buffers in one write.
pub(crate) const PARTS: usize = 16;
/// Bytes that are encrypted before they are written. The peer decrypts them while the next
/// are encrypted.
const PIECE: usize = 64 << 10;

/// Records that are being sent.
#[derive(Debug)]
pub(crate) struct Sealing {
    sealer: Sealer,
    records: Vec<u8>,
    /// Number of bytes of `records` that were sent.
    sent: usize,
    /// Number of bytes of plaintext in `records`.
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

    /// The records, and the number of their bytes that the socket has accepted.
    pub(crate) fn records(&mut self) -> (&[u8], &mut usize) {
        (&self.records, &mut self.sent)
    }

    /// Clears the records, which were sent, and returns the number of bytes of plaintext in
    /// them.
    pub(crate) fn sent(&mut self) -> usize {
        self.records.clear();
        self.sent = 0;
        std::mem::take(&mut self.holds)
    }

    /// Encrypts a piece of `slices` from the byte `from`. Returns false at the end.
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

/// Converts an error of TLS. Damaged data may arrive intact over another connection, so it
/// counts as a loss of the connection.
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
