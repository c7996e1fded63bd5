//! Pinned host memory (cuMemHostAlloc, cuMemHostRegister).
//!
//! If there is a window, pinned memory is part of it: the same bytes at the same
//! address for program and device. Without a window, or when it is full, the host
//! keeps a copy, a *shadow*, which [`crate::shadow`] keeps coherent. Memory that the
//! program registers moves into the window if possible ([`registered`]). If it is a
//! shared mapping of a file, the host maps the file as well ([`shared_file`]).
//! Otherwise it gets a shadow. When the session leaves its window, memory in it becomes
//! such a shadow: [`leave_window`]. When the session gets a window, its first or another one,
//! its shadows become parts of it: [`join_window`]. Memory of pools is freed in a stream's order:
//! [`pooled`]. Kernels of other devices cannot access any of this, except
//! [`of_all_devices`].

mod adopted;
mod claims;
mod join_window;
mod leave_window;
mod of_all_devices;
mod pooled;
mod registered;
mod shared_file;

use std::collections::BTreeMap;
use std::sync::Arc;

use paragpu_abi::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_READ_ONLY,
};
use paragpu_protocol::handle::{ShadowAddress, WindowOffset};
use paragpu_protocol::layout::{DEVICE_STRIDE, Regions};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{HostMap, HostUnmap, ShadowCreate, ShadowDestroy};
use parking_lot::{Mutex, RwLock};

use crate::connection::advice::note_registered;
use crate::connection::{Content, Link};
use crate::error::Result;
use crate::freed_blocks::FreedBlocks;
use crate::maps::{self, Access};
use crate::ranges::Ranges;
use crate::shadow::{Region, Shadows};
use crate::staging::Staging;
use crate::stream::Streams;
use crate::sys::memory::{HostSlice, Pages};
use crate::sys::moved_pages;
use crate::sys::uncancelled::Uncancelled;
use crate::window::{Mapped, PinnedWindow};
use claims::Claims;
use join_window::Joining;
use leave_window::left;

const PAGE: u64 = 4096;

/// The pages of `size` bytes, which are not 0.
fn whole_pages(size: u64) -> Result<u64> {
    match size {
        0 => Err(Status::INVALID_VALUE),
        size => size
            .checked_next_multiple_of(PAGE)
            .ok_or(Status::OUT_OF_MEMORY),
    }
}

/// The offsets of a window behind its words and staging slots.
fn free_in(window: &Mapped) -> Ranges {
    let mut free = Ranges::new(0);
    let (offset, length) = window.place();
    let taken = window.staging().map_or(0, Staging::end);
    let from = offset + taken.next_multiple_of(PAGE);
    let end = offset + length / PAGE * PAGE;
    if from < end {
        free.give(from, end - from);
    }
    free
}

/// The pinned memory of a session.
#[derive(Debug)]
pub struct HostMemory {
    link: Arc<Link>,
    streams: Arc<Streams>,
    shadows: Arc<Shadows>,
    window: Arc<PinnedWindow>,
    /// Free offsets in the current window, if there is one.
    free: Mutex<Option<Ranges>>,
    /// Contents in transit to a host that lacks them.
    contents: Mutex<Vec<Content>>,
    shadow_space: Arc<Mutex<Ranges>>,
    pinned: RwLock<BTreeMap<u64, Pinned>>,
    /// Locked before `pinned`.
    claims: Claims,
    /// Freed memory of pools that is still pinned.
    kept: Mutex<FreedBlocks>,
    /// Memory that other devices' sessions pinned, by its address there, with its bytes.
    adopted: Mutex<BTreeMap<u64, (u64, Arc<Region>)>>,
}

/// A range of pinned memory.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// First address in the program.
    pub address: u64,
    /// The requested size in bytes.
    pub size: u64,
    /// The device's address of the first byte.
    pub device: u64,
    /// Flags of cuMemHostAlloc or cuMemHostRegister.
    pub flags: u32,
    /// Whether it is registered memory of the program.
    pub registered: bool,
    /// Freed in stream order, and available for reuse.
    kept: bool,
    pub(crate) backing: Backing,
}

#[derive(Debug, Clone)]
pub(crate) enum Backing {
    /// Offset in the region of windows, and bytes, of memory in the current window.
    Window(u64, u64),
    /// The shadow, and its address on the host.
    Shadow(Arc<Region>, Arc<ShadowPlace>),
    /// A file that both sides map, and its address on the host.
    File(Arc<ShadowPlace>),
}

/// Addresses of a shadow. Those of the shadow region are free again when the last reference is
/// dropped, for example by a thread that just looked them up.
#[derive(Debug)]
pub(crate) struct ShadowPlace {
    base: u64,
    length: u64,
    /// The library's memory there, if any.
    pages: Option<Pages>,
    /// The program's memory, if it is a part of the window.
    joining: Joining,
    /// The shadow region; `None` for addresses in a window that the session has left.
    space: Option<Arc<Mutex<Ranges>>>,
}

impl Drop for ShadowPlace {
    fn drop(&mut self) {
        // Before another thread receives the address.
        drop(self.pages.take());
        if let Some(space) = &self.space {
            space.lock().give(self.base, self.length);
        }
    }
}

impl HostMemory {
    pub(crate) fn new(
        link: &Arc<Link>,
        streams: &Arc<Streams>,
        shadows: &Arc<Shadows>,
        window: &Arc<PinnedWindow>,
        regions: &Regions,
    ) -> Self {
        let free = window.current().map(free_in);
        let mut shadow_space = Ranges::new(0);
        shadow_space.give(regions.shadow, DEVICE_STRIDE);
        Self {
            link: Arc::clone(link),
            streams: Arc::clone(streams),
            shadows: Arc::clone(shadows),
            window: Arc::clone(window),
            free: Mutex::new(free),
            contents: Mutex::default(),
            shadow_space: Arc::new(Mutex::new(shadow_space)),
            pinned: RwLock::default(),
            claims: Claims::default(),
            kept: Mutex::new(FreedBlocks::new(pooled::MAX_BYTES, pooled::MAX_BLOCKS)),
            adopted: Mutex::default(),
        }
    }

    /// The pinned memory that contains an address of the program.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Pinned> {
        let pinned = self.pinned.read();
        let (_, found) = pinned.range(..=address).next_back()?;
        (!found.kept && address - found.address < found.size).then(|| found.clone())
    }

    /// All pinned memory.
    #[must_use]
    pub fn all(&self) -> Vec<Pinned> {
        let pinned = self.pinned.read();
        pinned.values().filter(|one| !one.kept).cloned().collect()
    }

    /// Whether there is any.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        !self.pinned.read().is_empty()
    }

    /// The pinned memory that contains a device address.
    #[must_use]
    pub fn find_by_device(&self, address: u64) -> Option<Pinned> {
        // Of other memory the program asks often, and may have pinned thousands of blocks.
        if !Regions::hold_host_memory(address, 1) {
            return None;
        }
        self.find(address)
            .filter(|found| !found.registered)
            .or_else(|| {
                let pinned = self.pinned.read();
                pinned
                    .values()
                    .filter(|found| !found.kept)
                    .find(|found| {
                        address
                            .checked_sub(found.device)
                            .is_some_and(|offset| offset < found.size)
                    })
                    .cloned()
            })
    }

    /// Reserves addresses for a shadow of `length` bytes, in whole pages.
    fn reserve(&self, length: u64) -> Result<ShadowPlace> {
        let base = self.shadow_space.lock().take(length, PAGE);
        Ok(ShadowPlace {
            base: base.ok_or(Status::OUT_OF_MEMORY)?,
            length,
            pages: None,
            joining: Joining::default(),
            space: Some(Arc::clone(&self.shadow_space)),
        })
    }

    fn take_offset(&self, length: u64) -> Option<u64> {
        self.free.lock().as_mut()?.take(length, PAGE)
    }

    /// Returns a part of a window that nobody uses any more.
    fn give_back(&self, offset: u64, length: u64) {
        match self.free.lock().as_mut() {
            Some(free) if self.window.shares(offset) => _ = free.give(offset, length),
            _ => self.window.discard(offset, length),
        }
    }

    /// cuMemHostAlloc.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes or unknown flags, `OUT_OF_MEMORY`.
    pub fn allocate(&self, size: u64, flags: u32) -> Result<u64> {
        match self.try_allocate(size, flags) {
            Err(Status::OUT_OF_MEMORY) if self.keeps_blocks() => {
                self.trim_pooled(0)?;
                self.try_allocate(size, flags)
            }
            done => done,
        }
    }

    fn try_allocate(&self, size: u64, flags: u32) -> Result<u64> {
        if size == 0 || flags & !7 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        self.link.check()?;
        let length = whole_pages(size)?;
        let departures = self.window.departures();
        let mut offset = self.take_offset(length);
        if offset.is_none() && self.window.current().is_some() {
            self.release_kept(0)?;
            offset = self.take_offset(length);
        }
        let mut pinned = match offset {
            Some(offset) => {
                let mapped = self.link.call(&HostMap {
                    offset: WindowOffset(offset),
                    size: length,
                });
                if let Err(status) = mapped {
                    self.give_back(offset, length);
                    return match self.window.departures() == departures {
                        true => Err(status),
                        // The next host does not know this window.
                        false => self.try_allocate(size, flags),
                    };
                }
                let address = self.window.base() + offset;
                Pinned {
                    address,
                    size,
                    device: address,
                    flags,
                    registered: false,
                    kept: false,
                    backing: Backing::Window(offset, length),
                }
            }
            None => self.shadow_allocate(size, length, flags)?,
        };
        let address = pinned.address;
        let mut all = self.pinned.write();
        if let Backing::Window(offset, length) = pinned.backing
            && self.window.departures() != departures
        {
            // The session left the window during the call; the new host has zeros there.
            let region = self.window.region(offset, length).ok_or(Status::UNKNOWN)?;
            region.show();
            self.shadows.add(Arc::clone(&region));
            pinned.backing = left(region, Joining::default());
        }
        all.insert(address, pinned);
        Ok(address)
    }

    fn shadow_allocate(&self, size: u64, length: u64, flags: u32) -> Result<Pinned> {
        let mut place = self.reserve(length)?;
        let address = place.base;
        let pages = Pages::new(address, length).map_err(|_| Status::OUT_OF_MEMORY)?;
        let source = pages.bytes();
        place.pages = Some(pages);
        let region = Region::try_new(source, address, address, length)?;
        self.link.call(&ShadowCreate {
            address: ShadowAddress(address),
            size: length,
        })?;
        if flags & CU_MEMHOSTALLOC_DEVICEMAP != 0 {
            region.show();
        }
        self.shadows.add(Arc::clone(&region));
        Ok(Pinned {
            address,
            size,
            device: address,
            flags,
            registered: false,
            kept: false,
            backing: Backing::Shadow(region, Arc::new(place)),
        })
    }

    /// Frees a shadow. Its addresses are freed last, because the host has memory there until
    /// then.
    fn leave_shadow(&self, region: &Arc<Region>, place: Arc<ShadowPlace>) -> Result<()> {
        if place.is_joined() {
            self.shadows.files().remove(region.in_program().0);
        }
        self.forget_shadow(region)?;
        self.link.call(&ShadowDestroy {
            address: ShadowAddress(place.base),
        })?;
        self.part_place(region, &place);
        drop(place);
        Ok(())
    }

    fn forget_shadow(&self, region: &Arc<Region>) -> Result<()> {
        self.streams.synchronize_all()?;
        self.shadows.remove(region);
        Ok(())
    }

    /// cuMemFreeHost.
    ///
    /// # Errors
    /// `INVALID_VALUE` if no allocation starts at `address`.
    pub fn free(&self, address: u64) -> Result<()> {
        let pinned = self.take_pinned(address, false, Status::INVALID_VALUE)?;
        self.release(pinned)
    }

    /// Unpins memory in the host, which the program no longer uses.
    fn release(&self, pinned: Pinned) -> Result<()> {
        match pinned.backing {
            Backing::Window(offset, length) => {
                self.unmap(offset)?;
                self.give_back(offset, length);
                Ok(())
            }
            Backing::Shadow(region, place) => self.leave_shadow(&region, place),
            // Only registered memory has files.
            Backing::File(_) => Err(Status::INVALID_VALUE),
        }
    }

    /// Unpins memory that was in the current window when it was taken from the list.
    fn unmap(&self, offset: u64) -> Result<()> {
        let unmapped = self.link.call(&HostUnmap {
            offset: WindowOffset(offset),
        });
        match unmapped {
            // The session left the window meanwhile: it is a shadow.
            Err(_) if !self.window.shares(offset) => self.link.call(&ShadowDestroy {
                address: ShadowAddress(self.window.base() + offset),
            }),
            done => done,
        }
    }

    fn take_pinned(&self, address: u64, registered: bool, missing: Status) -> Result<Pinned> {
        self.link.check()?;
        let mut pinned = self.pinned.write();
        match pinned.get(&address) {
            Some(found) if found.registered == registered && !found.kept => {}
            _ => return Err(missing),
        }
        pinned.remove(&address).ok_or(missing)
    }

    /// cuMemHostRegister. The device accesses the memory at another address,
    /// [`Pinned::device`], so CUDA's attribute CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 0.
    ///
    /// # Errors
    /// `HOST_MEMORY_ALREADY_REGISTERED`, `OUT_OF_MEMORY`; `INVALID_VALUE`, also for memory that
    /// the program cannot write, unless it says so; `NOT_SUPPORTED` for I/O memory.
    pub fn register(&self, memory: HostSlice, flags: u32) -> Result<()> {
        let _uncancelled = Uncancelled::begin();
        let (address, size) = (memory.address(), memory.len() as u64);
        if address == 0 || size == 0 || flags & !15 != 0 {
            return Err(Status::INVALID_VALUE);
        }
        if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        self.link.check()?;
        note_registered();
        let end = address.checked_add(size).ok_or(Status::INVALID_VALUE)?;
        let registered = Status::HOST_MEMORY_ALREADY_REGISTERED;
        let (_claim, ()) = self.claims.claim(address..end, registered, || {
            let pinned = self.pinned.read();
            let before = pinned.range(..end).next_back();
            match before.is_some_and(|(_, other)| other.address + other.size > address) {
                true => Err(registered),
                false => Ok(()),
            }
        })?;
        let within = address % PAGE;
        let length = (within + size).next_multiple_of(PAGE);
        let departures = self.window.departures();
        if let Some((offset, pages)) = self.move_in(address - within, length) {
            let kept = self.keep_moved((address, size), flags, (offset, pages), departures);
            return kept.ok_or(Status::UNKNOWN);
        }
        // The library itself reads such memory, and writes what the device wrote.
        let access = moved_pages::undisturbed(|| maps::access(address, size));
        let is_short = match access {
            None | Some(Access::ReadWrite) => false,
            Some(Access::Read) => flags & CU_MEMHOSTREGISTER_READ_ONLY == 0,
            Some(Access::None) => true,
        };
        if is_short {
            return Err(Status::INVALID_VALUE);
        }
        let place = self.reserve(length)?;
        let base = place.base;
        let backing = if self.share_file(address, size, within, base) {
            Backing::File(Arc::new(place))
        } else {
            let region = Region::try_new(memory, base + within, base, length)?;
            self.link.call(&ShadowCreate {
                address: ShadowAddress(base),
                size: length,
            })?;
            if flags & CU_MEMHOSTALLOC_DEVICEMAP != 0 {
                region.show();
            }
            self.shadows.add(Arc::clone(&region));
            Backing::Shadow(region, Arc::new(place))
        };
        let pinned = Pinned {
            address,
            size,
            device: base + within,
            flags,
            registered: true,
            kept: false,
            backing,
        };
        self.pinned.write().insert(address, pinned);
        Ok(())
    }

    /// cuMemHostUnregister.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED`.
    pub fn unregister(&self, address: u64) -> Result<()> {
        let _uncancelled = Uncancelled::begin();
        let missing = Status::HOST_MEMORY_NOT_REGISTERED;
        let size = self.find(address).ok_or(missing)?.size;
        let (_claim, pinned) = self.claims.claim(address..address + size, missing, || {
            self.take_pinned(address, true, missing)
        })?;
        match pinned.backing {
            Backing::Shadow(region, place) => self.leave_shadow(&region, place),
            Backing::File(place) => self.leave_file(address, place.base),
            Backing::Window(offset, length) => self.move_out(address, offset, length),
        }
    }

    /// cuMemHostGetDevicePointer. Kernels may have the address from now on.
    ///
    /// # Errors
    /// `INVALID_VALUE` if the memory is not pinned.
    pub fn device_address(&self, address: u64) -> Result<u64> {
        let pinned = self.find(address).ok_or(Status::INVALID_VALUE)?;
        match &pinned.backing {
            Backing::Shadow(region, _) => region.show(),
            Backing::File(_) => {}
            Backing::Window(offset, length) => {
                self.window.note_known();
                if let Some(region) = self.shadows.find(self.window.base() + offset, *length) {
                    region.show();
                }
            }
        }
        Ok(pinned.device + (address - pinned.address))
    }
}
