//! Blocks freed in stream order, kept for the next allocation of their size (CUDA Driver
//! API, Stream Ordered Memory Allocator).
//!
//! A block is reused in the stream that freed it, whose order separates old work from new,
//! or in any stream once all work posted before the free is known to be complete. Neither
//! needs a round trip.

use std::collections::{BTreeMap, VecDeque};

use paragpu_protocol::handle::StreamHandle;

/// A freed block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// First address.
    pub(crate) address: u64,
    /// Its size in the allocator to which it returns.
    pub(crate) length: u64,
    /// The pool that owns it.
    pub(crate) owner: usize,
    /// The stream that freed it.
    pub(crate) stream: StreamHandle,
    /// The last call posted before it was freed.
    pub(crate) posted: u64,
}

/// An allocation that could reuse a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockRequest {
    pub(crate) length: u64,
    pub(crate) owner: usize,
    pub(crate) stream: StreamHandle,
    /// All work up to here is known to be complete.
    pub(crate) complete: u64,
}

/// The freed blocks, oldest first.
#[derive(Debug)]
pub(crate) struct FreedBlocks {
    blocks: VecDeque<Block>,
    /// The bytes of each owner. Those without any are removed by
    /// [`take_over`](Self::take_over).
    owned: BTreeMap<usize, u64>,
    bytes: u64,
    most_bytes: u64,
    most_blocks: usize,
}

impl FreedBlocks {
    /// Creates an empty list with limits for bytes and blocks.
    pub(crate) fn new(most_bytes: u64, most_blocks: usize) -> Self {
        Self {
            blocks: VecDeque::new(),
            owned: BTreeMap::new(),
            bytes: 0,
            most_bytes,
            most_blocks,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn add(&mut self, block: Block) {
        self.bytes += block.length;
        *self.owned.entry(block.owner).or_default() += block.length;
        self.blocks.push_back(block);
    }

    fn remove(&mut self, place: usize) -> Option<Block> {
        let block = self.blocks.remove(place)?;
        self.bytes -= block.length;
        if let Some(owned) = self.owned.get_mut(&block.owner) {
            *owned -= block.length;
        }
        Some(block)
    }

    /// Takes the newest suitable block.
    pub(crate) fn take_for(&mut self, wanted: BlockRequest) -> Option<u64> {
        let fits = |block: &Block| {
            block.length == wanted.length
                && block.owner == wanted.owner
                && (block.stream == wanted.stream || block.posted <= wanted.complete)
        };
        let place = self.blocks.iter().rposition(fits)?;
        Some(self.remove(place)?.address)
    }

    /// Whether a limit is exceeded.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes > self.most_bytes || self.blocks.len() > self.most_blocks
    }

    /// Takes the oldest block, if the list is more than half full.
    pub(crate) fn take_surplus(&mut self) -> Option<Block> {
        let much = self.bytes > self.most_bytes / 2 || self.blocks.len() > self.most_blocks / 2;
        much.then(|| self.remove(0))?
    }

    /// Takes the oldest block whose work is complete, if more than `keep` bytes or too many
    /// blocks are kept.
    pub(crate) fn take_complete(&mut self, keep: u64, complete: u64) -> Option<Block> {
        let much = self.bytes > keep || self.blocks.len() > self.most_blocks / 2;
        let mut blocks = self.blocks.iter().take_while(|_| much);
        let place = blocks.position(|block| block.posted <= complete)?;
        self.remove(place)
    }

    /// Takes all blocks.
    pub(crate) fn take_all(&mut self) -> Vec<Block> {
        self.bytes = 0;
        self.owned.clear();
        std::mem::take(&mut self.blocks).into()
    }

    /// Takes the completed blocks of owners that exceed their limits. If none does, which is
    /// usual, no block is looked at.
    pub(crate) fn take_over(&mut self, complete: u64, may: impl Fn(usize) -> u64) -> Vec<Block> {
        self.owned.retain(|_, bytes| *bytes > 0);
        let mut taken = Vec::new();
        for (&owner, owned) in &mut self.owned {
            let mut spare = owned.saturating_sub(may(owner));
            if spare == 0 {
                continue;
            }
            self.blocks.retain(|block| {
                let goes = spare > 0 && block.owner == owner && block.posted <= complete;
                if goes {
                    spare = spare.saturating_sub(block.length);
                    *owned -= block.length;
                    self.bytes -= block.length;
                    taken.push(*block);
                }
                !goes
            });
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64, stream: u64, posted: u64) -> Block {
        Block {
            address,
            length: 4096,
            owner: 1,
            stream: StreamHandle(stream),
            posted,
        }
    }

    fn wanted(stream: u64, complete: u64) -> BlockRequest {
        BlockRequest {
            length: 4096,
            owner: 1,
            stream: StreamHandle(stream),
            complete,
        }
    }

    #[test]
    fn a_block_is_reused_in_its_stream_or_once_its_work_is_complete() {
        let mut kept = FreedBlocks::new(1 << 20, 100);
        kept.add(block(1, 7, 10));
        kept.add(block(2, 8, 20));
        let other = |owner, length| BlockRequest {
            owner,
            length,
            ..wanted(7, 99)
        };
        assert_eq!(kept.take_for(other(1, 8192)), None);
        assert_eq!(kept.take_for(other(2, 4096)), None);
        assert_eq!(kept.take_for(wanted(9, 9)), None);
        assert_eq!(kept.take_for(wanted(9, 10)), Some(1));
        assert_eq!(kept.take_for(wanted(7, 10)), None);
        assert_eq!(kept.take_for(wanted(8, 10)), Some(2));
        assert!(kept.is_empty() && kept.bytes() == 0);
    }

    #[test]
    fn the_newest_block_is_reused_first() {
        let mut kept = FreedBlocks::new(1 << 20, 100);
        for address in 1..4 {
            kept.add(block(address, 7, address));
        }
        assert_eq!(kept.take_for(wanted(7, 0)), Some(3));
        assert_eq!(kept.take_for(wanted(8, 1)), Some(1));
        assert_eq!(kept.bytes(), 4096);
    }

    #[test]
    fn surplus_and_what_owners_may_not_keep_go_oldest_first() {
        let mut kept = FreedBlocks::new(3 * 4096, 100);
        for address in 1..5 {
            kept.add(block(address, 7, address));
        }
        assert!(kept.is_large());
        let surplus = std::iter::from_fn(|| kept.take_surplus().map(|one| one.address));
        assert_eq!(surplus.collect::<Vec<_>>(), [1, 2, 3]);
        kept.add(block(5, 7, 5));
        kept.add(Block {
            owner: 2,
            ..block(6, 7, 6)
        });
        let over = kept.take_over(5, |owner| if owner == 1 { 4096 } else { 0 });
        assert_eq!(over.iter().map(|one| one.address).collect::<Vec<_>>(), [4]);
        assert!(kept.take_over(6, |_| u64::MAX).is_empty());
        assert_eq!(kept.take_complete(0, 5).map(|one| one.address), Some(5));
        assert!(kept.take_complete(0, 5).is_none());
        assert_eq!(kept.take_all().len(), 1);
        assert_eq!(kept.bytes(), 0);
        assert!(kept.take_over(6, |_| 0).is_empty());
    }
}
