//! The known objects of the process, and their state.
//!
//! ```text
//! new ──look──> Plain                     no runtime inside, or paragpu's own
//!        └────> Carriers(list) ──unload──> released
//! ```
//!
//! Callers hold the loader's lock or are alone, except the main program at its start, so a
//! lock of our own serializes them. The lock stores the owning process, so that a child of
//! `fork` does not wait for a thread that it does not have.

use core::ffi::{CStr, c_int, c_void};
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering};

use paragpu_redirect::facts::{self, Facts};
use paragpu_redirect::image::{BuildId, Dynamic, Image};
use paragpu_redirect::symbols::{self, Shared, Table};
use paragpu_redirect::{Interface, find, texts};
use xxhash_rust::xxh3::xxh3_64;

use super::carrier::Carrier;
use super::memory::{self, File, Process};
use super::say::{LossyText, say};
use super::{patch, settings};

/// Number of objects taken from the loader's list at a time.
const FRESH: usize = 32;
/// Initial capacity of the list; it doubles.
const FIRST_ROOM: usize = 128;
/// Longest path.
const PATH: usize = 4096;
/// Number of bytes of program headers that identify an object.
const HEADERS: usize = 1024;

/// A known object.
struct Seen {
    base: u64,
    headers: u64,
    /// A hash of its identity, because another object may be loaded at its address.
    identity: u64,
    /// The round in which it was last loaded.
    round: u64,
    /// The runtimes inside; null for none.
    carriers: *mut Carrier,
}

/// All known objects.
struct Objects {
    list: *mut Seen,
    count: usize,
    room: usize,
    round: u64,
    /// The loader's counts of loaded and unloaded objects at the last look.
    loaded: u64,
    unloaded: u64,
}

/// The process that holds the lock; 0 for none.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Guarded by [`OWNER`].
struct Guarded(core::cell::UnsafeCell<Objects>);

// SAFETY: the content is only touched under the lock.
unsafe impl Sync for Guarded {}

static OBJECTS: Guarded = Guarded(core::cell::UnsafeCell::new(Objects {
    list: ptr::null_mut(),
    count: 0,
    room: 0,
    round: 0,
    loaded: 0,
    unloaded: 0,
}));

/// Takes the lock. A lock held by a thread of the parent at the time of the fork counts
/// as free; returns whether it was.
fn lock() -> bool {
    // SAFETY: it takes nothing.
    let own = unsafe { libc::getpid() };
    loop {
        match OWNER.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return false,
            Err(owner) if owner != own => {
                let taken =
                    OWNER.compare_exchange(owner, own, Ordering::Acquire, Ordering::Relaxed);
                if taken.is_ok() {
                    return true;
                }
            }
            // SAFETY: it takes nothing.
            Err(_) => unsafe {
                libc::sched_yield();
            },
        }
    }
}

/// Looks for new objects.
pub fn look() {
    if settings::is_privileged() {
        return;
    }
    let is_taken_over = lock();
    // SAFETY: the lock is held.
    let objects = unsafe { &mut *OBJECTS.0.get() };
    let mut listing = Listing {
        objects,
        changed: false,
        fresh: [None; FRESH],
        count: 0,
    };
    listing.ask(compare);
    if listing.changed {
        listing.objects.round += 1;
        loop {
            listing.count = 0;
            listing.ask(visit);
            for info in listing.fresh.iter().take(listing.count).flatten() {
                listing.objects.examine(info, is_taken_over);
            }
            if listing.count < FRESH {
                break;
            }
        }
        listing.objects.forget_unloaded();
    }
    OWNER.store(0, Ordering::Release);
}

/// Filled while the loader lists its objects. The loader's list is locked during that
/// time, and a child of `fork` would inherit the lock, so objects are examined afterwards.
struct Listing<'a> {
    objects: &'a mut Objects,
    /// Whether objects were loaded or unloaded.
    changed: bool,
    /// Objects to examine.
    fresh: [Option<libc::dl_phdr_info>; FRESH],
    count: usize,
}

type Callback = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

impl Listing<'_> {
    fn ask(&mut self, callback: Callback) {
        // SAFETY: the callbacks below are written for this argument.
        unsafe { libc::dl_iterate_phdr(Some(callback), ptr::from_mut(self).cast()) };
    }
}

/// Called once by the loader. Checks whether objects were loaded or unloaded.
///
/// # Safety
/// `info` is the loader's, and `data` a [`Listing`].
unsafe extern "C" fn compare(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader's and our own pointers, valid for the call.
    let (info, listing) = unsafe { (&*info, &mut *data.cast::<Listing<'_>>()) };
    let now = (info.dlpi_adds, info.dlpi_subs);
    listing.changed = now != (listing.objects.loaded, listing.objects.unloaded);
    (listing.objects.loaded, listing.objects.unloaded) = now;
    1
}

/// Called by the loader for each object.
///
/// # Safety
/// As [`compare`].
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader's and our own pointers, valid for the call.
    let (info, listing) = unsafe { (&*info, &mut *data.cast::<Listing<'_>>()) };
    if !listing.objects.is_known(info)
        && let Some(place) = listing.fresh.get_mut(listing.count)
    {
        *place = Some(*info);
        listing.count += 1;
    }
    0
}

impl Objects {
    fn seen(&mut self) -> &mut [Seen] {
        if self.list.is_null() {
            return &mut [];
        }
        // SAFETY: all entries up to the count are initialized, and borrowed with `self`.
        unsafe { core::slice::from_raw_parts_mut(self.list, self.count) }
    }

    /// Whether an object was examined and has not changed since.
    fn is_known(&mut self, info: &libc::dl_phdr_info) -> bool {
        let (round, identity) = (self.round, identity(info));
        let place = (info.dlpi_addr, info.dlpi_phdr as u64);
        let known = self
            .seen()
            .iter_mut()
            .find(|one| (one.base, one.headers) == place);
        known.is_some_and(|known| {
            known.round = round;
            // SAFETY: the object is mapped. If its identity is equal, it is the object that was
            // patched, or another copy of it.
            known.identity == identity && unsafe { is_patched(known.carriers) }
        })
    }

    /// Examines an unknown object. `is_taken_over` says that a thread of the parent may have
    /// redirected it without noting it.
    fn examine(&mut self, info: &libc::dl_phdr_info, is_taken_over: bool) {
        let (base, headers) = (info.dlpi_addr, info.dlpi_phdr as u64);
        let image = Image::of_memory(Process, base, headers, info.dlpi_phnum);
        let carriers = redirect(info, &image, is_taken_over);
        let (round, identity) = (self.round, identity(info));
        let fresh = Seen {
            base,
            headers,
            identity,
            round,
            carriers,
        };
        let place = self
            .seen()
            .iter_mut()
            .find(|one| (one.base, one.headers) == (base, headers));
        match place {
            Some(place) => {
                let old = core::mem::replace(place, fresh);
                // SAFETY: the object that contained them is unloaded.
                unsafe { Carrier::release(old.carriers) };
            }
            None => self.add(fresh),
        }
    }

    fn add(&mut self, seen: Seen) {
        if self.count == self.room {
            let room = (self.room * 2).max(FIRST_ROOM);
            let list = memory::pages(room * size_of::<Seen>()).cast::<Seen>();
            if list.is_null() {
                // It is examined again next time.
                return;
            }
            if !self.list.is_null() {
                // SAFETY: the new list has more room; the old one is ours.
                unsafe {
                    ptr::copy_nonoverlapping(self.list, list, self.count);
                    memory::release(self.list.cast(), self.room * size_of::<Seen>());
                }
            }
            (self.list, self.room) = (list, room);
        }
        // SAFETY: there is room.
        unsafe { self.list.add(self.count).write(seen) };
        self.count += 1;
    }

    /// Removes objects that were not loaded in this round.
    fn forget_unloaded(&mut self) {
        let round = self.round;
        let mut index = 0;
        while let Some(one) = self.seen().get(index) {
            if one.round == round {
                index += 1;
                continue;
            }
            // SAFETY: the object is unloaded.
            unsafe { Carrier::release(one.carriers) };
            let last = self.count - 1;
            self.seen().swap(index, last);
            self.count = last;
        }
    }
}

/// A hash of an object's program headers, which contain all sizes.
fn identity(info: &libc::dl_phdr_info) -> u64 {
    let length = usize::from(info.dlpi_phnum) * size_of::<libc::Elf64_Phdr>();
    // SAFETY: the loader's own copy of the headers.
    let bytes =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr.cast::<u8>(), length.min(HEADERS)) };
    xxh3_64(bytes)
}

/// Whether all of an object's runtimes are still patched. True if it has none.
///
/// # Safety
/// The object is mapped.
unsafe fn is_patched(mut carrier: *mut Carrier) -> bool {
    while !carrier.is_null() {
        // SAFETY: the carriers of the list are alive; the caller upholds the rest.
        unsafe {
            if let Some(first) = Carrier::entries(carrier).first()
                && !patch::is_patched(first)
            {
                return false;
            }
            carrier = (*carrier).next;
        }
    }
    true
}

/// Redirects all runtimes inside an object, and returns their carriers.
fn redirect(
    info: &libc::dl_phdr_info,
    image: &Image<Process>,
    is_taken_over: bool,
) -> *mut Carrier {
    let shared = image.dynamic().and_then(|dynamic| {
        let shared = symbols::shared(image, &dynamic)?;
        Some((dynamic, shared))
    });
    match shared {
        Some((_, Shared::Ours)) => return ptr::null_mut(),
        Some((_, Shared::Nvidias(_))) => {}
        None if find::may_carry(image) => {}
        None => return ptr::null_mut(),
    }
    if !settings::enabled() {
        return ptr::null_mut();
    }
    let mut buffer = [0; PATH];
    let mut found = Found {
        base: info.dlpi_addr,
        path: path(info, &mut buffer),
        carriers: ptr::null_mut(),
        is_taken_over,
    };
    match shared {
        Some((dynamic, Shared::Nvidias(interface))) => found.shared(image, &dynamic, interface),
        _ => found.inside(image),
    }
    found.carriers
}

/// The findings in one object.
struct Found<'a> {
    base: u64,
    path: &'a [u8],
    carriers: *mut Carrier,
    /// As [`Objects::examine`] has it.
    is_taken_over: bool,
}

impl Found<'_> {
    /// Redirects NVIDIA's shared library.
    fn shared(&mut self, image: &Image<Process>, dynamic: &Dynamic, interface: Option<Interface>) {
        let mut count = 0;
        symbols::shared_entries(image, dynamic, |_| count += 1);
        let base = self.base;
        self.redirect_entries(interface, count, None, |add| {
            symbols::shared_entries(image, dynamic, |entry| {
                let name = base.wrapping_add(entry.name_place) as *const u8;
                add(name, entry.name.len(), entry.address);
            });
        });
    }

    /// Redirects static runtimes, found by their fingerprints, or else by the symbols in the
    /// object's file, or else by the names in their code.
    fn inside(&mut self, image: &Image<Process>) {
        let facts = match Facts::parse(facts::TEXT) {
            Ok(facts) => facts,
            Err(error) => return say(format_args!("{error}")),
        };
        let (mut alike, mut is_known) = (None, false);
        find::search(image, facts.builds(), |place| {
            if !place.exact {
                alike = Some(place.build.newest());
                return;
            }
            is_known = true;
            let interface = Interface::of_version(place.build.newest());
            let count = facts.entries(&place.build).count();
            self.redirect_entries(interface, count, None, |add| {
                for (name, offset) in facts.entries(&place.build) {
                    add(
                        name.as_ptr(),
                        name.len(),
                        place.block.wrapping_add(u64::from(offset)),
                    );
                }
            });
        });
        if !is_known && !self.by_symbols(image, &facts) && !self.by_texts(image, &facts) {
            self.unknown(alike, image.build_id());
        }
    }

    /// Redirects static runtimes by the names in their code. Returns false if there is none.
    fn by_texts(&mut self, image: &Image<Process>, facts: &Facts<'_>) -> bool {
        let base = self.base;
        let mut is_found = false;
        texts::search(image, facts, |runtime| {
            let count = runtime.count(facts);
            is_found = true;
            self.redirect_entries(runtime.interface, count, None, |add| {
                for (name, address) in runtime.registration(facts) {
                    add(name.as_ptr(), name.len(), address);
                }
                runtime.functions(image, |entry| {
                    let name = base.wrapping_add(entry.name_place) as *const u8;
                    add(name, entry.name.len(), entry.address);
                });
            });
        });
        is_found
    }

    /// Redirects a static runtime by the file's symbols. Returns false if there is none.
    fn by_symbols(&mut self, image: &Image<Process>, facts: &Facts<'_>) -> bool {
        let mut path = [0u8; PATH + 1];
        let Some(place) = path.get_mut(..self.path.len()) else {
            return false;
        };
        place.copy_from_slice(self.path);
        let path = path.get(..=self.path.len()).unwrap_or_default();
        let Some(file) = File::open(path) else {
            return false;
        };
        let named = Image::of_file(file).and_then(|on_disk| {
            let named = Table::of_file(&file)?.runtime(&on_disk, facts)?;
            let mut count = 0;
            let mut same = true;
            // The file may have been replaced after it was mapped.
            named.entries(&on_disk, |entry| {
                let (mut old, mut new) = ([0; 16], [1; 16]);
                same &= on_disk.read(entry.address, &mut old)
                    && image.read(entry.address, &mut new)
                    && old == new;
                count += 1;
            });
            same.then_some((on_disk, named, count))
        });
        let Some((on_disk, named, count)) = named else {
            // SAFETY: nothing of it is kept.
            unsafe { file.release() };
            return false;
        };
        self.redirect_entries(named.interface, count, Some(file), |add| {
            named.entries(&on_disk, |entry| {
                add(
                    file.place(entry.name_place),
                    entry.name.len(),
                    entry.address,
                );
            });
        });
        true
    }

    /// Creates a carrier with the entries that `list` adds, and redirects them.
    fn redirect_entries(
        &mut self,
        interface: Option<Interface>,
        count: usize,
        file: Option<File>,
        list: impl FnOnce(&mut dyn FnMut(*const u8, usize, u64)),
    ) {
        let carrier = Carrier::new(self.path, interface, count, file);
        if carrier.is_null() {
            return;
        }
        let base = self.base;
        list(&mut |name, length, address| {
            let address = usize::try_from(base.wrapping_add(address)).unwrap_or(0);
            // SAFETY: the name lies in the object, in the facts or in the file,
            // which the carrier keeps; the address is that of its function.
            unsafe { Carrier::add(carrier, name, length, address) };
        });
        // SAFETY: the object's constructors have not run, so nothing executes these functions.
        let written = unsafe { patch::write(Carrier::entries(carrier)) };
        if written {
            // SAFETY: it was created above.
            unsafe { (*carrier).next = self.carriers };
            self.carriers = carrier;
            if interface.is_none() {
                self.refused("its version is neither 12 nor 13");
            }
        } else {
            // SAFETY: nothing jumps through it.
            unsafe { Carrier::release(carrier) };
            self.refused("the system does not let its code be changed");
        }
    }

    fn refused(&self, why: &str) {
        say(format_args!(
            "{} carries a CUDA runtime that paragpu cannot serve: {why}; its calls fail",
            LossyText(self.path),
        ));
    }

    /// Reports a runtime that resembles a known build but differs. One that resembles none is
    /// reported by paragpu's driver library when it is called.
    fn unknown(&self, alike: Option<&str>, id: Option<BuildId>) {
        // The parent's jumps, which work in the child, look like another build.
        let Some(alike) = alike.filter(|_| !self.is_taken_over) else {
            return;
        };
        let path = LossyText(self.path);
        let advice = "its calls fail; `paragpu doctor` and docs/redirect.md say what to do";
        match id {
            Some(id) => say(format_args!(
                "{path} (build-id {id}) carries an unknown build of the CUDA runtime, much like \
                 {alike}: {advice}"
            )),
            None => say(format_args!(
                "{path} carries an unknown build of the CUDA runtime, much like {alike}: {advice}"
            )),
        }
    }
}

/// The object's path, which the loader's list lacks for the main program.
fn path<'a>(info: &'a libc::dl_phdr_info, buffer: &'a mut [u8; PATH]) -> &'a [u8] {
    const PROGRAM: &CStr = c"/proc/self/exe";
    if !info.dlpi_name.is_null() {
        // SAFETY: the loader's string, which lives as long as the object.
        let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        if !path.is_empty() {
            return path;
        }
    }
    // SAFETY: the buffer is ours.
    let length =
        unsafe { libc::readlink(PROGRAM.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(length)
        .ok()
        .and_then(|length| buffer.get(..length))
        .unwrap_or(PROGRAM.to_bytes())
}
