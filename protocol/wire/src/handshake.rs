//! The first frames of a connection.
//!
//! The guest sends a [`Hello`] and waits for a [`Welcome`] or a [`Refusal`]. Two sides
//! are compatible if major and minor version are equal; the side with the higher patch
//! version then uses only what the other supports.

use thiserror::Error;

use crate::codec::{Bytes, Text};

/// Version of the wire protocol: major, minor, patch. Versions that differ only in the
/// patch are compatible.
pub const VERSION: Version = Version {
    major: 0,
    minor: 7,
    patch: 0,
};

/// The first bytes of every hello: "paragpu" and a zero.
pub const MAGIC: [u8; 8] = *b"paragpu\0";

/// Size of every [`Hello`]; the daemon reads exactly this many bytes.
pub const HELLO_LEN: usize = 8 + 6 + 1 + 4 + 16 + 8 + 4 + 8 + 8;

/// In place of the offset of a window: there is none.
pub const NO_WINDOW: u64 = u64::MAX;

crate::record! {
    /// A version of the wire protocol.
    Version {
        /// Other values are incompatible.
        major: u16,
        /// Other values are incompatible.
        minor: u16,
        /// Other values are compatible.
        patch: u16,
    }

    /// Guest to host, first frame.
    Hello {
        /// [`MAGIC`].
        magic: [u8; 8],
        /// The guest's version.
        version: Version,
        /// The communicator: see [`Transport`].
        transport: u8,
        /// The guest's ordinal of the requested device.
        device: u32,
        /// The secret of the session to resume; zeros for a new session.
        token: [u8; 16],
        /// With a token: the number of counted frames of the session that the guest has received
        /// ([`crate::frame::is_counted`]).
        received: u64,
        /// Process ID in the guest, for listings; 0 for a connection that only queries the
        /// device.
        pid: u32,
        /// With a token: the offset, in the device's region of windows, of the window that the
        /// guest shares with its host; [`NO_WINDOW`] for none.
        window: u64,
        /// The offset from which the guest has room for another window, if it gets one: a
        /// multiple of 4096; [`NO_WINDOW`] for none.
        room: u64,
    }

    /// Host to guest: the session is established.
    Welcome {
        /// The host's version.
        version: Version,
        /// Number of the session on its host, for listings.
        session: u64,
        /// The secret with which the guest resumes the session; zeros if the session ends with
        /// its connection. In a resumed session it may be another one than the guest's: then
        /// the session is a copy that only this guest has, and is resumed with this one.
        token: [u8; 16],
        /// How long the host keeps the session for a guest that lost its connection, in
        /// milliseconds; 0 if not at all.
        reconnect: u32,
        /// The number of devices that the guest sees.
        device_count: u32,
        /// The highest call sequence number received: the guest resends the calls after it. 0 in
        /// a new session.
        taken: u64,
        /// Size of the attached memfd with the channel region (shm); 0 if there is none.
        region_size: u64,
        /// In a resumed session: whether the host maps the window that the guest has.
        shares_window: bool,
        /// In a resumed session: whether the host has memory of its own at the window's
        /// addresses and needs the guest's contents. It executes nothing before they arrive
        /// ([`crate::frame::Control::Pinned`]).
        wants_pinned: bool,
    }

    /// Host to guest: continue over another communicator, or at another host,
    /// with the token of the session.
    Move<'a> {
        /// `unix`, `tcp`, `vsock`, `shm` or `pci`.
        communicator: Text<'a>,
        /// A socket's path, host and port, a port of the VM's host, or a device node; empty for
        /// the guest's own configuration.
        address: Text<'a>,
    }

    /// Guest to host: the session stays on the current connection.
    Stays<'a> {
        /// Why the guest could not follow the move; one sentence.
        reason: Text<'a>,
    }

    /// Host to guest: the session is refused.
    Refusal<'a> {
        /// The host's version.
        version: Version,
        /// One sentence for the user.
        reason: Text<'a>,
    }

    /// Device process to daemon, on the socket for device processes ([`device_socket`]): a
    /// guest opened a channel of a VM's window. File descriptors: window, eventfd guest to
    /// host, eventfd host to guest; if the host can access the VM's memory, also a table of it
    /// and the files that back it, at most [`ATTACH_FDS`] in all.
    Attach<'a> {
        /// [`MAGIC`].
        magic: [u8; 8],
        /// The sender's version.
        version: Version,
        /// The VM's name.
        vm: Text<'a>,
        /// Channel number in the window.
        channel: u32,
        /// Offset of the channel's region in the window.
        channel_offset: u64,
        /// Size of the channel's region in bytes.
        channel_size: u64,
        /// Offset of the channel's page lists in the window; 0 if the host cannot access the VM's
        /// memory.
        list_offset: u64,
        /// The guest's hello, unchanged.
        hello: Bytes<'a>,
    }
}

crate::record! {
    /// Daemon to the daemon of the destination, on that daemon's socket for guests or over a
    /// link between hosts: a session arrives. The source worker, which need not be honest,
    /// gets the link behind this frame. The answer to that worker is a [`Refusal`], or a frame
    /// of a welcome's kind from the destination worker, with a [`Move`]: how the guest connects
    /// to the session there.
    Arrive<'a> {
        /// [`MAGIC`].
        magic: [u8; 8],
        /// The sender's version.
        version: Version,
        /// The session's VM, user or address.
        vm: Text<'a>,
        /// The guest's ordinal of the device.
        device: u32,
        /// The secret with which the guest resumes the session.
        token: [u8; 16],
        /// Process ID in the guest, for listings.
        guest_pid: u32,
        /// The guest's current communicator: `unix`, `tcp`, `vsock`, `shm` or `pci`.
        communicator: Text<'a>,
        /// The communicator after the move; empty if the connection is handed over.
        follows: Text<'a>,
        /// The number of the requested device at the destination; [`ANY_DEVICE`] for the one with
        /// the guest's ordinal, or any if there is none.
        wanted: u32,
        /// When the guest's certificate expires, in seconds since 1970; 0 if it showed none.
        expires: u64,
    }
}

/// No preference in [`Arrive::wanted`].
pub const ANY_DEVICE: u32 = u32::MAX;

/// Kind of the [`Attach`] frame.
pub const ATTACH: u16 = 0x7f10;

/// The daemon's socket for device processes, next to its socket for guests.
#[must_use]
pub fn device_socket(guests: &std::path::Path) -> std::path::PathBuf {
    guests.with_extension("devices")
}
/// Maximum number of its file descriptors.
pub const ATTACH_FDS: usize = 8;
/// Kind of the [`Arrive`] frame.
pub const ARRIVE: u16 = 0x7f11;

/// The transport of a connection; the value of [`Hello::transport`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// A stream socket: unix, TCP or vsock.
    Stream = 1,
    /// Rings in a memfd that is attached to the welcome.
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
    /// The peer speaks another protocol.
    #[error("the peer does not speak paragpu's protocol")]
    Magic,
    /// The versions are incompatible.
    #[error(
        "the peer speaks version {peer} of the protocol, this side {VERSION}: install the same release of paragpu on guest and host"
    )]
    Version {
        /// The peer's version.
        peer: String,
    },
    /// An unknown transport.
    #[error("the peer names an unknown transport ({0})")]
    Transport(u8),
}

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Version {
    /// Checks that `peer` is a compatible version.
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
            window: NO_WINDOW,
            room: 0,
        }
    }

    /// Checks magic, version and transport.
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
