//! The communicator `pci`: the rings in a channel of the virtual device.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use paragpu_communicator::{Connection, Error};
use paragpu_protocol::frame::FrameHeader;
use rustix::fs::{Mode, OFlags};

use crate::channel::{self, Side};
use crate::eventfd::{Bell, EventDoorbell, new_eventfd, signal};
use crate::layout::{self, Layout, device};
use crate::shm::{Options, Parts, duplicate, map_framing, read_layout};
use crate::sys::mapping_unsafe::Mapping;
use crate::sys::node_unsafe::{NodeDoorbell, NodePinner, fade, info};
use crate::sys::region_unsafe::Base;

/// A channel as the host side needs it. All values come from the device process, never from
/// the guest.
#[derive(Debug)]
pub struct HostChannel {
    /// The device's memory file.
    pub memory: OwnedFd,
    /// Eventfd that the guest's doorbell register fires for this channel.
    pub doorbell: OwnedFd,
    /// Eventfd that fires the device's interrupt vector in the guest.
    pub interrupt: OwnedFd,
    /// Reports a hang-up (POLLHUP) when the virtual machine or the device process is gone:
    /// a pipe or unix socket whose other end they hold. It stays open as long as any part
    /// of the channel is mapped here. Until it closes, the device process does not give the
    /// channel to another program.
    pub liveness: Option<OwnedFd>,
    /// The channel's number.
    pub channel: u32,
    /// Its offset in the memory file, in bytes.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// A channel that the device process handles: until its first frame has been read, and
/// again after its session.
#[derive(Debug)]
pub struct IdleChannel {
    slot: DeviceSlot,
    header: Base,
    memory: OwnedFd,
    offset: u64,
    size: u64,
}

impl IdleChannel {
    /// Channel `channel`, which is `size` bytes at `offset` of the device's memory.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an invalid range, [`Error::Io`].
    pub fn new(memory: OwnedFd, channel: u32, offset: u64, size: u64) -> Result<Self, Error> {
        let header = Mapping::new(memory.as_fd(), offset, layout::HEADER_SIZE, None)?;
        Ok(Self {
            slot: DeviceSlot::new(memory.as_fd(), channel)?,
            header: Base::new(Arc::new(header), 0)?,
            memory,
            offset,
            size,
        })
    }

    /// Writes a new header: empty rings of `ring_size` bytes each; the rest is bulk area.
    /// Call only while no guest has the channel open and no worker serves it.
    ///
    /// # Errors
    /// [`Error::Protocol`] for invalid sizes.
    pub fn initialise(&self, ring_size: u64) -> Result<Layout, Error> {
        let layout = Layout::new(self.size, ring_size)?;
        self.header.initialise(&layout);
        Ok(layout)
    }

    /// The channel's `device::STATE_` value.
    #[must_use]
    pub fn state(&self) -> u32 {
        u32::from_le(self.slot.state().load(Ordering::Acquire))
    }

    /// Sets the channel's `device::STATE_` value.
    pub fn set_state(&self, state: u32) {
        self.slot.state().store(state.to_le(), Ordering::Release);
    }

    /// Ends a session whose worker is gone, so that the guest's poll reports a hang-up.
    /// `interrupt` fires the device's vector.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn end(&self, interrupt: impl AsFd) -> Result<(), Error> {
        self.header
            .u32(layout::CLOSED_BY_HOST)
            .store(1_u32.to_le(), Ordering::SeqCst);
        self.slot.close_by_host();
        self.slot.set_pending();
        signal(interrupt.as_fd())
    }

    /// Takes the guest's first frame if it has arrived; further ones remain for
    /// [`attach_host`]. A frame that arrives later rings the channel's doorbell.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the header, the indices or the frame are invalid,
    /// [`Error::Io`].
    pub fn take_frame(&self) -> Result<Option<(FrameHeader, Vec<u8>)>, Error> {
        let layout = read_layout(self.memory.as_fd(), self.offset, self.size)?;
        let mapping = map_framing(self.memory.as_fd(), self.offset, &layout)?;
        let region = Base::new(mapping, 0)?.region(&layout, Side::Host);
        channel::take_frame(&region)
    }
}

/// Host side: connects to a channel at its current ring indices, after
/// [`IdleChannel::take_frame`].
///
/// # Errors
/// [`Error::Protocol`] if the channel's header or indices are invalid, [`Error::Io`].
pub fn attach_host(host: HostChannel, options: Options) -> Result<Connection, Error> {
    let slot = DeviceSlot::new(host.memory.as_fd(), host.channel)?;
    let layout = read_layout(host.memory.as_fd(), host.offset, host.size)?;
    let base = Base::new(map_framing(host.memory.as_fd(), host.offset, &layout)?, 0)?;
    let tenure = host.liveness.as_ref().map(duplicate).transpose()?;
    let bell = EventDoorbell {
        ring: Bell::Eventfd(host.interrupt),
        wait: Bell::Eventfd(host.doorbell),
        interrupt: new_eventfd()?,
        liveness: host.liveness,
        slot: Some(slot),
    };
    let parts = Parts {
        base,
        layout,
        memory: host.memory.as_fd(),
        file_offset: host.offset,
        side: Side::Host,
        tenure,
    };
    parts.connect(Box::new(bell), options)
}

/// Guest side: opens the device node, which gives this process a channel of its own, and
/// connects. `staging` returns, for the length of the window, how many bytes at its start
/// are staging. If the device goes away, the rings and these bytes are lost, while the rest
/// of the window stays. After [`Window::keep`](paragpu_communicator::Window::keep), all of
/// it stays.
///
/// # Errors
/// [`Error::Io`] if the device cannot be opened or mapped, [`Error::Protocol`] if its
/// memory is not a valid channel.
pub fn attach_guest(
    node: &Path,
    options: Options,
    staging: impl FnOnce(u64) -> u64,
) -> Result<Connection, Error> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let node = rustix::fs::open(node, flags, Mode::empty())
        .map_err(|errno| Error::io("cannot open the device node", errno))?;
    let info = info(&node)?;
    if info.version >> 16 != layout::VERSION_VALUE >> 16 {
        return Err(Error::protocol(format!(
            "device layout version {}.{}, this side knows {}.x",
            info.version >> 16,
            info.version & 0xffff,
            layout::VERSION_VALUE >> 16
        )));
    }
    // Before anything is read from the channel, so that a later device removal is detected.
    fade(&node, layout::HEADER_SIZE)?;
    let layout = read_layout(node.as_fd(), 0, info.channel_size)?;
    let staged = staging(layout.bulk.size).min(layout.bulk.size);
    fade(&node, layout.bulk.offset + staged)?;
    // One mapping of the whole channel, placed so that its bulk area is at the requested
    // address.
    let address = match options.window_address {
        None => None,
        Some(window) => Some(
            window
                .checked_sub(layout.bulk.offset)
                .ok_or_else(|| Error::protocol(format!("no window at address {window:#x}")))?,
        ),
    };
    let mapping = Arc::new(Mapping::new(node.as_fd(), 0, layout.region_size, address)?);
    let base = Base::new(Arc::clone(&mapping), 0)?;
    let node = Arc::new(node);
    let window = (layout.bulk.size > 0).then(|| {
        let window = base.window(mapping, layout.bulk.offset, layout.bulk.size, None);
        let node = Arc::clone(&node);
        Arc::new(window.with_keeper(Box::new(move || fade(&node, layout.bulk.offset))))
    });
    let pinner = NodePinner::new(Arc::clone(&node)).map(|pinner| Arc::new(pinner) as _);
    let bell = NodeDoorbell {
        node,
        interrupt: new_eventfd()?,
    };
    let region = base.region(&layout, Side::Guest);
    let (sender, receiver) = channel::connect(region, Box::new(bell), options.polling)?;
    Ok(Connection {
        sender,
        receiver,
        window,
        pinner,
    })
}

/// A channel's words in the device's header page.
#[derive(Debug)]
pub(crate) struct DeviceSlot {
    header: Base,
    channel: u32,
}

impl DeviceSlot {
    fn new(memory: BorrowedFd<'_>, channel: u32) -> Result<Self, Error> {
        if channel >= device::MAX_CHANNELS {
            return Err(Error::protocol(format!("channel {channel}")));
        }
        let header = Mapping::new(memory, 0, device::HEADER_SIZE, None)?;
        Ok(Self {
            header: Base::new(Arc::new(header), 0)?,
            channel,
        })
    }

    fn state(&self) -> &std::sync::atomic::AtomicU32 {
        self.header.u32(device::STATE + 4 * self.channel as usize)
    }

    /// Whether the guest has the channel open.
    pub(crate) fn guest_has_it(&self) -> bool {
        u32::from_le(self.state().load(Ordering::Acquire)) == device::STATE_OPEN
    }

    /// Tells the guest's interrupt handler which channel the interrupt is for.
    pub(crate) fn set_pending(&self) {
        let word = device::PENDING + 8 * (self.channel as usize / 64);
        let bit = 1_u64 << (self.channel % 64);
        self.header
            .u64(word)
            .fetch_or(bit.to_le(), Ordering::SeqCst);
    }

    /// Makes the guest's poll report a hang-up.
    pub(crate) fn close_by_host(&self) {
        // A channel that the guest has closed meanwhile stays closed.
        let _ = self.state().compare_exchange(
            device::STATE_OPEN.to_le(),
            device::STATE_CLOSED_BY_HOST.to_le(),
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
    }
}
