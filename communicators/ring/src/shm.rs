//! The communicator `shm`: rings in a memfd between two processes of one host.
//!
//! The host creates the region and its doorbells and passes [`GuestEnds`] over the guest's
//! unix socket. It keeps [`HostEnds`] for a process that [takes over](take_over). Both sides keep the socket open. By its end each detects that the
//! other is gone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use paragpu_communicator::{Connection, Error, Polling};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::channel::{self, Side};
use crate::doorbell::Doorbell;
use crate::eventfd::{Bell, EventDoorbell, new_eventfd, new_sockets};
use crate::layout::{self, Layout};
use crate::sys::mapping_unsafe::Mapping;
use crate::sys::region_unsafe::Base;

/// The options of one side.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// How long receivers poll before they sleep.
    pub polling: Polling,
    /// The address at which the bulk area is mapped; must be page-aligned and free. With
    /// the same address on both sides, host pointers are valid on both. `None`: anywhere.
    pub window_address: Option<u64>,
}

/// The descriptors that the guest needs to attach, in order.
#[derive(Debug)]
pub struct GuestEnds {
    /// The region.
    pub memory: OwnedFd,
    /// Eventfd that wakes the host.
    pub host_bell: OwnedFd,
    /// Socket that wakes the guest; earlier hosts pass an eventfd.
    pub guest_bell: OwnedFd,
}

/// The descriptors that another process of the host needs to [take over](take_over), in
/// order.
#[derive(Debug)]
pub struct HostEnds {
    /// The region.
    pub memory: OwnedFd,
    /// Eventfd that wakes the host.
    pub host_bell: OwnedFd,
    /// Socket that wakes the guest. The guest has the other end.
    pub guest_bell: OwnedFd,
}

impl HostEnds {
    /// The descriptors to pass, in order.
    #[must_use]
    pub fn as_fds(&self) -> [BorrowedFd<'_>; GuestEnds::COUNT] {
        [
            self.memory.as_fd(),
            self.host_bell.as_fd(),
            self.guest_bell.as_fd(),
        ]
    }
}

impl GuestEnds {
    /// The number of descriptors.
    pub const COUNT: usize = 3;

    /// The descriptors to pass, in order.
    #[must_use]
    pub fn as_fds(&self) -> [BorrowedFd<'_>; Self::COUNT] {
        [
            self.memory.as_fd(),
            self.host_bell.as_fd(),
            self.guest_bell.as_fd(),
        ]
    }

    /// Takes the descriptors as they were passed.
    ///
    /// # Errors
    /// [`Error::Protocol`] if their number is wrong.
    pub fn from_fds(fds: Vec<OwnedFd>) -> Result<Self, Error> {
        let fds = <[OwnedFd; Self::COUNT]>::try_from(fds).map_err(|fds: Vec<OwnedFd>| {
            Error::protocol(format!(
                "{} descriptors were passed, not {}",
                fds.len(),
                Self::COUNT
            ))
        })?;
        let [memory, host_bell, guest_bell] = fds;
        Ok(Self {
            memory,
            host_bell,
            guest_bell,
        })
    }
}

/// Host side: creates a region of `region_size` bytes with two rings of `ring_size` bytes,
/// the rest being bulk area, and connects to it. Memory is allocated on first access.
/// `liveness` is the guest's unix socket.
///
/// # Errors
/// [`Error::Protocol`] for invalid sizes, [`Error::Io`].
pub fn create(
    region_size: u64,
    ring_size: u64,
    liveness: OwnedFd,
    options: Options,
) -> Result<(Connection, GuestEnds, HostEnds), Error> {
    let layout = Layout::new(region_size, ring_size)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("paragpu-channel", flags)
        .map_err(|errno| Error::io("cannot create the shared memory", errno))?;
    rustix::fs::ftruncate(&memory, layout.region_size)
        .map_err(|errno| Error::io("cannot size the shared memory", errno))?;
    // If a guest shrank the file, the host would take SIGBUS.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memory, seals)
        .map_err(|errno| Error::io("cannot seal the shared memory", errno))?;

    let mapping = map_framing(memory.as_fd(), 0, &layout)?;
    let base = Base::new(mapping, 0)?;
    base.initialise(&layout);
    let (own_bell, guest_bell) = new_sockets()?;
    let ends = GuestEnds {
        memory,
        host_bell: new_eventfd()?,
        guest_bell,
    };
    let own = HostEnds {
        memory: duplicate(&ends.memory)?,
        host_bell: duplicate(&ends.host_bell)?,
        guest_bell: own_bell,
    };
    let bell = EventDoorbell {
        ring: Bell::Socket(duplicate(&own.guest_bell)?),
        wait: Bell::Eventfd(duplicate(&own.host_bell)?),
        interrupt: new_eventfd()?,
        liveness: Some(liveness),
        slot: None,
    };
    let parts = Parts {
        base,
        layout,
        memory: ends.memory.as_fd(),
        file_offset: 0,
        side: Side::Host,
        tenure: None,
    };
    Ok((parts.connect(Box::new(bell), options)?, ends, own))
}

/// Guest side: connects to a region that the host created. `liveness` is the unix socket to
/// the host.
///
/// # Errors
/// [`Error::Protocol`] if the memory is not a valid region or could be shrunk, [`Error::Io`].
pub fn attach(ends: GuestEnds, liveness: OwnedFd, options: Options) -> Result<Connection, Error> {
    // If a host shrank the file, the guest would take SIGBUS. Only a memfd has seals.
    let seals = rustix::fs::fcntl_get_seals(&ends.memory).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK) {
        return Err(Error::protocol("the region could be shrunk"));
    }
    let bells = (ends.host_bell, ends.guest_bell);
    connect(&ends.memory, bells, liveness, options, Side::Guest)
}

/// Host side: continues with a region at the point where another process stopped serving
/// it.
///
/// # Errors
/// As [`attach`].
pub fn take_over(ends: HostEnds, liveness: OwnedFd, options: Options) -> Result<Connection, Error> {
    let bells = (ends.guest_bell, ends.host_bell);
    connect(&ends.memory, bells, liveness, options, Side::Host)
}

/// Connects to a region with the bells that this side rings and waits for.
fn connect(
    memory: &OwnedFd,
    (ring, wait): (OwnedFd, OwnedFd),
    liveness: OwnedFd,
    options: Options,
    side: Side,
) -> Result<Connection, Error> {
    let size = rustix::fs::fstat(memory)
        .map_err(|errno| Error::io("cannot inspect the shared memory", errno))?
        .st_size;
    let size = u64::try_from(size).unwrap_or(0);
    let layout = read_layout(memory.as_fd(), 0, size)?;
    let base = Base::new(map_framing(memory.as_fd(), 0, &layout)?, 0)?;
    let bell = EventDoorbell {
        ring: Bell::of(ring),
        wait: Bell::of(wait),
        interrupt: new_eventfd()?,
        liveness: Some(liveness),
        slot: None,
    };
    let parts = Parts {
        base,
        layout,
        memory: memory.as_fd(),
        file_offset: 0,
        side,
        tenure: None,
    };
    parts.connect(Box::new(bell), options)
}

/// Reads the layout of the region of `size` bytes at `offset` of a file.
pub(crate) fn read_layout(memory: BorrowedFd<'_>, offset: u64, size: u64) -> Result<Layout, Error> {
    if size < layout::HEADER_SIZE {
        return Err(Error::protocol(format!("a region of {size} bytes")));
    }
    let header = Arc::new(Mapping::new(memory, offset, layout::HEADER_SIZE, None)?);
    Base::new(header, 0)?.layout(size)
}

/// Maps the header and the rings.
pub(crate) fn map_framing(
    memory: BorrowedFd<'_>,
    offset: u64,
    layout: &Layout,
) -> Result<Arc<Mapping>, Error> {
    Ok(Arc::new(Mapping::new(
        memory,
        offset,
        layout.framing_size(),
        None,
    )?))
}

pub(crate) fn duplicate(fd: &OwnedFd) -> Result<OwnedFd, Error> {
    fd.try_clone()
        .map_err(|source| Error::io("cannot duplicate a descriptor", source))
}

/// One side of a region whose framing part is mapped.
pub(crate) struct Parts<'a> {
    pub(crate) base: Base,
    pub(crate) layout: Layout,
    pub(crate) memory: BorrowedFd<'a>,
    /// The offset of the region in the file.
    pub(crate) file_offset: u64,
    pub(crate) side: Side,
    /// Open as long as the window is mapped.
    pub(crate) tenure: Option<OwnedFd>,
}

impl Parts<'_> {
    /// Maps the bulk area and connects.
    pub(crate) fn connect(
        self,
        bell: Box<dyn Doorbell>,
        options: Options,
    ) -> Result<Connection, Error> {
        let bulk = self.layout.bulk;
        let window = if bulk.size == 0 {
            None
        } else {
            let mapping = Mapping::new(
                self.memory,
                self.file_offset + bulk.offset,
                bulk.size,
                options.window_address,
            )?;
            let window = self
                .base
                .window(Arc::new(mapping), 0, bulk.size, self.tenure);
            Some(Arc::new(window))
        };
        let region = self.base.region(&self.layout, self.side);
        let (sender, receiver) = channel::connect(region, bell, options.polling)?;
        Ok(Connection {
            pinner: None,
            sender,
            receiver,
            window,
        })
    }
}
