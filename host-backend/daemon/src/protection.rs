//! The protection of a guest's connection, and the tenant in its certificate.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use paragpu_communicator_secure::{Error, Handshake, Identity, Secured};
use rustix::net::{SendFlags, send};

/// The protection of a connection.
#[derive(Debug)]
pub enum Protection {
    /// None needed: the kernel identifies the sender.
    Plain,
    /// A TLS handshake is in progress.
    Handshaking(Box<Handshake>),
    /// TLS, after the handshake.
    Secured(Box<Secured>),
}

impl Protection {
    /// Completes the handshake. Returns the identity of the peer, `None` for a connection
    /// without TLS, or one sentence for the peer about why its certificate is refused.
    ///
    /// # Errors
    /// As [`Handshake::finish`].
    pub fn settle(&mut self) -> Result<Result<Option<Identity>, String>, Error> {
        let handshake = match std::mem::replace(self, Self::Plain) {
            Self::Handshaking(handshake) => handshake,
            other => {
                *self = other;
                return Ok(Ok(None));
            }
        };
        let identity = match handshake.peer().map(Identity::of) {
            Some(Ok(Some(identity))) => Ok(Some(identity)),
            Some(Ok(None)) => Err("is not for a guest (another host migrates to the port of \
                                   migration.listen, and this is that of tcp.listen)"
                .to_owned()),
            Some(Err(problem)) => Err(problem),
            None => Err("is missing".to_owned()),
        };
        *self = Self::Secured(Box::new(handshake.finish()?));
        Ok(identity.map_err(|problem| {
            format!(
                "the certificate of tcp.certificate in guest.toml {problem}: create one with \
                 `paragpu certificate DIRECTORY --vm NAME`"
            )
        }))
    }

    /// Sends a last message without blocking. Bytes that do not fit into the socket's
    /// buffer are dropped.
    pub fn send(&mut self, socket: impl AsFd, bytes: &[u8]) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Errors are ignored: the connection is about to be closed, and the peer may be
        // gone.
        match self {
            Self::Plain => {
                let _ = send(&socket, bytes, flags);
            }
            Self::Handshaking(handshake) => {
                let _ = handshake.write(&socket, bytes);
            }
            Self::Secured(secured) => {
                let mut records = Vec::new();
                if secured.sealer.seal(&[bytes], &mut records).is_ok() {
                    let _ = send(&socket, &records, flags);
                }
            }
        }
    }
}

/// A guest with a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    /// Its address.
    pub from: SocketAddr,
    /// The VM and the limits in the certificate.
    pub identity: Arc<Identity>,
}
