//! The keys of a connection, and their serialized form between processes.

use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::ring::cipher_suite;
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets, SupportedCipherSuite, Tls13CipherSuite};

use crate::Error;

const KEY: usize = 32;
const IV: usize = 12;

/// The cipher suite of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    Aes256Gcm = 1,
    ChaCha20Poly1305 = 2,
}

impl Suite {
    fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Aes256Gcm),
            2 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    pub(crate) fn cipher(self) -> Result<&'static Tls13CipherSuite, Error> {
        let suite: SupportedCipherSuite = match self {
            Self::Aes256Gcm => cipher_suite::TLS13_AES_256_GCM_SHA384,
            Self::ChaCha20Poly1305 => cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        };
        suite.tls13().ok_or(Error::State)
    }
}

/// The key of one direction, and the number of its next record.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) suite: Suite,
    key: [u8; KEY],
    iv: [u8; IV],
    pub(crate) sequence: u64,
}

/// Does not print the key.
impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let suite = self.suite;
        write!(formatter, "{suite:?}, record {}", self.sequence)
    }
}

impl Key {
    /// Length in bytes of [`to_bytes`](Self::to_bytes).
    pub(crate) const LENGTH: usize = 1 + KEY + IV + 8;

    fn of((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        let (suite, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Suite::Aes256Gcm, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (Suite::ChaCha20Poly1305, key, iv)
            }
            _ => return Err(Error::State),
        };
        Ok(Self {
            suite,
            key: key.as_ref().try_into().map_err(|_| Error::State)?,
            iv: iv.as_ref().try_into().map_err(|_| Error::State)?,
            sequence,
        })
    }

    /// The keys for sending and for receiving.
    pub(crate) fn pair(secrets: ExtractedSecrets) -> Result<(Self, Self), Error> {
        Ok((Self::of(secrets.tx)?, Self::of(secrets.rx)?))
    }

    pub(crate) fn aead(&self) -> AeadKey {
        AeadKey::from(self.key)
    }

    pub(crate) fn iv(&self) -> Iv {
        Iv::from(self.iv)
    }

    pub(crate) fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        let parts = std::iter::once(self.suite as u8)
            .chain(self.key)
            .chain(self.iv)
            .chain(self.sequence.to_le_bytes());
        bytes
            .iter_mut()
            .zip(parts)
            .for_each(|(to, from)| *to = from);
        bytes
    }

    /// Takes the key at the start of `bytes`.
    pub(crate) fn take(bytes: &mut &[u8]) -> Result<Self, Error> {
        let [suite] = chunk(bytes)?;
        Ok(Self {
            suite: Suite::of(suite).ok_or(Error::State)?,
            key: chunk(bytes)?,
            iv: chunk(bytes)?,
            sequence: u64::from_le_bytes(chunk(bytes)?),
        })
    }
}

/// Takes the next `N` bytes.
pub(crate) fn chunk<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Error> {
    let (first, rest) = bytes.split_first_chunk::<N>().ok_or(Error::State)?;
    *bytes = rest;
    Ok(*first)
}
