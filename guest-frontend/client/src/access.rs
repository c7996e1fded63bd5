//! Checks ranges before the device uses memory, and synchronizes shadows before and after.

use std::sync::Arc;

use crate::error::Result;
use crate::memory::DeviceMemory;
use crate::objects::stream::Stream;
use crate::shadow::{DeviceView, Region, Shadows};
use crate::staging::Staging;
use crate::window::PinnedWindow;

/// The memory that a session's calls may pass to the device.
#[derive(Debug)]
pub(crate) struct Access {
    memory: Arc<DeviceMemory>,
    shadows: Arc<Shadows>,
    window: Arc<PinnedWindow>,
}

impl Access {
    pub(crate) fn new(
        memory: &Arc<DeviceMemory>,
        shadows: &Arc<Shadows>,
        window: &Arc<PinnedWindow>,
    ) -> Self {
        Self {
            memory: Arc::clone(memory),
            shadows: Arc::clone(shadows),
            window: Arc::clone(window),
        }
    }

    /// How the device can reach memory of the program for the next work.
    ///
    /// # Errors
    /// As [`before`](Self::before).
    pub(crate) fn reach(&self, address: u64, size: u64) -> Result<DeviceView> {
        match self.shadows.managed().before_use(address, size)? {
            true => Ok(DeviceView::Direct(address)),
            false => Ok(self.shadows.reach(address, size)),
        }
    }

    /// Prepares a range for reads or writes by the device: refuses memory that is not
    /// allocated, and sends the program's changes. Returns the device's address. It
    /// differs if registered memory is given by its host address.
    pub(crate) fn before(&self, address: u64, size: u64) -> Result<u64> {
        self.prepare(address, size, |_| ())
    }

    /// [`before`](Self::before) for a range that the next work of `stream` reads. It also reads
    /// there what host functions write until then.
    pub(crate) fn before_read(&self, address: u64, size: u64, stream: &Stream) -> Result<u64> {
        self.prepare(address, size, |region| {
            self.shadows.device_reads(region, stream.progress());
        })
    }

    /// Calls `first` before it sends the program's changes to a shadow.
    fn prepare(&self, address: u64, size: u64, first: impl FnOnce(&Region)) -> Result<u64> {
        let device = match self.reach(address, size)? {
            DeviceView::Direct(device) => return Ok(device),
            DeviceView::Shadow(region) => region.to_device(address),
            DeviceView::Pageable => address,
        };
        match self.shadows.find_by_device(device, size) {
            // Also before writes: bytes that the device does not overwrite must be the
            // program's when both copies are merged later.
            Some(region) => {
                first(&region);
                self.shadows.push(&region, device, size)?;
            }
            None => self.memory.check(device, size)?,
        }
        Ok(device)
    }

    /// Notes that the work at `position` of `stream` writes a range.
    pub(crate) fn after_write(&self, address: u64, size: u64, stream: &Stream, position: u64) {
        self.shadows
            .device_writes(address, size, stream.progress(), position);
    }

    /// The address that a graph node may use for a range at each launch. `None` for
    /// program memory that the device cannot access. Managed memory stays with the program
    /// until the launch.
    ///
    /// # Errors
    /// `INVALID_VALUE` for other memory that is not allocated.
    pub(crate) fn name(&self, address: u64, size: u64, is_host: bool) -> Result<Option<u64>> {
        if self.shadows.managed().holds(address, size) {
            return Ok(Some(address));
        }
        match self.shadows.reach(address, size) {
            DeviceView::Direct(address) => {
                self.window.note_known();
                Ok(Some(address))
            }
            DeviceView::Shadow(region) => {
                region.show();
                Ok(Some(region.to_device(address)))
            }
            DeviceView::Pageable if is_host => Ok(None),
            DeviceView::Pageable => {
                if self.shadows.find_by_device(address, size).is_none() {
                    self.memory.check(address, size)?;
                }
                Ok(Some(address))
            }
        }
    }

    /// The staging slots, if the host shares them.
    pub(crate) fn staging(&self) -> Option<&Staging> {
        self.window.staging()
    }

    /// Fetches the device's changes of shadows.
    pub(crate) fn pull(&self) -> Result<()> {
        self.shadows.pull()
    }
}
