//! Device queries, for NVML: over a connection without an address space, or over the
//! session that the process has of the device.

use std::sync::Arc;

use paragpu_config::guest::Guest;
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::reply::{self, Reply};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{DeviceAsk, DeviceUse, PeerOffer, SnapshotDevice};
use paragpu_protocol::types::{PeerName, ProcessUsage};

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

/// Sends an encoded call with this number over the process's session of the device; returns
/// the bytes of the reply, or nothing if the session does not answer.
pub type OverSession = Box<dyn Fn(u16, &[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// What carries queries.
enum Medium {
    /// Over a connection of their own.
    Own(Box<Link>),
    /// Over the session that another library of the process has: a host needs tens of
    /// megabytes and, unless a worker is waiting, tenths of a second for a connection.
    Session(OverSession),
}

/// Queries a device.
pub struct Monitor {
    medium: Medium,
    ordinal: u32,
    device_count: u32,
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Monitor")
            .field("ordinal", &self.ordinal)
            .field("device_count", &self.device_count)
            .finish_non_exhaustive()
    }
}

impl Monitor {
    /// Connects as configured. The host may start a worker for it.
    pub fn open(config: &Guest, ordinal: u32) -> Result<Self, Error> {
        let Connected {
            connection,
            welcome,
            spin,
            ..
        } = connect_for_queries(config, ordinal)?;
        Ok(Self {
            medium: Medium::Own(Box::new(Link::for_queries(connection, spin))),
            ordinal,
            device_count: welcome.device_count,
        })
    }

    /// Queries over a session of the process, in a VM with `device_count` devices.
    #[must_use]
    pub fn over_session(query: OverSession, ordinal: u32, device_count: u32) -> Self {
        Self {
            medium: Medium::Session(query),
            ordinal,
            device_count,
        }
    }

    /// Whether queries go over a session of the process.
    #[must_use]
    pub fn is_over_session(&self) -> bool {
        matches!(self.medium, Medium::Session(_))
    }

    /// Calls the host and reads the reply.
    fn ask<'a, C: WireCall<'a>, R>(
        &self,
        call: &C,
        read: impl FnOnce(C::Reply<'_>) -> R,
    ) -> Result<R> {
        let query = match &self.medium {
            Medium::Own(link) => return link.call_with(call, None, read),
            Medium::Session(query) => query,
        };
        let reply = query(C::INFO.number, &encode_all(call)).ok_or(Status::NOT_READY)?;
        match reply::decode::<C::Reply<'_>>(&reply) {
            Ok(Reply::Done(value)) => Ok(read(value)),
            Ok(Reply::Failed(status, _)) => Err(status),
            Err(_) => Err(Status::UNKNOWN),
        }
    }

    /// Number of the guest's devices.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        self.device_count
    }

    /// All that is constant about the device.
    pub fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let ordinal = self.ordinal;
        let query = SnapshotDevice { ordinal };
        self.ask(&query, |reply| Arc::new(Snapshot::from_wire(&reply)))
    }

    /// Queries the figure with this number.
    pub fn query(&self, figure: u32, arguments: [u8; 4]) -> Result<Answer> {
        let query = DeviceAsk { figure, arguments };
        self.ask(&query, |answer| Answer {
            code: answer.code,
            values: answer.values,
            text: answer.text.0.to_owned(),
        })
    }

    /// CU_DEVICE_P2P_ATTRIBUTE_*, 1 to 5, of this device's access to another.
    pub fn peer_attributes(&self, owner: &Self) -> Result<[u64; 5]> {
        self.peer_attributes_to(|call| owner.ask(call, |name| name))
    }

    /// The same, of its access to the device whose host `offer` calls.
    pub(crate) fn peer_attributes_to(
        &self,
        offer: impl Fn(&PeerOffer) -> Result<PeerName>,
    ) -> Result<[u64; 5]> {
        peer::attributes(offer, |call| self.ask(call, |attributes| attributes))
    }

    /// The use of the device by the VM's sessions.
    pub fn usage(&self) -> Result<Usage> {
        self.ask(&DeviceUse {}, |usage| Usage {
            limit: usage.limit,
            used: usage.used,
            time: usage.time,
            processes: ProcessUsage::all(usage.processes).collect(),
        })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if let Medium::Own(link) = &self.medium {
            link.close();
        }
    }
}
