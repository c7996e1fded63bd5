//! The device node of the guest's kernel module, `/dev/paragpu0`.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use paragpu_communicator::{Error, Pinner, poll_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, Setter, Updater, ioctl, opcode};

use crate::doorbell::{Doorbell, Event};
use crate::eventfd::{WAIT, signal};
use crate::layout::list;

/// `struct paragpu_info` of the kernel module.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Info {
    /// Layout version of the device, major << 16 | minor.
    pub(crate) version: u32,
    /// Number of the channel assigned to this open file.
    pub(crate) channel: u32,
    /// Its size in bytes.
    pub(crate) channel_size: u64,
    /// The device's generation when it was opened.
    pub(crate) generation: u32,
    /// Always 0.
    pub(crate) reserved: u32,
}

/// `struct paragpu_pin_request`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct PinRequest {
    address: u64,
    length: u64,
    flags: u32,
    list: u32,
}

const INFO: Opcode = opcode::read::<Info>(b'P', 0x01);
const DOORBELL: Opcode = opcode::none(b'P', 0x02);
const ACK: Opcode = opcode::none(b'P', 0x03);
const FADE: Opcode = opcode::write::<u64>(b'P', 0x04);
const PIN: Opcode = opcode::read_write::<PinRequest>(b'P', 0x05);
const UNPIN: Opcode = opcode::write::<u32>(b'P', 0x06);

/// Returns the kernel module's information about the channel of an open node.
pub(crate) fn info(node: &OwnedFd) -> Result<Info, Error> {
    // SAFETY: PARAGPU_IOC_INFO writes one struct paragpu_info.
    unsafe { ioctl(node, Getter::<INFO, Info>::new()) }
        .map_err(|errno| Error::io("the device node does not answer PARAGPU_IOC_INFO", errno))
}

/// Asks that the first `bytes` of the channel read as zeros, instead of keeping their
/// contents, once the device is gone. Older kernel modules lack this call and are not
/// asked.
pub(crate) fn fade(node: &OwnedFd, bytes: u64) -> Result<(), Error> {
    // SAFETY: PARAGPU_IOC_FADE reads one __u64.
    match unsafe { ioctl(node, Setter::<FADE, u64>::new(bytes)) } {
        Ok(()) | Err(Errno::NOTTY) => Ok(()),
        Err(errno) => Err(Error::io("the device node refuses PARAGPU_IOC_FADE", errno)),
    }
}

/// Pins memory of this process through the device.
#[derive(Debug)]
pub(crate) struct NodePinner(Arc<OwnedFd>);

impl NodePinner {
    /// Returns `None` if the host cannot access the guest's memory.
    pub(crate) fn new(node: Arc<OwnedFd>) -> Option<Self> {
        let pinner = Self(node);
        // Probes with an empty request, which is refused with EINVAL only if pinning is
        // supported.
        match pinner.request(0, 0, false) {
            Err(Errno::INVAL) => Some(pinner),
            _ => None,
        }
    }

    fn request(&self, address: u64, length: u64, writable: bool) -> Result<u32, Errno> {
        let mut request = PinRequest {
            address,
            length,
            flags: if writable { list::WRITABLE } else { 0 },
            list: 0,
        };
        // SAFETY: PARAGPU_IOC_PIN reads and writes one struct paragpu_pin_request, and pins
        // memory that the caller owns.
        unsafe { ioctl(&*self.0, Updater::<PIN, PinRequest>::new(&mut request)) }?;
        Ok(request.list)
    }
}

impl Pinner for NodePinner {
    fn most(&self) -> u64 {
        list::PIN_MAX
    }

    fn pin(&self, address: u64, length: u64, writable: bool) -> Option<u32> {
        self.request(address, length, writable).ok()
    }

    fn unpin(&self, list: u32) {
        // SAFETY: PARAGPU_IOC_UNPIN reads one number. If it fails, the kernel module unpins
        // the memory when the channel closes.
        let _ = unsafe { ioctl(&*self.0, Setter::<UNPIN, u32>::new(list)) };
    }
}

/// The guest's doorbells through the device.
#[derive(Debug)]
pub(crate) struct NodeDoorbell {
    pub(crate) node: Arc<OwnedFd>,
    pub(crate) interrupt: OwnedFd,
}

/// Converts an error; [`Error::Closed`] if the device is gone.
fn device_error(context: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::NODEV | Errno::PIPE | Errno::NXIO | Errno::CONNRESET => Error::Closed,
        errno => Error::io(context, errno),
    }
}

const HANGUP: PollFlags = PollFlags::HUP.union(PollFlags::ERR).union(PollFlags::NVAL);

impl Doorbell for NodeDoorbell {
    fn ring(&self) -> Result<(), Error> {
        // SAFETY: PARAGPU_IOC_DOORBELL takes no argument.
        unsafe { ioctl(&*self.node, NoArg::<DOORBELL>::new()) }
            .map_err(|errno| device_error("the device refuses PARAGPU_IOC_DOORBELL", errno))
    }

    fn wait(&self, deadline: Option<Instant>) -> Result<Event, Error> {
        let mut fds = [
            PollFd::new(&*self.node, PollFlags::IN),
            PollFd::new(&self.interrupt, PollFlags::IN),
        ];
        if !poll_until(&mut fds, deadline, WAIT)? {
            return Ok(Event::Deadline);
        }
        let [node, interrupt] = fds.each_ref().map(PollFd::revents);
        if interrupt.contains(PollFlags::IN) {
            let mut count = [0; 8];
            // Only this thread reads it. A failed read leaves it set, and the next wait
            // returns at once.
            let _ = rustix::io::read(&self.interrupt, &mut count);
        }
        if node.intersects(HANGUP) {
            return Ok(Event::Gone);
        }
        if node.contains(PollFlags::IN) {
            // SAFETY: PARAGPU_IOC_ACK takes no argument.
            let acknowledged = unsafe { ioctl(&*self.node, NoArg::<ACK>::new()) };
            match acknowledged
                .map_err(|errno| device_error("the device refuses PARAGPU_IOC_ACK", errno))
            {
                Err(Error::Closed) => return Ok(Event::Gone),
                other => other?,
            }
        }
        Ok(Event::Rang)
    }

    fn interrupt(&self) {
        let _ = signal(self.interrupt.as_fd());
    }

    fn peer_lives(&self) -> bool {
        let mut fds = [PollFd::new(&*self.node, PollFlags::empty())];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let polled = poll(&mut fds, Some(&now));
        let [node] = fds;
        !(polled.is_ok() && node.revents().intersects(HANGUP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_header() {
        assert_eq!(size_of::<Info>(), 24);
        // _IOR('P', 0x01, 24 bytes), _IO('P', 0x02), _IO('P', 0x03),
        // _IOW('P', 0x04, 8 bytes).
        assert_eq!(INFO, 0x8018_5001);
        assert_eq!(DOORBELL, 0x5002);
        assert_eq!(ACK, 0x5003);
        assert_eq!(FADE, 0x4008_5004);
        // _IOWR('P', 0x05, 24 bytes), _IOW('P', 0x06, 4 bytes).
        assert_eq!(PIN, 0xc018_5005);
        assert_eq!(UNPIN, 0x4004_5006);
    }
}
