//! Shadows: the host's copies of pinned memory, and the protocol that keeps both sides
//! coherent.
//!
//! - A shadow is *visible* to kernels once it was created with DEVICEMAP, once its
//!   device pointer was requested, or once a launch had an address inside it among its
//!   parameters (at a multiple of 8 bytes).
//! - Before a launch, the guest sends the program's changes to visible shadows; before
//!   a copy or memset writes to a shadow, its changes to that range.
//! - After each call that found work complete, the guest fetches the device's changes,
//!   as long as work that may write to a shadow is not known to be complete.
//! - Both directions send only what differs from the state that both sides last agreed
//!   on. Program and device may thus write different bytes of a shadow at the same
//!   time.
//! - A copy from such memory to the device takes the program's contents at the time of
//!   the call.
//! - Around a host function both happen as well. The host executes the calls for it
//!   ahead of calls that wait for the function, so they do not wait for each other.
//!
//! Device memory at whose address the program has memory of its own is synchronized in
//! the same way: `__managed__` variables ([`crate::managed_variable`]) and maps
//! ([`crate::host_view`]).

pub(crate) mod region;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::connection::{LOST, Link};
use crate::error::Result;
use crate::progress::Progress;
use crate::shared_file::SharedFiles;
use crate::window::PinnedWindow;
pub(crate) use region::Region;

/// How the device reaches an address of the program.
#[derive(Debug, Clone)]
pub(crate) enum Reach {
    /// The device sees the same bytes at this address.
    Direct(u64),
    /// The device has a copy.
    Shadow(Arc<Region>),
    /// Ordinary memory.
    Pageable,
}

/// The shadows that kernels may write to.
#[derive(Debug, Default)]
pub(crate) struct Visible {
    regions: Vec<Arc<Region>>,
    /// The session had left its window when they were looked for.
    is_apart: bool,
}

/// The shadows of a session.
#[derive(Debug)]
pub(crate) struct Shadows {
    link: Arc<Link>,
    /// Work of all streams.
    progress: Arc<Progress>,
    window: Arc<PinnedWindow>,
    files: SharedFiles,
    regions: RwLock<Vec<Arc<Region>>>,
    /// How many there are; looked at before every lock.
    count: AtomicUsize,
}

impl Shadows {
    pub(crate) fn new(link: Arc<Link>, progress: Arc<Progress>, window: Arc<PinnedWindow>) -> Self {
        Self {
            link,
            progress,
            window,
            files: SharedFiles::default(),
            regions: RwLock::default(),
            count: AtomicUsize::new(0),
        }
    }

    /// Registered memory that needs no shadow, because the host maps its file.
    pub(crate) fn files(&self) -> &SharedFiles {
        &self.files
    }

    fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// A shadow to find from now on.
    pub(crate) fn add(&self, region: Arc<Region>) {
        let mut regions = self.regions.write();
        regions.push(region);
        self.count.store(regions.len(), Ordering::Release);
    }

    /// A shadow whose work is complete: nobody finds it any more.
    pub(crate) fn remove(&self, region: &Arc<Region>) {
        region.forget();
        let mut regions = self.regions.write();
        regions.retain(|other| !Arc::ptr_eq(other, region));
        self.count.store(regions.len(), Ordering::Release);
    }

    /// How the device reaches memory of the program.
    pub(crate) fn reach(&self, address: u64, size: u64) -> Reach {
        // Registered memory may be a part of the window.
        let address = self.window.place_of(address, size).unwrap_or(address);
        if self.window.holds(address) && !self.window.is_left() {
            return Reach::Direct(address);
        }
        if let Some(address) = self.files.place_of(address, size) {
            return Reach::Direct(address);
        }
        match self.find(address, size) {
            Some(region) => Reach::Shadow(region),
            None => Reach::Pageable,
        }
    }

    /// The shadow of memory of the program.
    pub(crate) fn find(&self, address: u64, size: u64) -> Option<Arc<Region>> {
        self.first(|region| region.holds_host(address, size))
    }

    /// The shadow that the device sees at an address.
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

    /// Before work of the device uses a range of a shadow: sends what the
    /// program changed there.
    pub(crate) fn push(&self, region: &Region, device: u64, size: u64) -> Result<()> {
        let offset = usize::try_from(device - region.device()).unwrap_or(usize::MAX);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        region.push(&self.link, offset, size)
    }

    /// The device will write a range when it gets to `position` of a stream.
    pub(crate) fn device_writes(
        &self,
        address: u64,
        size: u64,
        stream: &Arc<Progress>,
        position: u64,
    ) {
        if let Some(region) = self.find_by_device(address, size) {
            region.add_writer(stream, position);
        }
    }

    /// Before a launch with these parameters: sends what the program changed.
    /// Returns the shadows that the kernel may write to, for
    /// [`after_launch`](Self::after_launch).
    pub(crate) fn before_launch(&self, parameters: &[u8]) -> Result<Visible> {
        // Before the shadows are looked for: leaving the window makes
        // them first and says so last. If it is left between this look and
        // the launch, `after_launch` notices by asking again.
        let is_apart = self.window.is_left();
        if !is_apart {
            self.window.note_named(parameters);
        }
        if self.are_none() {
            return Ok(Visible::default());
        }
        let mut visible = Vec::new();
        for region in self.regions.read().iter() {
            let named = parameters.chunks_exact(8).any(|word| {
                let word = word.try_into().map_or(0, u64::from_le_bytes);
                region.holds_device(word, 1)
            });
            if named {
                region.show();
            }
            if region.is_visible() {
                visible.push(Arc::clone(region));
            }
        }
        for region in &visible {
            region.push(&self.link, 0, usize::MAX)?;
        }
        Ok(Visible {
            regions: visible,
            is_apart,
        })
    }

    /// A kernel that may write to `visible` was launched as work `position` of
    /// a stream.
    pub(crate) fn after_launch(&self, visible: Visible, stream: &Arc<Progress>, position: u64) {
        for region in visible.regions {
            region.add_writer(stream, position);
        }
        if !visible.is_apart && self.window.is_left() {
            // The window was left between the look at it and the launch, so
            // the kernel may write to anything that was pinned in it.
            let regions = self.all();
            for region in regions.iter().filter(|region| region.is_for_kernels()) {
                region.add_writer(stream, position);
            }
        }
    }

    /// After a host function: sends what the program changed in visible shadows, and
    /// in those of which work that was posted before they were shadows may read.
    pub(crate) fn after_function(&self) -> Result<()> {
        if self.are_none() {
            return Ok(());
        }
        let regions = self.all();
        regions
            .iter()
            .filter(|region| region.is_visible() || region.has_writers())
            .try_for_each(|region| region.push(&self.link, 0, usize::MAX))
    }

    /// Fetches what the device changed, after work was found to be over and before a
    /// host function.
    ///
    /// # Errors
    /// Also where the device of the VM is gone in whose window the host has
    /// written: a session may need it that goes another way.
    pub(crate) fn pull(&self) -> Result<()> {
        if !self.window.is_there() {
            let why = "the device that has its pinned memory is gone";
            return Err(self.link.end(LOST, why));
        }
        if !region::have_writers() || self.are_none() {
            return Ok(());
        }
        let regions = self.all();
        regions
            .iter()
            .try_for_each(|region| region.pull(&self.link, &self.progress))
    }

    /// All of them, so that nobody waits for the lock during a round trip.
    fn all(&self) -> Vec<Arc<Region>> {
        self.regions.read().clone()
    }
}
