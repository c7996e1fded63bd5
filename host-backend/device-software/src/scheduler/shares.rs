//! The blocks of a kernel, as threads take them in shares.
//!
//! A block may wait for any with a lower number (CUB's single-pass algorithms do). So blocks
//! begin in ascending order, and all of a share count as in flight until they are complete:
//! what a thread hands back of its share needs no further room, and begins before others.

use std::collections::VecDeque;
use std::ops::Range;

pub(super) struct Shares {
    /// Blocks that have not begun, in ascending order. The last range has those that no
    /// thread has had in its share.
    fresh: VecDeque<Range<u64>>,
    /// The first block that no thread has had in its share.
    next: u64,
    /// Number of blocks that threads took in their shares and that are not complete.
    in_flight: u64,
    /// Maximum of those.
    limit: u64,
    /// Maximum size of a share.
    most: u64,
    threads: u64,
}

impl Shares {
    /// The shares of `blocks` blocks for `threads` threads, of which at most `limit`, at
    /// least one per thread, are in flight.
    pub(super) fn new(blocks: u64, limit: u64, threads: u64) -> Self {
        Self {
            fresh: std::iter::once(0..blocks).collect(),
            next: 0,
            in_flight: 0,
            limit: limit.max(threads),
            most: limit / threads,
            threads,
        }
    }

    /// The shares of a cooperative launch, of one block each: all are in flight.
    pub(super) fn cooperative(blocks: u64, threads: u64) -> Self {
        Self {
            most: 1,
            ..Self::new(blocks, blocks, threads)
        }
    }

    /// Whether all blocks have begun.
    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty()
    }

    /// Whether a thread can take a share.
    pub(super) fn is_ready(&self) -> bool {
        let first = self.fresh.front();
        first.is_some_and(|first| first.start < self.next || self.in_flight < self.limit)
    }

    /// Takes a share. Only if [`Self::is_ready`].
    pub(super) fn take(&mut self) -> Option<Range<u64>> {
        let whole = self.fresh.pop_front()?;
        let mut size = ((whole.end - whole.start) / (self.threads * 4)).min(self.most);
        let is_new = whole.start >= self.next;
        if is_new {
            size = size.min(self.limit.saturating_sub(self.in_flight));
        }
        let taken = whole.start..whole.start + size.max(1);
        if is_new {
            self.next = taken.end;
            self.in_flight += taken.end - taken.start;
        }
        if taken.end < whole.end {
            self.fresh.push_front(taken.end..whole.end);
        }
        Some(taken)
    }

    /// Takes back the rest of a share.
    pub(super) fn put_back(&mut self, rest: Range<u64>) {
        let at = self.fresh.partition_point(|f| f.start < rest.start);
        self.fresh.insert(at, rest);
    }

    /// Notes that this number of blocks are complete.
    pub(super) fn complete(&mut self, blocks: u64) {
        self.in_flight -= blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs shares in which each block waits for all lower ones, and threads hand back their
    /// shares out of order. Returns the maximum number of blocks that have begun and wait.
    fn chain(mut shares: Shares, blocks: u64) -> u64 {
        let (mut waiting, mut done, mut most) = (Vec::new(), 0, 0);
        while done < blocks {
            let mut held = Vec::new();
            while held.len() < 3 && shares.is_ready() {
                held.extend(shares.take());
            }
            assert!(held.iter().all(|share| !share.is_empty()));
            for share in held.into_iter().rev() {
                waiting.push(share.start);
                if share.start + 1 < share.end {
                    shares.put_back(share.start + 1..share.end);
                }
            }
            most = most.max(waiting.len() as u64);
            if shares.is_ready() {
                continue;
            }
            // Nothing more can begin. The first block that is not complete is among those
            // that wait.
            let first = waiting.iter().position(|&block| block == done);
            waiting.swap_remove(first.unwrap_or_else(|| panic!("block {done} has not begun")));
            done += 1;
            shares.complete(1);
        }
        assert!(waiting.is_empty() && shares.is_empty());
        most
    }

    #[test]
    fn blocks_never_wait_for_one_that_cannot_begin() {
        for (blocks, limit, threads) in [(1000, 96, 3), (1000, 4, 3), (1000, 1, 3), (50, 96, 3)] {
            let most = chain(Shares::new(blocks, limit, threads), blocks);
            assert_eq!(most, limit.max(threads).min(blocks));
        }
    }

    #[test]
    fn all_blocks_of_a_cooperative_launch_begin() {
        assert_eq!(chain(Shares::cooperative(100, 3), 100), 100);
    }

    #[test]
    fn a_share_leaves_room_for_every_thread() {
        let mut shares = Shares::new(1000, 64, 2);
        assert_eq!(shares.take(), Some(0..32));
        assert_eq!(shares.take(), Some(32..64));
        assert!(!shares.is_ready());
        shares.put_back(40..64);
        assert_eq!(shares.take(), Some(40..43));
        shares.put_back(2..32);
        assert_eq!(shares.take(), Some(2..5));
        shares.complete(3);
        assert_eq!(shares.take(), Some(5..8));
    }
}
