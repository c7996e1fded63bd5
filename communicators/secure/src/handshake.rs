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

/// Maximum number of bytes that a peer may have sent before [`Handshake::read`] gives the
/// first: its certificates, with what leads from them to an authority.
pub const READ_MOST: usize = 64 << 10;

/// A connection whose two sides get to know each other. It reads records one
/// by one, and not a byte further.
#[derive(Debug)]
pub struct Handshake {
    connection: Connection,
    /// The available part of the next record.
    record: Vec<u8>,
    /// Bytes read before the first one was given.
    read: usize,
}

impl Handshake {
    /// One side of it: [`Credentials::client`](crate::Credentials::client) or
    /// [`Credentials::server`](crate::Credentials::server).
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

    /// Sends these bytes, behind the handshake; [`Errno::AGAIN`] where the
    /// socket takes no more: [`flush`](Self::flush) then.
    ///
    /// # Errors
    /// [`Error`].
    pub fn write(&mut self, socket: impl AsFd, bytes: &[u8]) -> Result<(), Error> {
        self.connection
            .writer()
            .write_all(bytes)
            .map_err(|_| Error::Io(Errno::NOBUFS))?;
        self.flush(socket)
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// [`Error`]; [`Errno::AGAIN`] where the socket takes no more.
    pub fn flush(&mut self, socket: impl AsFd) -> Result<(), Error> {
        let mut to = Out(socket.as_fd());
        while self.connection.wants_write() {
            self.connection
                .write_tls(&mut to)
                .map_err(|error| Error::Io(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        }
        Ok(())
    }

    /// Appends up to `most` bytes that the peer sent behind the handshake, and
    /// takes the handshake as far as it goes.
    ///
    /// # Errors
    /// [`Error`]; [`Errno::AGAIN`] where nothing is there; [`Error::Ended`] at
    /// the connection's end.
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
                // An end in order.
                Ok(0) if most > 0 => return Err(Error::Ended),
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(Error::Ended),
            }
            self.receive(socket)?;
            let came = self.connection.process_new_packets();
            // An answer, or why there is none.
            let sent = self.flush(socket);
            came?;
            sent?;
        }
    }

    /// Receives the rest of one record, and gives it to rustls.
    fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        loop {
            let wanted = match self.record.first_chunk::<HEADER>() {
                None => HEADER,
                Some([kind, major, _, high, low]) => {
                    // change_cipher_spec to application_data.
                    if !(20..=23).contains(kind) || *major != 3 {
                        return Err(Error::Plain);
                    }
                    let length = usize::from(u16::from_be_bytes([*high, *low]));
                    if length > CIPHER || self.read > READ_MOST {
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

    /// The connection, once the handshake is complete and all is sent. What the
    /// peer sent and nobody read comes first.
    ///
    /// # Errors
    /// [`Error`].
    pub fn finish(mut self) -> Result<Secured, Error> {
        if !self.record.is_empty() {
            return Err(Error::State);
        }
        let mut plain = Vec::new();
        // Ends as soon as nothing is there.
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
