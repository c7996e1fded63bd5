//! Kernels and variables that compiled code registered, indexed by the address of their
//! host stub.
//!
//! Every launch looks its kernel up here, so readers take no lock: this is an
//! open-addressing table in which a stub's slot keeps its key forever. Writers hold
//! a mutex. A full table is copied to one of twice the size; the old one stays
//! allocated, because a reader may still use it (all old tables together are smaller
//! than the current one).
//!
//! Compiled code of CUDA 13 launches by a kernel's handle, so handles are in the table,
//! too. They are new each time that a library is opened, so their slots are freed with its
//! fat binary.

use super::runtime::Runtime;
use super::{fail, say, text};
use crate::error::{Error, Result};
use paragpu_abi as abi;
use paragpu_abi::{CU_LIBRARY_BINARY_IS_PRESERVED, CUdeviceptr, CUkernel, CUlibrary};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// First word of the wrapper that nvcc emits for a fatbinary.
const WRAPPER_MAGIC: u32 = 0x4662_43b1;

/// The wrapper: version 1 points to one container, version 2 to linked ones.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    image: *const c_void,
    more: *const c_void,
}

/// A registered fat binary. Its address is the handle that C code holds.
pub struct Binary {
    wrapper: *const Wrapper,
    /// Its library, published once the managed variables have their addresses.
    library: AtomicPtr<c_void>,
    symbols: Mutex<Vec<&'static Symbol>>,
    /// Held while it is loaded. Locked before [`WRITERS`].
    loading: Mutex<Loading>,
}

/// A registered fat binary, whose wrapper is valid.
struct Registered(*mut Binary);

// SAFETY: a record is shared by all threads and never freed.
unsafe impl Send for Registered {}

#[derive(Default)]
struct Loading {
    /// Its managed variables when it was loaded, by their stubs.
    managed: Vec<&'static Symbol>,
    /// The error of the last load, which another attempt would repeat.
    failed: Option<Error>,
}

/// The kind of device symbol behind a host stub.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A kernel.
    Kernel,
    /// A `__device__` or `__constant__` variable.
    Variable,
    /// A `__managed__` variable.
    Managed,
}

/// A registered kernel or variable.
pub struct Symbol {
    /// The stub's address.
    key: usize,
    /// Its fat binary; null once that is unregistered.
    binary: AtomicPtr<Binary>,
    /// The name in the fat binary.
    name: AtomicPtr<c_char>,
    kind: AtomicUsize,
    /// A kernel's handle, once looked up.
    kernel: AtomicPtr<c_void>,
    /// A variable's address in each device's primary context that used it.
    places: Mutex<Vec<VariableLocation>>,
}

/// A variable's address in the primary context of a device.
#[derive(Clone, Copy)]
struct VariableLocation {
    device: c_int,
    resets: u32,
    address: CUdeviceptr,
    size: usize,
}

/// A variable in the current context.
#[derive(Clone, Copy)]
pub struct Global {
    /// Its address on the device.
    pub address: CUdeviceptr,
    /// Its size in bytes.
    pub size: usize,
}

/// The entry of an address.
#[derive(Clone, Copy)]
pub enum Entry {
    /// A registered stub.
    Symbol(&'static Symbol),
    /// The handle of a kernel.
    Handle,
}

/// Key of a slot whose handle is gone. No stub has this address.
const FREED: usize = 1;

/// The symbol in the slots of all handles.
static HANDLE: Symbol = Symbol {
    key: 0,
    binary: AtomicPtr::new(ptr::null_mut()),
    name: AtomicPtr::new(ptr::null_mut()),
    kind: AtomicUsize::new(Kind::Kernel as usize),
    kernel: AtomicPtr::new(ptr::null_mut()),
    places: Mutex::new(Vec::new()),
};

struct Slot {
    /// The stub's address or the handle; 0 if the slot was never used, or [`FREED`].
    key: AtomicUsize,
    symbol: AtomicPtr<Symbol>,
}

struct Table {
    slots: Box<[Slot]>,
    used: AtomicUsize,
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
static WRITERS: Mutex<()> = Mutex::new(());
/// Locked before [`WRITERS`].
static REGISTERED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());
/// The stubs of kernels, by the handles that were looked up for them.
static STUBS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
const FIRST_SLOTS: usize = 256;

/// Number of the slot at which the search for a key begins.
fn hash(key: usize) -> usize {
    (key >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize) >> 24
}

impl Table {
    fn new(slots: usize) -> &'static Self {
        let slots = (0..slots)
            .map(|_| Slot {
                key: AtomicUsize::new(0),
                symbol: AtomicPtr::new(ptr::null_mut()),
            })
            .collect();
        Box::leak(Box::new(Self {
            slots,
            used: AtomicUsize::new(0),
        }))
    }

    /// The slot of a number, which wraps around. Their count is a power of two.
    fn slot(&self, number: usize) -> Option<&Slot> {
        self.slots.get(number & self.slots.len().wrapping_sub(1))
    }

    /// Slots in probing order for a key, with their numbers.
    fn probe(&self, key: usize) -> impl Iterator<Item = (usize, &Slot)> {
        let hash = hash(key);
        (0..self.slots.len()).filter_map(move |step| {
            let number = hash.wrapping_add(step);
            self.slot(number).map(|slot| (number, slot))
        })
    }

    /// Sets a key's symbol. Writers only.
    fn set(&self, key: usize, symbol: &'static Symbol) {
        let mut free = None;
        for (_, slot) in self.probe(key) {
            match slot.key.load(Ordering::Relaxed) {
                found if found == key => {
                    slot.symbol
                        .store(ptr::from_ref(symbol).cast_mut(), Ordering::Release);
                    return;
                }
                FREED => {
                    free.get_or_insert((slot, 0));
                }
                0 => {
                    free.get_or_insert((slot, 1));
                    break;
                }
                _ => {}
            }
        }
        if let Some((slot, more)) = free {
            slot.symbol
                .store(ptr::from_ref(symbol).cast_mut(), Ordering::Release);
            slot.key.store(key, Ordering::Release);
            self.used.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Frees the slot of a handle, if there is one. Writers only.
    fn free(&self, handle: usize) {
        let found = self
            .probe(handle)
            .map(|(number, slot)| (number, slot, slot.key.load(Ordering::Relaxed)))
            .find(|(_, _, key)| *key == handle || *key == 0);
        let Some((mut number, slot, _)) = found.filter(|(_, _, key)| *key == handle) else {
            return;
        };
        if !ptr::eq(slot.symbol.load(Ordering::Relaxed), &raw const HANDLE) {
            return;
        }
        slot.key.store(FREED, Ordering::Release);
        // Freed slots let searches pass. Those that none passes count as unused again.
        loop {
            match self.slot(number) {
                Some(slot) if slot.key.load(Ordering::Relaxed) != 0 => {
                    if slot.key.load(Ordering::Relaxed) == FREED && !self.is_passed(number) {
                        slot.key.store(0, Ordering::Release);
                        self.used.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                _ => return,
            }
            number = number.wrapping_sub(1);
        }
    }

    /// Whether the search for some key passes a slot.
    fn is_passed(&self, number: usize) -> bool {
        let mask = self.slots.len().wrapping_sub(1);
        for step in 1..self.slots.len() {
            let behind = number.wrapping_add(step);
            match self
                .slot(behind)
                .map(|slot| slot.key.load(Ordering::Relaxed))
            {
                None | Some(0) => return false,
                Some(FREED) => {}
                Some(key) if behind.wrapping_sub(hash(key)) & mask >= step => return true,
                Some(_) => {}
            }
        }
        true
    }
}

/// The symbol whose stub has this address, even if it was unregistered; [`HANDLE`] for a
/// handle.
#[inline]
fn find(key: usize) -> Option<&'static Symbol> {
    // SAFETY: tables and symbols are never freed.
    let table = unsafe { TABLE.load(Ordering::Acquire).as_ref() }?;
    for (_, slot) in table.probe(key) {
        match slot.key.load(Ordering::Acquire) {
            0 => return None,
            found if found == key => {
                // SAFETY: as above; the symbol was stored before the key.
                let symbol = unsafe { slot.symbol.load(Ordering::Acquire).as_ref() }?;
                // The slot may have been freed and reused meanwhile.
                return (symbol.key == key || symbol.is_handle()).then_some(symbol);
            }
            _ => {}
        }
    }
    None
}

/// The entry of an address: a registered stub, or a kernel's handle that was adopted.
#[inline]
pub fn lookup(address: *const c_void) -> Option<Entry> {
    let symbol = find(address.addr())?;
    if symbol.is_handle() {
        return Some(Entry::Handle);
    }
    let registered = !symbol.binary.load(Ordering::Acquire).is_null();
    registered.then_some(Entry::Symbol(symbol))
}

/// Registers a fat binary without loading it.
pub fn register_binary(wrapper: *const c_void) -> *mut Binary {
    let binary = Box::into_raw(Box::new(Binary {
        wrapper: wrapper.cast(),
        library: AtomicPtr::new(ptr::null_mut()),
        symbols: Mutex::default(),
        loading: Mutex::default(),
    }));
    REGISTERED.lock().push(Registered(binary));
    binary
}

/// Loads all registered fat binaries, for programs with `CUDA_MODULE_LOADING=EAGER`.
/// One that cannot be loaded fails at its first use.
pub fn load_all(runtime: &Runtime) {
    // The lock keeps binaries from being unregistered, and unmapped, while they load.
    let registered = REGISTERED.lock();
    for binary in registered.iter() {
        // SAFETY: records are never freed; a registered one has its wrapper.
        let _ = unsafe { (*binary.0).load(runtime) };
    }
}

/// Writes the addresses of managed variables to their stubs again, after a device was reset.
pub fn share_again(runtime: &Runtime) {
    // The lock keeps binaries from being unregistered.
    let registered = REGISTERED.lock();
    for binary in registered.iter() {
        // SAFETY: records are never freed.
        let binary = unsafe { &*binary.0 };
        let library = binary.library.load(Ordering::Acquire);
        if !library.is_null() {
            // SAFETY: the binary is registered, so the stubs are mapped, and the library is live.
            unsafe {
                let shared = share(runtime, library, &binary.loading.lock().managed);
                binary.alias(shared);
            }
        }
    }
}

/// Registers a kernel or variable of a fat binary.
///
/// # Safety
/// `binary` is null or from [`register_binary`]; `name`, and a managed variable's
/// `stand_in`, stay valid until it is unregistered.
pub unsafe fn register_symbol(
    binary: *mut Binary,
    stand_in: *const c_void,
    name: *const c_char,
    kind: Kind,
) {
    // Exposed, because a managed variable is later written through this number.
    let key = stand_in.expose_provenance();
    // SAFETY: the pointer is null or readable, as the caller promises.
    let Some(owner) = (unsafe { binary.as_ref() }) else {
        return;
    };
    if key <= FREED || name.is_null() {
        return;
    }
    let _writing = WRITERS.lock();
    let symbol = entry(key);
    symbol.kernel.store(ptr::null_mut(), Ordering::Relaxed);
    symbol.places.lock().clear();
    symbol.name.store(name.cast_mut(), Ordering::Relaxed);
    symbol.kind.store(kind as usize, Ordering::Relaxed);
    symbol.binary.store(binary, Ordering::Release);
    owner.symbols.lock().push(symbol);
}

/// The stub of a kernel, or its handle if it has no stub.
pub fn stub_of(kernel: *mut c_void) -> *mut c_void {
    let stub = STUBS.lock().get(&kernel.addr()).copied();
    stub.map_or(kernel, ptr::with_exposed_provenance_mut)
}

/// The entry of a key, created if needed. Writers only.
fn entry(key: usize) -> &'static Symbol {
    if let Some(symbol) = find(key).filter(|symbol| !symbol.is_handle()) {
        return symbol;
    }
    let symbol: &'static Symbol = Box::leak(Box::new(Symbol {
        key,
        binary: AtomicPtr::new(ptr::null_mut()),
        name: AtomicPtr::new(ptr::null_mut()),
        kind: AtomicUsize::new(Kind::Kernel as usize),
        kernel: AtomicPtr::new(ptr::null_mut()),
        places: Mutex::new(Vec::new()),
    }));
    room().set(key, symbol);
    symbol
}

/// Treats an unregistered address as a kernel's handle, which CUDA accepts wherever it
/// accepts a stub, and keeps it until its fat binary is unregistered.
///
/// # Errors
/// `cudaErrorInvalidDeviceFunction` for null. `cudaErrorInvalidResourceHandle`
/// for an address inside a loaded program or library: that is a host function or
/// variable, which must not reach the driver as a kernel.
#[cold]
pub fn adopt(handle: CUkernel) -> Result<CUkernel> {
    if handle.is_null() {
        return fail(abi::cudaErrorInvalidDeviceFunction);
    }
    // SAFETY: a record of pointers; dladdr compares the address with loaded objects and
    // does not dereference it.
    let loaded = unsafe {
        let mut place: libc::Dl_info = super::zeroed();
        libc::dladdr(handle, &mut place) != 0
    };
    if loaded {
        return fail(abi::cudaErrorInvalidResourceHandle);
    }
    let _writing = WRITERS.lock();
    let is_registered =
        |symbol: &Symbol| !symbol.is_handle() && !symbol.binary.load(Ordering::Acquire).is_null();
    if handle.addr() > FREED && !find(handle.addr()).is_some_and(is_registered) {
        room().set(handle.addr(), &HANDLE);
    }
    Ok(handle)
}

/// A table with a free slot. Writers only.
fn room() -> &'static Table {
    // SAFETY: tables are never freed.
    let old = unsafe { TABLE.load(Ordering::Acquire).as_ref() };
    let table = match old {
        Some(table) if table.used.load(Ordering::Relaxed) * 2 < table.slots.len() => return table,
        Some(table) => {
            let larger = Table::new(table.slots.len() * 2);
            for slot in &table.slots {
                let key = slot.key.load(Ordering::Relaxed);
                // SAFETY: symbols are never freed.
                let symbol = unsafe { slot.symbol.load(Ordering::Relaxed).as_ref() };
                if let Some(symbol) = symbol.filter(|_| key > FREED) {
                    larger.set(key, symbol);
                }
            }
            larger
        }
        None => Table::new(FIRST_SLOTS),
    };
    TABLE.store(ptr::from_ref(table).cast_mut(), Ordering::Release);
    table
}

/// Unregisters a fat binary, and unloads it if it was loaded. Its record stays
/// allocated: another thread may be about to launch one of its kernels.
///
/// # Safety
/// `binary` is null or from [`register_binary`].
pub unsafe fn unregister_binary(binary: *mut Binary) {
    // SAFETY: the pointer is null or readable, as the caller promises.
    let Some(owner) = (unsafe { binary.as_ref() }) else {
        return;
    };
    REGISTERED
        .lock()
        .retain(|registered| !ptr::eq(registered.0, binary));
    {
        let _writing = WRITERS.lock();
        // SAFETY: tables are never freed.
        let table = unsafe { TABLE.load(Ordering::Acquire).as_ref() };
        let symbols = std::mem::take(&mut *owner.symbols.lock());
        for symbol in symbols {
            if symbol.binary.load(Ordering::Acquire) == binary {
                symbol.binary.store(ptr::null_mut(), Ordering::Release);
                let kernel = symbol.kernel.swap(ptr::null_mut(), Ordering::AcqRel);
                STUBS.lock().remove(&kernel.addr());
                if let Some(table) = table.filter(|_| !kernel.is_null()) {
                    table.free(kernel.addr());
                }
            }
        }
    }
    let library = {
        let _loading = owner.loading.lock();
        owner.library.swap(ptr::null_mut(), Ordering::AcqRel)
    };
    if let Some(runtime) = super::runtime::started().filter(|_| !library.is_null()) {
        // At exit the driver may already be shut down, and the error has no
        // receiver. SAFETY: the caller upholds the contract of `cuLibraryUnload`.
        let _ = unsafe { runtime.driver.cuLibraryUnload(library) };
    }
}

/// Writes the addresses of managed variables to their stubs. Returns those that have one.
///
/// # Safety
/// As for [`Symbol::share`].
unsafe fn share(
    runtime: &Runtime,
    library: CUlibrary,
    managed: &[&'static Symbol],
) -> Vec<(usize, &'static Symbol)> {
    let managed = managed.iter();
    // SAFETY: the caller upholds the contract of `Symbol::share`.
    let shared =
        managed.filter_map(|symbol| Some((unsafe { symbol.share(runtime, library) }?, *symbol)));
    shared.collect()
}

impl Binary {
    /// Registers managed variables by their own addresses, too, by which a program can refer to
    /// them.
    ///
    /// # Safety
    /// The names stay valid until the binary is unregistered.
    unsafe fn alias(&self, shared: Vec<(usize, &'static Symbol)>) {
        for (address, symbol) in shared {
            let is_known = find(address).is_some_and(|known| {
                ptr::eq(known.binary.load(Ordering::Acquire), self) && known.name() == symbol.name()
            });
            if is_known {
                continue;
            }
            let place = ptr::with_exposed_provenance(address);
            let owner = ptr::from_ref(self).cast_mut();
            // SAFETY: the caller upholds the contract of `register_symbol`.
            unsafe { register_symbol(owner, place, symbol.name(), Kind::Managed) };
        }
    }

    /// Loads the fat binary if it is not loaded.
    ///
    /// # Safety
    /// The registered wrapper, and the data that it points to, are still mapped.
    pub unsafe fn load(&self, runtime: &Runtime) -> Result<CUlibrary> {
        let library = self.library.load(Ordering::Acquire);
        if !library.is_null() {
            return Ok(library);
        }
        let mut loading = self.loading.lock();
        let mut library = self.library.load(Ordering::Acquire);
        if !library.is_null() {
            return Ok(library);
        }
        if let Some(error) = loading.failed {
            return Err(error);
        }
        // SAFETY: the caller upholds the contract of `Binary::image`.
        let loaded = unsafe { self.image() }.and_then(|image| {
            let (mut kept, mut yes) = (
                CU_LIBRARY_BINARY_IS_PRESERVED,
                ptr::without_provenance_mut(1),
            );
            // SAFETY: the caller upholds the contract of `cuLibraryLoadData`. The image is the
            // program's own, and mapped until it is unregistered.
            unsafe {
                runtime.driver.cuLibraryLoadData(
                    &mut library,
                    image,
                    ptr::null_mut(),
                    ptr::null_mut(),
                    0,
                    &mut kept,
                    &mut yes,
                    1,
                )
            }
        });
        if let Err(error) = loaded {
            // An error of the context says nothing about the image.
            if !error.is_sticky() && error.code() != abi::cudaErrorMemoryAllocation {
                loading.failed = Some(error);
            }
            return Err(error);
        }
        loading.managed = self.symbols.lock().clone();
        loading.managed.retain(|symbol| symbol.is(Kind::Managed));
        // SAFETY: the caller upholds the contracts of `share` and `Binary::alias`.
        unsafe { self.alias(share(runtime, library, &loading.managed)) };
        self.library.store(library, Ordering::Release);
        Ok(library)
    }

    /// The image to load.
    ///
    /// # Safety
    /// The registered wrapper is still mapped.
    unsafe fn image(&self) -> Result<*const c_void> {
        // SAFETY: the pointer is null or readable, as the caller promises.
        match unsafe { self.wrapper.as_ref() } {
            Some(wrapper) if wrapper.magic == WRAPPER_MAGIC => match wrapper.version {
                1 => Ok(wrapper.image),
                // The driver walks the list of linked containers itself.
                _ => Ok(self.wrapper.cast()),
            },
            _ => fail(abi::cudaErrorInvalidKernelImage),
        }
    }
}

impl Symbol {
    /// Whether it stands for handles.
    fn is_handle(&self) -> bool {
        ptr::eq(self, &raw const HANDLE)
    }

    fn is(&self, kind: Kind) -> bool {
        self.kind.load(Ordering::Relaxed) == kind as usize
    }

    /// The loaded fat binary.
    ///
    /// # Safety
    /// As for [`Binary::load`]; a binary's address is null or from
    /// [`register_binary`].
    unsafe fn library(&self, runtime: &Runtime, gone: c_int) -> Result<CUlibrary> {
        // SAFETY: the pointer is null or readable, as the caller promises.
        match unsafe { self.binary.load(Ordering::Acquire).as_ref() } {
            // SAFETY: the caller upholds the contract of `Binary::load`.
            Some(binary) => unsafe { binary.load(runtime) },
            None => fail(gone),
        }
    }

    /// The kernel's name in the fat binary.
    pub fn name(&self) -> *const c_char {
        self.name.load(Ordering::Relaxed)
    }

    /// The kernel's handle, looked up at the first call.
    ///
    /// # Safety
    /// As for [`Binary::load`], unless the kernel is known.
    #[inline]
    pub unsafe fn kernel(&self, runtime: &Runtime) -> Result<CUkernel> {
        let kernel = self.kernel.load(Ordering::Acquire);
        if !kernel.is_null() {
            return Ok(kernel);
        }
        // SAFETY: the caller upholds the contract of `Symbol::find_kernel`.
        unsafe { self.find_kernel(runtime) }
    }

    /// As [`kernel`](Self::kernel), but looks it up in the fat binary.
    ///
    /// # Safety
    /// As for [`Binary::load`].
    #[cold]
    unsafe fn find_kernel(&self, runtime: &Runtime) -> Result<CUkernel> {
        if !self.is(Kind::Kernel) {
            return fail(abi::cudaErrorInvalidDeviceFunction);
        }
        // SAFETY: the caller upholds the contract of `Symbol::library`.
        let library = unsafe { self.library(runtime, abi::cudaErrorInvalidDeviceFunction) }?;
        let mut kernel = ptr::null_mut();
        // SAFETY: the caller upholds the contract of `cuLibraryGetKernel`.
        unsafe {
            runtime
                .driver
                .cuLibraryGetKernel(&mut kernel, library, self.name())
        }
        .map_err(|error| {
            error.replace(
                abi::cudaErrorSymbolNotFound,
                abi::cudaErrorInvalidDeviceFunction,
            )
        })?;
        STUBS.lock().insert(kernel.addr(), self.key);
        self.kernel.store(kernel, Ordering::Release);
        Ok(kernel)
    }

    /// The variable in the current context.
    ///
    /// # Safety
    /// As for [`Binary::load`].
    pub unsafe fn global(&self, runtime: &Runtime) -> Result<Global> {
        if self.is(Kind::Kernel) {
            return fail(abi::cudaErrorInvalidSymbol);
        }
        let device = runtime.current_device()?;
        let resets = runtime.resets(device);
        // Other contexts have variables of their own, at addresses that the driver knows.
        let is_kept = runtime.is_primary(device)?;
        // SAFETY: the caller upholds the contract of `Symbol::library`.
        let library = unsafe { self.library(runtime, abi::cudaErrorInvalidSymbol) }?;
        let mut places = self.places.lock();
        if let Some(place) = places
            .iter()
            .find(|place| is_kept && place.device == device && place.resets == resets)
        {
            return Ok(Global {
                address: place.address,
                size: place.size,
            });
        }
        let (mut address, mut size) = (0, 0);
        let found = if self.is(Kind::Managed) {
            // SAFETY: the caller upholds the contract of `cuLibraryGetManaged`.
            unsafe {
                runtime
                    .driver
                    .cuLibraryGetManaged(&mut address, &mut size, library, self.name())
            }
        } else {
            // SAFETY: the caller upholds the contract of `cuLibraryGetGlobal`.
            unsafe {
                runtime
                    .driver
                    .cuLibraryGetGlobal(&mut address, &mut size, library, self.name())
            }
        };
        found.map_err(|error| {
            error.replace(abi::cudaErrorSymbolNotFound, abi::cudaErrorInvalidSymbol)
        })?;
        if !is_kept {
            return Ok(Global { address, size });
        }
        places.retain(|place| place.device != device);
        places.push(VariableLocation {
            device,
            resets,
            address,
            size,
        });
        Ok(Global { address, size })
    }

    /// Writes the address of a managed variable to its host stub, and returns it.
    ///
    /// # Safety
    /// The symbol is a managed variable whose stub is still mapped; `library` is live.
    unsafe fn share(&self, runtime: &Runtime, library: CUlibrary) -> Option<usize> {
        let (mut address, mut size) = (0, 0);
        let found =
            // SAFETY: the caller upholds the contract of `cuLibraryGetManaged`.
            unsafe { runtime
                .driver
                .cuLibraryGetManaged(&mut address, &mut size, library, self.name()) };
        match found {
            Ok(()) => {
                let place = ptr::with_exposed_provenance_mut::<*mut c_void>(self.key);
                // SAFETY: the pointer is writable here, as the caller promises.
                unsafe { place.write(ptr::with_exposed_provenance_mut(address as usize)) };
                Some(address as usize)
            }
            Err(error) => {
                // SAFETY: the pointer is null or readable, as the caller promises.
                say(&format!("managed variable {}: {error}", unsafe {
                    text(self.name())
                }));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_slots_are_used_again_and_hide_nothing() {
        const KEPT: [usize; 3] = [0x10, 0x2000, 0x30_0000];
        let table = Table::new(16);
        let has = |key| {
            let mut slots = table
                .probe(key)
                .map(|(_, slot)| slot.key.load(Ordering::Relaxed));
            slots.find(|found| *found == key || *found == 0) == Some(key)
        };
        for handle in (1..10_000).map(|number| 0x1000_0000 + number * 0x30) {
            for kept in KEPT {
                table.set(kept, &HANDLE);
            }
            table.set(handle, &HANDLE);
            table.set(handle + 8, &HANDLE);
            assert!(has(handle) && has(handle + 8));
            table.free(handle);
            assert!(!has(handle) && has(handle + 8));
            table.free(handle + 8);
            table.free(handle + 8);
            assert!(KEPT.into_iter().all(has));
            // Freed slots remain only before keys that they displaced.
            assert!(table.used.load(Ordering::Relaxed) < 8);
        }
        KEPT.into_iter().for_each(|kept| table.free(kept));
        assert!(!KEPT.into_iter().any(has));
        assert_eq!(table.used.load(Ordering::Relaxed), 0);
    }
}
