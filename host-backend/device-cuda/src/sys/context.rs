//! One context of the driver.
//!
//! Every function of [`Context`] is safe to call: objects exist as long as their
//! references ([`super::resources`]), and addresses are [`super::Span`]s.
//!
//! Kernel parameters are the exception, which the hardware guards: they may be any
//! bytes. An access to an address that is not mapped in this process's context ends in
//! `CUDA_ERROR_ILLEGAL_ADDRESS`.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paragpu_abi::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
};
use paragpu_device::{Error, Result};
use paragpu_protocol::status::Status;

use super::driver::{Driver, check};
use crate::doubt::Doubt;

/// The primary context of one device, current in the thread that created it, and a
/// reservation of its address space.
pub struct Context {
    pub(super) driver: Arc<Driver>,
    /// The CUcontext.
    pub(super) raw: usize,
    pub(super) device: c_int,
    arena_size: u64,
    reserved: Mutex<Reserved>,
    pub(super) doubt: Doubt,
}

/// Reserved ranges of the address space.
#[derive(Default)]
struct Reserved {
    /// 0 for none.
    arena: u64,
    /// Those of other devices.
    peer_arenas: Vec<u64>,
}

impl Context {
    /// Retains the primary context, makes it current, and reserves the arena.
    pub fn new(driver: Arc<Driver>, device: c_int, arena: u64, arena_size: u64) -> Result<Self> {
        let mut context = ptr::null_mut();
        // SAFETY: out-parameter of the right type; `device` was returned by cuDeviceGet.
        check(unsafe { (driver.cuDevicePrimaryCtxRetain)(&mut context, device) })?;
        let made = Self {
            driver,
            raw: context as usize,
            device,
            arena_size,
            reserved: Mutex::default(),
            doubt: Doubt::default(),
        };
        // SAFETY: the context was just retained.
        check(unsafe { (made.driver.cuCtxSetCurrent)(context) })?;
        made.reserve_arena(arena)?;
        Ok(made)
    }

    /// Reserves the arena at an address. Frees the previous reservation, in which nothing is
    /// mapped.
    pub fn reserve_arena(&self, arena: u64) -> Result<()> {
        let mut reserved = self.reserved();
        let before = std::mem::take(&mut reserved.arena);
        self.free(before);
        self.reserve(arena)?;
        reserved.arena = arena;
        Ok(())
    }

    /// Reserves the arena of another device, permanently. The driver honors the address of
    /// a range of this size, but not of a single mapping in it.
    pub fn reserve_peer_arena(&self, arena: u64) -> Result<()> {
        let mut reserved = self.reserved();
        if !reserved.peer_arenas.contains(&arena) {
            self.reserve(arena)?;
            reserved.peer_arenas.push(arena);
        }
        Ok(())
    }

    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&self, arena: u64) -> Result<()> {
        let (mut address, size) = (0, self.arena_size as usize);
        // SAFETY: out-parameter of the right type; the hint may be any address.
        check(unsafe { (self.driver.cuMemAddressReserve)(&mut address, size, 0, arena, 0) })?;
        if address != arena {
            self.free(address);
            return Err(Error::new(
                Status::OUT_OF_MEMORY,
                format!("the driver reserved {address:#x} instead of {arena:#x}"),
            ));
        }
        Ok(())
    }

    /// Frees a reservation; 0 means none.
    fn free(&self, arena: u64) {
        if arena != 0 {
            // SAFETY: it was reserved, and nothing is mapped there; a failure leaves
            // nothing to undo.
            unsafe { (self.driver.cuMemAddressFree)(arena, self.arena_size as usize) };
        }
    }

    /// cuDeviceGetUuid.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        self.driver.uuid(self.device)
    }

    /// The device's compute capability, times ten.
    pub fn architecture(&self) -> Option<u32> {
        let [major, minor] = [
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        ]
        .map(|attribute| self.driver.attribute(self.device, attribute as c_int));
        u32::try_from(major? * 10 + minor?).ok()
    }

    /// cuDeviceGetP2PAttribute, 1 to 5, of access to the device with a UUID; 0 for an
    /// attribute that the driver does not report.
    pub fn peer_attributes(&self, uuid: &[u8; 16]) -> [i32; 5] {
        let devices = self.driver.devices().unwrap_or_default();
        let is_it = |device: &c_int| self.driver.uuid(*device).is_ok_and(|own| own == *uuid);
        let found = devices.into_iter().find(is_it);
        match found.filter(|device| *device != self.device) {
            Some(peer) => self.driver.peer_attributes(self.device, peer),
            None => [0; 5],
        }
    }

    /// Makes it the calling thread's current context, if it is not.
    pub fn make_current(&self) -> Result<()> {
        thread_local! {
            static CURRENT: Cell<usize> = const { Cell::new(0) };
        }
        if CURRENT.get() != self.raw {
            // SAFETY: the context is retained for as long as this value lives.
            check(unsafe { (self.driver.cuCtxSetCurrent)(self.raw as *mut c_void) })?;
            CURRENT.set(self.raw);
        }
        Ok(())
    }

    /// cuCtxSynchronize.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: no arguments.
        check(unsafe { (self.driver.cuCtxSynchronize)() })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nothing of this context is used any more; failures leave
        // nothing to undo.
        unsafe { (self.driver.cuCtxSynchronize)() };
        let Reserved { arena, peer_arenas } = std::mem::take(&mut *self.reserved());
        self.free(arena);
        for arena in peer_arenas {
            self.free(arena);
        }
        // SAFETY: as above.
        unsafe { (self.driver.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}
