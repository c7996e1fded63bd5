//! TLS records, which carry data after the handshake.

use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::{ContentType, ProtocolVersion};

use crate::Error;
use crate::secrets::{Key, chunk};

/// Bytes of a record's header.
pub(crate) const HEADER: usize = 5;
/// Maximum number of bytes that one record protects.
const PLAIN: usize = 1 << 14;
/// Maximum number of bytes of a record behind its header (RFC 8446, 5.2).
pub(crate) const CIPHER: usize = PLAIN + 256;
/// Bytes of ciphertext that are read ahead from the socket.
const READ_AHEAD: usize = 16 * (HEADER + CIPHER);
/// Maximum number of consecutive empty records, which cost time and carry nothing.
const EMPTY: u32 = 32;
/// The alert with which a peer ends a connection properly.
const CLOSE_NOTIFY: u8 = 0;

/// Both directions of a connection.
#[derive(Debug)]
pub struct Secured {
    /// Protects outgoing data.
    pub sealer: Sealer,
    /// Opens incoming data.
    pub opener: Opener,
}

impl Secured {
    pub(crate) fn new(seal: Key, open: Key, plain: &[u8]) -> Result<Self, Error> {
        Ok(Self {
            sealer: Sealer::new(seal)?,
            opener: Opener::new(open, &[], plain)?,
        })
    }

    /// The state with which another process continues the connection. It contains the keys.
    #[must_use]
    pub fn state(&self) -> Vec<u8> {
        state(&self.sealer, &self.opener)
    }

    /// Continues a connection from its [`state`].
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn from_state(mut state: &[u8]) -> Result<Self, Error> {
        let state = &mut state;
        let (seal, open) = (Key::take(state)?, Key::take(state)?);
        let sealed = u32::from_le_bytes(chunk(state)?);
        let sealed = usize::try_from(sealed).map_err(|_| Error::State)?;
        let (cipher, plain) = state.split_at_checked(sealed).ok_or(Error::State)?;
        Ok(Self {
            sealer: Sealer::new(seal)?,
            opener: Opener::new(open, cipher, plain)?,
        })
    }
}

/// [`Secured::state`] of the two directions.
#[must_use]
pub fn state(sealer: &Sealer, opener: &Opener) -> Vec<u8> {
    let (cipher, plain) = (opener.sealed(), opener.plain());
    let mut state = sealer.key.to_bytes().to_vec();
    state.extend_from_slice(&opener.key.to_bytes());
    // Less than 1 MiB.
    state.extend_from_slice(&(cipher.len() as u32).to_le_bytes());
    state.extend_from_slice(cipher);
    state.extend_from_slice(plain);
    state
}

/// Protects outgoing data.
pub struct Sealer {
    key: Key,
    limit: u64,
    encrypter: Box<dyn MessageEncrypter>,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.key.fmt(formatter)
    }
}

impl Sealer {
    fn new(key: Key) -> Result<Self, Error> {
        let cipher = key.suite.cipher()?;
        Ok(Self {
            limit: cipher.common.confidentiality_limit,
            encrypter: cipher.aead_alg.encrypter(key.aead(), key.iv()),
            key,
        })
    }

    /// Appends records that contain these bytes.
    ///
    /// # Errors
    /// [`Error::Exhausted`]: nothing more can be sent.
    pub fn seal(&mut self, bytes: &[&[u8]], records: &mut Vec<u8>) -> Result<(), Error> {
        let mut left = OutboundChunks::new(bytes);
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(PLAIN));
            if self.key.sequence >= self.limit {
                return Err(Error::Exhausted);
            }
            let record = self.encrypter.encrypt(
                OutboundPlainMessage {
                    typ: ContentType::ApplicationData,
                    version: ProtocolVersion::TLSv1_3,
                    payload: now,
                },
                self.key.sequence,
            )?;
            self.key.sequence += 1;
            records.extend_from_slice(&record.encode());
            left = later;
        }
        Ok(())
    }
}

/// Opens incoming records.
pub struct Opener {
    key: Key,
    limit: u64,
    decrypter: Box<dyn MessageDecrypter>,
    buffer: Box<[u8]>,
    /// Plaintext in `buffer` that has not been read.
    plain: std::ops::Range<usize>,
    /// Records in `buffer` that have not been opened; the last may be incomplete.
    sealed: std::ops::Range<usize>,
    empty: u32,
    over: bool,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.key.fmt(formatter)
    }
}

impl Opener {
    fn new(key: Key, cipher: &[u8], plain: &[u8]) -> Result<Self, Error> {
        let suite = key.suite.cipher()?;
        let decrypter = suite.aead_alg.decrypter(key.aead(), key.iv());
        let mut buffer = vec![0; READ_AHEAD.max(plain.len() + CIPHER)].into_boxed_slice();
        let (first, rest) = buffer
            .split_at_mut_checked(plain.len())
            .ok_or(Error::State)?;
        first.copy_from_slice(plain);
        let rest = rest.get_mut(..cipher.len()).ok_or(Error::State)?;
        rest.copy_from_slice(cipher);
        Ok(Self {
            limit: suite.common.confidentiality_limit,
            key,
            decrypter,
            buffer,
            plain: 0..plain.len(),
            sealed: plain.len()..plain.len() + cipher.len(),
            empty: 0,
            over: false,
        })
    }

    fn plain(&self) -> &[u8] {
        self.buffer.get(self.plain.clone()).unwrap_or(&[])
    }

    fn sealed(&self) -> &[u8] {
        self.buffer.get(self.sealed.clone()).unwrap_or(&[])
    }

    /// Reads plaintext into `memory`. Returns the number of bytes as recv(2) does: at least
    /// one, or 0 at the end of the connection. `receive` reads ciphertext in the same way;
    /// its errors are passed on.
    pub fn read<E: From<Error>>(
        &mut self,
        memory: &mut [u8],
        mut receive: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let mut given = 0;
        loop {
            given += self.give(memory.get_mut(given..).unwrap_or(&mut []));
            if given == memory.len() {
                return Ok(given);
            }
            if self.open()? {
                continue;
            }
            if given > 0 || self.over {
                return Ok(given);
            }
            let room = self.room();
            match receive(room)? {
                0 => return Ok(0),
                count => self.sealed.end = (self.sealed.end + count).min(self.buffer.len()),
            }
        }
    }

    fn give(&mut self, memory: &mut [u8]) -> usize {
        let count = memory.len().min(self.plain.len());
        let start = self.plain.start;
        if let (Some(from), Some(to)) = (
            self.buffer.get(start..start + count),
            memory.get_mut(..count),
        ) {
            to.copy_from_slice(from);
        }
        self.plain.start += count;
        count
    }

    /// Opens the next record, if it is complete.
    fn open(&mut self) -> Result<bool, Error> {
        if self.over {
            return Ok(false);
        }
        let sealed = self.buffer.get_mut(self.sealed.clone()).unwrap_or(&mut []);
        let Some((header, rest)) = sealed.split_first_chunk_mut::<HEADER>() else {
            return Ok(false);
        };
        let length = length(header)?;
        let Some(body) = rest.get_mut(..length) else {
            return Ok(false);
        };
        if self.key.sequence >= self.limit {
            return Err(Error::Exhausted);
        }
        let message =
            InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, body);
        let opened = self
            .decrypter
            .decrypt(message, self.key.sequence)
            .map_err(|_| Error::Damaged)?;
        self.key.sequence += 1;
        let (kind, count) = (opened.typ, opened.payload.len());
        match (kind, opened.payload) {
            (ContentType::ApplicationData, _) => {}
            (ContentType::Alert, [_, CLOSE_NOTIFY]) => self.over = true,
            (ContentType::Alert, [_, alert]) => return Err(Error::Alert(*alert)),
            _ => return Err(Error::Unexpected(kind.into())),
        }
        let start = self.sealed.start + HEADER;
        self.plain = match self.over {
            true => start..start,
            false => start..start + count,
        };
        self.sealed.start = start + length;
        self.empty = match count {
            0 => self.empty + 1,
            _ => 0,
        };
        if self.empty > EMPTY {
            return Err(Error::Damaged);
        }
        Ok(!self.over)
    }

    /// The space for further ciphertext, once all plaintext has been read.
    fn room(&mut self) -> &mut [u8] {
        if self.sealed.is_empty() {
            self.sealed = 0..0;
        } else if self.buffer.len() - self.sealed.start < HEADER + CIPHER
            || self.sealed.end == self.buffer.len()
        {
            self.buffer.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
        }
        self.plain = 0..0;
        self.buffer.get_mut(self.sealed.end..).unwrap_or(&mut [])
    }
}

/// Bytes of a record behind its header.
fn length([kind, major, _, high, low]: &[u8; HEADER]) -> Result<usize, Error> {
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    let protected = *kind == u8::from(ContentType::ApplicationData) && *major == 3;
    (protected && length <= CIPHER)
        .then_some(length)
        .ok_or(Error::Damaged)
}
