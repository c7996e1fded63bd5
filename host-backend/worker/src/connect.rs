//! From what the daemon hands over to a connection with the guest.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error};
use paragpu_communicator_ring::{pci, shm};
use paragpu_communicator_stream as stream;
use paragpu_protocol::codec::{Text, decode_all, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{Hello, Refusal, Transport, VERSION, Welcome};
use paragpu_protocol::layout::Regions;

use crate::control::Assign;

/// Bytes of a window where none are assigned. Memory is taken as it is used.
const WINDOW: u64 = 8 << 30;
/// Bytes of each of its rings.
const RING: u64 = 2 << 20;
/// Longest time for the guest to take its welcome.
const PATIENCE: Duration = Duration::from_secs(10);

/// A guest that waits for its welcome.
pub(crate) struct Guest {
    transport: Transport,
    fds: Vec<OwnedFd>,
    welcome: Welcome,
    window: u64,
    channel: u32,
    channel_offset: u64,
    channel_size: u64,
}

impl Guest {
    /// Checks what was handed over.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn new(assign: &Assign<'_>, fds: Vec<OwnedFd>) -> Result<Self, String> {
        let hello: Hello = decode_all(assign.hello.0)
            .map_err(|error| format!("the guest's hello is malformed: {error}"))?;
        let transport = hello.check().map_err(|error| error.to_string())?;
        let expected = match transport {
            Transport::Stream | Transport::Shm => 1..=1,
            Transport::Pci => 3..=4,
        };
        if !expected.contains(&fds.len()) {
            return Err(format!("{} descriptors came with the session", fds.len()));
        }
        Ok(Self {
            transport,
            fds,
            welcome: Welcome {
                version: VERSION,
                session: assign.session,
                token: assign.token,
                device_count: assign.device_count,
                executed: 0,
                region_size: 0,
            },
            window: match assign.window {
                0 => WINDOW,
                bytes => bytes,
            },
            channel: assign.channel,
            channel_offset: assign.channel_offset,
            channel_size: assign.channel_size,
        })
    }

    /// A connected socket whose other end goes with the guest, where there is
    /// one: the last descriptor, but for a channel without a device process.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn liveness(&self) -> std::io::Result<Option<OwnedFd>> {
        let socket = match self.transport {
            Transport::Stream | Transport::Shm => self.fds.first(),
            Transport::Pci => self.fds.get(3),
        };
        socket.map(OwnedFd::try_clone).transpose()
    }

    /// Connects, and sends the welcome.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn welcome(mut self, regions: Regions) -> Result<Connection, Error> {
        let deadline = Some(Instant::now() + PATIENCE);
        let kind = Control::Welcome.kind();
        let options = shm::Options {
            window_address: Some(regions.window),
            ..shm::Options::default()
        };
        match self.transport {
            Transport::Stream => {
                let socket = self.take_fd()?;
                let welcome = encode_all(&self.welcome);
                stream::handshake::send_frame(&socket, kind, 0, 0, &welcome, deadline)?;
                stream::over(socket, stream::Options::default())
            }
            Transport::Shm => {
                let socket = self.take_fd()?;
                let liveness = socket
                    .try_clone()
                    .map_err(|source| Error::io("cannot duplicate the socket", source))?;
                let (connection, ends) = shm::create(self.window, RING, liveness, options)?;
                self.welcome.region_size = self.window;
                let welcome = encode_all(&self.welcome);
                let fds = ends.as_fds();
                stream::handshake::send_with_fds(&socket, kind, 0, 0, &welcome, &fds, deadline)?;
                Ok(connection)
            }
            Transport::Pci => {
                let connection = self.attach(options)?;
                let welcome = encode_all(&self.welcome);
                connection.sender.send(kind, 0, Some(0), &[&welcome])?;
                connection.sender.flush()?;
                Ok(connection)
            }
        }
    }

    /// Tells the guest why there is no session, as well as it goes.
    pub(crate) fn refuse(mut self, reason: &str) {
        let refusal = encode_all(&Refusal {
            version: VERSION,
            reason: Text(reason),
        });
        let kind = Control::Refusal.kind();
        let deadline = Some(Instant::now() + PATIENCE);
        let told = match self.transport {
            Transport::Stream | Transport::Shm => self.take_fd().and_then(|socket| {
                stream::handshake::send_frame(&socket, kind, 0, 0, &refusal, deadline)
            }),
            Transport::Pci => self.attach(shm::Options::default()).and_then(|connection| {
                connection.sender.send(kind, 0, Some(0), &[&refusal])?;
                connection.sender.flush()?;
                connection.sender.close();
                Ok(())
            }),
        };
        if let Err(error) = told {
            tracing::info!(%error, "the guest was not told that it is refused");
        }
    }

    fn take_fd(&mut self) -> Result<OwnedFd, Error> {
        if self.fds.is_empty() {
            return Err(Error::protocol("a descriptor is missing"));
        }
        Ok(self.fds.remove(0))
    }

    fn attach(&mut self, options: shm::Options) -> Result<Connection, Error> {
        let channel = pci::HostChannel {
            memory: self.take_fd()?,
            doorbell: self.take_fd()?,
            interrupt: self.take_fd()?,
            liveness: self.take_fd().ok(),
            channel: self.channel,
            offset: self.channel_offset,
            size: self.channel_size,
        };
        tracing::debug!(memory = ?channel.memory.as_fd(), "attaching to a channel");
        pci::attach_host(channel, options)
    }
}
