//! Shadows: the host's copies of pinned memory, and the protocol that keeps both sides
//! coherent.
//!
//! - A shadow is *visible* to kernels once it was created with DEVICEMAP, its device
//!   pointer was requested, or a launch had an address inside it among its
//!   parameters (at a multiple of 8 bytes).
//! - Before a launch, the guest sends the program's changes to visible shadows. Before
//!   a copy or memset writes to a shadow, the guest sends its changes to that range.
//! - After each call that found work complete, the guest fetches the device's changes,
//!   as long as work that may write to a shadow is not known to be complete.
//! - Both directions send only what differs from the state that both sides last agreed
//!   on, byte by byte. Program and device may thus write different bytes of a shadow at
//!   the same time.
//! - A copy from such memory to the device takes the program's contents at the time of
//!   the call. If work or a host function may write there before the copy, the device copies
//!   from the shadow instead, in the stream's order.
//! - Around a host function both happen as well. The host executes these calls ahead of
//!   calls that wait for the function, so that neither waits for the other.
//!
//! Where the program has separate memory at addresses of the device, it is synchronized
//! in the same way: `__managed__` variables ([`crate::managed_variable`]) and maps
//! ([`crate::host_view`]). There, a run of at least 256 bytes in which the program changed each
//! word of 4 bytes is sent as a whole.

pub(crate) mod difference;
mod managed;
mod managed_range;
pub(crate) mod patch;
pub(crate) mod region;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use paragpu_protocol::call::WireCall;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::ShadowRead;
use parking_lot::RwLock;

use crate::connection::{LOST, Link, Question, report_once};
use crate::error::Result;
use crate::progress::{Awaited, Progress};
use crate::shared_file::SharedFiles;
use crate::sys::memory::HostRows;
use crate::window::PinnedWindow;
pub(crate) use managed::{ManagedRanges, watcher};
pub(crate) use managed_range::{DeviceContents, ManagedRange, Work};
pub(crate) use region::{Region, State};

/// How the device accesses an address of the program.
#[derive(Debug, Clone)]
pub(crate) enum DeviceView {
    /// The device sees the same bytes at this address.
    Direct(u64),
    /// The device has a copy, the shadow.
    Shadow(Arc<Region>),
    /// Pageable memory, which the device cannot access.
    Pageable,
}

/// The shadows that kernels may write to.
#[derive(Debug, Default)]
pub(crate) struct Visible {
    regions: Vec<Arc<Region>>,
    /// How many windows the session had left when `regions` was determined.
    departures: usize,
}

/// The shadows of a session.
#[derive(Debug)]
pub(crate) struct Shadows {
    link: Arc<Link>,
    /// The progress of work in all streams.
    progress: Arc<Progress>,
    window: Arc<PinnedWindow>,
    files: SharedFiles,
    /// Managed memory that migrates, of all sessions, which is synchronized at the same times.
    managed: Arc<ManagedRanges>,
    regions: RwLock<Vec<Arc<Region>>>,
    /// The length of `regions`. Checked first, so that sessions without shadows never take
    /// the lock.
    count: AtomicUsize,
}

impl Shadows {
    pub(crate) fn new(
        link: &Arc<Link>,
        progress: &Arc<Progress>,
        window: &Arc<PinnedWindow>,
    ) -> Self {
        Self {
            link: Arc::clone(link),
            progress: Arc::clone(progress),
            window: Arc::clone(window),
            files: SharedFiles::default(),
            managed: ManagedRanges::of_process(),
            regions: RwLock::default(),
            count: AtomicUsize::new(0),
        }
    }

    /// Memory outside the window's addresses that needs no shadow, because the host maps it
    /// as well.
    pub(crate) fn files(&self) -> &SharedFiles {
        &self.files
    }

    /// Managed memory that migrates, of all sessions.
    pub(crate) fn managed(&self) -> &Arc<ManagedRanges> {
        &self.managed
    }

    /// Whether the device has no shadow.
    pub(crate) fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether the device has a shadow of memory that the program uses. The staging slots,
    /// which are one for a while after the session has left its window, are used inside of copies
    /// only.
    pub(crate) fn are_of_program(&self) -> bool {
        let is_of_program = |region: &Arc<Region>| region.is_for_kernels();
        !self.are_none() && self.regions.read().iter().any(is_of_program)
    }

    /// Whether calls may have to bring to the device what the program wrote.
    pub(crate) fn are_apart(&self) -> bool {
        !self.are_none() || !self.managed.are_none()
    }

    /// Adds a shadow.
    pub(crate) fn add(&self, region: Arc<Region>) {
        let mut regions = self.regions.write();
        regions.push(region);
        self.count.store(regions.len(), Ordering::Release);
    }

    /// Adds a shadow, at `device`, of memory that is a shadow of another session as well. The
    /// program's memory is what they have in common.
    pub(crate) fn add_copy(&self, of: &Region, device: u64, contents: Vec<u8>) -> Arc<Region> {
        let region = of.copy_at(device, contents);
        region.show();
        self.add(Arc::clone(&region));
        region
    }

    /// Reads device memory, behind no work.
    pub(crate) fn read_device(&self, address: u64, size: u64) -> Result<Vec<u8>> {
        let length = usize::try_from(size).map_err(|_| Status::OUT_OF_MEMORY)?;
        let (mut bytes, mut noted) = (vec![0; length], Vec::new());
        let rows = HostRows::of(&mut bytes, &mut noted);
        let read = ShadowRead { address, size };
        self.link.call_with(&read, Some(rows), |()| ())?;
        Ok(bytes)
    }

    /// Removes a shadow. The work that uses it must be complete.
    pub(crate) fn remove(&self, region: &Arc<Region>) {
        region.forget();
        self.strike(region);
    }

    /// Records that the host shares the memory of a shadow, which is locked.
    pub(crate) fn share(&self, region: &Arc<Region>, state: &mut State) {
        let (address, size) = region.in_program();
        self.files.add(address, size, region.device());
        region.part_from(state);
        self.strike(region);
    }

    fn strike(&self, region: &Arc<Region>) {
        let mut regions = self.regions.write();
        regions.retain(|other| !Arc::ptr_eq(other, region));
        self.count.store(regions.len(), Ordering::Release);
    }

    /// How the device accesses a range of the program's memory.
    pub(crate) fn reach(&self, address: u64, size: u64) -> DeviceView {
        // Registered memory may consist of pages of the window.
        let address = self.window.address_of(address, size).unwrap_or(address);
        if self.window.holds(address) {
            return DeviceView::Direct(address);
        }
        if let Some(address) = self.files.address_of(address, size) {
            return DeviceView::Direct(address);
        }
        match self.find(address, size) {
            Some(region) => DeviceView::Shadow(region),
            None => DeviceView::Pageable,
        }
    }

    /// Finds the shadow of a range of the program's memory.
    pub(crate) fn find(&self, address: u64, size: u64) -> Option<Arc<Region>> {
        self.first(|region| region.holds_host(address, size))
    }

    /// Finds the shadow that contains a range of device addresses.
    pub(crate) fn find_by_device(&self, address: u64, size: u64) -> Option<Arc<Region>> {
        self.first(|region| region.holds_device(address, size))
    }

    fn first(&self, wanted: impl Fn(&Region) -> bool) -> Option<Arc<Region>> {
        if self.are_none() {
            return None;
        }
        let regions = self.regions.read();
        regions.iter().find(|region| wanted(region)).cloned()
    }

    /// Sends the program's changes to a range of a shadow. Called before device work uses
    /// that range.
    pub(crate) fn push(&self, region: &Region, device: u64, size: u64) -> Result<()> {
        let offset = usize::try_from(device - region.device()).unwrap_or(usize::MAX);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        region.push(&self.link, offset, size)
    }

    /// Records that the next work of a stream reads a shadow. Called before the program's
    /// changes are sent: a function that ends in between sends its own.
    pub(crate) fn device_reads(&self, region: &Region, stream: &Arc<Progress>) {
        region.add_reader(stream, self.link.sent() + 1, &self.progress);
    }

    /// Records that work at `position` of a stream writes to a range of device addresses.
    pub(crate) fn device_writes(
        &self,
        address: u64,
        size: u64,
        stream: &Arc<Progress>,
        position: u64,
    ) {
        self.managed.after_write(address, size);
        if let Some(region) = self.find_by_device(address, size) {
            region.add_writer(stream, position);
        }
    }

    /// Sends the program's changes before a launch with these parameters. Returns the
    /// shadows that the kernel may write to, for [`after_launch`](Self::after_launch).
    pub(crate) fn before_launch(&self, parameters: &[u8]) -> Result<Visible> {
        self.before_repeated_launch(parameters, &mut false)
    }

    /// [`before_launch`](Self::before_launch) of kernels that are launched with these parameters
    /// again and again. `has_noted` is false for new parameters.
    pub(crate) fn before_repeated_launch(
        &self,
        parameters: &[u8],
        has_noted: &mut bool,
    ) -> Result<Visible> {
        // Read before the list of shadows: leaving the window creates the shadows first and
        // is counted last. If the window is left between this and the launch, the second look
        // in `after_launch` detects it.
        let departures = self.window.departures();
        if !std::mem::replace(has_noted, true) {
            self.window.note_parameters(parameters);
        }
        self.managed.before_work()?;
        let mut visible = Visible {
            departures,
            ..Visible::default()
        };
        if self.are_none() {
            return Ok(visible);
        }
        let (words, _) = parameters.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        for region in self.regions.read().iter() {
            if words.clone().any(|word| region.is_elsewhere(word)) {
                let why = "a kernel gets the address of a __managed__ variable of another device";
                report_once(Status::NOT_SUPPORTED, why);
                return Err(Status::NOT_SUPPORTED);
            }
            if words.clone().any(|word| region.holds_device(word, 1)) {
                region.show();
            }
            if region.is_visible() {
                visible.regions.push(Arc::clone(region));
            }
        }
        for region in &visible.regions {
            region.push(&self.link, 0, usize::MAX)?;
        }
        Ok(visible)
    }

    /// Records a launched kernel, work `position` of a stream, as a writer of `visible`.
    pub(crate) fn after_launch(&self, visible: Visible, stream: &Arc<Progress>, position: u64) {
        self.managed.after_work();
        for region in visible.regions {
            region.add_writer(stream, position);
        }
        if visible.departures != self.window.departures() {
            // The window was left since `before_launch`, so the kernel may write to any memory
            // that was pinned in it.
            let regions = self.all();
            for region in regions.iter().filter(|region| region.is_for_kernels()) {
                region.add_writer(stream, position);
            }
        }
    }

    /// Sends the program's changes after a host function: to visible shadows, to those that
    /// posted copies read, and to those that work may use which was posted before they became
    /// shadows.
    pub(crate) fn after_function(&self) -> Result<()> {
        self.managed.before_work()?;
        if self.are_none() {
            return Ok(());
        }
        let regions = self.all();
        regions
            .iter()
            .filter(|region| region.is_visible() || region.is_in_use(&self.progress))
            .try_for_each(|region| region.push(&self.link, 0, usize::MAX))
    }

    /// Fetches the device's changes, after work was found to be complete and before a
    /// host function.
    ///
    /// # Errors
    /// Also if the VM's PCI device is gone whose window holds the session's pinned memory,
    /// even if the session now uses another communicator.
    pub(crate) fn pull(&self) -> Result<()> {
        if !self.window.exists() {
            let why = "the device that has its pinned memory is gone";
            return Err(self.link.end(LOST, why));
        }
        self.managed.after_wait()?;
        if !region::have_writers() || self.are_none() {
            return Ok(());
        }
        let regions = self.all();
        regions
            .iter()
            .try_for_each(|region| region.pull(&self.link, &self.progress))
    }

    /// Makes a call that waits for work, and asks in the same round trip what that changed in
    /// shadows. If it is little, the next [`pull`](Self::pull) need not fetch it.
    pub(crate) fn call<'a, C>(
        &self,
        call: &C,
        destination: Option<HostRows>,
        awaited: &Awaited,
    ) -> Result<()>
    where
        C: WireCall<'a>,
        for<'r> C: WireCall<'a, Reply<'r> = ()>,
    {
        self.call_if(call, destination, awaited, || true)
    }

    /// As [`call`](Self::call). Leaves the shadows as they are unless `holds` says, after the
    /// reply, that `awaited` is complete.
    pub(crate) fn call_if<'a, C>(
        &self,
        call: &C,
        destination: Option<HostRows>,
        awaited: &Awaited,
        holds: impl FnOnce() -> bool,
    ) -> Result<()>
    where
        C: WireCall<'a>,
        for<'r> C: WireCall<'a, Reply<'r> = ()>,
    {
        let mut question = Question::default();
        let mut asked = Vec::new();
        if region::have_writers() && !self.are_none() {
            for region in self.all() {
                let Some(inquiry) = region.inquire(&self.progress, awaited) else {
                    continue;
                };
                if question.add(region.on_wire()) {
                    asked.push((region, inquiry));
                }
            }
        }
        let (result, answer) = self.link.call_and_ask(call, destination, question, |()| ());
        result?;
        let Some(runs) = answer.runs().filter(|_| holds()) else {
            return Ok(());
        };
        asked
            .iter()
            .try_for_each(|(region, inquiry)| region.settle(&self.link, inquiry, &runs))
    }

    /// A copy of the list, so that the lock is not held during round trips.
    fn all(&self) -> Vec<Arc<Region>> {
        self.regions.read().clone()
    }
}
