//! Constant facts about the guest's devices (CUDA Driver API, Device Management), and
//! the limits of the session's context.

use std::sync::{Arc, OnceLock};

use paragpu_protocol::status::Status;
use paragpu_protocol::table::{SnapshotDevice, TopologyGet};

use crate::connection::Link;
use crate::error::Result;
use crate::snapshot::{Limits, Snapshot};

/// The device of a session.
#[derive(Debug)]
pub struct Device {
    link: Arc<Link>,
    ordinal: u32,
    snapshot: OnceLock<Arc<Snapshot>>,
    topology: OnceLock<[u8; 256]>,
}

impl Device {
    pub(crate) fn new(link: &Arc<Link>, ordinal: u32) -> Self {
        Self {
            link: Arc::clone(link),
            ordinal,
            snapshot: OnceLock::new(),
            topology: OnceLock::new(),
        }
    }

    /// The guest's ordinal of the device.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// All that is constant about the guest's device `ordinal`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; as [`Link::check`].
    pub fn snapshot_of(&self, ordinal: u32) -> Result<Arc<Snapshot>> {
        self.link
            .call_with(&SnapshotDevice { ordinal }, None, |reply| {
                Arc::new(Snapshot::from_wire(&reply))
            })
    }

    /// All that is constant about this session's device.
    pub fn snapshot(&self) -> Result<Arc<Snapshot>> {
        self.known().cloned()
    }

    /// The limits that each launch is checked against.
    pub(crate) fn limits(&self) -> Result<&Limits> {
        self.known().map(|snapshot| &snapshot.limits)
    }

    fn known(&self) -> Result<&Arc<Snapshot>> {
        if let Some(snapshot) = self.snapshot.get() {
            return Ok(snapshot);
        }
        let snapshot = self.snapshot_of(self.ordinal)?;
        Ok(self.snapshot.get_or_init(|| snapshot))
    }

    /// The cluster of each of the GPU's TPCs, and its number there.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` if the host's device does not report it.
    pub fn topology(&self) -> Result<(Vec<u8>, Vec<u8>)> {
        let count = self.limits()?.multiprocessors / 2;
        let count = usize::try_from(count).unwrap_or(0);
        let topology = match self.topology.get() {
            Some(topology) => topology,
            None => {
                let topology = self.link.call(&TopologyGet {})?;
                self.topology.get_or_init(|| topology)
            }
        };
        let (clusters, numbers) = topology.split_at(topology.len() / 2);
        let array = |all: &[u8]| all.get(..count).map(<[u8]>::to_vec);
        array(clusters)
            .zip(array(numbers))
            .ok_or(Status::NOT_SUPPORTED)
    }
}
