//! The non-blocking TLS handshake, and the first bytes after it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::Connection;
use rustls::pki_types::CertificateDer;

use crate::Error;
use crate::record::{CIPHER, HEADER, Secured};
use crate::secrets::Key;

/// Maximum number of bytes that a peer may send before [`Handshake::read`] returns the
/// first byte of data: mainly its certificates.
pub const MAX_READ: usize = 64 << 10;

/// A connection during its handshake. It reads records one by one and nothing beyond, so
/// that `Secured` finds the rest in the socket.
#[derive(Debug)]
pub struct Handshake {
    connection: Connection,
    /// The part of the next record that has arrived.
    record: Vec<u8>,
    /// Bytes read before the first byte of data was returned.
    read: usize,
}

impl Handshake {
    /// Begins one side of a handshake: [`Credentials::client`](crate::Credentials::client)
    /// or [`Credentials::server`](crate::Credentials::server).
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            record: Vec::new(),
            read: 0,
        }
    }

    /// Whether the handshake is complete.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// Whether the peer has sent nothing yet.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.read == 0
    }

    /// The certificate that the peer showed, once the handshake is complete.
    #[must_use]
    pub fn peer(&self) -> Option<&CertificateDer<'static>> {
        self.connection.peer_certificates()?.first()
    }

    /// Sends data after the handshake. On [`Errno::AGAIN`] the socket is full; call
    /// [`flush`](Self::flush) later.
    pub fn write(&mut self, socket: impl AsFd, bytes: &[u8]) -> Result<(), Error> {
        self.connection
            .writer()
            .write_all(bytes)
            .map_err(|_| Error::Io(Errno::NOBUFS))?;
        self.flush(socket)
    }

    /// Sends pending bytes.
    ///
    /// # Errors
    /// [`Error`]; [`Errno::AGAIN`] if the socket is full.
    pub fn flush(&mut self, socket: impl AsFd) -> Result<(), Error> {
        let mut to = Out(socket.as_fd());
        while self.connection.wants_write() {
            self.connection
                .write_tls(&mut to)
                .map_err(|error| Error::Io(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        }
        Ok(())
    }

    /// Continues the handshake as far as possible without waiting, and appends up to `most`
    /// bytes of data that the peer sent after it.
    ///
    /// # Errors
    /// [`Error`]; [`Errno::AGAIN`] if nothing has arrived; [`Error::Ended`] at the end of
    /// the connection.
    pub fn read(
        &mut self,
        socket: impl AsFd,
        most: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<usize, Error> {
        let socket = socket.as_fd();
        loop {
            let start = bytes.len();
            bytes.resize(start + most, 0);
            let room = bytes.get_mut(start..).unwrap_or_default();
            let read = self.connection.reader().read(room);
            bytes.truncate(start + read.as_ref().map_or(0, |count| *count));
            match read {
                // The peer ended the connection properly.
                Ok(0) if most > 0 => return Err(Error::Ended),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(Error::Ended),
            }
            self.receive(socket)?;
            let came = self.connection.process_new_packets();
            // Sends an answer, or the alert if the handshake failed.
            let sent = self.flush(socket);
            came?;
            sent?;
        }
    }

    /// Receives the rest of one record, and passes it to rustls.
    fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        loop {
            let wanted = match self.record.first_chunk::<HEADER>() {
                None => HEADER,
                Some([kind, major, _, high, low]) => {
                    // Record types from change_cipher_spec to application_data.
                    if !(20..=23).contains(kind) || *major != 3 {
                        return Err(Error::Plain);
                    }
                    let length = usize::from(u16::from_be_bytes([*high, *low]));
                    if length > CIPHER || self.read > MAX_READ {
                        return Err(Error::Damaged);
                    }
                    HEADER + length
                }
            };
            let start = self.record.len();
            if start == wanted && wanted >= HEADER {
                break;
            }
            self.record.resize(wanted, 0);
            let room = self.record.get_mut(start..).unwrap_or_default();
            let received = recv(socket, room, RecvFlags::DONTWAIT).map(|(_, count)| count);
            let count = received.unwrap_or(0);
            self.record.truncate(start + count);
            self.read += count;
            match received {
                Ok(0) => return Err(Error::Ended),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let mut record = self.record.as_slice();
        while !record.is_empty() {
            match self.connection.read_tls(&mut record) {
                Ok(0) | Err(_) => return Err(Error::Damaged),
                Ok(_) => {}
            }
        }
        self.record.clear();
        Ok(())
    }

    /// Returns the connection, once the handshake is complete and everything is sent. Data
    /// that the peer sent and that was not read yet comes first.
    pub fn finish(mut self) -> Result<Secured, Error> {
        if !self.record.is_empty() {
            return Err(Error::State);
        }
        let mut plain = Vec::new();
        // Stops when nothing is left.
        let _ = self.connection.reader().read_to_end(&mut plain);
        let (seal, open) = Key::pair(self.connection.dangerous_extract_secrets()?)?;
        Secured::new(seal, open, &plain)
    }
}

/// A socket as rustls writes to it.
struct Out<'a>(BorrowedFd<'a>);

impl std::io::Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(send(self.0, bytes, flags)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
