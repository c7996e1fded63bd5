//! A session and its parts. Each part owns its state. Code that involves several
//! parts is in the file of the call's chapter (`memory.rs`, `stream.rs`, …), and the
//! serving loop is in `session_loop.rs`.

use std::sync::Arc;

use paragpu_communicator::{Receiver, Sender, Window};
use paragpu_device::{Device, Snapshot};
use paragpu_protocol::layout::Regions;

use crate::error::SessionEnd;
use crate::images::ImageStore;
use crate::statistics::Statistics;
use crate::transfer::attempts::Attempts;
use crate::transfer::identity::Identity;
use crate::utilization::Manager;
use paragpu_control::account::{Book, Share};

pub(crate) mod bypass;
pub(crate) mod code_search;
pub(crate) mod completion;
pub(crate) mod copies;
pub(crate) mod copy_in;
pub(crate) mod copy_out;
mod departed;
pub(crate) mod errors;
pub(crate) mod event;
pub(crate) mod fences;
pub(crate) mod gpu;
pub(crate) mod graph;
mod green;
pub(crate) mod host_account;
pub(crate) mod host_function;
pub mod host_memory;
pub(crate) mod intake;
pub(crate) mod lanes;
pub(crate) mod link;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod objects;
pub(crate) mod output;
pub(crate) mod pacer;
pub(crate) mod pages;
pub(crate) mod queue;
pub(crate) mod replies;
pub(crate) mod sender;
pub(crate) mod shadow;
mod shared_file;
pub(crate) mod sharing;
pub(crate) mod shortage;
mod strand;
pub(crate) mod stream;
pub(crate) mod texture;
pub(crate) mod transfer;
pub(crate) mod turn;

use completion::Completion;
use copies::Copies;
use errors::Errors;
use gpu::Gpu;
use host_account::HostAccount;
use host_function::HostFunctions;
use host_memory::HostMemory;
use intake::Intake;
use link::Link;
pub use link::{Finds, Reconnect, Reconnected};
use memory::DeviceMemory;
use module::Modules;
use objects::Objects;
use output::{Output, Printing};
use replies::Replies;
use sharing::Sharing;
use transfer::Transfer;
use turn::Pacing;

/// The parameters of a new session.
pub struct Setup {
    /// The GPU, opened with `regions`.
    pub device: Box<dyn Device>,
    /// Its constant properties.
    pub snapshot: Snapshot,
    /// The guest's number of the device.
    pub ordinal: u32,
    /// Its regions of addresses.
    pub regions: Regions,
    /// Limit of device memory in bytes; 0 for none.
    pub device_memory: u64,
    /// Its share of the account of its VM, which limits its host memory (shadows, images,
    /// modules), too.
    pub share: Share,
    /// The store of module images.
    pub images: ImageStore,
    /// The memfds for kernel output; `None` leaves the standard streams unchanged.
    pub output: Option<Output>,
    /// The session's counters.
    pub statistics: Arc<Statistics>,
    /// Also measure latencies, which reads the clock twice per call.
    pub latency: bool,
    /// The source of further connections; `None` if the session ends with its
    /// connection.
    pub reconnect: Option<Box<dyn Reconnect>>,
}

impl Setup {
    /// A session without limits on this device, opened with `regions`.
    #[must_use]
    pub fn new(
        device: Box<dyn Device>,
        snapshot: Snapshot,
        ordinal: u32,
        regions: Regions,
    ) -> Self {
        Self {
            device,
            snapshot,
            ordinal,
            regions,
            device_memory: 0,
            share: Share::default(),
            images: ImageStore::default(),
            output: None,
            statistics: Arc::default(),
            latency: false,
            reconnect: None,
        }
    }
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("ordinal", &self.ordinal)
            .field("snapshot", &self.snapshot.name)
            .finish_non_exhaustive()
    }
}

/// A session.
pub struct Session {
    /// Its GPU.
    pub(crate) gpu: Gpu,
    /// Its turn on a GPU with shares.
    pub(crate) pacing: Pacing,
    /// Its connection, and how calls are answered.
    pub(crate) replies: Replies,
    /// Position in the sequence, and queued calls.
    pub(crate) intake: Intake,
    /// The guest's objects by handle.
    pub(crate) objects: Objects,
    /// Device memory.
    pub(crate) memory: DeviceMemory,
    /// Memory shared with other sessions of the VM.
    pub(crate) sharing: Sharing,
    /// Guest memory that the device can reach.
    pub(crate) host: HostMemory,
    /// Staging memory and tokens of copies.
    pub(crate) copies: Copies,
    /// Moves and checkpoints.
    pub(crate) transfer: Transfer<Box<dyn Task>>,
    /// State for NVML queries.
    pub(crate) management: Manager,
    /// Its counters.
    pub(crate) statistics: Arc<Statistics>,
}

/// A background task of a session, such as a move. It runs in steps between two
/// iterations of the serving loop.
pub(crate) trait Task: Send {
    /// Runs a step; returns the task if it is not finished.
    ///
    /// # Errors
    /// The session ends.
    fn step(
        self: Box<Self>,
        session: &mut Session,
        receiver: &mut dyn Receiver,
    ) -> Result<Option<Box<dyn Task>>, SessionEnd>;

    /// Ends the task without success: the session stays as it is.
    fn give_up(self: Box<Self>, session: &mut Session, reason: &str);

    /// The attempts to stop the session.
    fn attempts(&self) -> &Attempts;
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("ordinal", &self.gpu.ordinal())
            .field("received", &self.intake.received())
            .field("pending", &self.replies.completion.len())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A session that communicates over `sender` and `window`.
    #[must_use]
    pub fn new(mut setup: Setup, sender: Arc<dyn Sender>, window: Option<Arc<Window>>) -> Self {
        let statistics = setup.statistics;
        let counters = || Arc::clone(&statistics);
        let link = Link::new(sender, setup.reconnect, setup.latency, counters());
        let functions =
            HostFunctions::new(Arc::clone(link.sender()) as Arc<_>, link.executed_cell());
        let identity = Identity::unknown(setup.ordinal, setup.snapshot.name.clone());
        let account = HostAccount::new(setup.share.of(Book::Host), counters());
        let modules = Modules::new(setup.images, Arc::clone(&account));
        link.sender().count_for(&account);
        setup.device.charge_to(Arc::clone(&account) as Arc<_>);
        Self {
            memory: DeviceMemory::new(
                setup.regions.arena,
                setup.device_memory,
                setup.snapshot.total_memory,
                setup.share,
                counters(),
            ),
            sharing: Sharing::default(),
            host: HostMemory::new(
                setup.regions,
                window.clone(),
                Arc::clone(&account),
                counters(),
            ),
            gpu: Gpu::new(setup.device, &setup.snapshot, setup.ordinal, setup.regions),
            pacing: Pacing::default(),
            replies: Replies {
                link,
                completion: Completion::new(counters()),
                errors: Errors::default(),
                printing: Printing::new(setup.output),
            },
            intake: Intake::new(account.open()),
            objects: Objects::new(modules, functions),
            copies: Copies::new(window, counters()),
            transfer: Transfer::new(identity),
            management: Manager::new(setup.snapshot.uuid),
            statistics,
        }
    }
}
