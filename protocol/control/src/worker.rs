//! Messages between daemon and worker, over the worker's control socket.
//!
//! The daemon starts a worker with [`Spawn`](crate::spawn::Spawn), which gives
//! it one end of a [`Control`](crate::socket::Control) as its standard input.
//!
//! ```text
//!            daemon                              worker
//!                                                opens its GPU
//!              │ ◄──────────── Ready ───────────── │   (or Failed, then it exits)
//!              │ ────────────── Own ─────────────► │   + directory; if VMs have their own users
//!              │ ───────────── Quota ────────────► │   + memfds: accounts of the VM, in all and on the GPU
//!              │ ───────────── Door ─────────────► │   + listening socket
//!              │ ──────────── Migrate ───────────► │   + link and gates; if the session moves at once
//!              │ ── Assign | Arrive | Restore ───► │   + descriptors
//!              │ ◄─ Report::Progress ───────────── │   of Arrive and Restore
//!              │ ◄─ Report::Done | ::Failed ────── │   of Restore
//!              │ ◄─────────── Started ──────────── │   (or Failed, then it exits)
//!              │                                   │
//!              │ ── Query ───────────────────────► │   at any time; before Assign too
//!              │ ◄─────────── Counters ─────────── │
//!              │ ── Resume ──────────────────────► │   + descriptors; the guest reconnected
//!              │ ── Move ────────────────────────► │   asks the guest to follow a route
//!              │ ◄─ Report::Stayed ─────────────── │   only if it cannot
//!              │ ── Checkpoint ──────────────────► │   + file, if VMs have their own users
//!              │ ◄─ Report::Progress … ─────────── │
//!              │ ◄─ Report::Done | ::Failed ────── │
//!              │ ── Migrate ─────────────────────► │   + link, and three gates
//!              │ ◄─ Report::Progress … ─────────── │
//!              │ ◄─ Report::Held(Copied) ───────── │   only with gates
//!              │ ◄─ Report::Held(Stopped) ──────── │   and, as long as others are not stopped:
//!              │ ◄─ Report::Resumes ────────────── │   others' work may wait for its next call
//!              │ ── Resumed ─────────────────────► │   it executes a call, and is held again
//!              │ ◄─ Report::Held(Complete) ─────── │
//!              │ ◄─ Report::Left ───────────────── │   the destination owns the session
//!              │ ◄─ Report::Done | ::Failed ────── │   Failed: it continues here
//!              │ ◄─ Turn ────────────────────────►  │   with shares: see `turn`
//!              │ ◄─ Exchange ───────────────────── │   + descriptor of offered memory
//!              │ ── Exchanged ───────────────────► │   + descriptor of imported memory
//!              │ ── Again ───────────────────────► │   periodic checkpoints once the daemon is gone
//!              │ ── End ─────────────────────────► │   ends the session
//!              │ ◄─────────── Finished ─────────── │   then it exits
//! ```
//!
//! A worker without a session exits when the daemon's end closes. A worker with
//! a session continues serving it, and waits at its door for another daemon, which gets
//! [`Back`](FromWorker::Back) and continues as above. A worker that dies without `Finished` crashed:
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

/// A message from the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum ToWorker {
    /// Before a session, to a worker in its own namespaces: become this user
    /// irrevocably. The descriptor, if there is one, is the VM's image directory.
    Own {
        /// Number of the VM's user in the worker's user namespace; 1 or more.
        user: u32,
    },
    /// Before a session: its slots. The descriptors are the account of its VM and, with
    /// [`gpu`](Self::Quota::gpu), that of the VM's part of its GPU ([`crate::account`]).
    Quota {
        /// The slot in the account of the VM.
        slot: u32,
        /// The slot in the account of the part; `None` if a driver counts the GPU's memory.
        gpu: Option<u32>,
    },
    /// Before a session: the door, a listening socket at which a later daemon reaches the worker
    /// once this one is gone. The descriptor is the door.
    Door,
    /// Serve this guest. Descriptors: see [`Guest`].
    Assign {
        /// The limits of the session.
        terms: Terms,
        /// The guest that connected.
        guest: Guest,
    },
    /// Receive a session from the worker at the other end of the descriptor.
    Arrive {
        /// The limits of the session.
        terms: Terms,
        /// How its guest reaches it here; `None` if the guest does not need to know.
        route: Option<Route>,
        /// Whether the guest must take that route although its connection is handed over.
        follows: bool,
    },
    /// Restore a session from a file, which is the descriptor, and wait for its guest.
    Restore {
        /// The limits of the session.
        terms: Terms,
    },
    /// Reply with [`FromWorker::Counters`].
    Query,
    /// End the session now, even if it is busy.
    End {
        /// A clause for the guest's user; `None` if the operator knows why.
        reason: Option<String>,
    },
    /// The guest reconnected. Descriptors as for [`Assign`](Self::Assign).
    Resume {
        /// The terms of the session, unchanged.
        terms: Terms,
        /// The guest's new connection.
        guest: Guest,
    },
    /// Ask the guest to continue over another route.
    Move(Route),
    /// Write the session's state: into the descriptor, if there is one, an empty file
    /// that the daemon renames afterwards; otherwise into a directory.
    Checkpoint {
        /// An absolute path.
        directory: PathBuf,
        /// End the session afterwards, so that it can be restored elsewhere.
        end: bool,
        /// When the guest's certificate expires, in seconds since 1970; 0 if it showed none.
        expires: u64,
    },
    /// Migrate the session to another worker. Before [`Assign`](Self::Assign): the session executes
    /// no call before it is stopped.
    Migrate(Migrate),
    /// The answer to [`Report::Resumes`], unless all sessions are stopped by now.
    Resumed,
    /// The checkpoints that the worker writes on its own once the daemon is gone; `None`
    /// for none.
    Again(Option<CheckpointSchedule>),
    /// The answer to [`FromWorker::Exchange`]. The descriptor is the imported memory.
    Exchanged {
        /// The number of the request.
        request: u64,
        /// The offer; `None` if there is no such offer, or no room for another.
        offer: Option<Offer>,
        /// After [`Ask::Enlarge`], the bytes of the VM's part of the GPU.
        part: Option<u64>,
    },
    /// About the session's turn on its GPU ([`crate::turn`]).
    Turn(Turn),
}

/// An opened GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Size of its memory in bytes.
    pub memory: u64,
    /// `GPU-` and its UUID.
    pub uuid: String,
    /// `9.0`.
    pub compute_capability: String,
    /// The newest CUDA version that its driver supports: `13.0`.
    pub cuda_version: String,
}

/// A message from a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum FromWorker {
    /// Its GPU is open.
    Ready {
        /// Its process ID.
        pid: u32,
        /// The GPU.
        gpu: Gpu,
    },
    /// It cannot open its GPU or serve the session, and exits.
    Failed {
        /// One sentence.
        reason: String,
    },
    /// The first message to a later daemon, which connected at the worker's door. The descriptors
    /// are the accounts, as for [`ToWorker::Quota`].
    Back {
        /// The slot in the account of the VM.
        slot: u32,
        /// The slot in the account of the VM's part of the GPU.
        gpu: Option<u32>,
        /// The secret with which the guest resumes the session; zeros if it cannot.
        token: [u8; 16],
    },
    /// The guest was sent its welcome.
    Started {
        /// As assigned.
        session: u64,
    },
    /// The reply to [`ToWorker::Query`].
    Counters(Counters),
    /// The progress or outcome of an order.
    Report(Report),
    /// A request about memory that sessions of the VM share, or about the VM's part of the GPU.
    Exchange {
        /// The number of the request, returned with the answer.
        request: u64,
        /// The request.
        ask: Ask,
    },
    /// About its turn on its GPU ([`crate::turn`]).
    Turn(TurnRequest),
    /// The session is over; the worker exits.
    Finished {
        /// As assigned.
        session: u64,
        /// Its final counts.
        counters: Counters,
        /// Why it ended, in one sentence; `None` after an orderly end.
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
    /// The secret with which the guest resumes the session.
    pub token: [u8; 16],
    /// The guest's ordinal of the device.
    pub ordinal: u32,
    /// Number of devices that the guest sees.
    pub device_count: u32,
    /// Maximum number of bytes of device memory; 0 for no limit.
    pub device_memory: u64,
    /// Size of the window that the worker creates for `shm`, in bytes; 0 for the worker's
    /// default. Ignored for other transports.
    pub window: u64,
    /// Milliseconds that the session waits for a guest that lost its connection;
    /// 0 ends it immediately.
    pub reconnect: u32,
    /// The name of the VM or user, for the log.
    pub vm: String,
}

impl Terms {
    /// The secret with which the guest resumes the session; zeros if it cannot.
    #[must_use]
    pub fn resume_token(&self) -> [u8; 16] {
        match self.reconnect {
            0 => [0; 16],
            _ => self.token,
        }
    }
}

/// A connected guest. Its descriptor is the connected socket. With a channel they are
/// instead the window's memfd, the eventfds guest to host and host to guest, and the
/// device process's connection, whose end of file means that the guest is gone. With
/// [`Channel::lists`], the table of the VM's memory and the files that back it follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// How its calls travel.
    #[serde(with = "transport")]
    pub transport: Transport,
    /// Number of counted frames of the session that it has received.
    pub received: u64,
    /// Its process ID in the guest.
    pub pid: u32,
    /// The offset of its window, and the one from which it has room for another
    /// ([`Hello`](paragpu_protocol::handshake::Hello)).
    pub windows: (u64, u64),
    /// Its channel, with [`Transport::Pci`].
    pub channel: Option<Channel>,
    /// The TLS state with which the worker continues a secured connection.
    pub secured: Option<Keys>,
}

/// The state of a secured connection. It contains keys, so `Debug` prints nothing of it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Keys(pub Vec<u8>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes", self.0.len())
    }
}

/// The position of a channel in a VM's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// Its number.
    pub number: u32,
    /// Offset of its region in the window.
    pub offset: u64,
    /// Size of its region in bytes.
    pub size: u64,
    /// Offset of its page lists in the window; 0 if the host cannot access the VM's
    /// memory.
    pub lists: u64,
}

/// How a guest reaches a session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// `unix`, `tcp`, `vsock`, `shm` or `pci`.
    pub communicator: String,
    /// A socket's path, host and port, a port of the VM's host, or a device node; empty
    /// for the guest's own configuration.
    pub address: String,
}

/// Migrates the session to the worker at the other end of a link, over which the daemon has
/// sent the [`Arrive`](paragpu_protocol::handshake::Arrive) frame. Descriptors: the
/// link and, with [`held`](Self::held), three pipes, the gates, to which the daemon
/// writes. A byte in the first lets the session stop after pre-copy. A byte in the
/// second lets it send the remaining memory, because all sessions that share memory
/// have stopped. A byte in the third commits. A gate that closes without a byte ends
/// the migration. All sessions that move together share the gates, so one write
/// decides for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migrate {
    /// Whether the link passes descriptors, so that the guest's connection is handed over.
    /// Otherwise the link leads to another host, and the guest must reconnect.
    pub local: bool,
    /// Whether the destination is another worker of this daemon. A guest that reconnected
    /// would find this one there, which has the same token.
    pub here: bool,
    /// Whether the gates are attached.
    pub held: bool,
    /// [`Arrive::follows`](paragpu_protocol::handshake::Arrive::follows).
    pub follows: String,
    /// Whether to pre-copy memory while the program runs.
    pub precopy: bool,
    /// Whether to hand device memory over if both ends use one GPU, instead of copying it.
    pub hand_over: bool,
}

/// A schedule of checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointSchedule {
    /// An absolute path.
    pub directory: PathBuf,
    /// The interval in seconds, at least 1.
    pub every: u64,
}

/// The progress or outcome of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Report {
    /// It continues.
    Progress(Progress),
    /// It succeeded.
    Done(Figures),
    /// It failed, and the session continues; one sentence.
    Failed(String),
    /// It waits for the sessions that move with this one.
    Held(Step),
    /// It is stopped, waits for the others, and asks to execute a call.
    Resumes,
    /// The guest could not follow a [`ToWorker::Move`]; one sentence.
    Stayed(String),
    /// Another worker owns the session; how its guest reaches it.
    Left(Route),
}

/// How much of a session's memory was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The phase of the migration.
    pub phase: Phase,
    /// Bytes sent so far.
    pub done: u64,
    /// Total number of bytes.
    pub all: u64,
}

/// The phase of a migration; 1 or 2 in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub enum Phase {
    /// Pre-copy: the program runs.
    Running = 1,
    /// Stop-and-copy: the program is stopped.
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
            other => Err(format!("unknown phase {other}")),
        }
    }
}

/// The gate at which a session waits for those that move with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Step {
    /// Pre-copy is complete, and the program runs.
    Copied,
    /// The program is stopped and its device is idle.
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
    /// Bytes of these that were sent by pre-copy.
    pub pre_copied: u64,
    /// Bytes of device memory that were handed over instead of sent.
    pub handed_over: u64,
    /// Bytes of device memory copied from GPU to GPU.
    pub fetched: u64,
    /// Downtime of the program in microseconds.
    pub stopped: u64,
    /// The longest delay of one of its calls, in microseconds.
    pub felt: u64,
    /// Total time in microseconds.
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
