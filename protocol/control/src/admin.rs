//! The protocol of the daemon's control socket. A connection carries any number of requests. An
//! order has several responses: its progress, and at last its outcome.
#![forbid(unsafe_code)]

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::frame::{FrameError, Message};
use crate::json_lines;
use crate::lease::{Claim, Lease};
use crate::turn::TimeShare;
use crate::worker::{self, Phase};

impl Message for Request {
    // Two paths of the greatest length, and the rest.
    const MAX_LEN: usize = 16 << 10;
}

impl Message for Response {
    // A listing of some ten thousand sessions.
    const MAX_LEN: usize = 16 << 20;
}

/// A connection to a daemon's control socket, for a client that may wait.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

/// One [`Response::Progress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Of this session.
    pub session: u64,
    /// How far it is.
    pub progress: worker::Progress,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn connect(path: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        Ok(Self { stream })
    }

    /// One question and its answer.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn ask(&self, request: &Request) -> Result<Response, FrameError> {
        self.order(request, |_| {})
    }

    /// An order and its end; `progress` sees what comes before.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn order(
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

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// The sessions: [`Response::Sessions`].
    List {},
    /// End a session, whatever it does: [`Response::Ending`].
    End {
        /// Its number.
        session: u64,
    },
    /// Writes a session's state into a directory: [`Response::Progress`]
    /// several times, then [`Response::Done`].
    Checkpoint {
        /// Its number.
        session: u64,
        /// An absolute path.
        directory: PathBuf,
        /// End the session then, so that it can be restored.
        end: bool,
        /// Write it again each time so many seconds have passed, as long as it
        /// is on this host; 0 does so no longer, and writes nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// Takes up the session that a directory holds; its guest may connect
    /// again: [`Response::Done`].
    Restore {
        /// An absolute path.
        directory: PathBuf,
    },
    /// Moves running sessions: [`Response::Progress`] several times, then
    /// [`Response::Done`] for one that was named by its number,
    /// [`Response::Moved`] for those of a VM or a GPU. After
    /// [`Response::Error`] all continue here.
    Migrate(Migrate),
    /// A lease for as long as this connection stands: [`Response::Lease`]. From
    /// then on [`Response::Leave`] may come unasked.
    Claim(Claim),
    /// Ends this connection's lease, whatever its [`Claim::grace`]:
    /// [`Response::Released`].
    Release {},
    /// Moves all sessions of this connection's lease to another host, which has
    /// the lease as well: [`Response::Moved`].
    Carry {
        /// `tcp://HOST:PORT`.
        to: String,
        /// [`Migrate::most_pause_ms`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        most_pause_ms: Option<u64>,
    },
    /// Gives a session, or a VM's sessions together, a share of their GPU's
    /// time, until they end: [`Response::Shared`]. Exactly one of the two is
    /// named. What is missing stays as it is.
    Share {
        /// The session of this number.
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
    /// Devices and totals: [`Response::Stats`].
    Stats {},
    /// Who answers: [`Response::Version`].
    Version {},
}

/// Which sessions move, and where to. Exactly one of `session`, `vm` and `gpu`
/// is given, and at least one of `to`, `to_gpu` and `communicator`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Migrate {
    /// The session of this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// All sessions of this VM: either all arrive, or all stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// All sessions on this GPU, each on its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Another daemon: `unix:///PATH` or `tcp://HOST:PORT`. This one where it
    /// is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// A GPU of the destination, by its number there. Where it is missing
    /// the one with the number that the guest knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_gpu: Option<u32>,
    /// How the guest is to reach the session from then on: `unix`, `tcp`,
    /// `vsock`, `shm` or `pci`. Where it is missing its connection goes over,
    /// or, to another host, it follows over `tcp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communicator: Option<String>,
    /// Stop the programs first and copy then.
    pub stop_first: bool,
    /// Copy device memory where it could be handed over, too.
    pub copy: bool,
    /// The sessions of a VM stay if from their stop to the commit it takes
    /// longer than so many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_pause_ms: Option<u64>,
}

/// The daemon's reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Response {
    /// The sessions, oldest first.
    Sessions {
        /// Each of them.
        sessions: Vec<SessionInfo>,
    },
    /// The session was told to end; it is killed if it does not.
    Ending {
        /// Its number.
        session: u64,
    },
    /// How far an order is; more answers follow.
    Progress {
        /// Of this session.
        #[serde(default)]
        session: u64,
        /// 1 while the program runs, 2 while it is stopped.
        phase: Phase,
        /// Bytes of memory carried.
        done: u64,
        /// All there are.
        all: u64,
    },
    /// An order was carried out.
    Done(Figures),
    /// The outcomes for sessions that were to move.
    Moved {
        /// Each of them.
        sessions: Vec<Moved>,
    },
    /// The lease stands.
    Lease(Lease),
    /// The host drains: the lease is to move elsewhere, or ends with the host.
    Leave {
        /// One sentence.
        reason: String,
    },
    /// The lease is over, as asked.
    Released {},
    /// The share that was given.
    Shared(TimeShare),
    /// Devices and totals.
    Stats(Stats),
    /// Who answers.
    Version {
        /// Release of the daemon.
        daemon: String,
        /// Version of the wire.
        protocol: String,
        /// The daemon's process.
        pid: u32,
        /// Why workers run as the daemon's user; `None` where VMs have users of
        /// their own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shared_user: Option<String>,
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
    /// Of these, bytes sent while the program ran.
    pub pre_copied_bytes: u64,
    /// Bytes of device memory that were handed over and not sent.
    #[serde(default)]
    pub handed_over_bytes: u64,
    /// Bytes of device memory that went from GPU to GPU.
    #[serde(default)]
    pub peer_copied_bytes: u64,
    /// Milliseconds for which the program was stopped.
    pub blackout_ms: f64,
    /// Milliseconds: the longest by which one of its calls was delayed.
    #[serde(default)]
    pub longest_delay_ms: f64,
    /// Milliseconds in all.
    pub total_ms: f64,
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
        }
    }
}

/// The outcome for a session that was to move.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// The number that it had here.
    pub session: u64,
    /// Its VM, user or address.
    pub vm: String,
    /// Whether it is at the destination now. Else it is here, unless its
    /// program ended meanwhile.
    pub moved: bool,
    /// Why it is not, in one sentence.
    pub error: Option<String>,
    /// The figures.
    #[serde(flatten)]
    pub figures: Figures,
}

/// The activity of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// It serves its program.
    #[default]
    Serving,
    /// It comes from elsewhere, and its program is not connected to it yet.
    Arriving,
    /// It is being moved.
    Moving,
    /// Its state is being written.
    Writing,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its number on this host.
    pub id: u64,
    /// The VM, the user (`uid 1000`) or the address it came from.
    pub vm: String,
    /// The guest's process, as the guest counts.
    pub guest_pid: u32,
    /// The worker's process on this host.
    pub worker_pid: u32,
    /// `cuda:0`: kind and number of the device on this host.
    pub device: String,
    /// The guest's number of the device.
    pub ordinal: u32,
    /// `unix`, `tcp`, `shm` or `pci`.
    pub communicator: String,
    /// Seconds since it began.
    pub age: f64,
    /// Calls executed; with the rest zero where `counted` is false.
    pub calls: u64,
    /// Of these, calls that nobody waited for.
    pub posted: u64,
    /// Of these, calls that a thread waited for.
    pub synchronous: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Bytes copied from guest memory to the device.
    pub bytes_to_device: u64,
    /// Bytes copied from the device to guest memory.
    pub bytes_from_device: u64,
    /// Bytes of device memory now.
    pub device_memory: u64,
    /// Bytes of host memory that the worker holds for the guest now.
    pub host_memory: u64,
    /// Bytes of its pinned and registered memory that are kept as copies now, because
    /// guest and host cannot share them.
    #[serde(default)]
    pub shadow_memory: u64,
    /// Whether the counts came from the worker; it cannot be asked when its
    /// session began under an earlier daemon, nor while a call keeps it busy.
    pub counted: bool,
    /// Whether it was told to end.
    pub ending: bool,
    /// Activity besides serving.
    #[serde(default)]
    pub activity: Activity,
    /// Where it is written from time to time.
    #[serde(default)]
    pub checkpoint: Option<CheckpointInfo>,
    /// Its part of its GPU's time, where that is shared.
    #[serde(default)]
    pub turns: Option<TurnsInfo>,
}

/// A session on a GPU whose time is shared.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TurnsInfo {
    /// Its share, or its VM's.
    pub share: TimeShare,
    /// Seconds of all its turns.
    pub seconds: f64,
}

/// A session's state that is written from time to time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointInfo {
    /// The directory.
    pub directory: PathBuf,
    /// Seconds from one to the next.
    pub every: f64,
    /// Seconds since the state that is there was written.
    pub age: f64,
    /// Why it was not written since; one sentence.
    pub error: Option<String>,
}

/// Devices and totals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Sessions now.
    pub sessions: u64,
    /// Most at once.
    pub session_limit: u64,
    /// Guests that wait for a worker.
    pub waiting: u64,
    /// Connections that have not said hello.
    pub pending: u64,
    /// Sessions begun since the daemon started.
    pub begun: u64,
    /// Guests refused since the daemon started.
    pub refused: u64,
    /// Workers that died without a word since the daemon started.
    pub crashed: u64,
    /// Seconds since the daemon started.
    pub uptime: f64,
    /// Whether the search for devices is over.
    pub ready: bool,
    /// The devices.
    pub devices: Vec<DeviceInfo>,
    /// The VMs, users and addresses that have sessions.
    pub vms: Vec<VmInfo>,
    /// Why there are no devices, if there are none.
    pub problem: Option<String>,
}

/// One VM, user or address that has sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VmInfo {
    /// As [`SessionInfo::vm`].
    pub vm: String,
    /// Sessions now.
    pub sessions: u64,
    /// Most at once; 0 for no limit.
    pub session_limit: u64,
    /// Bytes of device memory in all its sessions, those left out that began
    /// under an earlier daemon.
    pub device_memory: u64,
    /// Maximum number of bytes; 0 for no limit.
    pub device_memory_limit: u64,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Its place: the guest's number of it, unless sessions are placed or the
    /// VM has devices of its own.
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
    /// The newest CUDA that its driver serves, `13.0`; empty until a worker
    /// opened it.
    #[serde(default)]
    pub cuda_version: String,
    /// Workers that wait for a session.
    pub idle: u64,
    /// Workers that open the device.
    pub starting: u64,
    /// Sessions.
    pub sessions: u64,
    /// Why no worker can open it, while none can.
    pub problem: Option<String>,
}
