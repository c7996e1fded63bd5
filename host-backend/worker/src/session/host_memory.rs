//! Guest memory that the device can reach: pinned memory in the window, files that the
//! guest passed, and shadows, which are copies of other memory.
//!
//! If a session moves to a host that cannot access its window, or to a checkpoint, its
//! pinned memory becomes shadows at the same addresses. The guest has the contents when
//! it switches to the new connection, and sends them before any call is executed. So they
//! pass through no daemon, and no write of the program is lost. From then on the session is
//! like one that never had a window. It gets its next one at another offset of the region.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_communicator::Window;
use paragpu_protocol::codec::{Bytes, Field as _};
use paragpu_protocol::handle::ShadowAddress;
use paragpu_protocol::layout::{BULK_TOKEN_BYTES, Regions};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{HostMap, ShadowChanges, ShadowCreate, ShadowJoin};
use paragpu_protocol::types::{ChangedRun, ChangedRuns};

use super::gpu::Gpu;
use super::host_account::HostAccount;
use super::pages::GuestPages;
use super::shadow::{COPIES, PAGE, Shadow};
use super::shared_file::SharedFile;
use crate::error::{Fault, Outcome, SessionEnd, fail};
use crate::statistics::Statistics;
use crate::transfer::state::StateError;

/// How long a shadow that joins the window delays later calls, until the device is idle.
const JOINING: Duration = Duration::from_millis(100);

/// Why a call fails that needs a window.
const NO_WINDOW: &str = "the session has no window";

/// The location of pinned memory at a window's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Pinned {
    /// In the window that guest and worker share, or there is none.
    #[default]
    Window = 0,
    /// In the guest, which will send the contents. The memory here is zero.
    Guest = 1,
}

impl Pinned {
    /// Decodes its number in a session state.
    ///
    /// # Errors
    /// [`StateError::Order`] for an unknown number.
    pub fn of(number: u8) -> Result<Self, StateError> {
        Ok(match number {
            0 => Self::Window,
            1 => Self::Guest,
            _ => return Err(StateError::Order("pinned memory at an unknown location")),
        })
    }
}

/// What a reconnecting guest finds at the addresses of windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// The host has a window, which must be the guest's.
    pub window: bool,
    /// Shadows lack the guest's contents.
    pub wants_pinned: bool,
}

/// A window, at an offset of the region.
#[derive(Debug)]
struct Placed {
    window: Arc<Window>,
    offset: u64,
    /// The number of calls received when it came with a connection. As long as there are no more,
    /// the guest may not know it.
    since: Option<u64>,
}

impl Placed {
    /// The place in the window of `size` bytes at `offset` of the region.
    ///
    /// # Errors
    /// `INVALID_VALUE` if they are not pages that the window has for pinned memory.
    fn pages(&self, offset: u64, size: u64) -> Outcome<u64> {
        let whole = size != 0 && (offset | size).is_multiple_of(PAGE);
        let inside = offset
            .checked_sub(self.offset)
            .filter(|inside| *inside >= BULK_TOKEN_BYTES && whole);
        let end = inside.and_then(|inside| inside.checked_add(size));
        match inside.filter(|_| end.is_some_and(|end| end <= self.window.len())) {
            Some(inside) => Ok(inside),
            None => fail(
                Status::INVALID_VALUE,
                format!("{size} bytes at offset {offset:#x} are not pages of the window"),
            ),
        }
    }

    /// The device's address of a pinned range.
    fn address_of(&self, offset: u64) -> u64 {
        self.window.address() + (offset - self.offset)
    }
}

/// The host memory of a session.
#[derive(Debug)]
pub(crate) struct HostMemory {
    regions: Regions,
    window: Option<Placed>,
    /// Pinned ranges of the window: offset in the region, and size.
    pins: BTreeMap<u64, u64>,
    /// The location of pinned memory at the window's addresses.
    pinned: Pinned,
    shadows: BTreeMap<u64, Shadow>,
    /// Since when a shadow waits to join the window.
    joining: Option<Instant>,
    /// Registered memory in the same region as the shadows.
    files: BTreeMap<u64, SharedFile>,
    account: Arc<HostAccount>,
    /// The VM's memory and the page lists of the session's channel.
    pages: GuestPages,
    statistics: Arc<Statistics>,
}

impl HostMemory {
    /// Charges shadows to `account`.
    pub(crate) fn new(
        regions: Regions,
        window: Option<Arc<Window>>,
        account: Arc<HostAccount>,
        statistics: Arc<Statistics>,
    ) -> Self {
        Self {
            regions,
            window: window.map(|window| Placed {
                window,
                offset: 0,
                since: None,
            }),
            pins: BTreeMap::new(),
            pinned: Pinned::default(),
            shadows: BTreeMap::new(),
            joining: None,
            files: BTreeMap::new(),
            account,
            pages: GuestPages::default(),
            statistics,
        }
    }

    /// VM memory that the host can access.
    pub(crate) fn pages(&mut self) -> &mut GuestPages {
        &mut self.pages
    }

    /// Whether it is an address of host memory.
    pub(crate) fn holds(&self, address: u64) -> bool {
        Regions::hold_host_memory(address, 0)
    }

    // The window, and where pinned memory is.

    /// The window that guest and worker share.
    pub(crate) fn window(&self) -> Option<&Arc<Window>> {
        self.window.as_ref().map(|placed| &placed.window)
    }

    /// Adopts a window at an offset of the region. `since`: the number of calls received, if the
    /// guest may not know it.
    pub(crate) fn adopt_window(&mut self, window: &Arc<Window>, offset: u64, since: Option<u64>) {
        let window = Arc::clone(window);
        self.window = Some(Placed {
            window,
            offset,
            since,
        });
    }

    /// Forgets a window that came with a connection which broke before its welcome: the guest,
    /// which reconnects after `received` calls, has none or another one. Returns whether it did.
    pub(crate) fn forget_window(&mut self, received: u64, guest: Option<u64>) -> bool {
        let is_unknown =
            |placed: &mut Placed| placed.since == Some(received) && guest != Some(placed.offset);
        self.window.take_if(is_unknown).is_some()
    }

    /// The location of pinned memory.
    pub(crate) fn pinned(&self) -> Pinned {
        self.pinned
    }

    pub(crate) fn set_pinned(&mut self, pinned: Pinned) {
        self.pinned = pinned;
    }

    /// What a reconnecting guest finds.
    pub(crate) fn sharing(&self) -> Sharing {
        Sharing {
            window: self.window.is_some(),
            wants_pinned: self.pinned == Pinned::Guest,
        }
    }

    /// The location of pinned memory once the session has left its window.
    pub(crate) fn pinned_without_window(&self) -> Pinned {
        match self.window {
            Some(_) => Pinned::Guest,
            None => self.pinned,
        }
    }

    /// The shadow that replaces memory pinned at `offset`, once the session has left its window.
    pub(crate) fn shadow_of_pin(&self, offset: u64) -> ShadowAddress {
        ShadowAddress(self.regions.window.saturating_add(offset))
    }

    /// Pins a range of the window.
    pub(crate) fn host_map(&mut self, gpu: &mut Gpu, call: &HostMap) -> Outcome<()> {
        let (offset, size) = (call.offset.0, call.size);
        let Some(window) = &self.window else {
            return fail(Status::NOT_SUPPORTED, NO_WINDOW);
        };
        window.pages(offset, size)?;
        let before = self.pins.range(..offset + size).next_back();
        if before.is_some_and(|(start, size)| start + size > offset) {
            return fail(
                Status::HOST_MEMORY_ALREADY_REGISTERED,
                format!("{size} bytes at offset {offset:#x} are pinned already"),
            );
        }
        gpu.host_register(window.address_of(offset), size)?;
        self.pins.insert(offset, size);
        Ok(())
    }

    /// Whether pinned memory of the window starts at `offset`.
    pub(crate) fn is_pinned(&self, offset: u64) -> bool {
        self.pins.contains_key(&offset)
    }

    /// Removes a pinned range, which the device keeps for now.
    pub(crate) fn forget_pin(&mut self, offset: u64) {
        self.pins.remove(&offset);
    }

    /// Unregisters the range pinned at `offset`, which no work in flight uses.
    pub(crate) fn unpin(&self, gpu: &mut Gpu, offset: u64) -> Outcome<()> {
        match &self.window {
            Some(window) => Ok(gpu.host_unregister(window.address_of(offset))?),
            None => fail(Status::NOT_SUPPORTED, NO_WINDOW),
        }
    }

    // Shadows.

    /// Checks that a range consists of pages for host memory, of whatever device. The kernel
    /// refuses those of the window, which are mapped already.
    fn check_range(address: u64, size: u64) -> Outcome<()> {
        let inside = Regions::hold_host_memory(address, size);
        if size == 0 || !(address | size).is_multiple_of(PAGE) || !inside {
            return fail(
                Status::INVALID_VALUE,
                format!("{size} bytes at {address:#x} are not pages for host memory"),
            );
        }
        Ok(())
    }

    /// Checks that neither a shadow nor a file overlaps a range.
    fn check_free(&self, address: u64, size: u64) -> Outcome<()> {
        let end = address + size;
        let shadow = self.shadows.range(..end).next_back();
        let file = self.files.range(..end).next_back();
        let shadow = shadow.is_some_and(|(_, shadow)| shadow.end() > address);
        if shadow || file.is_some_and(|(_, file)| file.end() > address) {
            return fail(
                Status::HOST_MEMORY_ALREADY_REGISTERED,
                format!("{size} bytes at {address:#x} overlap other registered memory"),
            );
        }
        Ok(())
    }

    /// Creates a shadow at the guest's request.
    pub(crate) fn shadow_create(&mut self, gpu: &mut Gpu, call: &ShadowCreate) -> Outcome<()> {
        let (address, size) = (call.address.0, call.size);
        Self::check_range(address, size)?;
        self.check_free(address, size)?;
        let held = self.account.take(size.saturating_mul(COPIES))?;
        let shadow = match Shadow::at(address, size, held) {
            Ok(shadow) => shadow,
            Err(errno) => {
                return fail(
                    Status::OUT_OF_MEMORY,
                    format!("the host cannot map {size} bytes at {address:#x}: {errno}"),
                );
            }
        };
        gpu.host_register(address, size)?;
        self.shadows.insert(address, shadow);
        self.statistics.shadow_memory.add(size);
        Ok(())
    }

    /// Checks that a shadow starts at `address`.
    pub(crate) fn check_shadow(&self, address: u64) -> Outcome<()> {
        match self.shadows.contains_key(&address) {
            true => Ok(()),
            false => fail(
                Status::HOST_MEMORY_NOT_REGISTERED,
                format!("no shadow starts at {address:#x}"),
            ),
        }
    }

    /// Drops a shadow that no work in flight uses. If the device fails to
    /// unregister it, it stays mapped.
    pub(crate) fn drop_shadow(&mut self, gpu: &mut Gpu, address: u64) -> Outcome<()> {
        self.check_shadow(address)?;
        gpu.host_unregister(address)?;
        if let Some(shadow) = self.shadows.remove(&address)
            && !shadow.is_joined()
        {
            self.uncount(shadow.len());
        }
        Ok(())
    }

    fn uncount(&self, size: u64) {
        let rest = self.statistics.shadow_memory.get().saturating_sub(size);
        self.statistics.shadow_memory.set(rest);
    }

    // Shadows that become parts of the window.

    /// Whether a shadow must wait until the device is `idle`, before it can join the window.
    ///
    /// # Errors
    /// Stalls the call for a while, then `NOT_READY`.
    pub(crate) fn await_joining(&mut self, idle: bool) -> Outcome<()> {
        if idle {
            self.joining = None;
            return Ok(());
        }
        let since = *self.joining.get_or_insert_with(Instant::now);
        if since.elapsed() < JOINING {
            return Err(Fault::Stall);
        }
        self.joining = None;
        fail(Status::NOT_READY, "the device is not idle")
    }

    /// Replaces a shadow by pages of the window. The device must be idle. `merges`: those
    /// get what the device changed in the shadow.
    pub(crate) fn join(&mut self, gpu: &mut Gpu, call: &ShadowJoin, merges: bool) -> Outcome<()> {
        let (address, offset) = (call.address.0, call.offset.0);
        self.check_shadow(address)?;
        let (Some(window), Some(shadow)) = (&self.window, self.shadows.get_mut(&address)) else {
            return fail(Status::NOT_SUPPORTED, NO_WINDOW);
        };
        let size = shadow.len();
        let inside = window.pages(offset, size)?;
        if shadow.is_joined() {
            return fail(
                Status::HOST_MEMORY_ALREADY_REGISTERED,
                format!("the shadow at {address:#x} is a part of the window already"),
            );
        }
        gpu.host_unregister(address)?;
        if merges {
            shadow.merge_into(&window.window, inside);
        }
        if let Err(errno) = shadow.join(&window.window, inside) {
            let why = format!("pages of the window cannot be mapped at {address:#x}: {errno}");
            return Err(Fault::End(SessionEnd::Lost(why)));
        }
        self.uncount(size);
        Ok(gpu.host_register(address, size)?)
    }

    /// Fills a shadow with zeros: what it contains was sent before it became a part of the window
    /// that the session has left.
    pub(crate) fn clear_shadow(&self, address: ShadowAddress) {
        if let Some(shadow) = self.shadows.get(&address.0) {
            shadow.clear();
        }
    }

    // Registered files.

    /// Maps `size` bytes of a file from `offset`, and registers them.
    pub(crate) fn map_file(
        &mut self,
        gpu: &mut Gpu,
        address: u64,
        size: u64,
        file: impl AsFd,
        offset: u64,
    ) -> Outcome<()> {
        Self::check_range(address, size)?;
        self.check_free(address, size)?;
        let held = self.account.take(size)?;
        let mapped = SharedFile::map(address, size, file, offset, held)?;
        gpu.host_register(address, size)?;
        self.files.insert(address, mapped);
        Ok(())
    }

    /// Checks that a file is mapped from `address` on.
    pub(crate) fn check_file(&self, address: u64) -> Outcome<()> {
        match self.files.contains_key(&address) {
            true => Ok(()),
            false => fail(
                Status::HOST_MEMORY_NOT_REGISTERED,
                format!("no file is mapped at {address:#x}"),
            ),
        }
    }

    /// Unmaps a file that no work uses any more. If the device fails to unregister it, it
    /// stays mapped.
    pub(crate) fn unmap_file(&mut self, gpu: &mut Gpu, address: u64) -> Outcome<()> {
        self.check_file(address)?;
        gpu.host_unregister(address)?;
        self.files.remove(&address);
        Ok(())
    }

    /// Why the session cannot move.
    pub(crate) fn move_blocker(&self) -> Option<String> {
        let count = self.files.len();
        (count != 0).then(|| {
            format!(
                "the session shares {count} registered ranges of mapped files with its program: \
                 it can move once they are unregistered"
            )
        })
    }

    /// The shadows outside the window: address and size.
    pub(crate) fn shadows(&self) -> impl Iterator<Item = (u64, u64)> {
        self.shadows
            .iter()
            .filter(|(_, shadow)| !shadow.is_joined())
            .map(|(address, shadow)| (*address, shadow.len()))
    }

    /// The shadow that holds a whole range, and the range's offset in it.
    fn shadow_of(&self, address: u64, size: u64) -> Outcome<(&Shadow, u64)> {
        let end = address.checked_add(size);
        let found = self.shadows.range(..=address).next_back();
        match found {
            Some((start, shadow)) if end.is_some_and(|end| end <= shadow.end()) => {
                Ok((shadow, address - start))
            }
            _ => fail(
                Status::INVALID_VALUE,
                format!("{size} bytes at {address:#x} are not inside a shadow"),
            ),
        }
    }

    /// Writes bytes of the guest.
    pub(crate) fn write_shadow(&self, address: u64, bytes: &[u8]) -> Outcome<()> {
        let (shadow, offset) = self.shadow_of(address, bytes.len() as u64)?;
        let written = shadow.write(offset, bytes);
        self.statistics.bytes_to_device.add(bytes.len() as u64);
        match written {
            true => Ok(()),
            false => fail(Status::INVALID_VALUE, "outside the shadow"),
        }
    }

    /// Calls a function with each run of pages that the device changed since both
    /// sides last agreed: offset in the range, and bytes.
    pub(crate) fn read_shadow<E>(
        &self,
        address: u64,
        size: u64,
        mut changed: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Outcome<()>
    where
        crate::error::Fault: From<E>,
    {
        let (shadow, from) = self.shadow_of(address, size)?;
        if !(address | size).is_multiple_of(PAGE) {
            return fail(Status::INVALID_VALUE, "a shadow is read by pages");
        }
        Ok(shadow.refresh(from, size, |offset, bytes| changed(offset - from, bytes))?)
    }

    /// What the device changed in these pages since both sides last agreed. `runs` is empty.
    pub(crate) fn changes<'a>(
        &self,
        ranges: &[(u64, u64)],
        runs: &'a mut Vec<u8>,
    ) -> Outcome<ChangedRuns<'a>> {
        for &(address, size) in ranges {
            let (shadow, from) = self.shadow_of(address, size)?;
            let are_few = shadow.changes(from, size, |offset, bytes| {
                let run = ChangedRun {
                    address: address + (offset - from),
                    bytes: Bytes(bytes),
                };
                let tail = run.encode(runs);
                runs.extend_from_slice(tail);
                runs.len() <= ShadowChanges::MOST_BYTES
            });
            if !are_few {
                return Ok(ChangedRuns {
                    complete: false,
                    runs: Bytes(&[]),
                });
            }
        }
        self.statistics.bytes_from_device.add(runs.len() as u64);
        Ok(ChangedRuns {
            complete: true,
            runs: Bytes(runs),
        })
    }

    /// Records that both sides agree on bytes of a shadow.
    pub(crate) fn agree(&self, address: u64, bytes: &[u8]) -> Outcome<()> {
        let (shadow, offset) = self.shadow_of(address, bytes.len() as u64)?;
        match shadow.is_joined() || shadow.set_agreed(offset, bytes) {
            true => Ok(()),
            false => fail(Status::INVALID_VALUE, "outside the shadow"),
        }
    }

    /// The last agreed bytes of a shadow, for a session that moves.
    pub(crate) fn agreed(&self, address: u64, offset: u64, size: u64) -> Result<&[u8], StateError> {
        let shadow = self.shadows.get(&address);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        shadow
            .map(|shadow| shadow.agreed(offset, size))
            .filter(|bytes| bytes.len() == size)
            .ok_or(StateError::Order(
                "contents of a shadow that does not exist",
            ))
    }

    /// Sets the last agreed bytes of a shadow, for a session that arrived.
    pub(crate) fn set_agreed(
        &mut self,
        address: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StateError> {
        let shadow = self.shadows.get(&address);
        match shadow.map(|shadow| shadow.set_agreed(offset, bytes)) {
            Some(true) => Ok(()),
            _ => Err(StateError::Order(
                "contents of a shadow that does not exist",
            )),
        }
    }
}
