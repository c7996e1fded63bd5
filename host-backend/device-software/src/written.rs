//! Tracks which pages of the arena were written, for a session that migrates.
//!
//! A writer sets the note *after* the write, with a fence in between. A reader that clears
//! notes puts a fence between clearing them and reading the memory. So either the reader
//! sees the write, or the note is set after the clearing and found next time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};

use paragpu_protocol::layout::DEVICE_STRIDE;

/// Notes are for pages of 4 KiB.
const PAGE_SHIFT: u32 = 12;
/// Notes are allocated for 1 GiB at a time.
const BLOCK_SHIFT: u32 = 30 - PAGE_SHIFT;

/// One note for each page of a GiB: 1 if it was written.
type Block = OnceLock<Box<[AtomicU8]>>;

/// The notes about written pages. Offsets are relative to the arena's start.
#[derive(Debug)]
pub struct Written {
    watching: AtomicBool,
    blocks: Box<[Block]>,
}

impl Default for Written {
    fn default() -> Self {
        let blocks = DEVICE_STRIDE >> (PAGE_SHIFT + BLOCK_SHIFT);
        Self {
            watching: AtomicBool::new(false),
            blocks: (0..blocks).map(|_| Block::new()).collect(),
        }
    }
}

impl Written {
    /// Starts tracking, without notes, or stops it. Concurrent writes may be missed, so
    /// wait for them before reading memory.
    pub fn watch(&self, on: bool) {
        self.watching.store(false, Ordering::SeqCst);
        for notes in self.blocks.iter().filter_map(OnceLock::get) {
            for note in notes {
                note.store(0, Ordering::Relaxed);
            }
        }
        self.watching.store(on, Ordering::SeqCst);
    }

    /// Whether writes are tracked.
    pub fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    /// Records a completed write. Memory outside the arena is not tracked.
    #[inline]
    pub fn note(&self, offset: u64, size: u64) {
        if self.is_watching() {
            self.mark(offset, size);
        }
    }

    #[inline(never)]
    fn mark(&self, offset: u64, size: u64) {
        if offset >= DEVICE_STRIDE || size == 0 {
            return;
        }
        fence(Ordering::SeqCst);
        let last = offset.saturating_add(size - 1).min(DEVICE_STRIDE - 1);
        for page in offset >> PAGE_SHIFT..=last >> PAGE_SHIFT {
            let Some(block) = self.blocks.get((page >> BLOCK_SHIFT) as usize) else {
                return;
            };
            let notes =
                block.get_or_init(|| (0..1 << BLOCK_SHIFT).map(|_| AtomicU8::new(0)).collect());
            let in_block = (page & ((1 << BLOCK_SHIFT) - 1)) as usize;
            if let Some(note) = notes.get(in_block)
                && note.load(Ordering::Relaxed) == 0
            {
                note.store(1, Ordering::Relaxed);
            }
        }
    }

    /// Calls `found` with the written ranges of `[offset, offset + size)`: offset and
    /// bytes, ascending, not adjacent. `forget` clears the notes of pages completely inside
    /// the range; another caller may ask for the other pages.
    pub fn each(&self, offset: u64, size: u64, forget: bool, mut found: impl FnMut(u64, u64)) {
        let end = offset.saturating_add(size).min(DEVICE_STRIDE);
        let (mut run, mut length) = (0, 0);
        let mut page = offset >> PAGE_SHIFT;
        while page << PAGE_SHIFT < end {
            let block = self.blocks.get((page >> BLOCK_SHIFT) as usize);
            let Some(notes) = block.and_then(OnceLock::get) else {
                // Skips a GiB without writes.
                page = ((page >> BLOCK_SHIFT) + 1) << BLOCK_SHIFT;
                continue;
            };
            let in_block = (page & ((1 << BLOCK_SHIFT) - 1)) as usize;
            let from = (page << PAGE_SHIFT).max(offset);
            let to = ((page + 1) << PAGE_SHIFT).min(end);
            let whole = to - from == 1 << PAGE_SHIFT;
            let written = notes.get(in_block).is_some_and(|note| {
                let noted = note.load(Ordering::Relaxed) != 0;
                if noted && forget && whole {
                    note.swap(0, Ordering::SeqCst);
                }
                noted
            });
            if written {
                if length != 0 && run + length == from {
                    length += to - from;
                } else {
                    if length != 0 {
                        found(run, length);
                    }
                    (run, length) = (from, to - from);
                }
            }
            page += 1;
        }
        if length != 0 {
            found(run, length);
        }
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(written: &Written, offset: u64, size: u64, forget: bool) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        written.each(offset, size, forget, |at, length| all.push((at, length)));
        all
    }

    #[test]
    fn what_was_written_is_named_once() {
        let written = Written::default();
        written.note(4096, 8);
        assert!(ranges(&written, 0, 1 << 20, true).is_empty(), "no watch");
        written.watch(true);
        written.note(4095, 2);
        written.note(16384, 1);
        written.note((1 << 30) - 1, 2);
        written.note(DEVICE_STRIDE + 4096, 8);
        written.note(DEVICE_STRIDE - 1, u64::MAX);
        assert_eq!(
            ranges(&written, 0, 1 << 20, false),
            [(0, 8192), (16384, 4096)]
        );
        // Notes of the rest of the page are kept.
        assert_eq!(ranges(&written, 100, 200, true), [(100, 200)]);
        assert_eq!(ranges(&written, 0, 4096, true), [(0, 4096)]);
        assert_eq!(
            ranges(&written, 0, DEVICE_STRIDE, true),
            [
                (4096, 4096),
                (16384, 4096),
                ((1 << 30) - 4096, 8192),
                (DEVICE_STRIDE - 4096, 4096)
            ]
        );
        assert!(ranges(&written, 0, DEVICE_STRIDE, false).is_empty());
        written.note(0, 1);
        written.watch(true);
        assert!(ranges(&written, 0, DEVICE_STRIDE, false).is_empty());
    }

    /// If a reader did not see a change of a counter, the notes report it later.
    #[test]
    fn no_write_is_lost_between_reader_and_notes() {
        use std::sync::atomic::AtomicU64;
        let written = Written::default();
        written.watch(true);
        let counter = AtomicU64::new(0);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 1..=200_000 {
                    counter.store(value, Ordering::Relaxed);
                    written.note(0, 8);
                }
                over.store(true, Ordering::SeqCst);
            });
            let mut copied = 0;
            loop {
                let last = over.load(Ordering::SeqCst);
                if !ranges(&written, 0, 4096, true).is_empty() {
                    copied = counter.load(Ordering::Relaxed);
                }
                if last {
                    break;
                }
            }
            assert_eq!(copied, 200_000);
        });
    }
}
