//! Connects to the guest over the descriptors that the daemon hands over.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error};
use paragpu_communicator_ring::guest_memory::GuestMemory;
use paragpu_communicator_ring::{pci, shm};
use paragpu_communicator_secure::Secured;
use paragpu_communicator_stream as stream;
use paragpu_control::socket::MAX_FDS;
use paragpu_control::worker::{self, Channel, Terms};
use paragpu_protocol::codec::{Text, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{NO_WINDOW, Refusal, Transport, VERSION, Welcome};
use paragpu_protocol::layout::{DEVICE_STRIDE, Regions};

use crate::guest_life::GuestLife;
use crate::session::host_memory::Sharing;
use crate::transfer::handover::{self, Handover};
use crate::watch::Liveness;

/// Default size of a window. Memory is allocated when it is used.
const WINDOW: u64 = 8 << 30;
/// Size of each of its rings.
const RING: u64 = 2 << 20;
/// Size of a region with two rings and no bulk area.
const FRAMING: u64 = 2 * RING + 4096;
/// Time limit for sending the welcome.
const PATIENCE: Duration = Duration::from_secs(10);

/// A guest that waits for its welcome.
#[derive(Debug)]
pub(crate) struct Guest {
    transport: Transport,
    fds: Vec<OwnedFd>,
    welcome: Welcome,
    received: u64,
    pid: u32,
    /// The offset of the window that it has, if any.
    has: Option<u64>,
    /// The offset of the window that it gets, if any.
    gets: Option<u64>,
    /// Size of a window that this host creates.
    size: u64,
    /// Zeros if it has none.
    channel: Channel,
    /// TLS state, if the connection is encrypted.
    secured: Option<Secured>,
}

impl Guest {
    /// Checks the descriptors.
    ///
    /// # Errors
    /// One sentence.
    pub(crate) fn new(
        terms: &Terms,
        guest: &worker::Guest,
        fds: Vec<OwnedFd>,
    ) -> Result<Self, String> {
        let transport = guest.transport;
        let expected = match transport {
            Transport::Stream | Transport::Shm => 1..=1,
            Transport::Pci => 3..=MAX_FDS,
        };
        if !expected.contains(&fds.len()) {
            return Err(format!("{} descriptors came with the session", fds.len()));
        }
        let size = match terms.window {
            0 => WINDOW,
            bytes => bytes,
        };
        let channel = guest.channel.unwrap_or_default();
        let (window, room) = guest.windows;
        let secured = guest.secured.as_ref();
        let secured = secured.map(|keys| Secured::from_state(&keys.0));
        Ok(Self {
            secured: secured.transpose().map_err(|error| error.to_string())?,
            transport,
            fds,
            welcome: Welcome {
                version: VERSION,
                session: terms.session,
                token: terms.resume_token(),
                reconnect: terms.reconnect,
                device_count: terms.device_count,
                taken: 0,
                shares_window: false,
                wants_pinned: false,
                region_size: 0,
            },
            received: guest.received,
            pid: guest.pid,
            has: (window != NO_WINDOW).then_some(window),
            gets: has_room(room, size.max(channel.size)).then_some(room),
            size,
            channel,
        })
    }

    /// The VM's memory, if the host can reach it.
    pub(crate) fn memory(&self) -> Option<GuestMemory> {
        guest_memory(&self.fds, self.channel)
    }

    /// The guest's process ID, in the guest's namespace.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// How to detect the end of the guest's process.
    pub(crate) fn life(&self) -> GuestLife {
        match (self.transport, self.fds.first()) {
            // The channel is closed when the process has ended, and not before.
            (Transport::Pci, _) => GuestLife::Channel,
            (_, Some(socket)) => GuestLife::of_peer(socket.as_fd()),
            (_, None) => GuestLife::Unknown,
        }
    }

    /// Detects that the guest will not return, if the session waits for `patience`
    /// after a lost connection.
    pub(crate) fn liveness(&self, patience: Duration) -> std::io::Result<Option<Liveness>> {
        Liveness::new(self.transport, &self.fds, patience)
    }

    /// Counted frames that a reconnecting guest has received.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The offset of the window that it has, if any.
    pub(crate) fn window(&self) -> Option<u64> {
        self.has
    }

    /// [`welcome`](Self::welcome) for a session that has received calls up to
    /// `taken`. If the two share a window, both sides keep it, whatever their new
    /// communicator is. Returns the offset of a window that comes with the connection, too.
    pub(crate) fn welcome_back(
        mut self,
        regions: Regions,
        taken: u64,
        sharing: Sharing,
    ) -> Result<(Connection, Option<u64>), Error> {
        self.welcome.taken = taken;
        self.welcome.shares_window = sharing.window;
        self.welcome.wants_pinned = sharing.wants_pinned;
        self.gets.take_if(|_| sharing.window);
        let mut connection = self.connect(regions)?;
        connection.window.take_if(|_| self.gets.is_none());
        let window = connection.window.as_ref().and(self.gets);
        Ok((connection, window))
    }

    /// Connects a new session, whose window is the first in the region, and sends the welcome.
    pub(crate) fn welcome(mut self, regions: Regions) -> Result<Connection, Error> {
        self.gets = Some(0);
        self.connect(regions)
    }

    fn connect(&mut self, regions: Regions) -> Result<Connection, Error> {
        let deadline = Some(Instant::now() + PATIENCE);
        let kind = Control::Welcome.kind();
        let options = shm::Options {
            window_address: self.gets.map(|offset| regions.window + offset),
            ..shm::Options::default()
        };
        match self.transport {
            Transport::Stream => {
                let socket = self.take_fd()?;
                let welcome = encode_all(&self.welcome);
                self.keep(&[socket.as_fd()], None);
                let options = stream::Options::default();
                let Some(mut secured) = self.secured.take() else {
                    stream::handshake::send_frame(&socket, kind, 0, 0, &welcome, deadline)?;
                    return stream::over(socket, options);
                };
                stream::secured::send_frame(&socket, &mut secured, kind, &welcome, deadline)?;
                stream::over_secured(socket, options, secured)
            }
            Transport::Shm => {
                let socket = self.take_fd()?;
                let liveness = socket
                    .try_clone()
                    .map_err(|source| Error::io("cannot duplicate the socket", source))?;
                // Rings only, if it gets no window.
                let region = self.gets.map_or(FRAMING, |_| self.size);
                let (connection, ends, own) = shm::create(region, RING, liveness, options)?;
                self.welcome.region_size = region;
                let welcome = encode_all(&self.welcome);
                let fds = ends.as_fds();
                stream::handshake::send_with_fds(&socket, kind, 0, 0, &welcome, &fds, deadline)?;
                let [memory, host_bell, guest_bell] = own.as_fds();
                let all = [memory, host_bell, guest_bell, socket.as_fd()];
                self.keep(&all, self.gets);
                Ok(connection)
            }
            Transport::Pci => {
                let all: Vec<_> = self.fds.iter().map(AsFd::as_fd).collect();
                self.keep(&all, self.gets);
                let connection = self.attach(options)?;
                let welcome = encode_all(&self.welcome);
                connection.sender.send(kind, 0, Some(0), &[&welcome])?;
                connection.sender.flush()?;
                Ok(connection)
            }
        }
    }

    /// Tries to report to the guest why there is no session.
    pub(crate) fn refuse(mut self, reason: &str) {
        let refusal = encode_all(&Refusal {
            version: VERSION,
            reason: Text(reason),
        });
        let kind = Control::Refusal.kind();
        let deadline = Some(Instant::now() + PATIENCE);
        let sent = match self.transport {
            Transport::Stream | Transport::Shm => {
                self.take_fd().and_then(|socket| match &mut self.secured {
                    Some(secured) => {
                        stream::secured::send_frame(&socket, secured, kind, &refusal, deadline)
                    }
                    None => stream::handshake::send_frame(&socket, kind, 0, 0, &refusal, deadline),
                })
            }
            Transport::Pci => self.attach(shm::Options::default()).and_then(|connection| {
                connection.sender.send(kind, 0, Some(0), &[&refusal])?;
                connection.sender.flush()?;
                connection.sender.close();
                Ok(())
            }),
        };
        if let Err(error) = sent {
            tracing::info!(%error, "cannot report the refusal to the guest");
        }
    }

    /// Keeps the connection's descriptors for another worker. Without them, the session
    /// cannot be handed over.
    fn keep(&self, fds: &[BorrowedFd<'_>], window: Option<u64>) {
        let copies: std::io::Result<Vec<OwnedFd>> =
            fds.iter().map(BorrowedFd::try_clone_to_owned).collect();
        *handover::current() = copies.ok().map(|fds| Handover {
            transport: self.transport,
            fds,
            channel: self.channel,
            window,
        });
    }

    fn take_fd(&mut self) -> Result<OwnedFd, Error> {
        if self.fds.is_empty() {
            return Err(Error::protocol("a descriptor is missing"));
        }
        Ok(self.fds.remove(0))
    }

    fn attach(&mut self, options: shm::Options) -> Result<Connection, Error> {
        attach_pci(&mut self.fds.drain(..), self.channel, options)
    }
}

/// Whether a window of at most `size` bytes fits from an offset of the region on.
fn has_room(offset: u64, size: u64) -> bool {
    let end = offset.checked_add(size);
    offset.is_multiple_of(4096) && end.is_some_and(|end| end <= DEVICE_STRIDE)
}

/// Attaches to a channel of the PCI device by its first descriptors.
pub(crate) fn attach_pci(
    fds: &mut dyn Iterator<Item = OwnedFd>,
    channel: Channel,
    options: shm::Options,
) -> Result<Connection, Error> {
    let missing = || Error::protocol("a descriptor is missing");
    let host = pci::HostChannel {
        memory: fds.next().ok_or_else(missing)?,
        doorbell: fds.next().ok_or_else(missing)?,
        interrupt: fds.next().ok_or_else(missing)?,
        liveness: fds.next(),
        channel: channel.number,
        offset: channel.offset,
        size: channel.size,
    };
    tracing::debug!(memory = ?host.memory.as_fd(), "attaching to a channel");
    pci::attach_host(host, options)
}

/// The VM's memory and the page lists of a channel of the PCI device; `None` if the
/// host cannot reach the memory.
pub(crate) fn guest_memory(fds: &[OwnedFd], channel: Channel) -> Option<GuestMemory> {
    let [window, _, _, liveness, table, files @ ..] = fds else {
        return None;
    };
    let memory = [table, liveness]
        .map(OwnedFd::try_clone)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .ok()
        .and_then(|fds| <[OwnedFd; 2]>::try_from(fds).ok())
        .map(|[table, tenure]| {
            GuestMemory::new(window.as_fd(), channel.lists, table, files, tenure)
        })?;
    memory
        .inspect_err(|error| {
            tracing::warn!(%error, "the VM's memory is not accessible: copies go through the window");
        })
        .ok()
}
