//! The first frames of a connection.
//!
//! The guest sends a [`Hello`] and waits for a [`Welcome`] or a [`Refusal`].
//! Two sides talk when all but the last digit of their versions agree; the
//! side with the greater last digit then keeps to what the other knows.

use thiserror::Error;

use crate::codec::{Bytes, Text};

/// Version of the wire: major, minor, patch. Two versions that differ only in
/// the patch talk to each other.
pub const VERSION: Version = Version {
    major: 0,
    minor: 3,
    patch: 0,
};

/// First bytes of every hello: "paragpu" and a zero.
pub const MAGIC: [u8; 8] = *b"paragpu\0";

/// Payload bytes of every [`Hello`]: the daemon reads exactly this.
pub const HELLO_LEN: usize = 8 + 6 + 1 + 4 + 16 + 8 + 4;

crate::record! {
    /// A version of the wire.
    Version {
        /// Others cannot talk.
        major: u16,
        /// Others cannot talk.
        minor: u16,
        /// Others can.
        patch: u16,
    }

    /// Guest to host, first frame.
    Hello {
        /// [`MAGIC`].
        magic: [u8; 8],
        /// The guest's version.
        version: Version,
        /// Kind of the communicator: see [`Transport`].
        transport: u8,
        /// The guest's ordinal of the device that it asks for.
        device: u32,
        /// Secret of the session to resume; zeros for a new one.
        token: [u8; 16],
        /// With a token: how many counted frames of the session the guest has
        /// received ([`crate::frame::is_counted`]).
        received: u64,
        /// Process id in the guest, for listings; 0 of a connection that only
        /// asks about the device.
        pid: u32,
    }

    /// Host to guest: the session stands.
    Welcome {
        /// The host's version.
        version: Version,
        /// Number of the session on its host, for listings.
        session: u64,
        /// Secret with which the guest resumes the session; zeros if the
        /// session ends with its connection.
        token: [u8; 16],
        /// How many devices the guest has.
        device_count: u32,
        /// The highest call sequence taken in: the guest sends the calls after
        /// it again. 0 in a new session.
        taken: u64,
        /// Bytes of a memfd with the channel region that comes with this frame
        /// (shm); 0 if there is none.
        region_size: u64,
        /// Of a resumed session: the host still sees the window that the
        /// session began with.
        shares_window: bool,
        /// Of a resumed session: the host has memory of its own at the window's
        /// addresses, and lacks what the guest has there: it executes nothing
        /// before that came ([`crate::frame::Control::Pinned`]).
        wants_pinned: bool,
    }

    /// Host to guest: continue over another communicator, or at another host,
    /// with the token of the session.
    Move<'a> {
        /// `unix`, `tcp`, `vsock`, `shm` or `pci`.
        communicator: Text<'a>,
        /// A socket's path, host and port, a port of the VM's host, or a
        /// device node; empty for what the guest's configuration says.
        address: Text<'a>,
    }

    /// Guest to host: the session continues over the connection that stands.
    Stays<'a> {
        /// Why the guest could not follow the move; one sentence.
        reason: Text<'a>,
    }

    /// Host to guest: no session.
    Refusal<'a> {
        /// The host's version.
        version: Version,
        /// One sentence for the user.
        reason: Text<'a>,
    }

    /// Device process to daemon, on its socket for these ([`device_socket`]): a guest opened a
    /// channel of a VM's window. File descriptors that come with it: window,
    /// eventfd guest to host, eventfd host to guest; and where the host reaches
    /// the VM's memory a table of it and the files that hold it, up to
    /// [`ATTACH_FDS`] in all.
    Attach<'a> {
        /// [`MAGIC`].
        magic: [u8; 8],
        /// The sender's version.
        version: Version,
        /// The VM's name.
        vm: Text<'a>,
        /// Channel number in the window.
        channel: u32,
        /// Bytes from the start of the window to the channel's region.
        channel_offset: u64,
        /// Bytes of the channel's region.
        channel_size: u64,
        /// Bytes from the start of the window to the channel's page lists; 0
        /// where the host does not reach the VM's memory.
        list_offset: u64,
        /// The hello that the guest sent first, as it came.
        hello: Bytes<'a>,
    }
}

crate::record! {
    /// Worker to another daemon, on that daemon's socket for guests or over a
    /// link between hosts: a session comes. The answer is a frame of the kind
    /// of a welcome from the worker that takes it, with a [`Move`] that says
    /// how the guest reaches the session there, or a [`Refusal`].
    Arrive<'a> {
        /// [`MAGIC`].
        magic: [u8; 8],
        /// The sender's version.
        version: Version,
        /// The VM, user or address that the session is of.
        vm: Text<'a>,
        /// The guest's ordinal of the device.
        device: u32,
        /// Secret with which the guest resumes the session.
        token: [u8; 16],
        /// Process id in the guest, for listings.
        guest_pid: u32,
        /// `unix`, `tcp`, `vsock`, `shm` or `pci`: how the guest's calls travel.
        communicator: Text<'a>,
        /// How they are to travel from then on; empty if the connection
        /// comes along as it is.
        follows: Text<'a>,
        /// Which of the destination's devices is wanted; [`ANY_DEVICE`] for
        /// the one with the guest's ordinal, or any if there is none.
        wanted: u32,
    }
}

/// No wish in [`Arrive::wanted`].
pub const ANY_DEVICE: u32 = u32::MAX;

/// Kind of the [`Attach`] frame.
pub const ATTACH: u16 = 0x7f10;

/// The daemon's socket for device processes, beside its socket for guests.
#[must_use]
pub fn device_socket(guests: &std::path::Path) -> std::path::PathBuf {
    guests.with_extension("devices")
}
/// Maximum number of file descriptors that come with it.
pub const ATTACH_FDS: usize = 8;
/// Kind of the [`Arrive`] frame.
pub const ARRIVE: u16 = 0x7f11;

/// How a connection travels; the value of [`Hello::transport`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// A stream socket: unix, TCP or vsock.
    Stream = 1,
    /// Rings in a memfd that comes with the welcome.
    Shm = 2,
    /// Rings in a channel of a PCI device's window.
    Pci = 3,
}

impl TryFrom<u8> for Transport {
    type Error = HandshakeError;
    fn try_from(value: u8) -> Result<Self, HandshakeError> {
        match value {
            1 => Ok(Self::Stream),
            2 => Ok(Self::Shm),
            3 => Ok(Self::Pci),
            other => Err(HandshakeError::Transport(other)),
        }
    }
}

/// Why a hello or welcome is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// Somebody else's protocol.
    #[error("the peer does not speak paragpu's protocol")]
    Magic,
    /// Versions differ before the last digit.
    #[error(
        "the peer speaks version {peer} of the protocol, this side {VERSION}: install the same release of paragpu on guest and host"
    )]
    Version {
        /// The other side's.
        peer: String,
    },
    /// No such transport.
    #[error("the peer names an unknown transport ({0})")]
    Transport(u8),
}

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Version {
    /// Checks that this side can talk to `peer`.
    ///
    /// # Errors
    /// [`HandshakeError::Version`].
    pub fn check(self, peer: Self) -> Result<(), HandshakeError> {
        if (self.major, self.minor) == (peer.major, peer.minor) {
            Ok(())
        } else {
            Err(HandshakeError::Version {
                peer: peer.to_string(),
            })
        }
    }
}

impl Hello {
    /// A hello of this build for a new session.
    #[must_use]
    pub fn new(transport: Transport, device: u32, pid: u32) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            transport: transport as u8,
            device,
            token: [0; 16],
            received: 0,
            pid,
        }
    }

    /// Checks magic, version and transport.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn check(&self) -> Result<Transport, HandshakeError> {
        if self.magic != MAGIC {
            return Err(HandshakeError::Magic);
        }
        VERSION.check(self.version)?;
        Transport::try_from(self.transport)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode_all, encode_all};

    #[test]
    fn hello_has_its_fixed_length() {
        let hello = Hello::new(Transport::Shm, 1, 77);
        let bytes = encode_all(&hello);
        assert_eq!(bytes.len(), HELLO_LEN);
        assert_eq!(decode_all::<Hello>(&bytes).unwrap(), hello);
        assert_eq!(hello.check(), Ok(Transport::Shm));
    }

    #[test]
    fn only_the_last_digit_may_differ() {
        let patch = Version {
            patch: VERSION.patch + 1,
            ..VERSION
        };
        let minor = Version {
            minor: VERSION.minor + 1,
            ..VERSION
        };
        assert!(VERSION.check(patch).is_ok());
        assert!(VERSION.check(minor).is_err());
    }
}
