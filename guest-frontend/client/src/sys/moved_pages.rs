//! Replaces private pages of the program by pages of the window, at the same addresses.
//!
//! The window's pages are mapped a second time, filled, and moved over the program's pages
//! with one mremap(2). A write of another thread between filling and moving would be lost.
//! So this happens only if no thread can write: because the process has one thread, or
//! because the kernel blocks writers (userfaultfd's write protection, which needs the
//! privilege to handle faults of system calls as well). Otherwise the pages stay private.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

use paragpu_communicator::{Window, copy_past_caches};

use super::memory::{HostSlice, PAGE};
use super::userfault::{Userfault, Watch};
use crate::maps;

/// A second mapping of some pages of a window, unknown to the program.
#[derive(Debug)]
pub(crate) struct SecondMapping {
    mapped: NonNull<c_void>,
    length: usize,
}

/// A range of the program's addresses that maps pages of the window.
#[derive(Debug)]
pub(crate) struct MovedPages {
    address: NonNull<c_void>,
    length: usize,
    /// The address of the same pages in the window.
    window: u64,
}

// SAFETY: both hold addresses of mappings, which only the owner changes.
unsafe impl Send for SecondMapping {}
// SAFETY: as above; shared references only give out numbers.
unsafe impl Sync for SecondMapping {}
// SAFETY: as above.
unsafe impl Send for MovedPages {}
// SAFETY: `give_back`, which changes the mapping, holds the lock of the registry.
unsafe impl Sync for MovedPages {}

fn at(address: u64) -> Option<NonNull<c_void>> {
    NonNull::new(ptr::with_exposed_provenance_mut(
        usize::try_from(address).ok()?,
    ))
}

impl SecondMapping {
    /// Maps `length` bytes at `offset` of the window, whole pages, a second time. `None` if
    /// the kernel refuses to.
    pub(crate) fn new(window: &Window, offset: u64, length: u64) -> Option<Self> {
        let from = window.place(offset, length).ok()?;
        Self::of(from.cast(), usize::try_from(length).ok()?)
    }

    /// Maps shared pages a second time.
    fn of(from: *mut c_void, length: usize) -> Option<Self> {
        // SAFETY: with an old size of 0, mremap of a shared mapping creates another mapping
        // of the same pages at an address that the kernel chooses, and leaves the first.
        let mapped = unsafe { libc::mremap(from, 0, length, libc::MREMAP_MAYMOVE) };
        (mapped != libc::MAP_FAILED).then_some(())?;
        let mapped = NonNull::new(mapped)?;
        Some(Self { mapped, length })
    }

    /// Replaces the program's pages at `address` by these, with their contents. `window` is
    /// the address of these pages in the window. `None` if the range is not plain private
    /// memory, or all of it pages of a window that the session has left, which were at `former`;
    /// or if writers cannot be blocked. The memory behind such pages is freed.
    pub(crate) fn replace(
        self,
        address: u64,
        window: u64,
        former: Option<u64>,
    ) -> Option<MovedPages> {
        let target = at(address)?;
        // Taken first: another thread may move some of the same pages.
        let mut registry = Locked::take();
        let is_former = former.is_some_and(|former| is_window(address, self.length, former));
        if !is_former && !is_plain(address, self.length) {
            return None;
        }
        let rest = match is_former {
            // Its memory can be freed only where it is mapped.
            true => Some(Self::of(target.as_ptr(), self.length)?),
            false => None,
        };
        let hold = Hold::on(target, self.length)?;
        // SAFETY: the range is readable and not this thread's stack, as `is_plain` or
        // `is_window` says, and both have the same length. Until the pages are replaced,
        // nothing here may write to memory of the program: it could be write-protected, and
        // this thread would wait for itself.
        unsafe {
            copy_pages(target, self.mapped, self.length);
            take_place(self.mapped, target, self.length);
        }
        // Adding to the registry may allocate, and a blocked writer may hold the allocator's lock.
        drop(hold);
        if let Some(rest) = rest {
            // SAFETY: nothing else maps the pages for use: the session has left their window.
            unsafe { discard(rest.mapped.as_ptr(), rest.length) };
        }
        let length = self.length;
        std::mem::forget(self);
        let moved = MovedPages {
            address: target,
            length,
            window,
        };
        registry.add(&moved);
        Some(moved)
    }
}

impl Drop for SecondMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; nothing else refers to it.
        unsafe { libc::munmap(self.mapped.as_ptr(), self.length) };
    }
}

impl MovedPages {
    /// The address in the window of a range of these pages; `None` for others.
    pub(crate) fn in_window(&self, address: u64, size: u64) -> Option<u64> {
        let offset = address.checked_sub(self.address.as_ptr() as u64)?;
        (offset.checked_add(size)? <= self.length as u64).then_some(self.window + offset)
    }

    /// The first address.
    pub(crate) fn address(&self) -> u64 {
        self.address.as_ptr() as u64
    }

    /// `size` bytes of the program at `address`. `None` if they are not inside.
    pub(crate) fn part(&self, address: u64, size: u64) -> Option<HostSlice> {
        self.in_window(address, size)?;
        let start = ptr::with_exposed_provenance(usize::try_from(address).ok()?);
        // SAFETY: inside these pages, which the program keeps while they are registered.
        Some(unsafe { HostSlice::new(start, usize::try_from(size).ok()?) })
    }

    /// The first address in the window.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Stops to give forked children copies of them, because they will be unmapped.
    pub(crate) fn abandon(&self) {
        Locked::take().remove(self);
    }

    /// Replaces them by private pages with the same contents. Returns false if writers
    /// cannot be blocked. Also returns false if the program has unmapped some of them: then
    /// the others remain pages of the window permanently.
    pub(crate) fn give_back(&self) -> bool {
        let mut registry = Locked::take();
        // The program may have unmapped some, and the kernel may have reused their
        // addresses.
        if !is_window(self.address(), self.length, self.window) {
            registry.remove(self);
            return false;
        }
        let Some(private) = private_pages(self.length) else {
            return false;
        };
        let Some(_hold) = Hold::on(self.address, self.length) else {
            // SAFETY: mapped above, and not used yet.
            unsafe { libc::munmap(private.as_ptr(), self.length) };
            return false;
        };
        // SAFETY: as in `replace`.
        unsafe {
            copy_pages(self.address, private, self.length);
            take_place(private, self.address, self.length);
        }
        registry.remove(self);
        true
    }
}

/// Runs `look` while no pages are being replaced. The kernel's list of mappings may lack them at
/// that moment.
pub(crate) fn undisturbed<T>(look: impl FnOnce() -> T) -> T {
    let _registry = Locked::take();
    look()
}

/// Frees the memory behind whole shared pages, which read as zeros afterwards. Memory of a device
/// stays.
///
/// # Safety
/// They are mapped, and nobody uses their contents any more.
pub(super) unsafe fn discard(address: *mut c_void, length: usize) {
    // SAFETY: the caller upholds it.
    unsafe { libc::madvise(address, length, libc::MADV_REMOVE) };
}

fn private_pages(length: usize) -> Option<NonNull<c_void>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let private = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
    (private != libc::MAP_FAILED)
        .then(|| NonNull::new(private))
        .flatten()
}

/// Copies whole pages, of which the program may have allocated only a part. So it calls no
/// memcpy(3), whose arguments the address sanitizer of a program checks.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
unsafe fn copy_pages(from: NonNull<c_void>, to: NonNull<c_void>, length: usize) {
    // SAFETY: the caller upholds it.
    unsafe { copy_past_caches(from.as_ptr().cast(), to.as_ptr().cast(), length) };
}

/// Moves a mapping over another one, atomically for all threads.
///
/// # Safety
/// Both are mappings of `length` bytes, and `from` has the contents that the program
/// expects at `to`.
unsafe fn take_place(from: NonNull<c_void>, to: NonNull<c_void>, length: usize) {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller upholds this.
    let moved = unsafe { libc::mremap(from.as_ptr(), length, length, flags, to.as_ptr()) };
    if moved != to.as_ptr() {
        // The kernel may have unmapped the program's memory already. The process cannot
        // continue.
        std::process::abort();
    }
}

/// Whether all of a range is private anonymous memory, readable and writable, and not the
/// stack of this thread.
fn is_plain(address: u64, length: usize) -> bool {
    let here = 0_u8;
    let stack = (&raw const here).expose_provenance() as u64;
    // Frames of functions called from here lie below this one, and are written as well.
    const FRAMES: u64 = 1 << 20;
    if stack.wrapping_sub(address) < length as u64 + FRAMES {
        return false;
    }
    let length = length as u64;
    let Some(mappings) = maps::overlapping(address, length) else {
        return false;
    };
    let plain = mappings.iter().all(|mapped| {
        let name = mapped.name.as_str();
        mapped.protection == "rw-p"
            && mapped.inode == 0
            && (name.is_empty() || name == "[heap]" || name.starts_with("[anon:"))
    });
    plain && maps::cover(&mappings, address, length)
}

/// Whether all of a range is the window's memory at `window`.
fn is_window(address: u64, length: usize, window: u64) -> bool {
    let length = length as u64;
    let here = maps::overlapping(address, length);
    let there = maps::overlapping(window, 1);
    let (Some(here), Some(there)) = (here, there) else {
        return false;
    };
    let Some(there) = there.first() else {
        return false;
    };
    let all = here.iter().all(|mapped| {
        // The file offset that this address must have.
        let wanted = there
            .offset_of(window)
            .wrapping_add(mapped.from.wrapping_sub(address));
        mapped.is_same_file(there) && mapped.offset == wanted
    });
    all && maps::cover(&here, address, length)
}

/// Blocks all other writers of a range while it lives.
enum Hold {
    /// There is no other thread, and signals are blocked. Holds the earlier mask.
    Alone(libc::sigset_t),
    /// The kernel blocks writers until this is dropped.
    Watched(#[expect(dead_code, reason = "held, never read")] Userfault),
}

impl Hold {
    fn on(address: NonNull<c_void>, length: usize) -> Option<Self> {
        let threads = std::fs::read_dir("/proc/self/task").ok()?.count();
        match threads {
            1 => Self::alone(),
            _ => Self::watch(address, length),
        }
    }

    fn alone() -> Option<Self> {
        // SAFETY: `all` is filled before it is used, and `earlier` is only written.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut earlier: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            let done = libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut earlier);
            (done == 0).then_some(Self::Alone(earlier))
        }
    }

    fn watch(address: NonNull<c_void>, length: usize) -> Option<Self> {
        // These pages may be the window's, which is shared memory.
        let faults = Userfault::new(Watch::Writes)?;
        let (start, size) = (address.as_ptr() as u64, length as u64);
        if !faults.watch(start, size) {
            return None;
        }
        // Only present pages can be write-protected, so each is read first.
        for page in (0..length).step_by(PAGE) {
            // SAFETY: the caller's range is readable.
            unsafe { address.as_ptr().cast::<u8>().add(page).read_volatile() };
        }
        faults
            .protect(start, size, true)
            .then_some(Self::Watched(faults))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Self::Alone(earlier) = self {
            // SAFETY: restores the earlier mask.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const *earlier, ptr::null_mut());
            }
        }
    }
}

/// The moved pages of all sessions. Pages of the window are shared memory, so a forked
/// child would share them with its parent. It gets private copies instead, as of the
/// program's other memory.
struct Registry {
    /// A spin lock, because a forked child can release it even if another thread held it.
    locked: AtomicBool,
    lists: UnsafeCell<Lists>,
}

struct Lists {
    /// Address and length in bytes.
    moved: Vec<(NonNull<c_void>, usize)>,
    /// A copy of each for the child, `None` if it could not be made. Copied before the
    /// fork, because the parent may write to the shared pages before the child runs.
    copies: Vec<Option<NonNull<c_void>>>,
}

// SAFETY: the lists are used only under the lock.
unsafe impl Sync for Registry {}

static REGISTRY: Registry = Registry {
    locked: AtomicBool::new(false),
    lists: UnsafeCell::new(Lists {
        moved: Vec::new(),
        copies: Vec::new(),
    }),
};

/// Holds the lock of the registry.
struct Locked;

impl Locked {
    fn take() -> Self {
        while REGISTRY.locked.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Self
    }

    fn lists(&mut self) -> &mut Lists {
        // SAFETY: there is one `Locked` at a time, and this borrows it mutably.
        unsafe { &mut *REGISTRY.lists.get() }
    }

    fn add(&mut self, pages: &MovedPages) {
        // They may replace those of a window that the session has left.
        self.remove(pages);
        self.lists().moved.push((pages.address, pages.length));
    }

    fn remove(&mut self, pages: &MovedPages) {
        let moved = &mut self.lists().moved;
        moved.retain(|(address, _)| *address != pages.address);
    }

    /// Whether some pages of a range are moved.
    fn overlaps(&mut self, address: u64, length: u64) -> bool {
        self.lists().moved.iter().any(|(from, size)| {
            let from = from.as_ptr() as u64;
            from < address.saturating_add(length) && address < from + *size as u64
        })
    }
}

/// Searches for what a range maps. `None` if it has pages of a window, which are given back
/// when other memory is unregistered. No pages are moved or given back during the search.
pub(crate) fn unless_moved<R>(
    address: u64,
    length: u64,
    search: impl FnOnce() -> Option<R>,
) -> Option<R> {
    let mut registry = Locked::take();
    (!registry.overlaps(address, length)).then(search)?
}

impl Drop for Locked {
    fn drop(&mut self) {
        REGISTRY.locked.store(false, Ordering::Release);
    }
}

/// Runs before a fork. The registry stays locked across it, so that the child finds
/// consistent lists.
pub(super) extern "C" fn before_fork() {
    let mut registry = Locked::take();
    let Lists { moved, copies } = registry.lists();
    for (address, length) in moved {
        // SAFETY: it changes nothing, and fails if the program has unmapped part of the
        // range.
        let is_there = unsafe { libc::msync(address.as_ptr(), *length, libc::MS_ASYNC) } == 0;
        let copy = is_there.then(|| private_pages(*length)).flatten();
        if let Some(copy) = copy {
            // SAFETY: both are mapped and have the same length.
            unsafe { copy_pages(*address, copy, *length) };
        }
        copies.push(copy);
    }
    std::mem::forget(registry);
}

/// Runs in the parent after a fork.
pub(super) extern "C" fn in_parent() {
    // `before_fork` took the lock.
    let mut registry = Locked;
    let Lists { moved, copies } = registry.lists();
    for (copy, (_, length)) in copies.drain(..).zip(moved) {
        if let Some(copy) = copy {
            // SAFETY: mapped by `before_fork`.
            unsafe { libc::munmap(copy.as_ptr(), *length) };
        }
    }
}

/// Runs in the child after a fork.
pub(super) extern "C" fn in_child() {
    // `before_fork` took the lock.
    let mut registry = Locked;
    let Lists { moved, copies } = registry.lists();
    for (copy, (address, length)) in copies.drain(..).zip(moved.drain(..)) {
        if let Some(copy) = copy {
            // SAFETY: the copy has the contents of the range, and the child has one thread.
            unsafe { take_place(copy, address, length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::super::test_window::window_at;
    use super::*;

    const LENGTH: usize = 64 * PAGE;

    /// A window of twice that length.
    fn window() -> Window {
        window_at(None, 2 * LENGTH)
    }

    /// Private pages, filled with distinct words.
    fn program(length: usize) -> &'static [AtomicU64] {
        let pages = private_pages(length).unwrap();
        // SAFETY: mapped just now, and never unmapped.
        let words =
            unsafe { std::slice::from_raw_parts(pages.as_ptr().cast::<AtomicU64>(), length / 8) };
        for (at, word) in (1..).zip(words) {
            word.store(at, Ordering::Relaxed);
        }
        words
    }

    fn word(window: &Window, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        window.copy_out(offset as u64, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// Moves the middle of `words` to the second half of the window.
    fn moved(window: &Window, words: &'static [AtomicU64]) -> Option<MovedPages> {
        let address = words.as_ptr() as u64 + PAGE as u64;
        let second = SecondMapping::new(window, LENGTH as u64, (LENGTH - 2 * PAGE) as u64).unwrap();
        second.replace(address, window.address() + LENGTH as u64, None)
    }

    #[test]
    fn pages_belong_to_the_window_until_they_are_returned() {
        let (window, words) = (window(), program(LENGTH));
        let Some(pages) = moved(&window, words) else {
            return; // Without the privilege to block other threads.
        };
        let first = PAGE / 8;
        assert!(
            (1..)
                .zip(words)
                .all(|(at, word)| word.load(Ordering::Relaxed) == at)
        );
        assert_eq!(word(&window, LENGTH), 1 + first as u64);
        words[first].store(7, Ordering::Relaxed);
        assert_eq!(word(&window, LENGTH), 7);
        window
            .copy_in(LENGTH as u64 + 8, &9_u64.to_le_bytes())
            .unwrap();
        assert_eq!(words[first + 1].load(Ordering::Relaxed), 9);
        let at = words[first + 2].as_ptr() as u64;
        assert_eq!(
            pages.in_window(at, 8),
            Some(window.address() + LENGTH as u64 + 16)
        );
        assert_eq!(pages.in_window(words.as_ptr() as u64, 8), None);
        assert_eq!(pages.in_window(at, LENGTH as u64), None);

        assert!(pages.give_back());
        assert_eq!(words[first].load(Ordering::Relaxed), 7);
        assert_eq!(words[first + 1].load(Ordering::Relaxed), 9);
        words[first].store(8, Ordering::Relaxed);
        assert_eq!(word(&window, LENGTH), 7, "they are private");
        // And can go there again.
        assert!(moved(&window, words).unwrap().give_back());
        assert_eq!(words[first].load(Ordering::Relaxed), 8);
    }

    /// Bytes of whole pages for which the kernel has memory.
    fn resident(pages: *mut u8, length: usize) -> usize {
        let mut present = vec![0_u8; length / PAGE];
        // SAFETY: mapped, and `present` has one byte for each page.
        let done = unsafe { libc::mincore(pages.cast(), length, present.as_mut_ptr()) };
        assert_eq!(done, 0);
        present.iter().filter(|page| **page & 1 != 0).count() * PAGE
    }

    /// Memory of a program that was moved into one window, or allocated in it, goes to the next.
    #[test]
    fn pages_of_a_window_that_was_left_go_to_the_next_one() {
        let (window, next, words) = (window(), window(), program(LENGTH));
        let size = LENGTH - 2 * PAGE;
        let Some(pages) = moved(&window, words) else {
            return; // Without the privilege to block other threads.
        };
        let mut places = vec![(pages.address(), pages.window())];
        let allocated = window.address();
        window.copy_in(0, &vec![7; size]).unwrap();
        places.push((allocated, allocated));
        // The pages that `next` replaces stay mapped here.
        let before = SecondMapping::new(&window, 0, 2 * LENGTH as u64).unwrap();
        let before: *mut u8 = before.mapped.as_ptr().cast();
        assert_eq!(resident(before, 2 * LENGTH), 2 * size);
        for (at, (address, former)) in places.into_iter().enumerate() {
            let offset = (at * LENGTH) as u64;
            let second = || SecondMapping::new(&next, offset, size as u64).unwrap();
            let place = next.address() + offset;
            assert!(second().replace(address, place, None).is_none(), "plain");
            assert!(
                second()
                    .replace(address, place, Some(former + PAGE as u64))
                    .is_none()
            );
            let pages = second().replace(address, place, Some(former)).unwrap();
            assert_eq!((pages.address(), pages.window()), (address, place));
            assert_eq!(resident(before, 2 * LENGTH), (1 - at) * size);
            let moved = Locked::take().lists().moved.clone();
            let same = moved.iter().filter(|(of, _)| *of == pages.address);
            assert_eq!(same.count(), 1, "a child gets one copy");
        }
        let first = PAGE / 8;
        assert_eq!(word(&next, 0), 1 + first as u64);
        words[first].store(9, Ordering::Relaxed);
        assert_eq!(word(&next, 0), 9);
        assert_eq!(word(&next, LENGTH), u64::from_ne_bytes([7; 8]));
    }

    #[test]
    fn a_page_moves_for_one_of_two_threads() {
        let (window, words) = (window(), program(2 * PAGE));
        let address = words.as_ptr() as u64 + PAGE as u64;
        for _ in 0..100 {
            let moved: Vec<MovedPages> = std::thread::scope(|scope| {
                let threads = [0, PAGE as u64].map(|offset| {
                    let second = SecondMapping::new(&window, offset, PAGE as u64).unwrap();
                    let place = window.address() + offset;
                    scope.spawn(move || second.replace(address, place, None))
                });
                let ended = threads.into_iter().map(|thread| thread.join().unwrap());
                ended.flatten().collect()
            });
            assert!(moved.len() < 2, "one page is two pages of the window");
            let found = unless_moved(address, 1, || Some(()));
            assert_eq!(found.is_none(), moved.len() == 1);
            assert!(unless_moved(address - PAGE as u64, PAGE as u64, || Some(())).is_some());
            for pages in moved {
                assert!(pages.give_back());
            }
        }
        assert_eq!(
            words[PAGE / 8].load(Ordering::Relaxed),
            1 + (PAGE / 8) as u64
        );
    }

    #[test]
    fn nothing_that_another_thread_writes_is_lost() {
        let window = window();
        let words = program(LENGTH);
        let over = Arc::new(AtomicBool::new(false));
        let writer = std::thread::spawn({
            let over = Arc::clone(&over);
            move || {
                let mut rounds = 0;
                while !over.load(Ordering::Relaxed) || rounds == 0 {
                    // One word of each page, so that a write to each may be blocked.
                    for word in words.iter().step_by(PAGE / 8) {
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                    rounds += 1;
                }
                rounds
            }
        });
        for _ in 0..100 {
            match moved(&window, words) {
                Some(pages) => assert!(pages.give_back()),
                None => break,
            }
        }
        over.store(true, Ordering::Relaxed);
        let rounds: u64 = writer.join().unwrap();
        for (page, word) in words.iter().step_by(PAGE / 8).enumerate() {
            let begin = (page * PAGE / 8 + 1) as u64;
            assert_eq!(word.load(Ordering::Relaxed), begin + rounds, "page {page}");
        }
    }

    #[test]
    fn a_forked_child_has_private_copies() {
        super::super::process::watch_forks();
        let (window, words) = (window(), program(LENGTH));
        let Some(pages) = moved(&window, words) else {
            return;
        };
        let first = PAGE / 8;
        // SAFETY: the child only stores to its memory and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let same = words[first].swap(5, Ordering::Relaxed) == 1 + first as u64;
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!same)) };
        }
        let mut status = -1;
        // SAFETY: it writes one number, to a place of ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        assert_eq!(
            word(&window, LENGTH),
            1 + first as u64,
            "the child wrote to its own"
        );
        words[first].store(6, Ordering::Relaxed);
        assert_eq!(word(&window, LENGTH), 6, "the parent's are the window's");
        assert!(pages.give_back());
    }

    /// A part of memory for which the program asked for huge pages goes and comes back; what is
    /// around it stays, whether or not the kernel provided a huge page.
    #[test]
    fn a_part_of_a_huge_page_moves() {
        const HUGE: usize = 2 << 20;
        let window = window_at(None, HUGE);
        let words = program(3 * HUGE);
        let start = words.as_ptr() as usize;
        // SAFETY: mapped by `program`; the advice changes no contents.
        unsafe {
            libc::madvise(start as *mut c_void, 3 * HUGE, libc::MADV_HUGEPAGE);
        }
        // The middle of the first whole huge page.
        let first = (start.next_multiple_of(HUGE) + HUGE / 4 - start) / 8;
        let second = SecondMapping::new(&window, 0, (HUGE / 2) as u64).unwrap();
        let address = words[first..].as_ptr() as u64;
        let Some(pages) = second.replace(address, window.address(), None) else {
            return; // Without the privilege to block other threads.
        };
        assert_eq!(word(&window, 8), 2 + first as u64);
        words[first].store(7, Ordering::Relaxed);
        assert_eq!(word(&window, 0), 7);
        assert!(pages.give_back());
        words[first].fetch_add(first as u64 - 6, Ordering::Relaxed);
        assert!(
            (1..)
                .zip(words)
                .all(|(at, word)| word.load(Ordering::Relaxed) == at)
        );
    }

    #[test]
    fn other_memory_stays() {
        let window = window();
        let refused = |address: u64| {
            let second = SecondMapping::new(&window, 0, PAGE as u64).unwrap();
            second.replace(address, window.address(), None).is_none()
        };
        // Shared memory, read-only memory, unmapped memory, a stack.
        assert!(refused(window.address() + LENGTH as u64));
        let words = program(2 * PAGE);
        let address = words.as_ptr() as u64;
        // SAFETY: mapped by `program`, and not read any more.
        unsafe {
            libc::mprotect(words.as_ptr().cast_mut().cast(), PAGE, libc::PROT_READ);
            libc::munmap(
                words.as_ptr().wrapping_add(PAGE / 8).cast_mut().cast(),
                PAGE,
            );
        }
        assert!(refused(address));
        assert!(refused(address + PAGE as u64));
        let local = 0_u64;
        assert!(refused(
            (&raw const local) as u64 / PAGE as u64 * PAGE as u64
        ));
        assert_eq!(words[1].load(Ordering::Relaxed), 2);
    }
}
