//! Connects by the configuration, up to the host's welcome.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error as TravelError, Polling, Wait};
use paragpu_communicator_ring::{pci, shm};
use paragpu_communicator_secure::{
    Credentials, Error as SecureError, Files, Handshake, KeyLifetime,
};
use paragpu_communicator_stream as stream;
use paragpu_communicator_stream::secured::ConnectError;
use paragpu_config::guest::{Guest, Tcp, Vsock};
use paragpu_config::{Communicator, Spin};
use paragpu_protocol::codec::{DecodeError, Reader, decode_all, encode_all};
use paragpu_protocol::frame::{Control, MAX_PAYLOAD};
use paragpu_protocol::handshake::{Hello, Move, Refusal, Transport, VERSION, Version, Welcome};
use paragpu_protocol::layout::Regions;

use crate::error::Error;
use crate::staging_layout;

/// Timeout for the host's welcome: the host may have to start a worker, and the
/// worker a device.
const PATIENCE: Duration = Duration::from_secs(30);
/// Timeout for each address of a host's name.
const TCP_PATIENCE: Duration = Duration::from_secs(5);

/// Maximum time that a waiting thread polls. CUDA polls all the time by default.
/// This covers short kernels and small graphs; after longer waits, the cost of a
/// wake-up is small. Polling yields the processor.
const SPIN: Duration = Duration::from_micros(500);

/// An established connection of a session.
#[derive(Debug)]
pub struct Connected {
    /// The connection.
    pub connection: Connection,
    /// The host's answer.
    pub welcome: Welcome,
    /// The communicator of the connection.
    pub communicator: Communicator,
    /// Why each communicator tried before was rejected.
    pub passed_over: Vec<String>,
    /// How long waiting threads poll before they sleep.
    pub spin: Duration,
}

impl Connected {
    /// Ends the session, which will not be resumed.
    pub fn leave(self) {
        let sender = self.connection.sender;
        let _ = sender.try_send(Control::Goodbye.kind(), 0, Some(0), &[]);
        let _ = sender.flush();
        sender.close();
    }
}

/// A guest's claim to an existing session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resume {
    /// The session's secret.
    pub(crate) token: [u8; 16],
    /// Counted frames of the session that were received.
    pub(crate) received: u64,
    /// The session has a window, which stays where it is mapped.
    pub(crate) has_window: bool,
}

/// Reconnects a session.
#[derive(Debug)]
pub(crate) struct Dialer {
    config: Guest,
    ordinal: u32,
    regions: Regions,
    polling: Polling,
}

impl Dialer {
    /// For the guest's device `ordinal`, as configured.
    pub(crate) fn new(config: &Guest, ordinal: u32) -> Option<Self> {
        Some(Self {
            config: config.clone(),
            ordinal,
            regions: Regions::of(ordinal)?,
            polling: polling(config),
        })
    }

    /// The destination to which a host sends the session, as a configuration.
    pub(crate) fn for_destination(&self, goal: &Move<'_>) -> Result<Self, Error> {
        let mut config = self.config.clone();
        let name = goal.communicator.0;
        // The host end of its current connection leads there.
        if config.vsock.relayed && name == "tcp" {
            return Ok(Self {
                config,
                ordinal: self.ordinal,
                regions: self.regions,
                polling: self.polling,
            });
        }
        config.communicator = paragpu_config::parse(name)
            .map_err(|_| Error::BadAnswer(format!("a move to the communicator {name:?}")))?;
        let address = goal.address.0;
        if !address.is_empty() {
            match config.communicator {
                Communicator::Unix => config.unix.socket = address.into(),
                Communicator::Shm => config.shm.socket = address.into(),
                Communicator::Pci => config.pci.device = address.into(),
                Communicator::Tcp => config.tcp.address.0 = Some(address.to_owned()),
                Communicator::Vsock => {
                    config.vsock.port = address.parse().map_err(|_| {
                        Error::BadAnswer(format!("a move to vsock port {address:?}"))
                    })?;
                }
                Communicator::Auto => {}
            }
        }
        Ok(Self {
            config,
            ordinal: self.ordinal,
            regions: self.regions,
            polling: self.polling,
        })
    }

    /// One attempt, over the first communicator that finds the host.
    pub(crate) fn dial(&self, resume: Resume) -> Result<Connected, Error> {
        let attempt = Attempt {
            config: &self.config,
            ordinal: self.ordinal,
            regions: self.regions,
            polling: self.polling,
            purpose: Purpose::Resume(resume),
        };
        attempt.first()
    }
}

fn polling(config: &Guest) -> Polling {
    match config.spin {
        Spin::Auto => Polling { spin: SPIN },
        Spin::Microseconds(micros) => Polling {
            spin: Duration::from_micros(micros.into()),
        },
    }
}

/// Connects to the host for the guest's device `ordinal`, over the first configured
/// communicator that finds one.
///
/// # Errors
/// [`Error`]; if several communicators were tried, that of the first that found a host
/// and failed.
pub fn connect(config: &Guest, ordinal: u32) -> Result<Connected, Error> {
    connect_for(config, ordinal, Purpose::Compute)
}

/// Connects like [`connect`], only to query the device: the connection reserves no
/// addresses of the process, and announces no guest process.
///
/// # Errors
/// As [`connect`].
pub(crate) fn connect_for_queries(config: &Guest, ordinal: u32) -> Result<Connected, Error> {
    connect_for(config, ordinal, Purpose::Ask)
}

fn connect_for(config: &Guest, ordinal: u32, purpose: Purpose) -> Result<Connected, Error> {
    let attempt = Attempt {
        config,
        ordinal,
        regions: Regions::of(ordinal).ok_or(Error::NoDevice(ordinal))?,
        polling: polling(config),
        purpose,
    };
    attempt.first()
}

/// Whether a host listens at the configured address. Opens no session.
#[must_use]
pub fn is_host_reachable(config: &Guest) -> bool {
    let there = |communicator: Communicator| match communicator {
        Communicator::Pci => config.pci.device.exists(),
        Communicator::Shm => dial_unix(&config.shm.socket).is_ok(),
        Communicator::Unix => dial_unix(&config.unix.socket).is_ok(),
        Communicator::Vsock => {
            let Vsock { cid, port, .. } = config.vsock;
            stream::sockets::connect_vsock(cid, port).is_ok()
        }
        Communicator::Tcp => {
            let address = config.tcp.address.0.as_deref().unwrap_or_default();
            stream::sockets::connect_tcp(address, TCP_PATIENCE).is_ok()
        }
        Communicator::Auto => false,
    };
    config.candidates().into_iter().any(there)
}

/// The purpose of a connection.
enum Purpose {
    /// A new session of this process.
    Compute,
    /// Queries about the device.
    Ask,
    /// An existing session.
    Resume(Resume),
}

struct Attempt<'a> {
    config: &'a Guest,
    ordinal: u32,
    regions: Regions,
    polling: Polling,
    purpose: Purpose,
}

impl Attempt<'_> {
    fn first(&self) -> Result<Connected, Error> {
        let candidates = self.config.candidates();
        let single = candidates.len() == 1;
        let mut tried = Vec::new();
        for communicator in candidates {
            match self.by(communicator) {
                Ok((connection, welcome)) => {
                    return Ok(Connected {
                        connection,
                        welcome,
                        communicator,
                        passed_over: tried,
                        spin: self.polling.spin,
                    });
                }
                Err(error @ (Error::NoAnswer { .. } | Error::ChannelsTaken(_))) if !single => {
                    let failure = crate::error::chain(&error);
                    // shm and unix have one socket.
                    if tried.last() != Some(&failure) {
                        tried.push(failure);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::NothingFound(if tried.is_empty() {
            format!(
                "neither {} nor {} exists, and neither vsock.port nor tcp.address is set",
                self.config.pci.device.display(),
                self.config.shm.socket.display()
            )
        } else {
            tried.join("; ")
        }))
    }

    fn by(&self, communicator: Communicator) -> Result<(Connection, Welcome), Error> {
        match communicator {
            Communicator::Pci => self.pci(&self.config.pci.device),
            Communicator::Shm => self.shm(&self.config.shm.socket),
            Communicator::Unix => self.unix(&self.config.unix.socket),
            Communicator::Vsock => self.vsock(),
            Communicator::Tcp => self.tcp(),
            // `auto` is not a communicator itself.
            Communicator::Auto => Err(Error::NothingFound(communicator.to_string())),
        }
    }

    fn hello(&self, transport: Transport) -> Vec<u8> {
        let pid = match self.purpose {
            Purpose::Ask => 0,
            _ => std::process::id(),
        };
        let mut hello = Hello::new(transport, self.ordinal, pid);
        if let Purpose::Resume(resume) = &self.purpose {
            hello.token = resume.token;
            hello.received = resume.received;
        }
        encode_all(&hello)
    }

    fn rings(&self) -> shm::Options {
        shm::Options {
            polling: self.polling,
            window_address: match &self.purpose {
                Purpose::Ask => None,
                Purpose::Resume(resume) if resume.has_window => None,
                _ => Some(self.regions.window),
            },
        }
    }

    fn over(&self, socket: OwnedFd) -> Result<Connection, Error> {
        Ok(stream::over(socket, self.options())?)
    }

    fn options(&self) -> stream::Options {
        stream::Options {
            polling: self.polling,
            ..stream::Options::default()
        }
    }

    fn unix(&self, path: &Path) -> Result<(Connection, Welcome), Error> {
        self.stream(dial_unix(path)?)
    }

    fn tcp(&self) -> Result<(Connection, Welcome), Error> {
        let over = &self.config.tcp.over;
        if !over.is_empty() {
            return Err(Error::Refused(over.clone()));
        }
        let address = self.config.tcp.address.0.as_deref().unwrap_or_default();
        let socket = stream::sockets::connect_tcp(address, TCP_PATIENCE).map_err(|error| {
            Error::NoAnswer {
                place: format!("tcp {address}"),
                advice: "is paragpud running there with `tcp.listen` set, and no firewall between?",
                source: Box::new(error),
            }
        })?;
        match self.config.tcp.ca.as_os_str().is_empty() {
            true => self.stream(socket),
            false => self.under_tls(socket.into()),
        }
    }

    /// Performs the TLS handshake, then sends the hello.
    fn under_tls(&self, socket: OwnedFd) -> Result<(Connection, Welcome), Error> {
        let tcp = &self.config.tcp;
        let files = Files {
            key_shared: tcp.key_shared,
            ..Files::new("tcp", &tcp.ca, &tcp.certificate, &tcp.key)
        };
        let credentials = Credentials::load(files, KeyLifetime::Replaceable)?;
        let name = host_name(tcp);
        let untrusted = |reason: String| Error::Untrusted {
            name: name.to_owned(),
            reason,
        };
        let client = credentials.client(name).map_err(untrusted)?;
        let deadline = Some(Instant::now() + PATIENCE);
        let hello = self.hello(Transport::Stream);
        let kind = Control::Hello.kind();
        let met =
            stream::secured::exchange(&socket, Handshake::new(client), kind, &hello, deadline);
        let (header, payload, secured) = met.map_err(|unmet| match unmet {
            ConnectError::Secure(SecureError::Plain | SecureError::Ended) => {
                Error::NoTls(name.to_owned())
            }
            ConnectError::Secure(error) => untrusted(error.to_string()),
            ConnectError::Lost(error) => error.into(),
        })?;
        let welcome = answer(header.kind, &payload)?;
        let connection = stream::over_secured(socket, self.options(), secured)?;
        Ok((connection, welcome))
    }

    fn vsock(&self) -> Result<(Connection, Welcome), Error> {
        let Vsock { cid, port, .. } = self.config.vsock;
        let socket =
            stream::sockets::connect_vsock(cid, port).map_err(|error| Error::NoAnswer {
                place: format!("vsock {cid}:{port}"),
                advice: vsock_advice(&error),
                source: Box::new(error),
            })?;
        self.stream(socket)
    }

    /// Sends the hello on a connected socket.
    fn stream(&self, socket: impl Into<OwnedFd>) -> Result<(Connection, Welcome), Error> {
        let socket = socket.into();
        let deadline = Some(Instant::now() + PATIENCE);
        let hello = self.hello(Transport::Stream);
        stream::handshake::send_frame(&socket, Control::Hello.kind(), 0, 0, &hello, deadline)?;
        let (header, payload) =
            stream::handshake::receive_exact_frame(&socket, MAX_PAYLOAD, deadline)?;
        let welcome = answer(header.kind, &payload)?;
        Ok((self.over(socket)?, welcome))
    }

    fn shm(&self, path: &Path) -> Result<(Connection, Welcome), Error> {
        let socket = dial_unix(path)?;
        let deadline = Some(Instant::now() + PATIENCE);
        let hello = self.hello(Transport::Shm);
        stream::handshake::send_frame(&socket, Control::Hello.kind(), 0, 0, &hello, deadline)?;
        let received = stream::handshake::receive_with_fds(&socket, MAX_PAYLOAD, deadline)?;
        let welcome = answer(received.header.kind, &received.payload)?;
        let ends = shm::GuestEnds::from_fds(received.fds)?;
        let connection = shm::attach(ends, socket.into(), self.rings())?;
        Ok((connection, welcome))
    }

    fn pci(&self, node: &Path) -> Result<(Connection, Welcome), Error> {
        let mut connection = pci::attach_guest(node, self.rings(), staging_layout::reach)
            .map_err(|error| no_channel(node, error))?;
        if !self.config.pci.direct {
            connection.pinner = None;
        }
        let hello = self.hello(Transport::Pci);
        connection
            .sender
            .send(Control::Hello.kind(), 0, Some(0), &[&hello])?;
        connection.sender.flush()?;
        let deadline = Instant::now() + PATIENCE;
        let welcome = loop {
            match connection.receiver.receive(Wait::Until(deadline))? {
                Some(frame) => break answer(frame.header.kind, frame.payload)?,
                None if Instant::now() >= deadline => {
                    return Err(Error::NoAnswer {
                        place: format!("the device {}", node.display()),
                        advice: "is paragpud running on the VM's host?",
                        source: Box::new(TravelError::protocol("the host sent no welcome")),
                    });
                }
                None => {}
            }
        };
        Ok((connection, welcome))
    }
}

/// The name required in the host's certificate.
fn host_name(tcp: &Tcp) -> &str {
    if !tcp.name.is_empty() {
        return &tcp.name;
    }
    let address = tcp.address.0.as_deref().unwrap_or_default();
    let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
    name.strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name)
}

/// The error if a guest cannot use its VM's device.
fn no_channel(node: &Path, error: TravelError) -> Error {
    let full = std::io::ErrorKind::StorageFull;
    match error {
        // The module reports this if no channel is free.
        TravelError::Io { source, .. } if source.kind() == full => {
            Error::ChannelsTaken(node.display().to_string())
        }
        error => Error::NoAnswer {
            place: format!("the device {}", node.display()),
            advice: "is the module `paragpu` loaded, and does this user belong to the group of the device file?",
            source: Box::new(error),
        },
    }
}

/// The advice if a guest cannot use its host's vsock.
fn vsock_advice(error: &TravelError) -> &'static str {
    use std::io::ErrorKind;
    let kind = match error {
        TravelError::Io { source, .. } => source.kind(),
        _ => ErrorKind::Other,
    };
    match kind {
        // Some devices reset connections to a port without a listener, others do
        // not answer.
        ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused | ErrorKind::TimedOut => {
            "is paragpud running there with `vsock.port` or `vsock.unix` set to this port, and is \
             vsock.cid right?"
        }
        _ => {
            "this machine has no vsock device: does the VM have one, and is its driver loaded \
             (vmw_vsock_virtio_transport, vmw_vsock_vmci_transport or hv_sock)?"
        }
    }
}

/// The advice if a guest cannot reach the daemon of its machine.
fn unix_advice(error: &TravelError) -> &'static str {
    let denied = std::io::ErrorKind::PermissionDenied;
    match error {
        TravelError::Io { source, .. } if source.kind() == denied => {
            "only members of its group may use it (ls -l), which is paragpu in the Debian \
             packages: usermod -aG paragpu USER"
        }
        _ => "is paragpud running (systemctl status paragpud)?",
    }
}

fn dial_unix(path: &Path) -> Result<std::os::unix::net::UnixStream, Error> {
    stream::sockets::connect_unix(path).map_err(|error| Error::NoAnswer {
        place: format!("the socket {}", path.display()),
        advice: unix_advice(&error),
        source: Box::new(error),
    })
}

fn answer(kind: u16, payload: &[u8]) -> Result<Welcome, Error> {
    match Control::from_kind(kind) {
        Some(Control::Welcome) => {
            let bad = |error: DecodeError| Error::BadAnswer(error.to_string());
            // The following bytes may differ in another version.
            let version = Reader::new(payload).field::<Version>().map_err(bad)?;
            VERSION.check(version)?;
            decode_all(payload).map_err(bad)
        }
        Some(Control::Refusal) => {
            let refusal: Refusal<'_> =
                decode_all(payload).map_err(|error| Error::BadAnswer(error.to_string()))?;
            Err(Error::Refused(refusal.reason.0.to_owned()))
        }
        Some(Control::Move) => {
            let goal: Move<'_> =
                decode_all(payload).map_err(|error| Error::BadAnswer(error.to_string()))?;
            Err(Error::Elsewhere {
                communicator: goal.communicator.0.to_owned(),
                address: goal.address.0.to_owned(),
            })
        }
        _ => Err(Error::BadAnswer(format!("a frame of kind {kind:#06x}"))),
    }
}
