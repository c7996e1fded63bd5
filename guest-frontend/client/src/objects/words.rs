//! Words of device memory that show streams of other sessions which records are complete.
//!
//! Records have numbers. A stream that reaches a record writes its number to a word, and a
//! stream that waits for the record waits for that word. Each record in flight has a
//! separate word, because streams may reach them in any order.

use paragpu_abi::{CU_STREAM_MEM_OP_WAIT_VALUE_64, CU_STREAM_MEM_OP_WRITE_VALUE_64};
use paragpu_protocol::types::MemoryOperation;
use parking_lot::{Mutex, MutexGuard};

/// Words at an address, 8 bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Words {
    address: u64,
    count: u64,
}

impl Words {
    /// Bytes of a word.
    pub(crate) const SIZE: u64 = 8;

    /// For at most `count` records in flight.
    pub(crate) fn new(address: u64, count: u64) -> Self {
        Self { address, count }
    }

    /// First address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The address of a record's word.
    pub(crate) fn of(&self, record: u64) -> u64 {
        self.address + record % self.count * Self::SIZE
    }

    fn operation(&self, kind: u32, record: u64, value: u64) -> MemoryOperation {
        MemoryOperation {
            kind,
            flags: 0,
            address: self.of(record),
            value,
        }
    }

    /// Waits until a stream has reached the record.
    pub(crate) fn wait(&self, record: u64) -> MemoryOperation {
        self.operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, record, record)
    }

    /// Records.
    pub(crate) fn write(&self, record: u64) -> Vec<MemoryOperation> {
        // The word holds an earlier record, which waiting streams must see first.
        let earlier = record
            .checked_sub(self.count)
            .filter(|earlier| *earlier > 0);
        let wait = earlier.map(|earlier| self.wait(earlier));
        wait.into_iter()
            .chain([self.operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, record, record)])
            .collect()
    }
}

/// Words for events of one device that streams of another wait for.
#[derive(Debug)]
pub(crate) struct PeerWords {
    words: Words,
    last: Mutex<u64>,
}

impl PeerWords {
    /// Maximum number of records in flight.
    const COUNT: u64 = 4096;
    /// Their bytes.
    pub(crate) const BYTES: u64 = Self::COUNT * Words::SIZE;

    /// At this address, where all bytes are 0.
    pub(crate) fn new(address: u64) -> Self {
        Self {
            words: Words::new(address, Self::COUNT),
            last: Mutex::new(0),
        }
    }

    pub(crate) fn words(&self) -> Words {
        self.words
    }

    /// The number of a new record. The holder must post it before the next one is
    /// numbered.
    pub(crate) fn number(&self) -> (u64, MutexGuard<'_, u64>) {
        let mut last = self.last.lock();
        *last += 1;
        (*last, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_later_records_only_after_earlier_ones() {
        let words = Words::new(0x1000, 4);
        assert_eq!(
            words.write(3),
            [words.operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, 3, 3)]
        );
        assert_eq!(
            words.write(4),
            [words.operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, 4, 4)]
        );
        let later = words.write(7);
        assert_eq!(
            later,
            [
                words.wait(3),
                words.operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, 7, 7)
            ]
        );
        assert_eq!((words.of(3), words.of(4)), (0x1018, 0x1000));
        assert_eq!(words.of(3), words.of(7));
    }
}
