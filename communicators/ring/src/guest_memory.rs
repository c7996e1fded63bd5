//! VM memory that the host can copy directly: over vfio-user, with shareable memory.
//!
//! Three parties are involved. The guest's kernel names the pages of a process in a page list
//! ([`crate::layout::list`]) that no process can write. The hypervisor says which memory the VM
//! has, and the device process keeps that in a table ([`write_table`]) that a worker can only
//! read. The worker trusts a list only within the table: it refuses memory that is not the
//! VM's or that was unmapped since. It also refuses a file until guest and host have each seen
//! what the other writes there, because a hypervisor may pass on a file of which it uses a
//! private copy, as QEMU does with `share=off`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use paragpu_communicator::Error;
use paragpu_protocol::codec::{Reader, encode_all};
use rustix::io::{Errno, pread, pwrite};
use thiserror::Error as ThisError;

use crate::layout::list;
use crate::sys::guest_memory_unsafe::Ram;
use crate::sys::mapping_unsafe::Mapping;
use crate::sys::region_unsafe::Base;

/// Most files that hold a VM's memory.
pub const MAX_FILES: usize = 4;
/// Bytes that [`GuestMemory::check`] needs.
pub const CHECKED: u64 = 16;
/// Most ranges of a table.
pub const MAX_RANGES: usize = 1024;

paragpu_protocol::record! {
    /// Memory of the VM: `size` bytes at `address` are those at `offset` of a
    /// file.
    Range {
        /// First address, as the device sees it.
        address: u64,
        /// Bytes.
        size: u64,
        /// Where they begin in the file.
        offset: u64,
        /// Number of the file, less than [`MAX_FILES`].
        file: u32,
        /// 1 where the device may write.
        writable: u32,
    }

    /// The first bytes of a table. `count` ranges follow, in order.
    TableHead {
        /// Odd while the table is being written.
        sequence: u64,
        /// Ranges.
        count: u64,
    }
}

const HEAD_SIZE: usize = 16;
const RANGE_SIZE: usize = 32;
/// Bytes of a table's file.
pub const TABLE_SIZE: u64 = (HEAD_SIZE + MAX_RANGES * RANGE_SIZE) as u64;

/// Why a list cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ThisError)]
pub enum ListError {
    /// It names nothing, or is used already.
    #[error("page list {0} names nothing")]
    NotReady(u32),
    /// Its contents are impossible.
    #[error("page list {0} makes no sense")]
    Malformed(u32),
    /// Bytes beyond what it names.
    #[error("the page list names fewer bytes")]
    Short,
    /// It refers to memory that the VM does not share.
    #[error("address {0:#x} is not memory of the VM that can be shared")]
    NotMapped(u64),
    /// It was not seen that the guest and the host have the same bytes there.
    #[error("the memory at {0:#x} is not known to be shared")]
    NotShared(u64),
    /// The guest does not let the host write there.
    #[error("the memory at {0:#x} is not to be written")]
    ReadOnly(u64),
}

/// Device process only: writes a whole table into its file.
///
/// # Errors
/// Errors of the operating system.
pub fn write_table(
    file: BorrowedFd<'_>,
    sequence: &mut u64,
    ranges: &[Range],
) -> Result<(), Errno> {
    let put = |sequence: u64, count: usize| {
        let head = encode_all(&TableHead {
            sequence,
            count: count as u64,
        });
        pwrite(file, &head, 0).map(drop)
    };
    put(*sequence | 1, 0)?;
    let bytes: Vec<u8> = ranges.iter().flat_map(encode_all).collect();
    pwrite(file, &bytes, HEAD_SIZE as u64)?;
    *sequence = (*sequence | 1) + 1;
    put(*sequence, ranges.len())
}

/// The page lists of a channel, mapped.
#[derive(Debug)]
struct Lists {
    base: Base,
    /// The channel's next user writes into the same lists, and whose pages a
    /// list names are let go when the channel is free: not while it is mapped.
    _tenure: OwnedFd,
}

/// A VM's memory and the page lists of one channel, in a worker's hands.
#[derive(Debug)]
pub struct GuestMemory {
    lists: Arc<Lists>,
    table: OwnedFd,
    files: Vec<File>,
    sequence: u64,
    ranges: Vec<Range>,
}

/// A file of the VM's memory.
#[derive(Debug)]
struct File {
    ram: Ram,
    /// Each side sees the other's writes.
    is_shared: bool,
}

/// A page list that the host uses; given back to the guest's kernel when it
/// is dropped.
#[derive(Debug)]
pub struct List {
    lists: Arc<Lists>,
    number: u32,
    runs: Vec<(u64, u64)>,
    offset: u64,
    length: u64,
    writable: bool,
}

impl GuestMemory {
    /// The page lists at `offset` of a device's `window`, and the VM's memory
    /// that `table` tells of, in `files`. `tenure` stays open as long as the
    /// lists or one of them are in use, and keeps the channel so long:
    /// [`HostChannel::liveness`](crate::pci::HostChannel::liveness).
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Protocol`].
    pub fn new(
        window: BorrowedFd<'_>,
        offset: u64,
        table: OwnedFd,
        files: &[OwnedFd],
        tenure: OwnedFd,
    ) -> Result<Self, Error> {
        let lists = Mapping::new(window, offset, list::SIZE * list::COUNT as u64, None)?;
        let files = files
            .iter()
            .map(|file| {
                let size = rustix::fs::fstat(file)
                    .map_err(|errno| Error::io("cannot inspect the VM's memory", errno))?
                    .st_size;
                Ok(File {
                    ram: Ram::new(file.as_fd(), u64::try_from(size).unwrap_or(0))?,
                    is_shared: false,
                })
            })
            .collect::<Result<_, Error>>()?;
        Ok(Self {
            lists: Arc::new(Lists {
                base: Base::new(Arc::new(lists), 0)?,
                _tenure: tenure,
            }),
            table,
            files,
            sequence: 0,
            ranges: Vec::new(),
        })
    }

    /// Takes a page list from the guest's kernel, and what it says.
    ///
    /// # Errors
    /// [`ListError::NotReady`], [`ListError::Malformed`].
    pub fn take(&self, number: u32) -> Result<List, ListError> {
        if number >= list::COUNT {
            return Err(ListError::NotReady(number));
        }
        let (lists, base) = (&self.lists.base, number as usize * list::SIZE as usize);
        let state = lists.u32(base + list::STATE);
        let (ready, busy) = (list::READY.to_le(), list::BUSY.to_le());
        state
            .compare_exchange(ready, busy, Ordering::SeqCst, Ordering::Relaxed)
            .map_err(|_| ListError::NotReady(number))?;
        let word = |offset| u32::from_le(lists.u32(base + offset).load(Ordering::Relaxed));
        let long = |offset| u64::from_le(lists.u64(base + offset).load(Ordering::Relaxed));
        let count = (word(list::COUNT_OF) as usize).min(list::ENTRIES);
        let runs: Vec<(u64, u64)> = (0..count)
            .map(|index| long(list::ENTRY + 8 * index))
            .map(|entry| (entry & !0xfff, ((entry & 0xfff) + 1) << 12))
            .collect();
        // From here on its end gives it back.
        let list = List {
            lists: Arc::clone(&self.lists),
            number,
            offset: word(list::OFFSET).into(),
            length: long(list::LENGTH),
            writable: word(list::FLAGS) & list::WRITABLE != 0,
            runs,
        };
        let named: u64 = list.runs.iter().map(|(_, size)| size).sum();
        match list.offset.checked_add(list.length) {
            Some(end) if end <= named && list.length <= list::PIN_MAX => Ok(list),
            _ => Err(ListError::Malformed(number)),
        }
    }

    /// Reads the first 8 bytes that a list of [`CHECKED`] names; where they are
    /// `value` the guest's memory is what is seen here, and the others get its
    /// complement for the guest to see.
    ///
    /// # Errors
    /// [`ListError::NotShared`] where they are something else; as
    /// [`write`](Self::write).
    pub fn check(&mut self, list: &List, value: u64) -> Result<(), ListError> {
        self.refresh();
        let parts = list.parts(0, CHECKED as usize)?;
        let [(address, size)] = parts[..] else {
            return Err(ListError::Malformed(list.number));
        };
        if !list.writable {
            return Err(ListError::ReadOnly(address));
        }
        let (file, offset) = self.find(address, size, true)?;
        let missing = ListError::NotMapped(address);
        let file = self.files.get_mut(file).ok_or(missing)?;
        let mut seen = [0; 8];
        if !file.ram.read(offset, &mut seen) {
            return Err(missing);
        }
        file.is_shared = seen == value.to_le_bytes()
            && file
                .ram
                .write(offset + seen.len() as u64, &(!value).to_le_bytes());
        if file.is_shared {
            Ok(())
        } else {
            Err(ListError::NotShared(address))
        }
    }

    /// Fills `to` with the bytes at `at` of what the list names.
    ///
    /// # Errors
    /// [`ListError`]; some bytes may have been read.
    pub fn read(&mut self, list: &List, at: u64, to: &mut [u8]) -> Result<(), ListError> {
        self.refresh();
        let mut done = 0;
        for (address, size) in list.parts(at, to.len())? {
            let part = to.get_mut(done..done + size).ok_or(ListError::Short)?;
            let (file, offset) = self.find(address, size, false)?;
            if !self.shared(file, address)?.read(offset, part) {
                return Err(ListError::NotMapped(address));
            }
            done += size;
        }
        Ok(())
    }

    /// Writes `from` to the bytes at `at` of what the list names.
    ///
    /// # Errors
    /// [`ListError`]; some bytes may have been written.
    pub fn write(&mut self, list: &List, at: u64, from: &[u8]) -> Result<(), ListError> {
        self.refresh();
        let mut done = 0;
        for (address, size) in list.parts(at, from.len())? {
            if !list.writable {
                return Err(ListError::ReadOnly(address));
            }
            let part = from.get(done..done + size).ok_or(ListError::Short)?;
            let (file, offset) = self.find(address, size, true)?;
            if !self.shared(file, address)?.write(offset, part) {
                return Err(ListError::NotMapped(address));
            }
            done += size;
        }
        Ok(())
    }

    /// A file for bytes at `address`.
    fn shared(&self, number: usize, address: u64) -> Result<&Ram, ListError> {
        let file = self.files.get(number);
        let file = file.ok_or(ListError::NotMapped(address))?;
        match file.is_shared {
            true => Ok(&file.ram),
            false => Err(ListError::NotShared(address)),
        }
    }

    /// Where memory of the VM is, in one piece: the file's number, and where
    /// in it.
    fn find(&self, address: u64, size: usize, write: bool) -> Result<(usize, u64), ListError> {
        let missing = ListError::NotMapped(address);
        let after = self
            .ranges
            .partition_point(|range| range.address <= address);
        let range = after
            .checked_sub(1)
            .and_then(|index| self.ranges.get(index))
            .ok_or(missing)?;
        let into = address - range.address;
        // A run that reaches over the end of a range is not one of pages that
        // a kernel found in its memory.
        if into
            .checked_add(size as u64)
            .is_none_or(|end| end > range.size)
        {
            return Err(missing);
        }
        if write && range.writable == 0 {
            return Err(ListError::ReadOnly(address));
        }
        let offset = range.offset.checked_add(into).ok_or(missing)?;
        Ok((range.file as usize, offset))
    }

    /// Reads the table again where it changed. While it is being written, and
    /// if it cannot be read, the VM has no memory.
    fn refresh(&mut self) {
        if self
            .head()
            .is_some_and(|head| head.sequence == self.sequence)
        {
            return;
        }
        // The writer needs microseconds.
        for _ in 0..1000 {
            if let Some((sequence, ranges)) = self.read_table() {
                (self.sequence, self.ranges) = (sequence, ranges);
                return;
            }
            std::thread::yield_now();
        }
        self.ranges.clear();
        self.sequence = 0;
    }

    fn head(&self) -> Option<TableHead> {
        let mut bytes = [0; HEAD_SIZE];
        let count = pread(&self.table, &mut bytes, 0).ok()?;
        let head: TableHead = Reader::new(bytes.get(..count)?).field().ok()?;
        head.sequence.is_multiple_of(2).then_some(head)
    }

    fn read_table(&self) -> Option<(u64, Vec<Range>)> {
        let head = self.head()?;
        let count = usize::try_from(head.count).ok()?.min(MAX_RANGES);
        let mut bytes = vec![0; count * RANGE_SIZE];
        let got = pread(&self.table, &mut bytes, HEAD_SIZE as u64).ok()?;
        let mut reader = Reader::new(bytes.get(..got)?);
        let ranges = (0..count)
            .map(|_| reader.field::<Range>().ok())
            .collect::<Option<_>>()?;
        (self.head()? == head).then_some((head.sequence, ranges))
    }
}

impl List {
    /// Bytes that it names.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Where `size` bytes at `at` lie: addresses and sizes.
    fn parts(&self, at: u64, size: usize) -> Result<Vec<(u64, usize)>, ListError> {
        let end = at.checked_add(size as u64).ok_or(ListError::Short)?;
        if end > self.length {
            return Err(ListError::Short);
        }
        let mut skip = self.offset + at;
        let mut left = size as u64;
        let mut parts = Vec::new();
        for (address, run) in &self.runs {
            if left == 0 {
                break;
            }
            if skip >= *run {
                skip -= run;
                continue;
            }
            let now = (run - skip).min(left);
            let first = address.checked_add(skip).ok_or(ListError::Short)?;
            parts.push((first, usize::try_from(now).map_err(|_| ListError::Short)?));
            left -= now;
            skip = 0;
        }
        Ok(parts)
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let offset = self.number as usize * list::SIZE as usize + list::STATE;
        let (ready, busy) = (list::READY.to_le(), list::BUSY.to_le());
        // Another value is the guest's own mischief.
        let _ = self.lists.base.u32(offset).compare_exchange(
            busy,
            ready,
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
    }
}
