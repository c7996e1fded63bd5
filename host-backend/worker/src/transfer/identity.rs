//! The owner of a session.

use paragpu_protocol::codec::{Text, decode_all, encode_all};

use super::state::{Head, StateError};
use crate::session::host_memory::Pinned;

/// A [`Head`] that owns its texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The guest's ordinal of the device.
    pub ordinal: u32,
    /// The secret with which the guest can resume the session.
    pub token: [u8; 16],
    /// Number of the guest's devices.
    pub device_count: u32,
    /// The guest's process ID, in the guest's namespace.
    pub guest_pid: u32,
    /// The VM, user or address.
    pub vm: String,
    /// Name of the GPU from which it comes.
    pub device: String,
    /// The location of the session's pinned memory.
    pub pinned: Pinned,
}

impl Identity {
    /// For an unidentified session on the guest's device `ordinal`.
    pub(crate) fn unknown(ordinal: u32, device: String) -> Self {
        Self {
            ordinal,
            token: [0; 16],
            device_count: 0,
            guest_pid: 0,
            vm: String::new(),
            device,
            pinned: Pinned::default(),
        }
    }

    /// Reads the head record.
    pub fn decode(payload: &[u8]) -> Result<Self, StateError> {
        let head: Head<'_> = decode_all(payload)?;
        Ok(Self {
            ordinal: head.ordinal,
            token: head.token,
            device_count: head.device_count,
            guest_pid: head.guest_pid,
            vm: head.vm.0.to_owned(),
            device: head.device.0.to_owned(),
            pinned: Pinned::of(head.pinned)?,
        })
    }

    /// The head record of the session, whose guest's certificate expires at `expires`.
    pub(crate) fn encode(&self, device_memory: u64, pinned: Pinned, expires: u64) -> Vec<u8> {
        encode_all(&Head {
            ordinal: self.ordinal,
            token: self.token,
            device_count: self.device_count,
            guest_pid: self.guest_pid,
            vm: Text(&self.vm),
            device: Text(&self.device),
            device_memory,
            pinned: pinned as u8,
            expires,
        })
    }
}
