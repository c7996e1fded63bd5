//! The device's PCI configuration space, and the few bits of it that can be written (PCI
//! Local Bus Specification 3.0).

use super::wire::MAX_ACCESS;

/// Bytes of a conventional device's configuration space.
pub const SIZE: u64 = 256;

/// Bytes of BAR 0.
pub const REGISTERS_SIZE: u64 = 4096;

/// Offset of the command register.
const COMMAND: usize = 0x04;

/// In the command register: the device may access memory.
const BUS_MASTER: u8 = 1 << 2;

/// Offset of the MSI capability.
const MSI: usize = 0x40;

/// The configuration space of one instance of a device.
#[derive(Debug)]
pub struct ConfigSpace {
    bytes: [u8; SIZE as usize],
    /// The bits that a guest can change.
    writable: [u8; SIZE as usize],
    window_size: u64,
}

impl ConfigSpace {
    /// Creates it in the state after power-on. The window has `window_size` bytes, a power
    /// of two.
    #[must_use]
    pub fn new(window_size: u64) -> Self {
        let mut new = Self {
            bytes: [0; SIZE as usize],
            writable: [0; SIZE as usize],
            window_size,
        };
        new.reset();
        new
    }

    /// Resets it to the state after power-on.
    pub fn reset(&mut self) {
        self.bytes.fill(0);
        self.writable.fill(0);
        // The identity of an ivshmem device, as the guest's driver expects: vendor, device;
        // status with capabilities; revision and class (memory controller); subsystem.
        self.set(0x00, &0x1af4_u16.to_le_bytes(), &[]);
        self.set(0x02, &0x1110_u16.to_le_bytes(), &[]);
        // Command: memory, bus master, interrupt off.
        self.set(COMMAND, &[0; 2], &0x0406_u16.to_le_bytes());
        self.set(0x06, &0x0010_u16.to_le_bytes(), &[]);
        self.set(0x08, &[1, 0, 0, 0x05], &[]);
        // Cache line size and latency, which have no effect.
        self.set(0x0c, &[0; 2], &[0xff; 2]);
        // BAR 0: 32 bits. BAR 2: 64 bits, prefetchable.
        let low = |size: u64| !(size - 1);
        self.set(0x10, &[0; 4], &low(REGISTERS_SIZE).to_le_bytes()[..4]);
        self.set(
            0x18,
            &0x0c_u64.to_le_bytes(),
            &(low(self.window_size) & !0xf).to_le_bytes(),
        );
        self.set(0x2c, &0x1af4_u16.to_le_bytes(), &[]);
        self.set(0x2e, &0x1100_u16.to_le_bytes(), &[]);
        self.set(0x34, &[MSI as u8], &[]);
        // Interrupt line: a note for the firmware. No pin: the device has only MSI.
        self.set(0x3c, &[0], &[0xff]);
        // MSI: one vector, 64 bits, no mask; enable, address, data.
        self.set(MSI, &[0x05, 0x00], &[]);
        self.set(
            MSI + 2,
            &0x0080_u16.to_le_bytes(),
            &0x0001_u16.to_le_bytes(),
        );
        self.set(MSI + 4, &[0; 8], &(!3_u64).to_le_bytes());
        self.set(MSI + 12, &[0; 2], &[0xff; 2]);
    }

    /// Whether the guest allows the device to access its memory.
    #[must_use]
    pub fn is_bus_master(&self) -> bool {
        let command = self.bytes.get(COMMAND);
        command.is_some_and(|command| command & BUS_MASTER != 0)
    }

    fn set(&mut self, at: usize, value: &[u8], writable: &[u8]) {
        for (byte, value) in self.bytes.iter_mut().skip(at).zip(value) {
            *byte = *value;
        }
        for (byte, mask) in self.writable.iter_mut().skip(at).zip(writable) {
            *byte = *mask;
        }
    }

    /// Reads `count` bytes at `offset`; zeros outside the space.
    #[must_use]
    pub fn read(&self, offset: u64, count: usize) -> Vec<u8> {
        let mut read = vec![0; count.min(MAX_ACCESS)];
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (to, byte) in read.iter_mut().zip(self.bytes.iter().skip(from)) {
            *to = *byte;
        }
        read
    }

    /// Writes the writable bits of `bytes` at `offset`.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let places = self.bytes.iter_mut().zip(&self.writable).skip(from);
        for ((byte, mask), new) in places.zip(bytes) {
            *byte = *byte & !mask | new & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(space: &ConfigSpace, at: u64) -> u32 {
        u32::from_le_bytes(space.read(at, 4).try_into().unwrap())
    }

    #[test]
    fn bars_tell_their_size_when_sized() {
        let mut space = ConfigSpace::new(1 << 33);
        for at in [0x10, 0x14, 0x18, 0x1c, 0x20, 0x30] {
            space.write(at, &[0xff; 4]);
        }
        assert_eq!(word(&space, 0x10), !0xfff);
        assert_eq!(word(&space, 0x14), 0);
        assert_eq!(word(&space, 0x18), 0x0c);
        assert_eq!(word(&space, 0x1c), 0xffff_fffe);
        assert_eq!(word(&space, 0x20), 0);
        assert_eq!(word(&space, 0x30), 0, "no ROM");
    }

    #[test]
    fn there_is_msi_and_nothing_else() {
        let mut space = ConfigSpace::new(1 << 24);
        assert_eq!(word(&space, 0x00), 0x1110_1af4);
        assert_ne!(word(&space, 0x04) & 0x0010_0000, 0, "has capabilities");
        let at = u64::from(space.read(0x34, 1)[0]);
        assert_eq!(word(&space, at), 0x0080_0005, "64 bits, one vector, last");
        space.write(at + 2, &[0xff; 2]);
        assert_eq!(word(&space, at), 0x0081_0005);
        space.reset();
        assert_eq!(word(&space, at), 0x0080_0005);
    }

    #[test]
    fn what_lies_outside_is_zero_and_stays_so() {
        let mut space = ConfigSpace::new(1 << 24);
        space.write(254, &[0xff; 8]);
        space.write(u64::MAX, &[0xff; 8]);
        assert_eq!(space.read(254, 4), [0; 4]);
        assert_eq!(space.read(u64::MAX, 4), [0; 4]);
        assert_eq!(space.read(0, usize::MAX).len(), MAX_ACCESS);
    }
}
