//! The conformance suite over shared memory and over a device's channel.

mod guest_memory;
mod pci;
mod properties;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use paragpu_communicator::conformance::{Factory, RawGuest};
use paragpu_communicator::{Connection, Error, Polling, Wait};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::channel::{Region, Side};
use crate::eventfd::signal;
use crate::layout::{self, record_size};
use crate::ring::Ring;
use crate::shm::{self, GuestEnds, Options};
use crate::sys::region_unsafe::{Base, MappedRegion};

const REGION: u64 = 16 << 20;

struct Shm {
    options: Options,
}

fn shm(spin: Duration) -> Shm {
    Shm {
        options: Options {
            polling: Polling { spin },
            window_address: None,
        },
    }
}

fn ends(options: Options) -> (Connection, GuestEnds, OwnedFd) {
    let (guest, host) = UnixStream::pair().unwrap();
    let (host, ends, _) = shm::create(REGION, layout::MIN_RING_SIZE, host.into(), options).unwrap();
    (host, ends, guest.into())
}

impl Factory for Shm {
    fn connect(&self) -> (Connection, Connection) {
        let (host, ends, liveness) = ends(self.options);
        let guest = shm::attach(ends, liveness, self.options).unwrap();
        (guest, host)
    }

    fn connect_raw(&self) -> (Box<dyn RawGuest>, Connection) {
        let (host, ends, liveness) = ends(self.options);
        (Box::new(Raw::new(ends, liveness)), host)
    }
}

/// A guest that writes arbitrary records.
struct Raw {
    region: MappedRegion,
    bell: OwnedFd,
    tail: u64,
    _liveness: OwnedFd,
}

impl Raw {
    fn new(ends: GuestEnds, liveness: OwnedFd) -> Self {
        let layout = shm::read_layout(ends.memory.as_fd(), 0, REGION).unwrap();
        let mapping = shm::map_framing(ends.memory.as_fd(), 0, &layout).unwrap();
        let region = Base::new(mapping, 0).unwrap().region(&layout, Side::Guest);
        Self::on(region, ends.host_bell, liveness)
    }

    fn on(region: MappedRegion, bell: OwnedFd, liveness: OwnedFd) -> Self {
        Self {
            region,
            bell,
            tail: 0,
            _liveness: liveness,
        }
    }
}

impl RawGuest for Raw {
    fn write(&mut self, header: [u8; 16], payload: &[u8]) {
        let ring = self.region.outgoing();
        ring.write(self.tail, &header);
        ring.write(self.tail + 16, payload);
        self.tail += record_size(payload.len());
        ring.tail().store(self.tail, Ordering::SeqCst);
        signal(self.bell.as_fd()).unwrap();
    }

    fn die(self: Box<Self>) {}
}

mod shm_polling {
    use super::*;
    paragpu_communicator::conformance_tests!(shm(Duration::from_micros(50)));
}

mod shm_sleeping {
    use super::*;
    paragpu_communicator::conformance_tests!(shm(Duration::ZERO));
}

/// A receiver may hand over before it has found the ring empty.
#[test]
fn a_receiver_that_takes_over_goes_on_behind_the_frames_received() {
    const FRAMES: u64 = 8;
    let options = shm(Duration::ZERO).options;
    let (guest, host) = UnixStream::pair().unwrap();
    let liveness = host.try_clone().unwrap().into();
    let (mut host, ends, own) =
        shm::create(REGION, layout::MIN_RING_SIZE, host.into(), options).unwrap();
    let guest = shm::attach(ends, guest.into(), options).unwrap();
    for sequence in 1..=FRAMES {
        let sent = guest.sender.try_send(5, 0, Some(sequence), &[b"call"]);
        assert_eq!(sent.unwrap(), sequence);
    }
    let next = |host: &mut Connection| {
        let frame = host.receiver.receive(Wait::Poll).unwrap();
        frame.map(|frame| frame.header.sequence)
    };
    for sequence in 1..=FRAMES / 2 {
        assert_eq!(next(&mut host), Some(sequence));
    }
    assert_eq!(host.receiver.hand_over(), b"");
    let mut other = shm::take_over(own, liveness, options).unwrap();
    for sequence in FRAMES / 2 + 1..=FRAMES {
        assert_eq!(next(&mut other), Some(sequence));
    }
    assert_eq!(next(&mut other), None);
}

#[test]
fn a_region_that_its_host_can_shrink_is_refused() {
    let options = Options::default();
    for (seals, is_taken) in [
        (SealFlags::empty(), false),
        (SealFlags::GROW, false),
        (SealFlags::SHRINK, true),
    ] {
        let (_host, mut ends, liveness) = ends(options);
        let copy = memfd_create("copy", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&copy, REGION).unwrap();
        let mut header = vec![0; layout::HEADER_SIZE as usize];
        rustix::io::pread(&ends.memory, &mut header[..], 0).unwrap();
        rustix::io::pwrite(&copy, &header, 0).unwrap();
        fcntl_add_seals(&copy, seals).unwrap();
        ends.memory = copy;
        match shm::attach(ends, liveness, options) {
            Ok(_) => assert!(is_taken, "{seals:?}"),
            Err(Error::Protocol(reason)) => assert!(!is_taken, "{seals:?}: {reason}"),
            Err(error) => panic!("{error}"),
        }
    }
}
