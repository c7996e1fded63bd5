//! The connections to the VM's devices: opened on demand, closed when idle. A process that
//! uses CUDA needs none.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_client::Error;
use paragpu_client::connection::connect;
use paragpu_client::monitor::{Monitor, Usage};
use paragpu_client::snapshot::Snapshot;
use paragpu_client::sys::process;
use paragpu_config::guest::Guest;
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::status::Status;

use crate::code::{Code, Result};
use crate::sys::session;

/// How long an idle connection is kept. Its worker occupies memory of the GPU, and vLLM ends
/// if memory becomes free while it starts.
const IDLE: Duration = Duration::from_secs(3);
/// How often the process is asked whether it has a session, instead of which no connection is
/// needed.
const LOOK: Duration = Duration::from_millis(100);

/// The devices of one process; a forked child has its own.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    config: Option<Arc<Guest>>,
    monitors: BTreeMap<u32, Arc<Monitor>>,
    /// Access of devices to others, by both ordinals. Asked anew with any new connection,
    /// which may reach another GPU.
    peers: BTreeMap<(u32, u32), [u64; 5]>,
    /// Constant facts outlive connections.
    snapshots: BTreeMap<u32, Arc<Snapshot>>,
    count: Option<u32>,
    /// The process's sessions did not answer a query.
    sessions_failed: bool,
    used: Option<Instant>,
    /// Whether a thread that closes idle connections is running.
    watched: bool,
}

impl Devices {
    /// Checks that the configured host answers.
    pub(crate) fn probe(&self) -> Result {
        let mut inner = self.inner.lock();
        if !inner.monitors.is_empty() {
            return Ok(());
        }
        let config = inner.config()?;
        match connect::is_host_reachable(&config) {
            true => Ok(()),
            false => Err(Code::DRIVER_NOT_LOADED),
        }
    }

    /// The number of devices of the VM.
    pub(crate) fn count(&'static self) -> Result<u32> {
        if let Some(count) = self.inner.lock().count {
            return Ok(count);
        }
        let count = self.monitor(0)?.device_count().min(MAX_DEVICES);
        self.inner.lock().count = Some(count);
        Ok(count)
    }

    /// The constant facts about a device.
    pub(crate) fn snapshot(&'static self, ordinal: u32) -> Result<Arc<Snapshot>> {
        if let Some(snapshot) = self.inner.lock().snapshots.get(&ordinal) {
            return Ok(Arc::clone(snapshot));
        }
        let snapshot = self.with(ordinal, Monitor::snapshot)?;
        self.inner
            .lock()
            .snapshots
            .insert(ordinal, Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// The VM's use of a device.
    pub(crate) fn usage(&'static self, ordinal: u32) -> Result<Usage> {
        self.with(ordinal, Monitor::usage)
    }

    /// Queries a figure from the host.
    pub(crate) fn query(
        &'static self,
        ordinal: u32,
        figure: u32,
        arguments: [u8; 4],
    ) -> Result<paragpu_client::monitor::Answer> {
        let answer = self.with(ordinal, |monitor| monitor.query(figure, arguments))?;
        match answer.code {
            0 => Ok(answer),
            code => Err(Code(code)),
        }
    }

    /// CU_DEVICE_P2P_ATTRIBUTE_*, 1 to 5, of a device's access to another.
    pub(crate) fn peer_attributes(&'static self, ordinal: u32, owner: u32) -> Result<[u64; 5]> {
        if let Some(known) = self.inner.lock().peers.get(&(ordinal, owner)) {
            return Ok(*known);
        }
        let attributes = self.with(ordinal, |monitor| {
            let owner = self.monitor(owner).map_err(|_| Status::UNKNOWN)?;
            monitor.peer_attributes(&owner)
        })?;
        self.inner.lock().peers.insert((ordinal, owner), attributes);
        Ok(attributes)
    }

    /// Closes every connection.
    pub(crate) fn close(&self) {
        let monitors = std::mem::take(&mut self.inner.lock().monitors);
        drop(monitors);
        self.changed.notify_all();
    }

    /// Runs a query over the connection to a device. If the connection was lost, retries
    /// once over a new one.
    fn with<T>(
        &'static self,
        ordinal: u32,
        query: impl Fn(&Monitor) -> std::result::Result<T, Status>,
    ) -> Result<T> {
        for _ in 0..2 {
            let monitor = self.monitor(ordinal)?;
            if let Ok(answer) = query(&monitor) {
                return Ok(answer);
            }
            let mut inner = self.inner.lock();
            let failed = |open: &Arc<Monitor>| Arc::ptr_eq(open, &monitor);
            if inner.monitors.get(&ordinal).is_some_and(failed) {
                inner.monitors.remove(&ordinal);
            }
            inner.sessions_failed |= monitor.is_over_session();
        }
        Err(Code::GPU_IS_LOST)
    }

    /// The connection to a device.
    fn monitor(&'static self, ordinal: u32) -> Result<Arc<Monitor>> {
        let mut inner = self.inner.lock();
        inner.used = Some(Instant::now());
        if let Some(monitor) = inner.monitors.get(&ordinal) {
            return Ok(Arc::clone(monitor));
        }
        // Programs of NVML and CUDA have a session already.
        let shared = match inner.sessions_failed {
            true => None,
            false => session::monitor(ordinal),
        };
        let monitor = match shared {
            Some(monitor) => monitor,
            None => {
                let config = inner.config()?;
                Monitor::open(&config, ordinal).map_err(|error| Code::from(&error))?
            }
        };
        let monitor = Arc::new(monitor);
        inner.peers.clear();
        inner.monitors.insert(ordinal, Arc::clone(&monitor));
        inner.used = Some(Instant::now());
        if !std::mem::replace(&mut inner.watched, true) {
            process::spawn("paragpu-nvml", || self.watch());
        }
        Ok(monitor)
    }

    /// Closes connections that are idle, and those to devices of which the process has a
    /// session by now.
    fn watch(&self) {
        let mut inner = self.inner.lock();
        while !inner.monitors.is_empty() {
            let idle = inner.used.map_or(IDLE, |used| used.elapsed());
            if idle >= IDLE {
                inner.monitors.clear();
                break;
            }
            self.changed.wait_for(&mut inner, LOOK.min(IDLE - idle));
            if inner.sessions_failed {
                continue;
            }
            let own = |(ordinal, monitor): (&u32, &Arc<Monitor>)| {
                (!monitor.is_over_session()).then_some(*ordinal)
            };
            let own: Vec<u32> = inner.monitors.iter().filter_map(own).collect();
            // The loader may wait for a library that waits for this lock.
            drop(inner);
            let has_session = |ordinal: &u32| session::monitor(*ordinal).is_some();
            let needless: Vec<u32> = own.into_iter().filter(has_session).collect();
            inner = self.inner.lock();
            inner.monitors.retain(|ordinal, monitor| {
                monitor.is_over_session() || !needless.contains(ordinal)
            });
        }
        inner.watched = false;
    }
}

impl Inner {
    fn config(&mut self) -> Result<Arc<Guest>> {
        if let Some(config) = &self.config {
            return Ok(Arc::clone(config));
        }
        let config = Guest::load().map_err(|error| Error::Configuration(Box::new(error)));
        let config = Arc::new(config.map_err(|error| Code::from(&error))?);
        self.config = Some(Arc::clone(&config));
        Ok(config)
    }
}
