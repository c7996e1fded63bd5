//! The device memory and host memory of all sessions of a VM, and its part of a GPU's memory.
//!
//! Each session is a separate process, so the account is in memory that the daemon shares with
//! the VM's workers: the limit, and a slot with the session's bytes for each session. A worker
//! adds to its own slot, then sums up all slots, and undoes the addition if the sum exceeds the
//! limit. If two workers allocate at the same time, both may be refused the last bytes, but never
//! can both get them. The daemon clears the slot of a dead worker.
//!
//! A worker trusts the other workers of its VM with this account. Workers of other VMs do not
//! have it.
//!
//! The memory of a software GPU is the host's, and no driver counts it. The daemon divides it: each
//! VM with sessions on the GPU has a second account, in which they have a second slot, and whose
//! limit is the VM's part. A worker whose charge does not fit asks the daemon for a larger part
//! ([`Divider`]). So workers of different VMs share no memory, and nothing that a worker writes
//! takes anything from another VM.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};

use crate::sys::shared::Shared;

/// Maximum number of sessions of one VM.
pub const SLOTS: u32 = 4096;
/// Words before the slots: the limit, and the number of slots ever used.
const HEAD: usize = 2;
/// Number of words per book.
const BOOK: usize = HEAD + SLOTS as usize;
/// Total number of words. Three more per slot follow the books: the first identifies
/// the guest process, the second the worker that serves it, and the third has the bytes of
/// device memory that the daemon charges to the session.
const WORDS: usize = 2 * BOOK + 3 * SLOTS as usize;
/// The third word's number.
const LENT: usize = 3;
/// Bit of a slot's first word after the books: the session has work. The lower half
/// holds the guest's process ID, the bits between the device.
const WORKS: u64 = 1 << 63;

/// Bit of the same word: the session arrives from another one of the VM, whose bytes count until
/// it has ended or the program runs here, or it has left in this way.
const ARRIVES: u64 = 1 << 62;

/// The limit of a part without bytes: the word 0 means no limit.
const NO_BYTES: u64 = u64::MAX;

/// Kinds of memory that are accounted separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Book {
    /// Device memory.
    Device,
    /// Host memory.
    Host,
}

impl Book {
    const ALL: [Self; 2] = [Self::Device, Self::Host];

    /// Index of its first word.
    fn start(self) -> usize {
        match self {
            Self::Device => 0,
            Self::Host => BOOK,
        }
    }
}

/// The account of one VM.
#[derive(Debug)]
pub struct Account {
    memory: OwnedFd,
    words: Shared,
}

impl Account {
    /// Creates an account without limits.
    pub fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = memfd_create("paragpu-account", flags)?;
        ftruncate(&memory, (WORDS * size_of::<u64>()) as u64)?;
        // A worker could otherwise truncate the file, and the others' accesses would end in
        // SIGBUS.
        fcntl_add_seals(
            &memory,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )?;
        Self::open(memory)
    }

    /// Opens an account that the daemon created.
    ///
    /// # Errors
    /// Errors of the operating system; `InvalidData` if the memory is not an account.
    pub fn open(memory: OwnedFd) -> io::Result<Self> {
        let words = Shared::map(&memory, WORDS)?;
        Ok(Self { memory, words })
    }

    /// A number that no other account of this boot has while this one is open.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn identity(&self) -> io::Result<u64> {
        Ok(fstat(&self.memory)?.st_ino)
    }

    /// Returns a word as an atomic, because other processes write to it at any time.
    fn word(&self, place: usize) -> &AtomicU64 {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        self.words.words().get(place).unwrap_or(&NOWHERE)
    }

    fn slot(&self, book: Book, slot: u32) -> &AtomicU64 {
        self.word(book.start() + HEAD + slot.min(SLOTS - 1) as usize)
    }

    /// Sets the limit in bytes; 0 for none. Memory already allocated beyond it stays.
    pub fn limit_to(&self, book: Book, limit: u64) {
        self.word(book.start()).store(limit, Ordering::SeqCst);
    }

    /// Sets the limit to the bytes of a VM's part of a GPU, of which 0 are none.
    pub fn part_to(&self, bytes: u64) {
        let word = if bytes == 0 { NO_BYTES } else { bytes };
        self.word(Book::Device.start())
            .store(word, Ordering::SeqCst);
    }

    /// The limit in bytes; `u64::MAX` for none.
    #[must_use]
    pub fn limit(&self, book: Book) -> u64 {
        match self.word(book.start()).load(Ordering::SeqCst) {
            0 => u64::MAX,
            NO_BYTES => 0,
            limit => limit,
        }
    }

    /// A slot's word after the books; `which` counts from 1.
    fn beside(&self, slot: u32, which: usize) -> &AtomicU64 {
        let slot = slot.min(SLOTS - 1) as usize;
        self.word(2 * BOOK + which.saturating_sub(1) * SLOTS as usize + slot)
    }

    /// The sessions with work, as reported by their workers.
    #[must_use]
    pub fn occupants(&self) -> Vec<Occupant> {
        let slots = self.word(Book::Device.start() + 1).load(Ordering::SeqCst);
        let slots = 0..u32::try_from(slots).unwrap_or(SLOTS).min(SLOTS);
        let occupant = |slot| {
            let who = self.beside(slot, 1).load(Ordering::SeqCst);
            let [_, _, _, device, _, _, _, _] = who.to_be_bytes();
            (who & WORKS != 0).then(|| Occupant {
                device: u32::from(device),
                pid: (who & u64::from(u32::MAX)) as u32,
                worker: self.beside(slot, 2).load(Ordering::SeqCst) as u32,
                memory: self.slot(Book::Device, slot).load(Ordering::SeqCst),
            })
        };
        slots.filter_map(occupant).collect()
    }

    /// Clears a slot when its session begins or ends.
    pub fn clear(&self, slot: u32) {
        // The owner first, so that a slot is never listed with the bytes of the next session.
        self.beside(slot, 1).store(0, Ordering::SeqCst);
        self.beside(slot, LENT).store(0, Ordering::SeqCst);
        for book in Book::ALL {
            self.slot(book, slot).store(0, Ordering::SeqCst);
            self.word(book.start() + 1)
                .fetch_max(u64::from(slot) + 1, Ordering::SeqCst);
        }
    }

    /// Clears all slots that were ever used, except those that `keep`.
    pub fn clear_others(&self, keep: impl Fn(u32) -> bool) {
        let slots = self.word(Book::Device.start() + 1).load(Ordering::SeqCst);
        let slots = 0..u32::try_from(slots).unwrap_or(SLOTS).min(SLOTS);
        slots
            .filter(|slot| !keep(*slot))
            .for_each(|slot| self.clear(slot));
    }

    /// Begins or ends the time in which the bytes of a session do not count, because it arrives
    /// from another one of the VM. It may have as many as the limit allows one session. Returns
    /// whether it is such a time already.
    pub fn set_arriving(&self, slot: u32, arrives: bool) -> bool {
        let word = self.beside(slot, 1);
        let before = match arrives {
            true => word.fetch_or(ARRIVES, Ordering::SeqCst),
            false => word.fetch_and(!ARRIVES, Ordering::SeqCst),
        };
        before & ARRIVES != 0
    }

    fn is_arriving(&self, slot: u32) -> bool {
        self.beside(slot, 1).load(Ordering::SeqCst) & ARRIVES != 0
    }

    /// Bytes used by all sessions, except those that arrive.
    #[must_use]
    pub fn used(&self, book: Book) -> u64 {
        let slots = self.word(book.start() + 1).load(Ordering::SeqCst);
        // A compromised worker may have written anything to this shared memory. The
        // bound and the saturating sum keep the daemon safe from it.
        let slots = 0..u32::try_from(slots).unwrap_or(SLOTS).min(SLOTS);
        let used = slots
            .filter(|slot| !self.is_arriving(*slot))
            .map(|slot| self.slot(book, slot).load(Ordering::SeqCst))
            .fold(0, u64::saturating_add);
        match book {
            Book::Device => used.saturating_add(self.lent()),
            Book::Host => used,
        }
    }

    /// The sum of `count` words.
    fn sum(&self, start: usize, count: usize) -> u64 {
        let all = self.words.words().iter().skip(start);
        all.take(count)
            .map(|slot| slot.load(Ordering::SeqCst))
            .fold(0, u64::saturating_add)
    }

    /// Bytes of device memory that the daemon charges to all sessions.
    fn lent(&self) -> u64 {
        let slots = self.word(Book::Device.start() + 1).load(Ordering::SeqCst);
        let start = 2 * BOOK + (LENT - 1) * SLOTS as usize;
        self.sum(start, slots.min(u64::from(SLOTS)) as usize)
    }

    /// Charges the session in this slot `bytes` of device memory that it, or another one,
    /// freed while other sessions have it mapped. Only the daemon does this.
    pub fn charge_lent(&self, slot: u32, bytes: u64) {
        self.beside(slot, LENT).store(bytes, Ordering::SeqCst);
    }
}

impl AsFd for Account {
    /// The memfd, to pass to a worker.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// A session with work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupant {
    /// The guest's ordinal of its device.
    pub device: u32,
    /// The process ID in the guest.
    pub pid: u32,
    /// The process ID of the worker.
    pub worker: u32,
    /// Bytes of device memory in use.
    pub memory: u64,
}

/// A slot of a book.
#[derive(Debug, Clone)]
struct Place {
    account: Arc<Account>,
    slot: u32,
    book: Book,
}

impl Place {
    fn word(&self) -> &AtomicU64 {
        self.account.slot(self.book, self.slot)
    }

    /// Bytes that count with the session's: of one that arrives, only its own.
    fn counted(&self) -> u64 {
        match self.account.is_arriving(self.slot) {
            true => self.word().load(Ordering::SeqCst),
            false => self.used(),
        }
    }

    /// Charges `bytes` if the sum is below the limit, or `enlarge` has raised it to the sum.
    fn take(&self, bytes: u64, enlarge: impl FnOnce(u64) -> bool) -> bool {
        // Add first, then sum up. SeqCst orders all additions totally, so the later of two
        // sees the earlier one: they never both get past the limit. An addition that overflowed
        // would leave a small sum, so it is refused, limit or not.
        let add = |charged: u64| charged.checked_add(bytes);
        let added = self
            .word()
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
        if added.is_err() {
            return false;
        }
        let used = self.counted();
        let fits = used <= self.limit() || enlarge(used);
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    /// A slot never has fewer than none, whatever another worker wrote into it.
    fn give_back(&self, bytes: u64) {
        let subtract = |charged: u64| Some(charged.saturating_sub(bytes));
        // It always changes the word.
        let _ = self
            .word()
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, subtract);
    }

    fn used(&self) -> u64 {
        self.account.used(self.book)
    }

    fn limit(&self) -> u64 {
        self.account.limit(self.book)
    }

    fn free(&self) -> u64 {
        self.limit().saturating_sub(self.used())
    }
}

/// Who divides the memory of a GPU among VMs: the daemon, or what stands for it in tests.
pub trait Divider: std::fmt::Debug + Send + Sync {
    /// Asks that the VM's part of the GPU be `total` bytes. Returns the part, which is smaller if
    /// other VMs use the rest; `None` if nobody answers.
    fn enlarge(&self, total: u64) -> Option<u64>;
}

/// What has no room for a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The VM has as much as it may have.
    Vm,
    /// Other VMs have the rest of the GPU.
    Gpu,
}

/// A session's slot in the account of its VM, and in that of the VM's part of a GPU, if no driver
/// counts the GPU's memory. The default belongs to no account and has no limit.
#[derive(Debug, Clone, Default)]
pub struct Share {
    vm: Option<Place>,
    gpu: Option<Place>,
    divider: Option<Arc<dyn Divider>>,
}

impl Share {
    /// Creates the share of the session in this slot of its VM's account, for device memory.
    #[must_use]
    pub fn new(account: Arc<Account>, slot: u32) -> Self {
        let book = Book::Device;
        Self {
            vm: Some(Place {
                account,
                slot,
                book,
            }),
            gpu: None,
            divider: None,
        }
    }

    /// The same, and the session's slot in the account of its VM's part of the GPU.
    #[must_use]
    pub fn on_gpu(self, account: Arc<Account>, slot: u32) -> Self {
        let book = Book::Device;
        let gpu = Some(Place {
            account,
            slot,
            book,
        });
        Self { gpu, ..self }
    }

    /// Asks here for a larger part of the GPU when a charge does not fit.
    pub fn set_divider(&mut self, divider: Arc<dyn Divider>) {
        self.divider = Some(divider);
    }

    /// Whether the VM's part of the GPU is now `total` bytes. Without a daemon nobody divides the
    /// GPU, and the limits of session and VM alone hold until the next one has counted.
    fn enlarge(&self, total: u64) -> bool {
        let divider = self.divider.as_ref();
        divider.is_some_and(|divider| divider.enlarge(total).is_none_or(|part| total <= part))
    }

    /// The same slot's share of another book. A GPU has only device memory.
    #[must_use]
    pub fn of(&self, book: Book) -> Self {
        let vm = self.vm.clone().map(|vm| Place { book, ..vm });
        let gpu = self.gpu.clone().filter(|_| book == Book::Device);
        let divider = self.divider.clone();
        Self { vm, gpu, divider }
    }

    /// The session's share of its VM alone, for memory that another session of the GPU has, too.
    #[must_use]
    pub fn of_vm(&self) -> Self {
        Self {
            vm: self.vm.clone(),
            ..Self::default()
        }
    }

    /// Publishes the session's owner: process `pid` of the guest, on `device`.
    pub fn introduce(&self, device: u32, pid: u32) {
        if let Some(Place { account, slot, .. }) = &self.vm {
            let worker = u64::from(std::process::id());
            // Store the word with WORKS last: a reader that sees it also sees the worker.
            account.beside(*slot, 2).store(worker, Ordering::SeqCst);
            let who = WORKS | u64::from(device & 0xff) << 32 | u64::from(pid);
            let word = account.beside(*slot, 1);
            word.fetch_and(ARRIVES, Ordering::SeqCst);
            word.fetch_or(who, Ordering::SeqCst);
        }
    }

    /// The sessions of the VM with work; `None` without an account.
    #[must_use]
    pub fn occupants(&self) -> Option<Vec<Occupant>> {
        Some(self.vm.as_ref()?.account.occupants())
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        [&self.vm, &self.gpu].into_iter().flatten()
    }

    /// The accounts, of the VM first, with the session's slot in each.
    pub fn slots(&self) -> impl Iterator<Item = (BorrowedFd<'_>, u32)> {
        self.places()
            .map(|place| (place.account.as_fd(), place.slot))
    }

    /// From now on the program runs here, and the session's bytes count for the VM. Returns whether
    /// it arrives from another session of the VM, whose bytes count as well until it
    /// [leaves](Self::leave) or ends.
    pub fn arrive(&self) -> bool {
        self.set_arriving(false)
    }

    /// From now on the program runs in the session of the VM that arrives from this one, whose
    /// bytes no longer count for the VM.
    pub fn leave(&self) {
        self.set_arriving(true);
    }

    /// Returns whether it was.
    fn set_arriving(&self, arrives: bool) -> bool {
        let vm = self.vm.as_ref();
        vm.is_some_and(|vm| vm.account.set_arriving(vm.slot, arrives))
    }

    /// Charges `bytes`.
    ///
    /// # Errors
    /// What has no room; nothing is charged then.
    pub fn charge(&self, bytes: u64) -> Result<(), Full> {
        // A charge counts for all until it is undone, and the divider takes a while to answer: what
        // has no room is not charged first.
        if let Some(full) = self.full(bytes) {
            return Err(full);
        }
        // Other sessions may have been faster.
        let (vm, gpu) = (self.vm.as_ref(), self.gpu.as_ref());
        if vm.is_some_and(|vm| !vm.take(bytes, |_| false)) {
            return Err(Full::Vm);
        }
        if gpu.is_some_and(|gpu| !gpu.take(bytes, |total| self.enlarge(total))) {
            if let Some(vm) = vm {
                vm.give_back(bytes);
            }
            return Err(Full::Gpu);
        }
        Ok(())
    }

    /// As [`charge`](Self::charge). Returns whether there was room.
    #[must_use]
    pub fn take(&self, bytes: u64) -> bool {
        self.charge(bytes).is_ok()
    }

    /// Returns bytes that were charged.
    pub fn give_back(&self, bytes: u64) {
        self.places().for_each(|place| place.give_back(bytes));
    }

    /// Maximum number of bytes of all sessions of the VM together.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.vm.as_ref().map_or(u64::MAX, Place::limit)
    }

    /// Bytes of device memory that the daemon charges to the session.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.vm.as_ref().map_or(0, |vm| {
            vm.account.beside(vm.slot, LENT).load(Ordering::SeqCst)
        })
    }

    /// Bytes of device memory that the daemon charges to all sessions of the VM.
    #[must_use]
    pub fn all_lent(&self) -> u64 {
        self.vm.as_ref().map_or(0, |vm| vm.account.lent())
    }

    /// Bytes that all sessions of the VM have together.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.vm.as_ref().map_or(0, Place::used)
    }

    /// Bytes left below the limit of the VM, and of the GPU for all VMs.
    #[must_use]
    pub fn free(&self) -> u64 {
        let free = self.vm.as_ref().map_or(u64::MAX, Place::free);
        let Some(gpu) = &self.gpu else {
            return free;
        };
        let part = match &self.divider {
            Some(divider) => divider.enlarge(u64::MAX).unwrap_or(u64::MAX),
            None => gpu.limit(),
        };
        free.min(part.saturating_sub(gpu.used()))
    }

    /// What has no room for `bytes` more; `None` if they could be charged now. The GPU only counts
    /// for what the VM may have.
    #[must_use]
    pub fn full(&self, bytes: u64) -> Option<Full> {
        let after = |place: &Place| place.counted().saturating_add(bytes);
        let (vm, gpu) = (self.vm.as_ref(), self.gpu.as_ref());
        if vm.is_some_and(|vm| after(vm) > vm.limit()) {
            return Some(Full::Vm);
        }
        let is_full = |gpu: &Place| after(gpu) > gpu.limit() && !self.enlarge(after(gpu));
        gpu.is_some_and(is_full).then_some(Full::Gpu)
    }

    /// Whether `bytes` could be charged now.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        self.full(bytes).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn sessions_share_one_limit() {
        let account = Arc::new(Account::new().unwrap());
        account.limit_to(Book::Device, 100);
        // As another process would map it.
        let memory = account.as_fd().try_clone_to_owned().unwrap();
        let other = Arc::new(Account::open(memory).unwrap());
        account.clear(0);
        account.clear(7);
        let (one, two) = (Share::new(Arc::clone(&account), 0), Share::new(other, 7));
        assert!(one.take(60));
        assert!(!two.take(41));
        assert_eq!(two.free(), 40);
        assert!(two.take(40));
        assert!(!one.take(1));
        one.give_back(60);
        assert_eq!((account.used(Book::Device), two.free()), (40, 60));
        // The other process died.
        account.clear(7);
        assert!(one.take(100));
        account.limit_to(Book::Device, 50);
        assert_eq!((one.limit(), one.free()), (50, 0));
        account.limit_to(Book::Device, 0);
        assert!(one.take(1 << 40));
    }

    #[test]
    fn sums_neither_overflow_nor_fall_below_nothing() {
        let account = Arc::new(Account::new().unwrap());
        account.clear(0);
        account.clear(1);
        let [one, other] = [0, 1].map(|slot| Share::new(Arc::clone(&account), slot));
        for limit in [100, 0] {
            account.limit_to(Book::Device, limit);
            assert!(one.take(60));
            assert!(!one.take(u64::MAX), "{limit}");
            assert_eq!(account.used(Book::Device), 60);
            one.give_back(60);
        }
        account.limit_to(Book::Device, 100);
        assert!(!one.take(u64::MAX - 59));
        one.give_back(1);
        assert!(other.take(100) && !one.take(1));
    }

    /// A GPU of 100 bytes, of which other VMs use some.
    #[derive(Debug, Default)]
    struct Gpu {
        others: AtomicU64,
        asked: AtomicU64,
        gone: AtomicBool,
    }

    impl Divider for Gpu {
        fn enlarge(&self, total: u64) -> Option<u64> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let part = total.min(100 - self.others.load(Ordering::Relaxed));
            (!self.gone.load(Ordering::Relaxed)).then_some(part)
        }
    }

    #[test]
    fn a_charge_beyond_the_part_asks_for_a_larger_one() {
        let [vm, part] = [(); 2].map(|()| Arc::new(Account::new().unwrap()));
        vm.limit_to(Book::Device, 80);
        part.part_to(0);
        part.clear(0);
        let none = Share::default().on_gpu(Arc::clone(&part), 0);
        assert!(none.take(0) && !none.take(1) && !none.fits(1));
        part.part_to(20);
        [&vm, &part].iter().for_each(|account| account.clear(0));
        let gpu = Arc::new(Gpu::default());
        let mut share = Share::new(Arc::clone(&vm), 0).on_gpu(Arc::clone(&part), 0);
        assert!(
            !share.fits(21) && !share.take(21),
            "nobody enlarges the part"
        );
        let used = || [&vm, &part].map(|account| account.used(Book::Device));
        assert_eq!(used(), [0, 0], "a refused charge leaves nothing");
        share.set_divider(Arc::<Gpu>::clone(&gpu));
        let asked = || gpu.asked.swap(0, Ordering::Relaxed);
        assert!(share.fits(20) && share.take(20) && share.full(0).is_none() && asked() == 0);
        // It asks without a charge, and with it, as the part stays.
        assert!(share.fits(50) && asked() == 1 && share.take(50) && asked() == 2);
        assert_eq!((share.free(), asked()), (10, 1));
        // Beyond its VM's limit nobody asks.
        assert!(
            !share.fits(11) && !share.take(11) && share.full(11) == Some(Full::Vm) && asked() == 0
        );
        gpu.others.store(25, Ordering::Relaxed);
        assert_eq!(share.free(), 5);
        assert!(!share.take(6) && share.full(6) == Some(Full::Gpu) && share.take(5));
        assert_eq!(used(), [75, 75]);
        let host = share.of(Book::Host);
        assert!(host.take(1000) && part.used(Book::Device) == 75);
        // Without a daemon the VM's limit holds.
        gpu.gone.store(true, Ordering::Relaxed);
        assert_eq!(share.free(), 5);
        assert!(share.take(5) && !share.take(1));
    }

    #[test]
    fn what_nobody_answers_for_is_cleared() {
        let account = Arc::new(Account::new().unwrap());
        (0..3).for_each(|slot| account.clear(slot));
        let shares = [0, 1, 2].map(|slot| Share::new(Arc::clone(&account), slot));
        assert!(shares.iter().all(|share| share.take(10)));
        account.clear_others(|slot| slot == 1);
        assert_eq!(account.used(Book::Device), 10);
        let other = Account::open(account.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(account.identity().unwrap(), other.identity().unwrap());
        let strange = Account::new().unwrap();
        assert_ne!(account.identity().unwrap(), strange.identity().unwrap());
    }

    #[test]
    fn books_are_apart() {
        let account = Arc::new(Account::new().unwrap());
        account.clear(3);
        account.limit_to(Book::Host, 10);
        let device = Share::new(Arc::clone(&account), 3);
        let host = device.of(Book::Host);
        assert!(device.take(1000));
        assert!(host.take(10));
        assert!(!host.take(1));
        assert_eq!(account.used(Book::Device), 1000);
        account.clear(3);
        assert_eq!((account.used(Book::Device), host.free()), (0, 10));
    }

    #[test]
    fn lent_memory_counts_as_device_memory() {
        let account = Arc::new(Account::new().unwrap());
        account.limit_to(Book::Device, 100);
        (0..2).for_each(|slot| account.clear(slot));
        let shares = [0, 1].map(|slot| Share::new(Arc::clone(&account), slot));
        account.charge_lent(1, 60);
        assert_eq!(account.used(Book::Device), 60);
        assert_eq!(account.used(Book::Host), 0);
        assert_eq!(shares.each_ref().map(Share::lent), [0, 60]);
        assert_eq!(shares.each_ref().map(Share::all_lent), [60, 60]);
        let [one, _] = &shares;
        assert!(!one.take(41));
        assert!(one.take(40));
        account.clear(1);
        assert_eq!(account.used(Book::Device), 40);
    }

    #[test]
    fn a_session_that_arrives_counts_once_the_other_has_ended() {
        let account = Arc::new(Account::new().unwrap());
        account.limit_to(Book::Device, 100);
        (0..2).for_each(|slot| account.clear(slot));
        let [source, destination] = [0, 1].map(|slot| Share::new(Arc::clone(&account), slot));
        assert!(source.take(70));
        account.set_arriving(1, true);
        assert!(destination.take(70));
        destination.introduce(3, 7);
        assert!(!destination.take(31));
        assert_eq!(account.used(Book::Device), 70);
        assert!(source.take(30) && !source.take(1));
        source.give_back(30);
        account.clear(0);
        account.set_arriving(1, false);
        assert_eq!(account.used(Book::Device), 70);
        assert!(destination.take(30) && !destination.take(1));
        let occupants = account.occupants();
        let who = occupants.iter().map(|one| (one.device, one.pid));
        assert_eq!(who.collect::<Vec<_>>(), [(3, 7)]);
    }

    #[test]
    fn a_program_that_has_moved_has_no_more_than_the_limit() {
        let account = Arc::new(Account::new().unwrap());
        account.limit_to(Book::Device, 100);
        (0..3).for_each(|slot| account.clear(slot));
        let shares = [0, 1, 2].map(|slot| Share::new(Arc::clone(&account), slot));
        let [source, destination, other] = &shares;
        assert!(source.take(10) && other.take(70) && !source.arrive());
        account.set_arriving(1, true);
        assert!(destination.take(10) && other.free() == 20);
        // Both count until the source knows.
        assert!(destination.arrive() && !destination.arrive());
        assert!(!destination.take(11) && other.free() == 10);
        source.leave();
        assert!(destination.take(20) && !destination.take(1) && !other.take(1));
        account.clear(0);
        assert!(!destination.take(1) && !other.take(1) && account.used(Book::Device) == 100);
    }

    #[test]
    fn never_more_than_the_limit_together() {
        let account = Arc::new(Account::new().unwrap());
        account.limit_to(Book::Device, 1000);
        (0..4).for_each(|slot| account.clear(slot));
        std::thread::scope(|scope| {
            for slot in 0..4 {
                let share = Share::new(Arc::clone(&account), slot);
                let given = move || (0..1000).filter(|_| share.take(1)).count();
                scope.spawn(given);
            }
        });
        let used = account.used(Book::Device);
        assert!((1..=1000).contains(&used), "{used}");
    }

    #[test]
    fn sessions_say_whose_they_are() {
        let account = Arc::new(Account::new().unwrap());
        account.limit_to(Book::Device, 100);
        account.clear(0);
        account.clear(9);
        let (silent, known) = (
            Share::new(Arc::clone(&account), 0),
            Share::new(Arc::clone(&account), 9),
        );
        assert!(silent.take(1) && known.take(30));
        assert_eq!(account.occupants(), []);
        known.introduce(2, u32::MAX);
        let occupant = Occupant {
            device: 2,
            pid: u32::MAX,
            worker: std::process::id(),
            memory: 30,
        };
        assert_eq!(silent.occupants(), Some(vec![occupant]));
        // Words outside the slots do not count as bytes.
        assert_eq!(account.used(Book::Device), 31);
        account.clear(9);
        assert_eq!(
            (account.occupants(), account.used(Book::Device)),
            (Vec::new(), 1)
        );
        assert_eq!(Share::default().occupants(), None);
    }

    #[test]
    fn what_is_no_account_is_refused() {
        let short = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
        assert!(Account::open(short).is_err());
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(Account::open(null.into()).is_err());
    }

    #[test]
    fn without_an_account_anything_goes() {
        let share = Share::default();
        assert!(share.take(u64::MAX));
        assert_eq!((share.limit(), share.free()), (u64::MAX, u64::MAX));
    }
}
