//! Device queries without a session's address space, for NVML. A process may have both
//! a monitor and a session of one device.

use std::sync::Arc;

use paragpu_config::guest::Guest;
use paragpu_protocol::table::{DeviceAsk, DeviceUse, SnapshotDevice};
use paragpu_protocol::types::ProcessUsage;

use crate::connection::Link;
use crate::connection::connect::{Connected, connect_for_queries};
use crate::error::{Error, Result};
use crate::peer;
use crate::snapshot::Snapshot;

/// The host's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// An nvmlReturn_t; 0 is success.
    pub code: u32,
    /// The resulting numbers.
    pub values: [u64; 5],
    /// The resulting text.
    pub text: String,
}

/// The use of a device by the VM's sessions.
#[derive(Debug, Clone, PartialEq)]
pub struct Usage {
    /// The sessions' common limit in bytes.
    pub limit: u64,
    /// Bytes in use.
    pub used: u64,
    /// Time of the sample in microseconds since 1970.
    pub time: u64,
    /// Each session with work.
    pub processes: Vec<ProcessUsage>,
}

/// A connection for queries.
#[derive(Debug)]
pub struct Monitor {
    link: Link,
    ordinal: u32,
    device_count: u32,
}

impl Monitor {
    /// Connects as configured. The host may start a worker for it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(config: &Guest, ordinal: u32) -> Result<Self, Error> {
        let Connected {
            connection,
            welcome,
            spin,
            ..
        } = connect_for_queries(config, ordinal)?;
        Ok(Self {
            link: Link::for_queries(connection, spin),
            ordinal,
            device_count: welcome.device_count,
        })
    }

    /// Number of the guest's devices.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        self.device_count
    }

    /// All that is constant about the device.
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let ordinal = self.ordinal;
        let query = SnapshotDevice { ordinal };
        self.link
            .call_with(&query, None, |reply| Arc::new(Snapshot::from_wire(&reply)))
    }

    /// Queries the figure with this number.
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn query(&self, figure: u32, arguments: [u8; 4]) -> Result<Answer> {
        let query = DeviceAsk { figure, arguments };
        self.link.call_with(&query, None, |answer| Answer {
            code: answer.code,
            values: answer.values,
            text: answer.text.0.to_owned(),
        })
    }

    /// CU_DEVICE_P2P_ATTRIBUTE_*, 1 to 5, of this device's access to another.
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn peer_attributes(&self, owner: &Self) -> Result<[u64; 5]> {
        self.peer_attributes_to(&owner.link)
    }

    /// The same, of its access to the device at the other end of a link.
    pub(crate) fn peer_attributes_to(&self, owner: &Link) -> Result<[u64; 5]> {
        peer::attributes(&self.link, owner)
    }

    /// The use of the device by the VM's sessions.
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn usage(&self) -> Result<Usage> {
        self.link.call_with(&DeviceUse {}, None, |usage| Usage {
            limit: usage.limit,
            used: usage.used,
            time: usage.time,
            processes: ProcessUsage::all(usage.processes).collect(),
        })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.link.close();
    }
}
