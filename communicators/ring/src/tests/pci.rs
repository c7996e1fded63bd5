//! The host side of a device's channel. The tests act as the guest on the same memory, with
//! eventfds in place of the device node.

use std::io::pipe;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use paragpu_communicator::conformance::{Factory, RawGuest};
use paragpu_communicator::{Connection, Error, Polling, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;

use super::Raw;
use crate::doorbell::{Doorbell, Event};
use crate::eventfd::{Bell, EventDoorbell, new_eventfd};
use crate::layout::{self, device};
use crate::pci::{HostChannel, IdleChannel, attach_host};
use crate::shm::{Options, Parts, map_framing, read_layout};
use crate::sys::region_unsafe::Base;

const CHANNEL: u32 = 70;
const OFFSET: u64 = 1 << 20;
const SIZE: u64 = 8 << 20;

/// A device with one channel in use.
struct Device {
    memory: OwnedFd,
    doorbell: OwnedFd,
    interrupt: OwnedFd,
    idle: Arc<IdleChannel>,
}

impl Device {
    fn new() -> Self {
        let memory = rustix::fs::memfd_create("device", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, OFFSET + SIZE + 4096).unwrap();
        let idle = IdleChannel::new(memory.try_clone().unwrap(), CHANNEL, OFFSET, SIZE).unwrap();
        idle.initialise(layout::MIN_RING_SIZE).unwrap();
        idle.set_state(device::STATE_OPEN);
        Self {
            memory,
            doorbell: new_eventfd().unwrap(),
            interrupt: new_eventfd().unwrap(),
            idle: Arc::new(idle),
        }
    }

    fn host(&self, options: Options) -> (Connection, std::io::PipeWriter) {
        let (liveness, alive) = pipe().unwrap();
        let host = HostChannel {
            memory: self.memory.try_clone().unwrap(),
            doorbell: self.doorbell.try_clone().unwrap(),
            interrupt: self.interrupt.try_clone().unwrap(),
            liveness: Some(liveness.into()),
            channel: CHANNEL,
            offset: OFFSET,
            size: SIZE,
        };
        (attach_host(host, options).unwrap(), alive)
    }

    fn guest(&self, options: Options, alive: std::io::PipeWriter) -> Connection {
        let layout = read_layout(self.memory.as_fd(), OFFSET, SIZE).unwrap();
        let mapping = map_framing(self.memory.as_fd(), OFFSET, &layout).unwrap();
        let bell = GuestBell {
            inner: EventDoorbell {
                ring: Bell::Eventfd(self.doorbell.try_clone().unwrap()),
                wait: Bell::Eventfd(self.interrupt.try_clone().unwrap()),
                interrupt: new_eventfd().unwrap(),
                liveness: None,
                slot: None,
            },
            idle: Arc::clone(&self.idle),
            _alive: alive,
        };
        let parts = Parts {
            base: Base::new(mapping, 0).unwrap(),
            layout,
            memory: self.memory.as_fd(),
            file_offset: OFFSET,
            side: crate::channel::Side::Guest,
            tenure: None,
        };
        parts.connect(Box::new(bell), options).unwrap()
    }
}

/// Stands in for the guest's kernel module.
struct GuestBell {
    inner: EventDoorbell,
    idle: Arc<IdleChannel>,
    _alive: std::io::PipeWriter,
}

impl Doorbell for GuestBell {
    fn ring(&self) -> Result<(), Error> {
        self.inner.ring()
    }

    fn wait(&self, deadline: Option<Instant>) -> Result<Event, Error> {
        let event = self.inner.wait(deadline)?;
        if event == Event::Rang && !self.peer_lives() {
            return Ok(Event::Gone);
        }
        Ok(event)
    }

    fn interrupt(&self) {
        self.inner.interrupt();
    }

    fn peer_lives(&self) -> bool {
        self.idle.state() == device::STATE_OPEN
    }
}

impl Drop for GuestBell {
    fn drop(&mut self) {
        // As the module does when the last user of the channel is gone.
        self.idle.set_state(device::STATE_CLOSED);
        self.inner.ring().unwrap();
    }
}

struct Pci {
    options: Options,
}

fn pci(spin: std::time::Duration) -> Pci {
    Pci {
        options: Options {
            polling: Polling { spin },
            window_address: None,
        },
    }
}

impl Factory for Pci {
    fn connect(&self) -> (Connection, Connection) {
        let device = Device::new();
        let (host, alive) = device.host(self.options);
        (device.guest(self.options, alive), host)
    }

    fn connect_raw(&self) -> (Box<dyn RawGuest>, Connection) {
        let device = Device::new();
        let (host, alive) = device.host(self.options);
        let layout = read_layout(device.memory.as_fd(), OFFSET, SIZE).unwrap();
        let mapping = map_framing(device.memory.as_fd(), OFFSET, &layout).unwrap();
        let region = Base::new(mapping, 0)
            .unwrap()
            .region(&layout, crate::channel::Side::Guest);
        let raw = Raw::on(region, device.doorbell, alive.into());
        (Box::new(raw), host)
    }
}

mod polling {
    use super::*;
    paragpu_communicator::conformance_tests!(pci(std::time::Duration::from_micros(50)));
}

mod sleeping {
    use super::*;
    paragpu_communicator::conformance_tests!(pci(std::time::Duration::ZERO));
}

/// The device process reads the first frame, and the worker continues with the next.
#[test]
fn a_channel_is_handed_over_in_the_middle_of_its_life() {
    let device = Device::new();
    let (_liveness, alive) = pipe().unwrap();
    let mut guest = device.guest(Options::default(), alive);
    assert!(device.idle.take_frame().unwrap().is_none());
    guest.sender.send(0x7f00, 1, Some(0), &[b"hello"]).unwrap();
    guest.sender.send(7, 2, None, &[b"more"]).unwrap();
    let (header, payload) = device.idle.take_frame().unwrap().unwrap();
    assert_eq!((header.kind, payload.as_slice()), (0x7f00, &b"hello"[..]));
    // It rang for the first frame.
    let mut count = [0; 8];
    rustix::io::read(&device.doorbell, &mut count).unwrap();

    let (mut host, _alive) = device.host(Options::default());
    let frame = host.receiver.receive(Wait::Forever).unwrap().unwrap();
    assert_eq!((frame.header.kind, frame.payload), (7, &b"more"[..]));
    host.sender.send(0x7f01, 1, None, &[b"welcome"]).unwrap();
    let frame = guest.receiver.receive(Wait::Forever).unwrap().unwrap();
    assert_eq!(frame.payload, b"welcome");
    let window = host.window.as_ref().unwrap();
    window.copy_in(100, b"bulk").unwrap();
    window.set_progress(1);
    let mut bulk = [0; 4];
    let window = guest.window.as_ref().unwrap();
    assert_eq!(window.progress(), 1);
    window.copy_out(100, &mut bulk).unwrap();
    assert_eq!(&bulk, b"bulk");
}

/// The interrupt's cause is in the pending words before it fires.
#[test]
fn an_interrupt_names_its_channel() {
    let device = Device::new();
    let (host, alive) = device.host(Options::default());
    let mut guest = device.guest(
        Options {
            polling: Polling::NONE,
            window_address: None,
        },
        alive,
    );
    std::thread::scope(|scope| {
        scope.spawn(|| host.sender.send(1, 1, None, &[]).unwrap());
        guest.receiver.receive(Wait::Forever).unwrap().unwrap();
    });
    host.sender.close();
    let mapping =
        crate::sys::mapping_unsafe::Mapping::new(device.memory.as_fd(), 0, 4096, None).unwrap();
    let header = Base::new(Arc::new(mapping), 0).unwrap();
    let word = device::PENDING + 8 * (CHANNEL as usize / 64);
    let pending = header.u64(word).load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(pending, 1 << (CHANNEL % 64));
    assert_eq!(device.idle.state(), device::STATE_CLOSED_BY_HOST);
}

/// The device process ends the session of a worker that died.
#[test]
fn a_dead_worker_is_reported_to_the_guest() {
    let device = Device::new();
    let (_liveness, alive) = pipe().unwrap();
    let mut guest = device.guest(Options::default(), alive);
    std::thread::scope(|scope| {
        scope.spawn(|| device.idle.end(&device.interrupt).unwrap());
        assert!(matches!(
            guest.receiver.receive(Wait::Forever),
            Err(Error::Closed)
        ));
    });
    assert_eq!(device.idle.state(), device::STATE_CLOSED_BY_HOST);
}

/// A header or indices that the guest has overwritten are refused.
#[test]
fn a_scribbled_channel_is_refused() {
    let offsets = [
        (layout::MAGIC, 1),
        (layout::VERSION, 0xffff_0000),
        (layout::REGION_SIZE, SIZE + 4096),
        (layout::TO_HOST_OFFSET, SIZE),
        (layout::TO_HOST_SIZE, 3 << 20),
        (layout::BULK_SIZE, u64::MAX),
        (layout::TO_HOST + layout::index::TAIL, 1),
        (layout::TO_HOST + layout::index::HEAD, 16),
        (layout::TO_GUEST + layout::index::TAIL, u64::MAX - 15),
    ];
    for (offset, value) in offsets {
        let device = Device::new();
        let mapping =
            crate::sys::mapping_unsafe::Mapping::new(device.memory.as_fd(), OFFSET, 4096, None)
                .unwrap();
        let header = Base::new(Arc::new(mapping), 0).unwrap();
        if offset == layout::VERSION || offset == layout::MAGIC {
            let value = u32::try_from(value).unwrap();
            header
                .u32(offset)
                .store(value, std::sync::atomic::Ordering::SeqCst);
        } else {
            header
                .u64(offset)
                .store(value, std::sync::atomic::Ordering::SeqCst);
        }
        let host = HostChannel {
            memory: device.memory,
            doorbell: device.doorbell,
            interrupt: device.interrupt,
            liveness: None,
            channel: CHANNEL,
            offset: OFFSET,
            size: SIZE,
        };
        let refused = attach_host(host, Options::default());
        assert!(
            matches!(refused, Err(Error::Protocol(_))),
            "{offset:#x}: {refused:?}"
        );
    }
}

/// A session may outlive its connection, and keeps the window.
#[test]
fn a_channel_is_kept_while_its_window_is_mapped() {
    let device = Device::new();
    let (host, alive) = device.host(Options::default());
    let is_kept = || {
        let mut fds = [PollFd::new(&alive, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 0
    };
    let window = host.window.clone().unwrap();
    drop(host);
    assert!(is_kept());
    drop(window);
    assert!(!is_kept());
}
