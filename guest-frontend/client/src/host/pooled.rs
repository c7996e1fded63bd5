//! Pinned memory of memory pools. Freeing it waits for nothing: it stays pinned at its
//! address for the next allocation ([`crate::freed_blocks`]). It is returned to the host
//! when memory is short, when too much is kept, or by a trim.

use paragpu_abi::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE};
use paragpu_protocol::status::Status;

use super::{Backing, HostMemory, Pinned, whole_pages};
use crate::error::Result;
use crate::freed_blocks::{Block, BlockRequest};
use crate::objects::stream::Stream;

const REACHED_BY_ALL: u32 = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
/// Maximum bytes kept.
pub(super) const MAX_BYTES: u64 = 256 << 20;
/// Maximum blocks kept.
pub(super) const MAX_BLOCKS: usize = 1024;
/// All pools share these limits.
const ANY: usize = 0;

impl HostMemory {
    /// Memory for a pool's allocation in a stream.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_pooled(&self, size: u64, stream: &Stream) -> Result<u64> {
        let length = whole_pages(size)?;
        self.link.check()?;
        self.streams.settle();
        let found = self.kept.lock().take_for(BlockRequest {
            length,
            owner: ANY,
            stream: stream.handle(),
            complete: self.streams.progress().complete(),
        });
        let Some(address) = found else {
            return self.allocate(size, REACHED_BY_ALL);
        };
        let mut pinned = self.pinned.write();
        let block = pinned.get_mut(&address).ok_or(Status::UNKNOWN)?;
        (block.size, block.kept) = (size, false);
        if let Backing::Shadow(region, _) = &block.backing {
            region.show();
        }
        Ok(address)
    }

    /// Frees memory of [`allocate_pooled`](Self::allocate_pooled) in a stream's order.
    ///
    /// # Errors
    /// `INVALID_VALUE` if none starts at `address`.
    pub fn free_pooled(&self, address: u64, stream: &Stream) -> Result<()> {
        self.link.check()?;
        let length = {
            let mut pinned = self.pinned.write();
            let is_in_use = |block: &&mut Pinned| !block.kept && !block.registered;
            let block = pinned.get_mut(&address).filter(is_in_use);
            let block = block.ok_or(Status::INVALID_VALUE)?;
            block.kept = true;
            if let Backing::Shadow(region, _) = &block.backing {
                // Launches need not compare it.
                region.hide();
            }
            whole_pages(block.size)?
        };
        let is_large = {
            let mut kept = self.kept.lock();
            kept.add(Block {
                address,
                length,
                owner: ANY,
                stream: stream.handle(),
                posted: self.streams.progress().posted(),
            });
            kept.is_large()
        };
        match is_large {
            true => self.trim_pooled(MAX_BYTES / 2),
            false => Ok(()),
        }
    }

    /// Waits for all work and returns the oldest blocks to the host until at most `keep`
    /// bytes are kept.
    ///
    /// # Errors
    /// The error of failed work.
    pub fn trim_pooled(&self, keep: u64) -> Result<()> {
        let kept = self.kept.lock();
        if kept.bytes() <= keep && !kept.is_large() {
            return Ok(());
        }
        drop(kept);
        self.streams.synchronize_all()?;
        self.release_kept(keep)
    }

    /// Whether freed blocks are still pinned.
    pub(super) fn keeps_blocks(&self) -> bool {
        !self.kept.lock().is_empty()
    }

    /// [`trim_pooled`](Self::trim_pooled) of blocks that no work uses any more, without
    /// waiting.
    pub(super) fn release_kept(&self, keep: u64) -> Result<()> {
        let complete = self.streams.progress().complete();
        loop {
            let block = self.kept.lock().take_complete(keep, complete);
            let Some(block) = block else {
                return Ok(());
            };
            let pinned = self.pinned.write().remove(&block.address);
            if let Some(pinned) = pinned {
                self.release(pinned)?;
            }
        }
    }
}
