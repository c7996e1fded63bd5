//! A session: the device of a host as one process of the guest uses it.
//!
//! A session is made of parts, each of which owns its state and uses only those
//! before it:
//!
//! ```text
//! link ─ handles ─ device
//!   └─ shadows ── streams ── events
//!                    ├─ memory ─ modules ─ launches
//!                    │     └─ virtual memory
//!                    ├─ host memory
//!                    ├─ host functions
//!                    └─ access ─ copies ─ managed memory
//!                                graphs (of all of these)
//! ```

use std::io::Write as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use paragpu_communicator::Connection;
use paragpu_config::Level;
use paragpu_protocol::call::WireCall;
use paragpu_protocol::handshake::Welcome;
use paragpu_protocol::layout::Regions;
use paragpu_protocol::table::Ping;

use crate::access::Access;
use crate::at_exit::{self, Ending};
use crate::connection::connect::{Connected, connect};
use crate::connection::{self, Link, PinnedMemory, Recovery};
use crate::copy::Copies;
use crate::device::Device;
use crate::device_graph::{Graphs, Parts};
use crate::error::{Error, Result};
use crate::event::Events;
use crate::handles::Handles;
use crate::host::HostMemory;
use crate::host_function::HostFunctions;
use crate::host_view::HostViews;
use crate::launch::Launches;
use crate::managed_memory::ManagedMemory;
use crate::managed_variable::ManagedVariables;
use crate::memory::DeviceMemory;
use crate::module::Modules;
use crate::monitor::Monitor;
use crate::objects::edge::Dependency;
use crate::objects::graph::Graph;
use crate::objects::graph_memory::GraphMemory;
use crate::objects::stream::Stream;
use crate::progress::Progress;
use crate::shadow::Shadows;
use crate::snapshot::Snapshot;
use crate::stream::Streams;
use crate::sys::process;
use crate::sys::reservation::Reservation;
use crate::texture::Textures;
use crate::virtual_memory::VirtualMemory;
use crate::window::PinnedWindow;

/// What the session got when it began.
#[derive(Debug)]
struct Granted {
    welcome: Welcome,
    regions: Regions,
    /// The addresses of device memory.
    _arena: Arc<Reservation>,
}

/// One device, as one process of the guest uses it.
#[derive(Debug)]
pub struct Session {
    granted: Granted,
    link: Arc<Link>,
    device: Arc<Device>,
    streams: Arc<Streams>,
    events: Events,
    memory: Arc<DeviceMemory>,
    virtual_memory: VirtualMemory,
    managed_memory: ManagedMemory,
    host: Arc<HostMemory>,
    host_functions: Arc<HostFunctions>,
    modules: Arc<Modules>,
    launches: Arc<Launches>,
    copies: Arc<Copies>,
    textures: Textures,
    graphs: Graphs,
}

impl Session {
    /// Connects as configured.
    pub fn open(config: &paragpu_config::guest::Guest, ordinal: u32) -> Result<Arc<Self>, Error> {
        let Connected {
            connection,
            welcome,
            spin,
            communicator,
            passed_over,
        } = connect(config, ordinal)?;
        if config.log.level >= Level::Info {
            // Without standard error, the program gets no message.
            let mut stderr = std::io::stderr().lock();
            for reason in passed_over {
                let _ = writeln!(stderr, "paragpu: skipped: {reason}");
            }
            let _ = writeln!(stderr, "paragpu: device {ordinal} uses {communicator}");
        }
        let recovery = Recovery::new(config, ordinal, &welcome);
        Self::with_recovery(connection, welcome, ordinal, spin, recovery)
    }

    /// The session that stands on `connection`, and ends with it.
    ///
    /// # Errors
    /// [`Error::Reserve`] if the device's address range is taken.
    pub fn new(
        connection: Connection,
        welcome: Welcome,
        ordinal: u32,
        spin: Duration,
    ) -> Result<Arc<Self>, Error> {
        Self::with_recovery(connection, welcome, ordinal, spin, None)
    }

    fn with_recovery(
        connection: Connection,
        welcome: Welcome,
        ordinal: u32,
        spin: Duration,
        recovery: Option<Recovery>,
    ) -> Result<Arc<Self>, Error> {
        process::watch_forks();
        let regions = Regions::of(ordinal).ok_or(Error::NoDevice(ordinal))?;
        let arena = Reservation::new(regions.arena).map_err(|source| Error::Reserve {
            address: regions.arena,
            source,
        })?;
        let arena = Arc::new(arena);
        let window = connection.window.clone();
        let pinner = connection.pinner.clone();
        let can_recover = recovery.is_some();
        let link = Arc::new(Link::with_recovery(connection, spin, recovery));
        let session = Arc::new(Self::assemble(
            welcome, regions, ordinal, link, window, pinner, arena,
        ));
        let host = Arc::downgrade(&session.host);
        session.link.bind(host as Weak<dyn PinnedMemory>);
        if can_recover {
            connection::listen(&session.link);
        }
        at_exit::keep(Arc::clone(&session) as Arc<dyn Ending>);
        Ok(session)
    }

    fn assemble(
        welcome: Welcome,
        regions: Regions,
        ordinal: u32,
        link: Arc<Link>,
        window: Option<Arc<paragpu_communicator::Window>>,
        pinner: Option<Arc<dyn paragpu_communicator::Pinner>>,
        arena: Arc<Reservation>,
    ) -> Self {
        let handles = Arc::new(Handles::new());
        let progress = Arc::new(Progress::default());
        let window = Arc::new(PinnedWindow::new(window, &regions));
        let device = Arc::new(Device::new(&link, ordinal));
        let shadows = Arc::new(Shadows::new(&link, &progress, &window));
        let streams = Streams::new(
            &link,
            &handles,
            &shadows,
            &progress,
            &window,
            welcome.session,
        );
        let streams = Arc::new(streams);
        let work = Arc::downgrade(&streams);
        shadows.managed().used_by(work);
        let memory = DeviceMemory::new(&link, &streams, regions.arena, arena.holes());
        let memory = Arc::new(memory);
        let access = Arc::new(Access::new(&memory, &shadows, &window));
        let host = HostMemory::new(&link, &streams, &shadows, &window, &regions);
        let host = Arc::new(host);
        let host_functions = Arc::new(HostFunctions::new(&link, &streams, &shadows));
        let managed = ManagedVariables::new(&shadows, &arena);
        let modules = Arc::new(Modules::new(&link, &handles, &device, &memory, managed));
        let launches = Arc::new(Launches::new(&device, &modules, &shadows, &streams));
        let copies = Copies::new(&link, ordinal, &streams, &access, &host_functions, pinner);
        let copies = Arc::new(copies);
        let views = HostViews::new(&streams, &shadows, &arena);
        let ranges = shadows.managed();
        let managed_memory = ManagedMemory::new(&link, &streams, &memory, &copies, ranges, &arena);
        Self {
            events: Events::new(&link, &handles, &shadows, &streams),
            virtual_memory: VirtualMemory::new(&link, &memory, views),
            managed_memory,
            copies,
            textures: Textures::new(&link, &handles, &device),
            graphs: Graphs::new(
                ordinal,
                Parts {
                    link: Arc::clone(&link),
                    handles,
                    streams: Arc::clone(&streams),
                    shadows,
                    access,
                    host: Arc::clone(&host),
                    host_functions: Arc::clone(&host_functions),
                    launches: Arc::clone(&launches),
                },
            ),
            granted: Granted {
                welcome,
                regions,
                _arena: arena,
            },
            link,
            device,
            streams,
            memory,
            host,
            host_functions,
            modules,
            launches,
        }
    }

    /// The guest's ordinal of the device.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.device.ordinal()
    }

    /// How many devices the guest has.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        self.granted.welcome.device_count
    }

    /// Number of the session on its host.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.granted.welcome.session
    }

    /// Secret with which the session can be resumed.
    #[must_use]
    pub fn token(&self) -> [u8; 16] {
        self.granted.welcome.token
    }

    /// How often the session continued over another connection.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.link.reconnects()
    }

    /// The addresses of this session.
    #[must_use]
    pub fn regions(&self) -> Regions {
        self.granted.regions
    }

    /// The constant facts about the device, and the limits of its context.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The streams.
    #[must_use]
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// The legacy default stream.
    #[must_use]
    pub fn legacy(&self) -> &Arc<Stream> {
        self.streams.legacy()
    }

    /// The events.
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// The device memory.
    #[must_use]
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// Gives this device access to all memory of another session, present and future.
    ///
    /// # Errors
    /// Errors of the hosts.
    pub fn enable_peer(&self, owner: &Self) -> Result<()> {
        self.memory.reach(self.ordinal(), &owner.memory)
    }

    /// Ends this access.
    pub fn disable_peer(&self, owner: &Self) {
        self.memory.leave(self.ordinal(), &owner.memory);
    }

    /// CU_DEVICE_P2P_ATTRIBUTE_*, 1 to 5, of this device's access to another session's.
    ///
    /// # Errors
    /// Errors of the hosts.
    pub fn peer_attributes(&self, owner: &Self) -> Result<[u64; 5]> {
        self.memory.peer_attributes(&owner.memory)
    }

    /// The same, of the access of a device without a session to this session's.
    ///
    /// # Errors
    /// Errors of the hosts.
    pub fn peer_attributes_of(&self, accessing: &Monitor) -> Result<[u64; 5]> {
        accessing.peer_attributes_to(|call| self.link.call(call))
    }

    /// Calls the host for another library of the process, which has encoded the call with
    /// this number. Returns the bytes of the reply.
    pub fn forward(&self, number: u16, payload: &[u8]) -> Result<Vec<u8>> {
        self.link.forward(number, payload)
    }

    /// Gives this device access to memory that the program mapped on another, or ends it.
    ///
    /// # Errors
    /// As [`VirtualMemory::set_peer_access`].
    pub fn access_maps(&self, owner: &Self, address: u64, size: u64, access: u32) -> Result<()> {
        let accessing = (self.ordinal(), &self.memory);
        owner
            .virtual_memory
            .set_peer_access(address, size, accessing, access)
    }

    /// Memory for a graph's next node, after `after`: what earlier nodes freed, if that suffices.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes, `OUT_OF_MEMORY`.
    pub fn graph_memory(
        &self,
        place: Option<(&Graph, &[Dependency])>,
        size: u64,
    ) -> Result<Arc<GraphMemory>> {
        let reused = place
            .filter(|_| size > 0)
            .and_then(|(graph, after)| graph.reuse_memory(after, self.ordinal(), size));
        match reused {
            Some(memory) => Ok(memory),
            None => GraphMemory::new(self.ordinal(), Arc::clone(&self.memory) as _, size),
        }
    }

    /// Reserved addresses, and memory that the program maps there.
    #[must_use]
    pub fn virtual_memory(&self) -> &VirtualMemory {
        &self.virtual_memory
    }

    /// Managed memory that migrates.
    #[must_use]
    pub fn managed_memory(&self) -> &ManagedMemory {
        &self.managed_memory
    }

    /// The pinned memory.
    #[must_use]
    pub fn host(&self) -> &HostMemory {
        &self.host
    }

    /// The program's functions that streams run.
    #[must_use]
    pub fn host_functions(&self) -> &HostFunctions {
        &self.host_functions
    }

    /// The modules, kernels and variables.
    #[must_use]
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// The launches.
    #[must_use]
    pub fn launches(&self) -> &Launches {
        &self.launches
    }

    /// The copies and memsets.
    #[must_use]
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// The arrays, textures and surfaces.
    #[must_use]
    pub fn textures(&self) -> &Textures {
        &self.textures
    }

    /// The executable graphs.
    #[must_use]
    pub fn graphs(&self) -> &Graphs {
        &self.graphs
    }

    /// All that is constant about the device.
    pub fn snapshot(&self) -> Result<Arc<Snapshot>> {
        self.device.snapshot()
    }

    /// Sets whether threads that wait for the device sleep at once, without polling
    /// (CU_CTX_SCHED_BLOCKING_SYNC). Other threads yield the processor while they poll.
    pub fn set_waits_sleep(&self, sleep: bool) {
        self.link.set_sleeps(sleep);
    }

    /// Success, or the error that every call returns from now on.
    pub fn check(&self) -> Result<()> {
        self.link.check()
    }

    /// Makes a call and waits for its reply.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub fn call<'a, C, R>(&self, call: &C) -> Result<R>
    where
        C: WireCall<'a>,
        for<'r> C: WireCall<'a, Reply<'r> = R>,
    {
        self.link.call(call)
    }

    /// A round trip that does nothing.
    pub fn ping(&self) -> Result<()> {
        self.link.call(&Ping { value: 1 }).map(|_: u64| ())
    }

    /// cuCtxSynchronize.
    ///
    /// # Errors
    /// The error of failed work.
    pub fn synchronize(&self) -> Result<()> {
        self.streams.synchronize_all()
    }

    /// Ends the session with a goodbye to the host.
    pub fn close(&self) {
        self.link.close();
    }
}

impl Ending for Session {
    fn end(&self) {
        self.host_functions.finish_callbacks();
        self.close();
    }
}
