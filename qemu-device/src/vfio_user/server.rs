//! The answers to a vfio-user client's commands: the device's registers, its window, its
//! interrupt.
//!
//! A register access immediately becomes a write to an eventfd, and the process that polls
//! it does the work. So the client, whose virtual processor is blocked meanwhile, waits
//! only for this code.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use paragpu_protocol::codec::{Field, decode_all, encode_all};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::{Errno, pread, pwrite};

use super::config_space::{self, ConfigSpace, REGISTERS_SIZE};
use super::connection::{Command, Reply};
use super::guest_memory::GuestMemory;
use super::wire::{
    self, Access, DEVICE_FLAGS, DeviceInfo, IRQ_EVENTFD, IrqInfo, IrqSet, MAPPABLE_AREA_SIZE,
    MAX_ACCESS, MappableArea, REGION_INFO_SIZE, RegionInfo, Version, capabilities, command, fields,
    irq_set_flags, pci, region_flags,
};
use crate::eventfd::EventFd;
use crate::guard::Guard;
use crate::layout::{Layout, PEER_GUEST, peer_of_channel, peer_of_control};

/// Registers in BAR 0.
mod register {
    /// Read only: the guest's peer number.
    pub const POSITION: u64 = 0x08;
    /// Write only: peer << 16 | vector.
    pub const DOORBELL: u64 = 0x0c;
}

/// Bytes of a [`DeviceInfo`] and of an [`IrqInfo`].
const STRUCTURE_SIZE: u32 = 16;

/// The parts of the device.
#[derive(Debug)]
pub struct DeviceEnds {
    /// The window.
    pub window: OwnedFd,
    /// Its division into channels.
    pub layout: Layout,
    /// The eventfds of the guest's doorbell, one for each channel.
    pub channels: Vec<EventFd>,
    /// The eventfd for the control peer.
    pub control: EventFd,
    /// The client's messages about the VM's memory.
    pub memory: Arc<Mutex<GuestMemory>>,
    /// What tells the guest that this process has ended.
    pub guard: Option<Arc<Guard>>,
}

/// One client's device.
#[derive(Debug)]
pub struct Server {
    ends: DeviceEnds,
    config: ConfigSpace,
    greeted: bool,
    /// Raises the guest's interrupt. The client passes it when the guest enables MSI.
    trigger: Option<EventFd>,
}

impl Server {
    /// A device in the state after power-on, before the client's first command.
    #[must_use]
    pub fn new(ends: DeviceEnds) -> Self {
        Self {
            config: ConfigSpace::new(ends.layout.window_size),
            ends,
            greeted: false,
            trigger: None,
        }
    }

    /// Raises the guest's interrupt, if it is enabled.
    pub fn interrupt(&self) {
        if let Some(trigger) = &self.trigger {
            trigger.ring();
        }
    }

    /// Gives the guard the guest's interrupt: nobody forwards the device's own to it once this
    /// process has ended.
    fn show_guard(&self) {
        let ends = &self.ends;
        if let Some((guard, trigger)) = ends.guard.as_ref().zip(self.trigger.as_ref()) {
            guard.hold(ends.window.as_fd(), ends.layout, trigger);
        }
    }

    /// Executes a command.
    ///
    /// # Errors
    /// The reply to an invalid command.
    pub fn carry_out(&mut self, command: Command<'_>) -> Result<Reply<'_>, Errno> {
        let payload = command.payload;
        let number = command.header.command;
        if self.greeted == (number == command::VERSION) {
            return Err(Errno::PROTO);
        }
        match number {
            command::VERSION => self.version(payload),
            command::DMA_MAP => self.dma_map(payload, command.descriptors),
            command::DMA_UNMAP => self.dma_unmap(payload),
            command::GET_INFO => Self::info(payload),
            command::GET_REGION_INFO => self.region_info(payload),
            command::GET_IRQ_INFO => Self::irq_info(payload),
            command::SET_IRQS => self.set_irqs(payload, command.descriptors),
            command::REGION_READ => self.read(payload),
            command::REGION_WRITE => self.write(payload),
            command::RESET => self.reset(),
            _ => Err(Errno::NOTSUP),
        }
    }

    /// Resets the device with its VM. The memory then belongs to what starts in the VM, so
    /// workers from before must not write there. Their sessions do not end here: after a
    /// suspend to memory the VM's programs continue, and copy through the window.
    fn reset(&mut self) -> Result<Reply<'static>, Errno> {
        self.config.reset();
        self.memory().cut_off()?;
        Ok(Reply::default())
    }

    fn version(&mut self, payload: &[u8]) -> Result<Reply<'_>, Errno> {
        // The client's capabilities are ignored, because nothing here depends on them.
        let (asked, _) = fields::<Version>(payload)?;
        if asked.major != wire::VERSION.major {
            return Err(Errno::NOTSUP);
        }
        self.greeted = true;
        let mut payload = encode_all(&Version {
            major: asked.major,
            minor: asked.minor.min(wire::VERSION.minor),
        });
        payload.extend_from_slice(&capabilities());
        Ok(payload.into())
    }

    fn memory(&self) -> MutexGuard<'_, GuestMemory> {
        let memory = &self.ends.memory;
        memory.lock()
    }

    fn dma_map(
        &self,
        payload: &[u8],
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Reply<'static>, Errno> {
        let file = descriptors.pop();
        if !descriptors.is_empty() {
            return Err(Errno::INVAL);
        }
        self.memory().map(&whole(payload)?, file)?;
        Ok(Reply::default())
    }

    fn dma_unmap(&self, payload: &[u8]) -> Result<Reply<'static>, Errno> {
        let (unmap, _) = fields(payload)?;
        self.memory().unmap(&unmap)?;
        Ok(reply(&unmap))
    }

    fn info(payload: &[u8]) -> Result<Reply<'static>, Errno> {
        let (asked, _) = fields::<DeviceInfo>(payload)?;
        if asked.argsz < STRUCTURE_SIZE {
            return Err(Errno::INVAL);
        }
        Ok(reply(&DeviceInfo {
            argsz: STRUCTURE_SIZE,
            flags: DEVICE_FLAGS,
            regions: pci::REGIONS,
            interrupts: pci::INTERRUPTS,
        }))
    }

    fn region_info(&self, payload: &[u8]) -> Result<Reply<'_>, Errno> {
        let (asked, _) = fields::<RegionInfo>(payload)?;
        if asked.argsz < REGION_INFO_SIZE || asked.index >= pci::REGIONS {
            return Err(Errno::INVAL);
        }
        let both = region_flags::READ | region_flags::WRITE;
        let (flags, size) = match asked.index {
            pci::BAR0 => (both, REGISTERS_SIZE),
            pci::BAR2 => (
                both | region_flags::MMAP | region_flags::CAPABILITIES,
                self.ends.layout.window_size,
            ),
            pci::CONFIG => (both, config_space::SIZE),
            _ => (0, 0),
        };
        let mut info = RegionInfo {
            argsz: REGION_INFO_SIZE,
            flags,
            index: asked.index,
            capabilities: 0,
            size,
            offset: 0,
        };
        if asked.index != pci::BAR2 {
            return Ok(reply(&info));
        }
        info.argsz = REGION_INFO_SIZE + MAPPABLE_AREA_SIZE;
        info.capabilities = REGION_INFO_SIZE;
        if asked.argsz < info.argsz {
            // The client has too little room for all of it, and will ask again.
            return Ok(reply(&info));
        }
        let mut payload = encode_all(&info);
        MappableArea {
            id: 1,
            version: 1,
            next: 0,
            count: 1,
            reserved: 0,
            offset: 0,
            size,
        }
        .encode(&mut payload);
        Ok(Reply {
            payload,
            descriptor: Some(self.ends.window.as_fd()),
        })
    }

    fn irq_info(payload: &[u8]) -> Result<Reply<'static>, Errno> {
        let (asked, _) = fields::<IrqInfo>(payload)?;
        if asked.argsz < STRUCTURE_SIZE || asked.index >= pci::INTERRUPTS {
            return Err(Errno::INVAL);
        }
        let is_msi = asked.index == pci::MSI;
        Ok(reply(&IrqInfo {
            argsz: STRUCTURE_SIZE,
            flags: if is_msi { IRQ_EVENTFD } else { 0 },
            index: asked.index,
            count: is_msi.into(),
        }))
    }

    fn set_irqs(
        &mut self,
        payload: &[u8],
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Reply<'_>, Errno> {
        let (set, _) = fields::<IrqSet>(payload)?;
        const OFF: u32 = irq_set_flags::DATA_NONE | irq_set_flags::ACTION_TRIGGER;
        const THROUGH: u32 = irq_set_flags::DATA_EVENTFD | irq_set_flags::ACTION_TRIGGER;
        match (set.index, set.flags, set.start, set.count) {
            (pci::MSI, OFF, 0, 0) => self.trigger = None,
            // Interrupts that the device lacks are always off.
            (0..pci::INTERRUPTS, OFF, 0, 0) => {}
            (pci::MSI, OFF, 0, 1) => self.interrupt(),
            (pci::MSI, THROUGH, 0, 1) if descriptors.len() <= 1 => {
                self.trigger = descriptors.pop().map(EventFd::adopt).transpose()?;
                self.show_guard();
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(Reply::default())
    }

    fn read(&self, payload: &[u8]) -> Result<Reply<'_>, Errno> {
        let access: Access = whole(payload)?;
        let count = self.check(&access)?;
        let mut payload = encode_all(&access);
        match access.region {
            pci::CONFIG => payload.extend(self.config.read(access.offset, count)),
            pci::BAR2 => {
                let start = payload.len();
                payload.resize(start + count, 0);
                let to = payload.get_mut(start..).unwrap_or_default();
                pread(&self.ends.window, to, access.offset)?;
            }
            _ => {
                let start = payload.len();
                payload.resize(start + count, 0);
                if access.offset == register::POSITION
                    && let Some(to) = payload.get_mut(start..start + 2)
                {
                    to.copy_from_slice(&PEER_GUEST.to_le_bytes());
                }
            }
        }
        Ok(payload.into())
    }

    fn write(&mut self, payload: &[u8]) -> Result<Reply<'_>, Errno> {
        let (access, bytes) = fields::<Access>(payload)?;
        let count = self.check(&access)?;
        if bytes.len() != count {
            return Err(Errno::INVAL);
        }
        match access.region {
            pci::CONFIG => {
                let may_copy = self.config.is_bus_master();
                self.config.write(access.offset, bytes);
                if may_copy && !self.config.is_bus_master() {
                    // As before kexec: another kernel is about to use the memory.
                    self.memory().cut_off()?;
                }
            }
            pci::BAR2 => {
                pwrite(&self.ends.window, bytes, access.offset)?;
            }
            _ => {
                if access.offset == register::DOORBELL
                    && let Ok(value) = decode_all::<u32>(bytes)
                {
                    self.ring(value);
                }
            }
        }
        Ok(reply(&access))
    }

    /// Handles a write to the doorbell register. Unknown peers and vectors are ignored, as
    /// by any ivshmem device.
    fn ring(&self, value: u32) {
        let [vector, peer] = [value as u16, (value >> 16) as u16];
        let count = self.ends.layout.channel_count;
        if vector != 0 || peer == PEER_GUEST {
            return;
        }
        if peer == peer_of_control(count) {
            self.ends.control.ring();
        } else if let Some(channel) = peer.checked_sub(peer_of_channel(0))
            && let Some(doorbell) = self.ends.channels.get(usize::from(channel))
        {
            doorbell.ring();
        }
    }

    /// Checks that an access is inside its region. Returns its number of bytes.
    fn check(&self, access: &Access) -> Result<usize, Errno> {
        let size = match access.region {
            pci::BAR0 => REGISTERS_SIZE,
            pci::BAR2 => self.ends.layout.window_size,
            pci::CONFIG => config_space::SIZE,
            _ => return Err(Errno::INVAL),
        };
        let count = usize::try_from(access.count).map_err(|_| Errno::INVAL)?;
        let end = access.offset.checked_add(access.count.into());
        if count > MAX_ACCESS || end.is_none_or(|end| end > size) {
            return Err(Errno::INVAL);
        }
        Ok(count)
    }
}

/// A reply that consists of one structure.
fn reply<'a, T: Field<'a>>(value: &T) -> Reply<'static> {
    encode_all(value).into()
}

/// Decodes a command that consists of one structure.
fn whole<'a, T: Field<'a>>(payload: &'a [u8]) -> Result<T, Errno> {
    decode_all(payload).map_err(|_| Errno::INVAL)
}

impl From<Vec<u8>> for Reply<'_> {
    fn from(payload: Vec<u8>) -> Self {
        Self {
            payload,
            descriptor: None,
        }
    }
}
