//! The protocol of the daemon's control socket. A connection carries any number of requests. An
//! order has several responses: its progress, and at last its outcome.
#![forbid(unsafe_code)]

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::frame::{FrameError, Message};
use crate::json_lines;
use crate::lease::{Claim, Lease};
use crate::turn::TimeShare;
use crate::worker::{self, Phase};

impl Message for Request {
    // Two paths of the maximum length, and the other fields.
    const MAX_LEN: usize = 16 << 10;
}

impl Message for Response {
    // A listing of about ten thousand sessions.
    const MAX_LEN: usize = 16 << 20;
}

/// How long a daemon may take to accept a connection, and to answer what it answers at once.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A blocking connection to a daemon's control socket.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

/// A [`Response::Progress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The session's number.
    pub session: u64,
    /// Its progress.
    pub progress: worker::Progress,
}

impl Client {
    /// Connects to the socket at `path`. If its backlog is full, because the daemon is
    /// stopped, waits at most [`PATIENCE`].
    pub fn connect(path: &Path) -> std::io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // unix(7): it also limits connect.
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        rustix::net::connect(&socket, &address)?;
        Ok(Self {
            stream: socket.into(),
        })
    }

    /// Sends a request that the daemon answers at once, and returns the response.
    ///
    /// # Errors
    /// [`FrameError`]; [`FrameError::Silent`] after [`PATIENCE`], and then the connection is of
    /// no further use.
    pub fn ask(&self, request: &Request) -> Result<Response, FrameError> {
        self.ask_within(request, PATIENCE)
    }

    /// [`Self::ask`] with another limit than [`PATIENCE`].
    ///
    /// # Errors
    /// As there.
    pub fn ask_within(&self, request: &Request, limit: Duration) -> Result<Response, FrameError> {
        let asked = self.stream.set_read_timeout(Some(limit));
        let answer = asked
            .map_err(FrameError::from)
            .and_then(|()| self.exchange(request, |_| {}));
        answer.map_err(|error| match error {
            FrameError::Io(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                FrameError::Silent(limit.as_secs())
            }
            other => other,
        })
    }

    /// Sends an order and returns its outcome, however long that takes. `progress` receives the
    /// progress before that.
    pub fn order(
        &self,
        request: &Request,
        progress: impl FnMut(Progress),
    ) -> Result<Response, FrameError> {
        self.stream.set_read_timeout(None)?;
        self.exchange(request, progress)
    }

    fn exchange(
        &self,
        request: &Request,
        mut progress: impl FnMut(Progress),
    ) -> Result<Response, FrameError> {
        json_lines::write(&self.stream, request)?;
        let mut answers = BufReader::new(&self.stream);
        loop {
            match json_lines::read(&mut answers)?.ok_or(FrameError::Length)? {
                Response::Progress {
                    session,
                    phase,
                    done,
                    all,
                } => progress(Progress {
                    session,
                    progress: worker::Progress { phase, done, all },
                }),
                response => return Ok(response),
            }
        }
    }
}

/// The longest interval of periodic checkpoints, in seconds: 30 days.
pub const MAX_EVERY: u64 = 30 * 24 * 3600;

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// List the sessions: [`Response::Sessions`].
    List {},
    /// End a session, even a busy one: [`Response::Ending`].
    End {
        /// The session's number.
        session: u64,
    },
    /// Write a session's state into a directory: [`Response::Progress`]
    /// repeatedly, then [`Response::Done`].
    Checkpoint {
        /// The session's number.
        session: u64,
        /// An absolute path.
        directory: PathBuf,
        /// End the session afterwards, so that it can be restored.
        end: bool,
        /// Repeat at this interval, in seconds, while the session is on this host; at
        /// most [`MAX_EVERY`]. 0 stops the repetition into this directory and writes
        /// nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// Restore the session in a directory, so that its guest can reconnect:
    /// [`Response::Progress`] repeatedly, then [`Response::Done`].
    Restore {
        /// An absolute path.
        directory: PathBuf,
        /// Restore this many copies instead, for clones of the guest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        copies: Option<u32>,
    },
    /// Move running sessions: [`Response::Progress`] repeatedly, then
    /// [`Response::Done`] for a session named by its number, or
    /// [`Response::Moved`] for those of a VM or a GPU. After
    /// [`Response::Error`] all of them continue here.
    Migrate(Migrate),
    /// Claim a lease for the lifetime of this connection: [`Response::Lease`].
    /// From then on, [`Response::Leave`] may arrive unsolicited.
    Claim(Claim),
    /// End this connection's lease at once, without its [`Claim::grace`]:
    /// [`Response::Released`].
    Release {},
    /// Move all sessions of this connection's lease to another host, which has
    /// granted the lease too: [`Response::Moved`].
    Carry {
        /// `tcp://HOST:PORT`.
        to: String,
        /// [`Migrate::most_pause_ms`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        most_pause_ms: Option<u64>,
    },
    /// Set the share of GPU time of a session, or of a VM's sessions together,
    /// until they end: [`Response::Shared`]. Exactly one of `session` and `vm` is
    /// given. Absent values do not change.
    Share {
        /// The session's number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<u64>,
        /// The VM, user or address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vm: Option<String>,
        /// [`TimeShare::weight`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weight: Option<u32>,
        /// [`TimeShare::cap`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cap: Option<u32>,
        /// [`TimeShare::priority`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<u32>,
    },
    /// Report devices and totals: [`Response::Stats`].
    Stats {},
    /// Report the daemon's version: [`Response::Version`].
    Version {},
}

/// The sessions to move, and their destination. Exactly one of `session`, `vm` and
/// `gpu` is given, and at least one of `to`, `to_gpu` and `communicator`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Migrate {
    /// The session's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// All sessions of this VM, atomically: all move, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// All sessions on this GPU, independently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Another daemon: `unix:///PATH` or `tcp://HOST:PORT`. This one where it
    /// is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// A GPU of the destination, by its number there. Without one,
    /// the one with the number that the guest knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_gpu: Option<u32>,
    /// The guest's communicator after the move: `unix`, `tcp`, `vsock`, `shm` or `pci`.
    /// If absent, its connection is handed over or, for a move to another host, replaced
    /// by `tcp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communicator: Option<String>,
    /// Stop the programs first and copy then.
    pub stop_first: bool,
    /// Copy device memory even if it could be handed over.
    pub copy: bool,
    /// Maximum downtime in milliseconds: the sessions of a VM stay if the time from
    /// their stop to the commit exceeds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_pause_ms: Option<u64>,
}

/// The daemon's reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Response {
    /// The sessions, oldest first.
    Sessions {
        /// One entry per session.
        sessions: Vec<SessionInfo>,
    },
    /// The session was asked to end, and is killed if it does not.
    Ending {
        /// The session's number.
        session: u64,
    },
    /// The progress of an order; more responses follow.
    Progress {
        /// The session's number.
        #[serde(default)]
        session: u64,
        /// 1 while the program runs, 2 while it is stopped.
        phase: Phase,
        /// Bytes of memory sent so far.
        done: u64,
        /// Total number of bytes.
        all: u64,
    },
    /// An order was carried out.
    Done(Figures),
    /// The outcomes for sessions that were to move.
    Moved {
        /// One entry per session.
        sessions: Vec<Moved>,
    },
    /// The lease is granted.
    Lease(Lease),
    /// The host drains: the lease must move, or ends with the host.
    Leave {
        /// One sentence.
        reason: String,
    },
    /// The lease ended, as requested.
    Released {},
    /// The new share.
    Shared(TimeShare),
    /// Devices and totals.
    Stats(Stats),
    /// The daemon's version.
    Version {
        /// The daemon's release.
        daemon: String,
        /// Version of the wire protocol.
        protocol: String,
        /// The daemon's process ID.
        pid: u32,
        /// Why workers run as the daemon's user; `None` if each VM has its own user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shared_user: Option<String>,
        /// Why VMs have no control groups; `None` if they have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ungrouped: Option<String>,
    },
    /// The request was not served.
    Error {
        /// One sentence.
        error: String,
    },
}

/// The figures of a completed order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Bytes written or sent.
    pub bytes: u64,
    /// Bytes of these that were sent by pre-copy.
    pub pre_copied_bytes: u64,
    /// Bytes of device memory that were handed over instead of sent.
    #[serde(default)]
    pub handed_over_bytes: u64,
    /// Bytes of device memory copied from GPU to GPU.
    #[serde(default)]
    pub peer_copied_bytes: u64,
    /// Downtime of the program in milliseconds.
    pub blackout_ms: f64,
    /// The longest delay of one of its calls, in milliseconds.
    #[serde(default)]
    pub longest_delay_ms: f64,
    /// Total time in milliseconds.
    pub total_ms: f64,
    /// The session's number after a move within its daemon, or a restore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_session: Option<u64>,
}

impl From<worker::Figures> for Figures {
    fn from(figures: worker::Figures) -> Self {
        Self {
            bytes: figures.bytes,
            pre_copied_bytes: figures.pre_copied,
            handed_over_bytes: figures.handed_over,
            peer_copied_bytes: figures.fetched,
            blackout_ms: figures.stopped as f64 / 1e3,
            longest_delay_ms: figures.felt as f64 / 1e3,
            total_ms: figures.total as f64 / 1e3,
            new_session: None,
        }
    }
}

/// The outcome for a session that was to move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// Its number on this host.
    pub session: u64,
    /// Its VM, user or address.
    pub vm: String,
    /// Whether it moved. Otherwise it is still here, unless its program ended in the
    /// meantime.
    pub moved: bool,
    /// Why it did not, in one sentence.
    pub error: Option<String>,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// It serves its program.
    #[default]
    Serving,
    /// It is arriving from another worker or a file; its program has not connected yet.
    Arriving,
    /// It is being moved.
    Moving,
    /// Its state is being checkpointed.
    Writing,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its number on this host.
    pub id: u64,
    /// The tenant: a VM, a user (`uid 1000`) or an address.
    pub vm: String,
    /// The process ID in the guest.
    pub guest_pid: u32,
    /// The worker's process ID on this host.
    pub worker_pid: u32,
    /// `cuda:0`: kind and number of the device on this host.
    pub device: String,
    /// The guest's number of the device.
    pub ordinal: u32,
    /// `unix`, `tcp`, `shm` or `pci`.
    pub communicator: String,
    /// Seconds since it began.
    pub age: f64,
    /// Calls executed. This and the following counts are 0 if `counted` is false.
    pub calls: u64,
    /// Posted calls among these.
    pub posted: u64,
    /// Synchronous calls among these.
    pub synchronous: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Bytes copied from guest memory to the device.
    pub bytes_to_device: u64,
    /// Bytes copied from the device to guest memory.
    pub bytes_from_device: u64,
    /// Current bytes of device memory.
    pub device_memory: u64,
    /// Current bytes of host memory that the worker holds for the guest.
    pub host_memory: u64,
    /// Current bytes of shadows: copies of pinned and registered memory that guest and
    /// host cannot share.
    #[serde(default)]
    pub shadow_memory: u64,
    /// Whether the worker supplied the counts. It cannot while a call keeps it busy.
    pub counted: bool,
    /// Whether the session was asked to end.
    pub ending: bool,
    /// Activity besides serving.
    #[serde(default)]
    pub activity: Activity,
    /// Its periodic checkpoints.
    #[serde(default)]
    pub checkpoint: Option<CheckpointInfo>,
    /// Its share of GPU time, if the GPU's time is shared.
    #[serde(default)]
    pub turns: Option<TurnsInfo>,
    /// The engine's job of its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
}

/// A session on a GPU whose time is shared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TurnsInfo {
    /// Its share, or its VM's.
    pub share: TimeShare,
    /// Total seconds of its turns.
    pub seconds: f64,
}

/// The periodic checkpoints of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// The directory.
    pub directory: PathBuf,
    /// The interval in seconds.
    pub every: f64,
    /// Seconds since the last successful checkpoint.
    pub age: f64,
    /// Why later ones failed; one sentence.
    pub error: Option<String>,
}

/// Devices and totals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Current number of sessions.
    pub sessions: u64,
    /// Maximum number of concurrent sessions.
    pub session_limit: u64,
    /// Guests waiting for a worker.
    pub waiting: u64,
    /// Connections that have not sent a hello.
    pub pending: u64,
    /// Sessions begun since the daemon started.
    pub begun: u64,
    /// Guests refused since the daemon started.
    pub refused: u64,
    /// Workers that crashed since the daemon started.
    pub crashed: u64,
    /// Seconds since the daemon started.
    pub uptime: f64,
    /// Whether device discovery has finished.
    pub ready: bool,
    /// The devices.
    pub devices: Vec<DeviceInfo>,
    /// The VMs, users and addresses that have sessions.
    pub vms: Vec<VmInfo>,
    /// Why there are no devices, if there are none.
    pub problem: Option<String>,
}

/// A VM, user or address that has sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VmInfo {
    /// As [`SessionInfo::vm`].
    pub vm: String,
    /// Current number of sessions.
    pub sessions: u64,
    /// Maximum number of concurrent sessions; 0 for no limit.
    pub session_limit: u64,
    /// Bytes of device memory of all its sessions.
    pub device_memory: u64,
    /// Maximum number of bytes of device memory; 0 for no limit.
    pub device_memory_limit: u64,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Its position: the guest's number for it, unless sessions are placed or the VM
    /// has its own list of devices.
    pub ordinal: u32,
    /// `cuda:0`.
    pub device: String,
    /// Its name; empty until a worker opened it.
    pub name: String,
    /// Bytes of its memory; 0 until a worker opened it.
    pub memory: u64,
    /// `GPU-` and its UUID; empty until a worker opened it.
    #[serde(default)]
    pub uuid: String,
    /// `9.0`; empty until a worker opened it.
    #[serde(default)]
    pub compute_capability: String,
    /// The newest CUDA version that its driver supports, `13.0`; empty until a worker
    /// opened it.
    #[serde(default)]
    pub cuda_version: String,
    /// Warm workers waiting for a session.
    pub idle: u64,
    /// Workers that are opening the device.
    pub starting: u64,
    /// Number of sessions.
    pub sessions: u64,
    /// Why workers cannot open it, if they cannot.
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_does_not_answer_is_not_awaited() {
        let (near, far) = UnixStream::pair().unwrap();
        let client = Client { stream: near };
        let answer = client.ask_within(&Request::Version {}, Duration::from_millis(1));
        assert!(matches!(answer, Err(FrameError::Silent(0))), "{answer:?}");
        drop(far);
        let answer = client.order(&Request::Version {}, |_| {});
        assert!(matches!(answer, Err(FrameError::Io(_))), "{answer:?}");
    }
}
