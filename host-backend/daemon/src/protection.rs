//! The protection of a guest's connection, and the tenant that its certificate names.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use paragpu_communicator_secure::{Error, Handshake, Identity, Secured};
use rustix::net::{SendFlags, send};

/// How a connection's bytes are protected.
#[derive(Debug)]
pub enum Protection {
    /// By the kernel, which says who sends them.
    Plain,
    /// The two sides get to know each other.
    Shaking(Box<Handshake>),
    /// By TLS.
    Secured(Box<Secured>),
}

impl Protection {
    /// Ends the handshake. Who is at the other end, or a sentence for them.
    ///
    /// # Errors
    /// As [`Handshake::finish`].
    pub fn settle(&mut self) -> Result<Result<Option<Identity>, String>, Error> {
        let handshake = match std::mem::replace(self, Self::Plain) {
            Self::Shaking(handshake) => handshake,
            other => {
                *self = other;
                return Ok(Ok(None));
            }
        };
        let identity = match handshake.peer().map(Identity::of) {
            Some(Ok(Some(identity))) => Ok(Some(identity)),
            Some(Ok(None)) => Err("is no guest's".to_owned()),
            Some(Err(problem)) => Err(problem),
            None => Err("is missing".to_owned()),
        };
        *self = Self::Secured(Box::new(handshake.finish()?));
        Ok(identity.map_err(|problem| {
            format!(
                "the certificate that tcp.certificate names in guest.toml {problem}: `paragpu \
                 certificate DIRECTORY --vm NAME` makes one for a VM"
            )
        }))
    }

    /// Sends these bytes, as well as it goes without waiting.
    pub fn send(&mut self, socket: impl AsFd, bytes: &[u8]) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // The peer may be gone already.
        match self {
            Self::Plain => {
                let _ = send(&socket, bytes, flags);
            }
            Self::Shaking(handshake) => {
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

/// A guest that a certificate names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    /// From where it connected.
    pub from: SocketAddr,
    /// Which VM it is of.
    pub identity: Arc<Identity>,
}
