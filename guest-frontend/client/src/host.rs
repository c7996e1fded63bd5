//! Pinned host memory (cuMemHostAlloc, cuMemHostRegister).
//!
//! Where there is a window, pinned memory is a part of it: the same bytes at
//! the same address for program and device. Without a window, or when it is
//! full, and for memory that the program registers, the host keeps a copy: a
//! *shadow*, which [`crate::coherence`] brings into agreement. Memory of a
//! window becomes such a shadow where the session leaves it:
//! [`crate::parting`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use paragpu_communicator::Window;
use paragpu_protocol::handle::{ShadowAddress, WindowOffset};
use paragpu_protocol::layout::{DEVICE_STRIDE, Regions};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{HostMap, HostUnmap, ShadowCreate, ShadowDestroy};

use crate::coherence::Region;
use crate::error::Result;
use crate::memory::{read, write};
use crate::parting::Content;
use crate::ranges::Ranges;
use crate::session::Session;
use crate::slots::lock;
use crate::sys::memory::{Pages, Source};

const PAGE: u64 = 4096;
/// CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP.
pub(crate) const DEVICEMAP: u32 = 2;

/// The pinned memory of a session.
#[derive(Debug)]
pub struct Host {
    base: u64,
    /// Mapped as long as the session lives.
    pub(crate) memory: Option<Arc<Window>>,
    /// Free offsets in the window; `None` once the session has left it.
    pub(crate) window: Mutex<Option<Ranges>>,
    /// The session has left its window.
    pub(crate) apart: AtomicBool,
    /// Kernels may know addresses in the window.
    named: AtomicBool,
    /// What a host that lacks it is being sent.
    pub(crate) contents: Mutex<Vec<Content>>,
    shadow_space: Arc<Mutex<Ranges>>,
    pub(crate) pinned: RwLock<BTreeMap<u64, Pinned>>,
    /// Every shadow.
    pub(crate) shadows: RwLock<Vec<Arc<Region>>>,
    /// How many there are.
    pub(crate) shadow_count: AtomicUsize,
}

/// What is pinned from some address on.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// First address in the program.
    pub address: u64,
    /// Bytes as they were asked for.
    pub size: u64,
    /// Where the device sees the first byte.
    pub device: u64,
    /// Flags of cuMemHostAlloc or cuMemHostRegister.
    pub flags: u32,
    /// Registered memory of the program's own?
    pub registered: bool,
    pub(crate) backing: Backing,
}

#[derive(Debug, Clone)]
pub(crate) enum Backing {
    /// Offset and bytes in the window.
    Window(u64, u64),
    /// The shadow, and where it lies.
    Shadow(Arc<Region>, Arc<Place>),
}

/// Addresses of the shadow region in use. They are free again when nobody
/// holds them any more, as whoever just looked something up may.
#[derive(Debug)]
pub(crate) struct Place {
    base: u64,
    length: u64,
    /// The memory there, where it is the library's.
    pages: Option<Pages>,
    space: Arc<Mutex<Ranges>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Before another thread is given the address.
        drop(self.pages.take());
        lock(&self.space).give(self.base, self.length);
    }
}

/// What the device knows an address of the program as.
#[derive(Debug, Clone)]
pub(crate) enum Reach {
    /// The device sees the same bytes at this address.
    Direct(u64),
    /// The device has a copy.
    Shadow(Arc<Region>),
    /// Ordinary memory.
    Pageable,
}

impl Host {
    pub(crate) fn new(window: Option<Arc<Window>>, pinned_from: u64, regions: &Regions) -> Self {
        let mut free = Ranges::new(0);
        let mut base = 0;
        // Pinned memory must have the same address on both sides.
        let same = |window: &&Arc<Window>| window.address() == regions.window;
        if let Some(window) = window.as_ref().filter(same) {
            base = window.address();
            let from = pinned_from.next_multiple_of(PAGE);
            let end = window.len() / PAGE * PAGE;
            if from < end {
                free.give(from, end - from);
            }
        }
        let mut shadow_space = Ranges::new(0);
        shadow_space.give(regions.shadow, DEVICE_STRIDE);
        Self {
            base,
            memory: window,
            window: Mutex::new(Some(free)),
            apart: AtomicBool::new(false),
            named: AtomicBool::new(false),
            contents: Mutex::default(),
            shadow_space: Arc::new(Mutex::new(shadow_space)),
            pinned: RwLock::new(BTreeMap::new()),
            shadows: RwLock::new(Vec::new()),
            shadow_count: AtomicUsize::new(0),
        }
    }

    /// The pinned memory that an address of the program lies in.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Pinned> {
        let pinned = read(&self.pinned);
        let (_, found) = pinned.range(..=address).next_back()?;
        (address - found.address < found.size).then(|| found.clone())
    }

    /// The pinned memory that a device address lies in.
    #[must_use]
    pub fn find_by_device(&self, address: u64) -> Option<Pinned> {
        self.find(address)
            .filter(|found| !found.registered)
            .or_else(|| {
                let pinned = read(&self.pinned);
                pinned
                    .values()
                    .find(|found| {
                        address
                            .checked_sub(found.device)
                            .is_some_and(|offset| offset < found.size)
                    })
                    .cloned()
            })
    }

    /// Is the address one of the window's?
    fn holds(&self, address: u64) -> bool {
        self.base != 0 && address.wrapping_sub(self.base) < DEVICE_STRIDE
    }

    /// Kernels know addresses in the window.
    pub(crate) fn name(&self) {
        self.named.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_named(&self) -> bool {
        self.named.load(Ordering::Relaxed)
    }

    /// A kernel is given these parameters.
    pub(crate) fn note_named(&self, parameters: &[u8]) {
        if self.base == 0 || self.is_named() {
            return;
        }
        let mut words = parameters.as_chunks::<8>().0.iter();
        if words.any(|word| self.holds(u64::from_le_bytes(*word))) {
            self.name();
        }
    }

    pub(crate) fn reach(&self, address: u64, size: u64) -> Reach {
        if self.holds(address) && !self.is_apart() {
            return Reach::Direct(address);
        }
        match self.shadow_of(address, size) {
            Some(region) => Reach::Shadow(region),
            None => Reach::Pageable,
        }
    }

    /// A place for `length` bytes, in whole pages.
    fn place(&self, length: u64) -> Result<Place> {
        let base = lock(&self.shadow_space).take(length, PAGE);
        Ok(Place {
            base: base.ok_or(Status::OUT_OF_MEMORY)?,
            length,
            pages: None,
            space: Arc::clone(&self.shadow_space),
        })
    }

    fn give_back(&self, offset: u64, length: u64) {
        if let Some(free) = lock(&self.window).as_mut() {
            free.give(offset, length);
        }
    }

    /// A shadow of memory of the window.
    pub(crate) fn region(&self, offset: u64, length: u64) -> Option<Arc<Region>> {
        let memory = self.memory.as_ref()?;
        let source = Source::of_window(memory, offset, length)?;
        let address = source.address();
        Some(Region::new(source, address, address, length))
    }

    /// The shadow of memory of the program.
    fn shadow_of(&self, address: u64, size: u64) -> Option<Arc<Region>> {
        if self.shadow_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        read(&self.shadows)
            .iter()
            .find(|region| region.holds_host(address, size))
            .cloned()
    }
}

impl Session {
    /// The pinned memory.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// cuMemHostAlloc.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes or unknown flags, `OUT_OF_MEMORY`.
    pub fn host_allocate(&self, size: u64, flags: u32) -> Result<u64> {
        if size == 0 || flags & !7 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        self.link.check()?;
        let length = size
            .checked_next_multiple_of(PAGE)
            .ok_or(Status::OUT_OF_MEMORY)?;
        let offset = lock(&self.host.window)
            .as_mut()
            .and_then(|free| free.take(length, PAGE));
        let pinned = match offset {
            Some(offset) => {
                let mapped = self.link.call(&HostMap {
                    offset: WindowOffset(offset),
                    size: length,
                });
                if let Err(status) = mapped {
                    self.host.give_back(offset, length);
                    return Err(status);
                }
                let address = self.host.base + offset;
                Pinned {
                    address,
                    size,
                    device: address,
                    flags,
                    registered: false,
                    backing: Backing::Window(offset, length),
                }
            }
            None => self.shadow_allocate(size, length, flags)?,
        };
        let address = pinned.address;
        let mut all = write(&self.host.pinned);
        if let Backing::Window(offset, length) = pinned.backing
            && self.host.is_apart()
        {
            // It was left while the host was asked, which has zeros there.
            let region = self.host.region(offset, length).ok_or(Status::UNKNOWN)?;
            region.show();
            self.enter_shadow(region);
        }
        all.insert(address, pinned);
        Ok(address)
    }

    fn shadow_allocate(&self, size: u64, length: u64, flags: u32) -> Result<Pinned> {
        let mut place = self.host.place(length)?;
        let address = place.base;
        let pages = Pages::new(address, length).map_err(|_| Status::OUT_OF_MEMORY)?;
        let source = pages.bytes();
        place.pages = Some(pages);
        self.link.call(&ShadowCreate {
            address: ShadowAddress(address),
            size: length,
        })?;
        let region = Region::new(source, address, address, length);
        if flags & DEVICEMAP != 0 {
            region.show();
        }
        self.enter_shadow(Arc::clone(&region));
        Ok(Pinned {
            address,
            size,
            device: address,
            flags,
            registered: false,
            backing: Backing::Shadow(region, Arc::new(place)),
        })
    }

    pub(crate) fn enter_shadow(&self, region: Arc<Region>) {
        let mut shadows = write(&self.host.shadows);
        shadows.push(region);
        self.host
            .shadow_count
            .store(shadows.len(), Ordering::Release);
    }

    /// The place is given back last: until then the host has memory there.
    fn leave_shadow(&self, region: &Arc<Region>, place: Arc<Place>) -> Result<()> {
        self.forget_shadow(region)?;
        self.link.call(&ShadowDestroy {
            address: ShadowAddress(place.base),
        })?;
        drop(place);
        Ok(())
    }

    fn forget_shadow(&self, region: &Arc<Region>) -> Result<()> {
        self.synchronize()?;
        region.forget();
        let mut shadows = write(&self.host.shadows);
        shadows.retain(|other| !Arc::ptr_eq(other, region));
        self.host
            .shadow_count
            .store(shadows.len(), Ordering::Release);
        Ok(())
    }

    /// cuMemFreeHost.
    ///
    /// # Errors
    /// `INVALID_VALUE` where no allocation starts at `address`.
    pub fn host_free(&self, address: u64) -> Result<()> {
        let pinned = self.take_pinned(address, false, Status::INVALID_VALUE)?;
        match pinned.backing {
            Backing::Window(offset, length) => {
                if let Some(region) = self.host.shadow_of(address, length) {
                    self.forget_shadow(&region)?;
                }
                self.link.call(&HostUnmap {
                    offset: WindowOffset(offset),
                })?;
                self.host.give_back(offset, length);
                Ok(())
            }
            Backing::Shadow(region, place) => self.leave_shadow(&region, place),
        }
    }

    fn take_pinned(&self, address: u64, registered: bool, missing: Status) -> Result<Pinned> {
        self.link.check()?;
        let mut pinned = write(&self.host.pinned);
        match pinned.get(&address) {
            Some(found) if found.registered == registered => {}
            _ => return Err(missing),
        }
        pinned.remove(&address).ok_or(missing)
    }

    /// cuMemHostRegister. The device sees the memory at another address, which
    /// [`Pinned::device`] tells; so CUDA's attribute
    /// CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 0.
    ///
    /// # Errors
    /// `HOST_MEMORY_ALREADY_REGISTERED`, `INVALID_VALUE`, `OUT_OF_MEMORY`;
    /// `NOT_SUPPORTED` for I/O memory.
    pub fn host_register(&self, memory: Source, flags: u32) -> Result<()> {
        const IO_MEMORY: u32 = 4;
        let (address, size) = (memory.address(), memory.len() as u64);
        if address == 0 || size == 0 || flags & !15 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if flags & IO_MEMORY != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        self.link.check()?;
        let end = address.checked_add(size).ok_or(Status::INVALID_VALUE)?;
        {
            let pinned = read(&self.host.pinned);
            let overlaps = pinned
                .range(..end)
                .next_back()
                .is_some_and(|(_, other)| other.address + other.size > address);
            if overlaps {
                return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
            }
        }
        let within = address % PAGE;
        let length = (within + size).next_multiple_of(PAGE);
        let place = self.host.place(length)?;
        let base = place.base;
        self.link.call(&ShadowCreate {
            address: ShadowAddress(base),
            size: length,
        })?;
        let region = Region::new(memory, base + within, base, length);
        if flags & DEVICEMAP != 0 {
            region.show();
        }
        self.enter_shadow(Arc::clone(&region));
        write(&self.host.pinned).insert(
            address,
            Pinned {
                address,
                size,
                device: base + within,
                flags,
                registered: true,
                backing: Backing::Shadow(region, Arc::new(place)),
            },
        );
        Ok(())
    }

    /// cuMemHostUnregister.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED`.
    pub fn host_unregister(&self, address: u64) -> Result<()> {
        let pinned = self.take_pinned(address, true, Status::HOST_MEMORY_NOT_REGISTERED)?;
        match pinned.backing {
            Backing::Shadow(region, place) => self.leave_shadow(&region, place),
            Backing::Window(..) => Err(Status::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// cuMemHostGetDevicePointer: from now on kernels may be given it.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the memory is not pinned.
    pub fn host_device_address(&self, address: u64) -> Result<u64> {
        let pinned = self.host.find(address).ok_or(Status::INVALID_VALUE)?;
        match &pinned.backing {
            Backing::Shadow(region, _) => region.show(),
            Backing::Window(_, length) => {
                self.host.name();
                if let Some(region) = self.host.shadow_of(pinned.address, *length) {
                    region.show();
                }
            }
        }
        Ok(pinned.device + (address - pinned.address))
    }
}
