//! Memory of this process that the device reads and writes.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use paragpu_communicator::Window;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap,
};

use super::lost_pages;

/// Private anonymous memory, initially zero. Pages are allocated when touched.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to this value alone; access is by copies.
unsafe impl Send for Mapping {}
// SAFETY: the device uses the memory as well. Each part has one user at a time, chosen by
// the staging that owns the mapping.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `length` bytes at an address that the kernel chooses.
    ///
    /// # Errors
    /// Errors of the operating system, mostly `NOMEM`.
    pub fn anywhere(length: u64) -> Result<Self, Errno> {
        Self::map(0, length, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    /// `length` bytes at exactly `address`; both multiples of 4096.
    ///
    /// # Errors
    /// `EXIST` if something is already mapped there.
    pub fn at(address: u64, length: u64) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let mapping = Self::map(address, length, flags)?;
        if mapping.address() == address {
            Ok(mapping)
        } else {
            Err(Errno::EXIST)
        }
    }

    fn map(address: u64, length: u64, flags: MapFlags) -> Result<Self, Errno> {
        let length = usize::try_from(length).map_err(|_| Errno::NOMEM)?;
        let hint = usize::try_from(address).map_err(|_| Errno::NOMEM)?;
        // SAFETY: the kernel chooses a free range, or refuses: FIXED_NOREPLACE never
        // replaces a mapping, and without it the address is a hint.
        let base = unsafe {
            mmap_anonymous(
                hint as *mut _,
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, length })
    }

    /// Asks for huge pages, with which it is faster to touch and to register.
    pub fn prefer_huge_pages(&self) {
        // SAFETY: the range is this value's, and the advice changes no contents.
        let _ = unsafe {
            madvise(
                self.base.as_ptr().cast(),
                self.length,
                Advice::LinuxHugepage,
            )
        };
    }

    /// Zeros all of it, and returns its pages to the system. No device may use it.
    pub fn discard(&self) {
        // SAFETY: private anonymous pages of this value, which are zeros when touched again.
        let _ = unsafe {
            madvise(
                self.base.as_ptr().cast(),
                self.length,
                Advice::LinuxDontNeed,
            )
        };
    }

    /// Maps the pages of a window from `offset` on at these addresses, in place of the memory
    /// there. No device may use it meanwhile.
    ///
    /// # Errors
    /// Errors of the operating system, and `INVAL` for pages outside the window. After the
    /// former there may be nothing at these addresses.
    pub fn replace(&self, window: &Window, offset: u64) -> Result<(), Errno> {
        let pages = window.place(offset, self.len()).map_err(|_| Errno::INVAL)?;
        let (from, flags) = (pages.cast(), MremapFlags::MAYMOVE);
        // SAFETY: with an old size of 0, a shared mapping gets another mapping of the same
        // pages. It replaces this value's own pages, from which nothing borrows.
        unsafe { mremap_fixed(from, 0, self.length, flags, self.base.as_ptr().cast()) }?;
        Ok(())
    }

    /// First address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length as u64
    }

    fn place(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(length)?;
        // SAFETY: offset <= end <= length of the mapping.
        (end <= self.length).then(|| unsafe { self.base.as_ptr().add(offset) })
    }

    /// Copies `bytes` to `offset`. Returns false if they do not fit.
    #[must_use]
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.place(offset, bytes.len()) else {
            return false;
        };
        // SAFETY: `place` checked the range. A device may read the same bytes, which is a
        // race of the guest.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Copies those of `bytes` to `offset` that differ from `former`, which is as long. What a
    /// device writes to the others in the meantime stays. Returns false if they do not fit.
    #[must_use]
    pub fn merge_in(&self, offset: u64, bytes: &[u8], former: &[u8]) -> bool {
        const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
        const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
        let place = self.place(offset, bytes.len());
        let Some(to) = place.filter(|_| former.len() == bytes.len()) else {
            return false;
        };
        let put = |at: usize, bytes: &[u8]| {
            // SAFETY: `place` checked the range, and `at` counts `bytes` of it. A device may use
            // the same bytes, which is a race of the guest.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(at), bytes.len()) };
        };
        let pairs = bytes.chunks(8).zip(former.chunks(8)).enumerate();
        for (word, (new, old)) in pairs.filter(|(_, (new, old))| new != old) {
            let word_of = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
            let differs = word_of(new).zip(word_of(old)).map(|(new, old)| new ^ old);
            // No byte of the difference is zero.
            if differs.is_some_and(|it| it.wrapping_sub(LOW) & !it & HIGH == 0) {
                put(8 * word, new);
                continue;
            }
            for (byte, (new, old)) in new.iter().zip(old).enumerate() {
                if new != old {
                    put(8 * word + byte, std::slice::from_ref(new));
                }
            }
        }
        true
    }

    /// Lets `fill` write `length` bytes at `offset`, which have no other user meanwhile.
    /// Returns false if they do not fit.
    #[must_use]
    pub fn fill(&self, offset: u64, length: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let Some(to) = self.place(offset, length) else {
            return false;
        };
        // SAFETY: `place` checked the range, which is initialised (zero or written) and,
        // as the caller promises, has no other user.
        fill(unsafe { std::slice::from_raw_parts_mut(to, length) });
        true
    }

    /// Fills `bytes` from `offset`. Returns false if there are fewer.
    #[must_use]
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.place(offset, bytes.len()) else {
            return false;
        };
        // SAFETY: as in copy_in.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        true
    }

    /// The bytes at `offset`, of a mapping or part of it that no device is writing: a
    /// private copy, or a staging chunk whose transfer is complete. Empty if the range
    /// does not fit.
    ///
    /// A guest that lets a kernel overwrite a staging chunk changes only bytes that are
    /// sent to itself. Nothing here depends on their value.
    #[must_use]
    pub fn bytes(&self, offset: u64, length: usize) -> &[u8] {
        match self.place(offset, length) {
            // SAFETY: the range was checked and is initialised (zero or written). It
            // lives as long as self.
            Some(from) => unsafe { std::slice::from_raw_parts(from, length) },
            None => &[],
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and slices of it borrow self.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Pages of a file that other processes map as well. Only the device uses them here.
#[derive(Debug)]
pub struct FilePages {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: nothing here reads or writes the memory.
unsafe impl Send for FilePages {}
// SAFETY: as above.
unsafe impl Sync for FilePages {}

impl FilePages {
    /// `length` bytes from `offset` of `file`, at exactly `address`; all multiples of
    /// 4096.
    ///
    /// # Errors
    /// `EXIST` if something is already mapped there; `ACCESS` for a file that is not open
    /// for reading and writing.
    pub fn at(address: u64, length: u64, file: impl AsFd, offset: u64) -> Result<Self, Errno> {
        let length = usize::try_from(length).map_err(|_| Errno::NOMEM)?;
        let place = usize::try_from(address).map_err(|_| Errno::NOMEM)?;
        let end = place.checked_add(length).ok_or(Errno::NOMEM)?;
        // The owner of the file may truncate it.
        lost_pages::hold(place, end).map_err(|_| Errno::NOSYS)?;
        // SAFETY: FIXED_NOREPLACE never replaces a mapping.
        let base = unsafe {
            mmap(
                place as *mut _,
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED_NOREPLACE,
                file,
                offset,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let pages = Self { base, length };
        // Kernels before 4.17 treat the address as a hint.
        match pages.base.as_ptr() as usize == place {
            true => Ok(pages),
            false => Err(Errno::EXIST),
        }
    }

    /// The address after its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.base.as_ptr() as u64 + self.length as u64
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing borrows from it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_inside() {
        let mapping = Mapping::anywhere(8192).unwrap();
        assert!(mapping.copy_in(8190, &[1, 2]));
        assert!(!mapping.copy_in(8191, &[1, 2]));
        assert!(!mapping.copy_in(u64::MAX, &[1]));
        assert_eq!(mapping.bytes(8190, 2), [1, 2]);
        assert!(mapping.bytes(8190, 3).is_empty());
        let mut out = [0; 3];
        assert!(mapping.copy_out(8189, &mut out));
        assert_eq!(out, [0, 1, 2]);
    }

    #[test]
    fn a_truncated_file_reads_as_zeros() {
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let address = paragpu_protocol::layout::Regions::of(0).unwrap().shadow + (1 << 38);
        let pages = FilePages::at(address, 8192, &file, 0).unwrap();
        assert_eq!(pages.end(), address + 8192);
        let at = |offset: usize| (address as usize + offset) as *mut u8;
        // SAFETY: mapped above, used by this thread only.
        let read = |offset| unsafe { at(offset).read_volatile() };
        // SAFETY: as above.
        let write = |offset, value| unsafe { at(offset).write_volatile(value) };
        write(0, 1);
        write(4096, 2);
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert_eq!((read(0), read(4096)), (1, 0));
        write(8191, 3);
        assert_eq!(read(8191), 3);
        assert!(FilePages::at(address, 4096, &file, 0).is_err(), "taken");
    }

    #[test]
    fn a_fixed_address_is_mapped_once() {
        let address = paragpu_protocol::layout::Regions::of(0).unwrap().shadow + (1 << 39);
        let first = Mapping::at(address, 4096).unwrap();
        assert_eq!(first.address(), address);
        assert_eq!(Mapping::at(address, 4096).unwrap_err(), Errno::EXIST);
        drop(first);
        assert!(Mapping::at(address, 4096).is_ok());
    }
}
