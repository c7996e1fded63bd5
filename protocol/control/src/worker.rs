//! Messages between daemon and worker, over the worker's control socket.
//!
//! The daemon starts a worker with [`Spawn`](crate::spawn::Spawn), which gives
//! it one end of a [`Control`](crate::socket::Control) as its standard input.
//!
//! ```text
//!            daemon                              worker
//!                                                opens its GPU
//!              │ ◄──────────── Ready ───────────── │   (or Failed, then it exits)
//!              │ ────────────── Own ─────────────► │   + directory: where the VM's users differ
//!              │ ───────────── Quota ────────────► │   + memfd: the VM's account
//!              │ ── Assign | Arrive | Restore ───► │   + descriptors
//!              │ ◄─ Report::Progress ───────────── │   of Arrive and Restore
//!              │ ◄─ Report::Done | ::Failed ────── │   of Restore
//!              │ ◄─────────── Started ──────────── │   (or Failed, then it exits)
//!              │                                   │
//!              │ ── Query ───────────────────────► │   at any time; before Assign too
//!              │ ◄─────────── Counters ─────────── │
//!              │ ── Resume ──────────────────────► │   + descriptors: the guest came again
//!              │ ── Move ────────────────────────► │   asks the guest to follow a route
//!              │ ◄─ Report::Stayed ─────────────── │   only where it cannot
//!              │ ── Checkpoint ──────────────────► │   + file, where the VM's users differ
//!              │ ◄─ Report::Progress … ─────────── │
//!              │ ◄─ Report::Done | ::Failed ────── │
//!              │ ── Migrate ─────────────────────► │   + link, and three gates
//!              │ ◄─ Report::Progress … ─────────── │
//!              │ ◄─ Report::Held(Copied) ───────── │   only with gates
//!              │ ◄─ Report::Held(Stopped) ──────── │
//!              │ ◄─ Report::Held(Complete) ─────── │
//!              │ ◄─ Report::Left ───────────────── │   the session is the destination's
//!              │ ◄─ Report::Done | ::Failed ────── │   Failed: it goes on here
//!              │ ◄─ Turn ────────────────────────►  │   with shares: see `turn`
//!              │ ◄─ Exchange ───────────────────── │   + descriptor of what it offers
//!              │ ── Exchanged ───────────────────► │   + descriptor of what it takes
//!              │ ── Again ───────────────────────► │   what to do once the daemon is gone
//!              │ ── End ─────────────────────────► │   ends the session
//!              │ ◄─────────── Finished ─────────── │   then it exits
//! ```
//!
//! A worker without a session exits when the daemon's end closes. A worker with
//! a session continues serving it. A worker that dies without `Finished` crashed:
//! the kernel has closed the guest's connection by then.

use std::path::PathBuf;

use paragpu_protocol::handshake::Transport;
use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::exchange::{Ask, Offer};
use crate::frame::Message;
use crate::turn::{Turn, TurnRequest};

/// Maximum number of bytes of a message's JSON: a packet holds it and the header.
pub const MAX_LEN: usize = crate::socket::MAX_PACKET - crate::frame::HEADER;

/// A message of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum ToWorker {
    /// Before a session, to a worker that was started apart: become this user,
    /// for good. The one descriptor, if any comes, is the VM's directory for images.
    Own {
        /// Number of the VM's user, as the worker counts users; 1 or more.
        user: u32,
    },
    /// Before a session: its slot in the account of its VM, which is the one
    /// descriptor ([`crate::account`]).
    Quota {
        /// The slot.
        slot: u32,
    },
    /// Serve this guest. Descriptors: see [`Guest`].
    Assign {
        /// The limits of the session.
        terms: Terms,
        /// Who connected.
        guest: Guest,
    },
    /// A session comes from the worker at the other end of the one descriptor.
    Arrive {
        /// The limits of the session.
        terms: Terms,
        /// How its guest reaches it here; `None` if it need not know.
        route: Option<Route>,
        /// The guest must take that route, though its connection comes along.
        follows: bool,
    },
    /// A session comes from a directory, and waits for its guest. The one
    /// descriptor is the file in it.
    Restore {
        /// The limits of the session.
        terms: Terms,
    },
    /// Answer with [`FromWorker::Counters`].
    Query,
    /// End the session now, whatever it does.
    End,
    /// The guest connected again. Descriptors as for [`Assign`](Self::Assign).
    Resume {
        /// Those of the session; what they allow does not change.
        terms: Terms,
        /// The guest's new connection.
        guest: Guest,
    },
    /// Ask the guest to continue over another route.
    Move(Route),
    /// Write the session's state: into the one descriptor, an empty file that
    /// the daemon gives its name; else into a directory.
    Checkpoint {
        /// An absolute path.
        directory: PathBuf,
        /// End the session then, so that it can be restored elsewhere.
        end: bool,
    },
    /// Give the session to another worker.
    Migrate(Migrate),
    /// What the worker does by itself once the daemon is gone; `None` for
    /// nothing.
    Again(Option<CheckpointSchedule>),
    /// Answers [`FromWorker::Exchange`]; what is taken comes as the one
    /// descriptor.
    Exchanged {
        /// As asked.
        request: u64,
        /// The offer; `None` if there is none, or no room for one.
        offer: Option<Offer>,
    },
    /// The session's turn on its GPU ([`crate::turn`]).
    Turn(Turn),
}

/// A GPU that is open.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// `GPU-` and its UUID.
    pub uuid: String,
    /// `9.0`.
    pub compute_capability: String,
    /// The newest CUDA that its driver serves: `13.0`.
    pub cuda_version: String,
}

/// A worker's message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum FromWorker {
    /// Its GPU is open.
    Ready {
        /// Its process.
        pid: u32,
        /// The GPU.
        gpu: Gpu,
    },
    /// It cannot open its GPU or take the session, and exits.
    Failed {
        /// One sentence.
        reason: String,
    },
    /// The guest has its welcome.
    Started {
        /// As assigned.
        session: u64,
    },
    /// Answers [`ToWorker::Query`].
    Counters(Counters),
    /// How far an order is.
    Report(Report),
    /// About memory that sessions of the VM share.
    Exchange {
        /// Returned with the answer.
        request: u64,
        /// The question.
        ask: Ask,
    },
    /// Of its turn on its GPU ([`crate::turn`]).
    Turn(TurnRequest),
    /// The session is over; the worker exits.
    Finished {
        /// As assigned.
        session: u64,
        /// Its result.
        counters: Counters,
        /// The reason for its end in one sentence; `None` after an orderly end.
        reason: Option<String>,
    },
}

impl Message for ToWorker {
    const MAX_LEN: usize = MAX_LEN;
}

impl Message for FromWorker {
    const MAX_LEN: usize = MAX_LEN;
}

/// The limits of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// Number of the session on this host, for listings.
    pub session: u64,
    /// Secret with which the guest may resume the session.
    pub token: [u8; 16],
    /// The guest's ordinal of the device.
    pub ordinal: u32,
    /// How many devices the guest has.
    pub device_count: u32,
    /// Maximum number of bytes of device memory; 0 for all there is.
    pub device_memory: u64,
    /// Maximum number of bytes of host memory that the worker holds for the guest (window of
    /// `shm`, shadows); 0 for the worker's default.
    pub host_memory: u64,
    /// Bytes of the window that the worker makes for `shm`; 0 for the worker's
    /// default. Ignored for the other transports.
    pub window: u64,
    /// Milliseconds for which the session waits for a guest that lost its
    /// connection; 0 ends it at once.
    pub reconnect: u32,
    /// The VM's or the user's name, for the log.
    pub vm: String,
}

/// A guest that connected, as its hello says. Descriptors that come with it: its
/// connected socket. With a channel instead the window's memfd, the eventfd
/// guest to host, the eventfd host to guest, and the device process's
/// connection, whose end (readable, nothing to read) says that the guest is
/// gone. With [`Channel::lists`] there follow the table of the VM's memory and
/// the files that hold it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// How its calls travel.
    #[serde(with = "transport")]
    pub transport: Transport,
    /// Counted frames of the session that it has received.
    pub received: u64,
    /// Its process, as it counts.
    pub pid: u32,
    /// Its channel, with [`Transport::Pci`].
    pub channel: Option<Channel>,
    /// If TLS protects the connection, how the worker continues with it.
    pub secured: Option<Keys>,
}

/// The state of a secured connection. It holds keys, which nothing shows.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Keys(pub Vec<u8>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes", self.0.len())
    }
}

/// Where in a VM's window a channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// Its number.
    pub number: u32,
    /// Bytes from the start of the window to its region.
    pub offset: u64,
    /// Bytes of its region.
    pub size: u64,
    /// Bytes from the start of the window to its page lists; 0 if the host
    /// does not reach the VM's memory.
    pub lists: u64,
}

/// How a guest reaches a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// `unix`, `tcp`, `vsock`, `shm` or `pci`.
    pub communicator: String,
    /// A socket's path, host and port, a port of the VM's host, or a device
    /// node; empty for what the guest's configuration says.
    pub address: String,
}

/// The session goes to the worker at the other end of a link. Descriptors: the
/// link, and with [`held`](Self::held) three pipes, the gates, to which the daemon
/// writes. A byte in the first lets the session stop once it was copied. A byte in
/// the second lets it send the rest: no session writes to memory that they share any
/// more. A byte in the third commits. A gate that closes without one ends the
/// migration. All sessions that move together share the gates, so that one write
/// decides for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migrate {
    /// Descriptors pass the link, and the guest's connection goes over. Else it
    /// leads to another host, and the guest must follow.
    pub local: bool,
    /// The gates come with it.
    pub held: bool,
    /// [`Arrive::wanted`](paragpu_protocol::handshake::Arrive::wanted).
    pub wanted: u32,
    /// [`Arrive::follows`](paragpu_protocol::handshake::Arrive::follows).
    pub follows: String,
    /// Copy memory while the program runs.
    pub precopy: bool,
    /// Hand device memory over where both ends are on one GPU. Else copy it.
    pub hand_over: bool,
}

/// A session's state is written again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointSchedule {
    /// An absolute path.
    pub directory: PathBuf,
    /// Seconds from one state to the next, at least 1.
    pub every: u64,
}

/// How far an order is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Report {
    /// It continues.
    Progress(Progress),
    /// It is carried out.
    Done(Figures),
    /// It is not carried out, and the session continues; one sentence.
    Failed(String),
    /// It waits for the sessions that move with this one.
    Held(Step),
    /// The guest could not follow a [`ToWorker::Move`]; one sentence.
    Stayed(String),
    /// The session is another worker's; how its guest reaches it.
    Left(Route),
}

/// How much of a session's memory was carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Whether the program runs.
    pub phase: Phase,
    /// Bytes carried.
    pub done: u64,
    /// All there are.
    pub all: u64,
}

/// Whether the program runs while its memory is carried; 1 or 2 in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum Phase {
    /// Pre-copy: it runs.
    Running = 1,
    /// Stop-and-copy: it is stopped.
    Stopped = 2,
}

impl From<Phase> for u8 {
    fn from(phase: Phase) -> Self {
        phase as Self
    }
}

impl TryFrom<u8> for Phase {
    type Error = String;
    fn try_from(number: u8) -> Result<Self, String> {
        match number {
            1 => Ok(Self::Running),
            2 => Ok(Self::Stopped),
            other => Err(format!("there is no phase {other}")),
        }
    }
}

/// Where a session waits for those that move with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Step {
    /// Everything was copied once, and the program runs.
    Copied,
    /// The program is stopped, and the session's device idle.
    Stopped,
    /// The destination has everything, and the program is stopped.
    Complete,
}

/// The figures of a completed order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Bytes written, read or sent.
    pub bytes: u64,
    /// Of these, bytes sent while the program ran.
    pub pre_copied: u64,
    /// Bytes of device memory that were handed over and not sent.
    pub handed_over: u64,
    /// Bytes of device memory that went from GPU to GPU.
    pub fetched: u64,
    /// Microseconds for which the program was stopped.
    pub stopped: u64,
    /// Microseconds: the longest by which one of its calls was delayed.
    pub felt: u64,
    /// Microseconds in all.
    pub total: u64,
}

/// [`Transport`] as its number on the wire.
mod transport {
    use paragpu_protocol::handshake::Transport;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(transport: &Transport, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(*transport as u8)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Transport, D::Error> {
        Transport::try_from(u8::deserialize(from)?).map_err(D::Error::custom)
    }
}
