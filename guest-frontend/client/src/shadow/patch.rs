//! Changed runs of memory that is synchronized, in as few calls as possible.

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::table::{ShadowAgree, ShadowPatch, ShadowWrite};

use crate::connection::Link;
use crate::error::Result;

/// Size of the header of each run of a patch.
const HEAD: usize = 8;
/// Maximum size of one write or patch, which must fit into a frame with its header.
pub(crate) const WRITE: usize = 240 << 10;

/// Changed runs that are sent in one call.
#[derive(Default)]
pub(crate) struct Patch {
    /// Offset of the first run, and of the end of the last.
    start: usize,
    end: usize,
    count: usize,
    runs: Vec<u8>,
}

impl Patch {
    /// Whether another run fits.
    pub(crate) fn holds(&self, from: usize, length: usize) -> bool {
        self.runs.is_empty()
            || self.runs.len() + HEAD + length <= WRITE && u32::try_from(from - self.end).is_ok()
    }

    /// Appends a run, which fits.
    pub(crate) fn add(&mut self, from: usize, run: &[u8]) {
        if self.runs.is_empty() {
            (self.start, self.end) = (from, from);
        }
        let gap = u32::try_from(from - self.end).unwrap_or(0);
        let length = u32::try_from(run.len()).unwrap_or(0);
        self.runs.extend_from_slice(&gap.to_le_bytes());
        self.runs.extend_from_slice(&length.to_le_bytes());
        self.runs.extend_from_slice(run);
        self.end = from + run.len();
        self.count += 1;
    }

    /// Posts the runs of a shadow at `device`, and clears them.
    pub(crate) fn send(&mut self, link: &Link, device: u64) -> Result<()> {
        let address = device + self.start as u64;
        match self.count {
            0 => return Ok(()),
            // A single run needs no header.
            1 => {
                let data = Bytes(self.runs.get(HEAD..).unwrap_or(&[]));
                link.post(&ShadowWrite { address, data })?;
            }
            _ => {
                let runs = Bytes(&self.runs);
                link.post(&ShadowPatch { address, runs })?;
            }
        }
        self.clear();
        Ok(())
    }

    /// Posts that both sides agree on the runs of a shadow at the host's address `base`, and
    /// clears them.
    pub(crate) fn agree(&mut self, link: &Link, base: u64) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let address = base + self.start as u64;
        let runs = Bytes(&self.runs);
        link.post(&ShadowAgree { address, runs })?;
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.count = 0;
        self.runs.clear();
    }
}
