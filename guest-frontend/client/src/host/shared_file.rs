//! Registered memory that is a shared mapping of a file: [`crate::shared_file`].

use paragpu_protocol::table::FileUnmap;

use super::{HostMemory, PAGE};
use crate::error::Result;

impl HostMemory {
    /// Shares `size` bytes at `address` of the program with the device, if they are a
    /// shared mapping of a file. Their pages, which begin `within` bytes earlier, are
    /// mapped at `base`.
    pub(super) fn share_file(&self, address: u64, size: u64, within: u64, base: u64) -> bool {
        let length = (within + size).next_multiple_of(PAGE);
        let files = self.shadows.files();
        let shared = files.share(&self.link, address - within, length, base);
        if shared {
            files.add(address, size, base + within);
        }
        shared
    }

    /// Unmaps the file from the device, once all work posted before is complete.
    pub(super) fn leave_file(&self, address: u64, base: u64) -> Result<()> {
        self.shadows.files().remove(address);
        self.link.call(&FileUnmap { address: base })
    }
}
