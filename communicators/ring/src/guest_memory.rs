//! VM memory that the host can copy directly: over vfio-user, with shareable memory.
//!
//! Three parties are involved. The guest's kernel names the pages of a process in a page
//! list ([`crate::layout::list`]) that no process can write. The hypervisor reports the
//! VM's memory, which the device process keeps in a table ([`write_table`]) that a worker
//! can only read. The worker trusts a list only within the table: it refuses memory that is
//! not the VM's or has been unmapped since. It also refuses a file until guest and host
//! have each seen what the other wrote there, because a hypervisor may pass a file of which
//! it uses a private copy, as QEMU does with `share=off`.

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

/// Maximum number of files that contain a VM's memory.
pub const MAX_FILES: usize = 4;
/// Bytes of memory that [`GuestMemory::check`] needs.
pub const CHECKED: u64 = 16;
/// Maximum number of ranges in a table.
pub const MAX_RANGES: usize = 1024;

paragpu_protocol::record! {
    /// Memory of the VM: `size` bytes at `address` are those at `offset` of a
    /// file.
    Range {
        /// The first address, as the device sees it.
        address: u64,
        /// Bytes.
        size: u64,
        /// The offset of the range in the file.
        offset: u64,
        /// Number of the file, less than [`MAX_FILES`].
        file: u32,
        /// 1 if the device may write.
        writable: u32,
    }

    /// The first bytes of a table. `count` ranges follow, in order.
    TableHead {
        /// Odd while the table is being written.
        sequence: u64,
        /// The number of ranges.
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
    /// It names no memory, or is already in use.
    #[error("page list {0} names nothing")]
    NotReady(u32),
    /// Its contents are invalid.
    #[error("page list {0} is malformed")]
    Malformed(u32),
    /// The access exceeds the bytes that it names.
    #[error("the access exceeds the page list")]
    Short,
    /// It refers to memory that the VM does not share with the host.
    #[error("address {0:#x} is not shareable memory of the VM")]
    NotMapped(u64),
    /// It has not been verified that guest and host see the same bytes there.
    #[error("the memory at {0:#x} has not been verified to be shared")]
    NotShared(u64),
    /// The guest does not allow the host to write there.
    #[error("the memory at {0:#x} is read-only for the host")]
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

/// The mapped page lists of a channel.
#[derive(Debug)]
struct Lists {
    base: Base,
    /// Keeps the channel in use. Its next user writes the same lists, and the pages that
    /// they name are unpinned when the channel is freed. Neither may happen while the lists
    /// are mapped.
    _tenure: OwnedFd,
}

/// A worker's view of a VM's memory and of the page lists of one channel.
#[derive(Debug)]
pub struct GuestMemory {
    lists: Arc<Lists>,
    table: OwnedFd,
    files: Vec<File>,
    sequence: u64,
    ranges: Vec<Range>,
}

/// A file that contains memory of the VM.
#[derive(Debug)]
struct File {
    ram: Ram,
    /// Guest and host have been seen to share it.
    is_shared: bool,
}

/// A page list that the host uses. Dropping it returns it to the guest's kernel.
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
    /// Maps the page lists at `offset` of a device's `window`, and the VM's memory in
    /// `files`, which `table` describes. `tenure` stays open as long as any list is in use,
    /// and keeps the channel: see
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

    /// Takes a page list from the guest's kernel, and copies its contents.
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
        // The guest sets READY after the fields, so they are read after this, and it does not
        // write the list again while it is BUSY. A hostile one may: each field is read once.
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
        // From here on, dropping it returns the list.
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

    /// Verifies that guest and host share the file behind a list of [`CHECKED`] bytes. The
    /// first 8 bytes must be `value`, written by the guest. The other 8 are set to its
    /// complement, for the guest to verify.
    ///
    /// # Errors
    /// [`ListError::NotShared`] if they are not; as [`write`](Self::write).
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

    /// Reads bytes at offset `at` of the memory that the list names.
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

    /// Writes bytes at offset `at` of the memory that the list names.
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

    /// The file with this number, if it is known to be shared. `address` is for the error.
    fn shared(&self, number: usize, address: u64) -> Result<&Ram, ListError> {
        let file = self.files.get(number);
        let file = file.ok_or(ListError::NotMapped(address))?;
        match file.is_shared {
            true => Ok(&file.ram),
            false => Err(ListError::NotShared(address)),
        }
    }

    /// Finds a contiguous range of the VM's memory: the number of its file and its offset
    /// there.
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
        // A run that crosses the end of a range is not one of pages that a kernel found in
        // its memory.
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

    /// Rereads the table if it has changed. If it stays inconsistent or cannot be read, the
    /// VM has no memory.
    fn refresh(&mut self) {
        if self
            .head()
            .is_some_and(|head| head.sequence == self.sequence)
        {
            return;
        }
        // The writer takes microseconds.
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
    /// The number of bytes that it names.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Addresses and sizes of the runs that contain `size` bytes at offset `at`.
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
        // Fails only if the guest has tampered with the state, which harms only the guest.
        let _ = self.lists.base.u32(offset).compare_exchange(
            busy,
            ready,
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
    }
}
