//! One session: the device of a host as one process of the guest sees it.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use paragpu_communicator::Connection;
use paragpu_config::Level;
use paragpu_protocol::call::WireCall;
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::handshake::Welcome;
use paragpu_protocol::layout::Regions;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{
    ContextGetLimit, ContextSetLimit, ContextSynchronize, GraphLaunch, HostFuncLaunch, Launch,
    Ping, SnapshotDevice,
};

use crate::callbacks::Callbacks;
use crate::connect::{Connected, connect};
use crate::direct::Direct;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::link::Link;
use crate::memory::Memory;
use crate::ordering::Copies;
use crate::progress::Progress;
use crate::recover::{self, Way};
use crate::slots::lock;
use crate::snapshot::Snapshot;
use crate::staging::Staging;
use crate::stream::Stream;
use crate::sys::memory::{Reservation, Source};
use crate::sys::process;

/// One device, as one process of the guest uses it.
#[derive(Debug)]
pub struct Session {
    pub(crate) link: Arc<Link>,
    pub(crate) ordinal: u32,
    pub(crate) regions: Regions,
    pub(crate) memory: Memory,
    pub(crate) host: Host,
    pub(crate) staging: Option<Staging>,
    pub(crate) direct: Option<Direct>,
    pub(crate) callbacks: Callbacks,
    pub(crate) copies: Copies,
    /// Position of the last kernel or host function in a stream that the
    /// legacy default stream waits for.
    pub(crate) running: AtomicU64,
    /// Work of all streams.
    pub(crate) progress: Progress,
    /// Position of the last work in a stream that does not wait for the
    /// legacy default stream.
    pub(crate) unordered: Progress,
    legacy: Arc<Stream>,
    /// Position of the last work of streams that were destroyed before it was
    /// known to be over.
    pub(crate) orphans: Progress,
    /// Work of each stream.
    pub(crate) streams: Mutex<Vec<Arc<Progress>>>,
    welcome: Welcome,
    handles: AtomicU64,
    snapshot: OnceLock<Arc<Snapshot>>,
    _arena: Reservation,
}

impl Session {
    /// Connects as `config` says.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(config: &paragpu_config::guest::Guest, ordinal: u32) -> Result<Arc<Self>, Error> {
        let Connected {
            connection,
            welcome,
            spin,
            communicator,
            passed_over,
        } = connect(config, ordinal)?;
        if config.log.level >= Level::Info {
            // A program without standard error does without the line.
            let mut said = std::io::stderr().lock();
            for reason in passed_over {
                let _ = writeln!(said, "paragpu: passed over: {reason}");
            }
            let _ = writeln!(
                said,
                "paragpu: device {ordinal} is reached by {communicator}"
            );
        }
        let has_window = connection.window.is_some();
        let way = Way::new(config, ordinal, &welcome, has_window);
        Self::with_way(connection, welcome, ordinal, spin, way)
    }

    /// The session that stands on `connection`, and ends with it.
    ///
    /// # Errors
    /// [`Error::Reserve`] where the device's address range is taken.
    pub fn new(
        connection: Connection,
        welcome: Welcome,
        ordinal: u32,
        spin: Duration,
    ) -> Result<Arc<Self>, Error> {
        Self::with_way(connection, welcome, ordinal, spin, None)
    }

    fn with_way(
        connection: Connection,
        welcome: Welcome,
        ordinal: u32,
        spin: Duration,
        way: Option<Way>,
    ) -> Result<Arc<Self>, Error> {
        process::watch_forks();
        let regions = Regions::of(ordinal).ok_or(Error::NoDevice(ordinal))?;
        let arena = Reservation::new(regions.arena, paragpu_protocol::layout::DEVICE_STRIDE)
            .map_err(|source| Error::Reserve {
                address: regions.arena,
                source,
            })?;
        let window = connection.window.clone();
        let direct = connection.pinner.clone().map(Direct::new);
        let staging = window.as_ref().and_then(Staging::new);
        let pinned_from = staging.as_ref().map_or(0, Staging::end);
        let legacy = Arc::new(Stream::legacy());
        let link = Arc::new(Link::with_way(connection, spin, way));
        let session = Arc::new(Self {
            callbacks: Callbacks::new(Arc::clone(&link)),
            copies: Copies::default(),
            running: AtomicU64::new(0),
            host: Host::new(window, pinned_from, &regions),
            memory: Memory::new(&regions),
            link,
            ordinal,
            regions,
            staging,
            direct,
            progress: Progress::default(),
            unordered: Progress::default(),
            orphans: Progress::default(),
            streams: Mutex::new(vec![Arc::clone(&legacy.progress)]),
            legacy,
            welcome,
            handles: AtomicU64::new(StreamHandle::FIRST.0),
            snapshot: OnceLock::new(),
            _arena: arena,
        });
        session.callbacks.bind(&session);
        session.link.bind(&session);
        if session.link.way.is_some() {
            recover::listen(&session.link);
        }
        crate::end::keep(&session);
        Ok(session)
    }

    /// The guest's ordinal of the device.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// How many devices the guest has.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        self.welcome.device_count
    }

    /// Number of the session on its host.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.welcome.session
    }

    /// Secret with which the session can be resumed.
    #[must_use]
    pub fn token(&self) -> [u8; 16] {
        self.welcome.token
    }

    /// How often the session went on over another connection.
    #[must_use]
    pub fn reconnects(&self) -> u64 {
        self.link.reconnects()
    }

    /// The legacy default stream.
    #[must_use]
    pub fn legacy(&self) -> &Arc<Stream> {
        &self.legacy
    }

    /// The addresses of this session.
    #[must_use]
    pub fn regions(&self) -> Regions {
        self.regions
    }

    /// Success, or what every call ends with from now on.
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn check(&self) -> Result<()> {
        self.link.check()
    }

    /// A number for a new object.
    pub(crate) fn new_handle(&self) -> u64 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    /// Posts work of a stream.
    pub(crate) fn post_work<'a, C: WireCall<'a>>(&self, stream: &Stream, call: &C) -> Result<u64> {
        self.post_work_lent(stream, call, None)
    }

    /// The same, where the call's last bytes may be lent
    /// ([`Link::post_and`]).
    pub(crate) fn post_work_lent<'a, C: WireCall<'a>>(
        &self,
        stream: &Stream,
        call: &C,
        lent: Option<Source>,
    ) -> Result<u64> {
        self.before_work(stream)?;
        // Whoever sees a later position posted sees this one noted.
        self.link.post_and(call, lent, |position| {
            stream.progress.post(position);
            if runs_code(C::INFO.number) {
                stream.running.store(position, Ordering::Release);
                if stream.is_blocking() {
                    self.running.store(position, Ordering::Release);
                }
            }
            if !stream.is_blocking() {
                self.unordered.post(position);
            }
            self.progress.post(position);
        })
    }

    /// Before work goes to a stream.
    pub(crate) fn before_work(&self, stream: &Stream) -> Result<()> {
        if stream.is_legacy() {
            self.permit_legacy()?;
        }
        if self.copies.concern(stream) {
            self.order_after_copies(stream)?;
        }
        Ok(())
    }

    /// Without crossing: if every stream is known to be idle, so is the
    /// session.
    pub(crate) fn settle(&self) {
        let posted = self.progress.posted();
        if posted <= self.progress.complete() {
            return;
        }
        let complete = self.progress.complete();
        let idle = |stream: &Arc<Progress>| stream.posted() <= stream.complete().max(complete);
        if self.orphans.posted() <= complete && lock(&self.streams).iter().all(idle) {
            self.progress.finish(posted);
        }
    }

    /// A round trip that does nothing.
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn ping(&self) -> Result<()> {
        self.link.call(&Ping { value: 1 }).map(|_: u64| ())
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
    ///
    /// # Errors
    /// As [`Link::check`].
    pub fn snapshot(&self) -> Result<Arc<Snapshot>> {
        if let Some(snapshot) = self.snapshot.get() {
            return Ok(Arc::clone(snapshot));
        }
        let snapshot = self.snapshot_of(self.ordinal)?;
        Ok(Arc::clone(self.snapshot.get_or_init(|| snapshot)))
    }

    /// What each launch is checked against.
    pub(crate) fn limits(&self) -> Result<&crate::snapshot::Limits> {
        if self.snapshot.get().is_none() {
            self.snapshot()?;
        }
        self.snapshot
            .get()
            .map(|snapshot| &snapshot.limits)
            .ok_or(Status::UNKNOWN)
    }

    /// cuCtxSynchronize.
    ///
    /// # Errors
    /// Of work that failed.
    pub fn synchronize(&self) -> Result<()> {
        let posted = self.progress.posted();
        if posted > self.progress.complete() {
            self.link.call(&ContextSynchronize {})?;
            self.progress.finish(posted);
        } else {
            self.link.check()?;
        }
        self.pull()
    }

    /// cuCtxSetLimit.
    ///
    /// # Errors
    /// `UNSUPPORTED_LIMIT`, `INVALID_VALUE`.
    pub fn set_limit(&self, limit: u32, value: u64) -> Result<()> {
        self.link.call(&ContextSetLimit { limit, value })
    }

    /// cuCtxGetLimit.
    ///
    /// # Errors
    /// `UNSUPPORTED_LIMIT`.
    pub fn limit(&self, limit: u32) -> Result<u64> {
        self.link.call(&ContextGetLimit { limit })
    }

    /// Ends the session in order.
    pub fn close(&self) {
        self.link.close();
    }
}

/// Does this call run code that can be seen at work: a kernel, a graph, a host
/// function?
const fn runs_code(number: u16) -> bool {
    number == <Launch as WireCall>::INFO.number
        || number == <HostFuncLaunch as WireCall>::INFO.number
        || number == <GraphLaunch as WireCall>::INFO.number
}
