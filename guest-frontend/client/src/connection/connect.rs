//! Connects by the configuration, up to the host's welcome.

use std::net::SocketAddrV6;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error as TravelError, Polling, Wait};
use paragpu_communicator_ring::{pci, shm};
use paragpu_communicator_secure::{Credentials, Files, Handshake, KeyLifetime};
use paragpu_communicator_stream as stream;
use paragpu_communicator_stream::secured::ConnectError;
use paragpu_config::guest::{Guest, Tcp, Vsock};
use paragpu_config::{Communicator, Spin};
use paragpu_protocol::codec::{DecodeError, Reader, decode_all, encode_all};
use paragpu_protocol::frame::{Control, MAX_PAYLOAD};
use paragpu_protocol::handshake::{
    Hello, Move, NO_WINDOW, Refusal, Transport, VERSION, Version, Welcome,
};
use paragpu_protocol::layout::Regions;

use super::advice::{broken_advice, no_channel, unix_advice, vsock_advice};
use crate::error::Error;
use crate::staging_layout;
use crate::sys::standard_streams::StandardStreams;
use crate::sys::uncancelled::Uncancelled;

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
    /// The offset of the window that the session has. It stays where it is mapped.
    pub(crate) window: Option<u64>,
    /// The offset from which there is room for another one.
    pub(crate) room: Option<u64>,
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
                Communicator::Tcp => {
                    let here = config.tcp.address.0.unwrap_or_default();
                    config.tcp.address.0 = Some(on_same_link(address, &here));
                }
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
    let _uncancelled = Uncancelled::begin();
    // Before a thread polls that can be cancelled.
    paragpu_communicator::processors();
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
        let _kept = StandardStreams::hold();
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
                Err(
                    error @ (Error::NoAnswer { .. }
                    | Error::DeviceGone { .. }
                    | Error::ChannelsTaken(_)),
                ) if !single => {
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
        let met = match communicator {
            Communicator::Pci => self.pci(&self.config.pci.device),
            Communicator::Shm => self.shm(&self.config.shm.socket),
            Communicator::Unix => self.unix(&self.config.unix.socket),
            Communicator::Vsock => self.vsock(),
            Communicator::Tcp => self.tcp(),
            // `auto` is not a communicator itself.
            Communicator::Auto => return Err(Error::NothingFound(communicator.to_string())),
        };
        met.map_err(|unmet| match unmet {
            Unmet::Failed(error) => error,
            Unmet::Broke(source) => Error::Broke {
                place: self.place(communicator),
                advice: broken_advice(&source),
                source,
            },
        })
    }

    /// The communicator and the configured address, for errors.
    fn place(&self, communicator: Communicator) -> String {
        let config = self.config;
        match communicator {
            Communicator::Pci => format!("the device {}", config.pci.device.display()),
            Communicator::Shm => format!("the socket {}", config.shm.socket.display()),
            Communicator::Unix => format!("the socket {}", config.unix.socket.display()),
            Communicator::Vsock => format!("vsock {}:{}", config.vsock.cid, config.vsock.port),
            Communicator::Tcp => {
                let address = config.tcp.address.0.as_deref().unwrap_or_default();
                format!("tcp {address}")
            }
            Communicator::Auto => communicator.to_string(),
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
            hello.window = resume.window.unwrap_or(NO_WINDOW);
            hello.room = self.room(transport).unwrap_or(NO_WINDOW);
        }
        encode_all(&hello)
    }

    /// The offset in the region of windows at which one of the connection is mapped. Over `pci`,
    /// every connection has one, also of a session that keeps another.
    fn room(&self, transport: Transport) -> Option<u64> {
        match &self.purpose {
            Purpose::Ask => None,
            Purpose::Compute => Some(0),
            Purpose::Resume(resume) => resume
                .room
                .filter(|_| transport != Transport::Pci || resume.window.is_none()),
        }
    }

    fn rings(&self, transport: Transport) -> shm::Options {
        let room = self.room(transport);
        shm::Options {
            polling: self.polling,
            window_address: room.map(|offset| self.regions.window + offset),
        }
    }

    fn over(&self, socket: OwnedFd) -> Result<Connection, Unmet> {
        Ok(stream::over(socket, self.options())?)
    }

    fn options(&self) -> stream::Options {
        stream::Options {
            polling: self.polling,
            ..stream::Options::default()
        }
    }

    fn unix(&self, path: &Path) -> Result<(Connection, Welcome), Unmet> {
        self.stream(dial_unix(path)?)
    }

    fn tcp(&self) -> Result<(Connection, Welcome), Unmet> {
        let over = &self.config.tcp.over;
        if !over.is_empty() {
            return Err(Error::Refused(over.clone()).into());
        }
        let address = self.config.tcp.address.0.as_deref().unwrap_or_default();
        let socket = stream::sockets::connect_tcp(address, TCP_PATIENCE).map_err(|error| {
            Error::NoAnswer {
                place: self.place(Communicator::Tcp),
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
    fn under_tls(&self, socket: OwnedFd) -> Result<(Connection, Welcome), Unmet> {
        let tcp = &self.config.tcp;
        let files = Files {
            key_shared: tcp.key_shared,
            ..Files::new("tcp", &tcp.ca, &tcp.certificate, &tcp.key)
        };
        let loaded = Credentials::load(files, KeyLifetime::Replaceable);
        let credentials = loaded.map_err(Error::Certificate)?;
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
            ConnectError::NoTls => Unmet::Failed(Error::NoTls(name.to_owned())),
            ConnectError::Closed => Unmet::Failed(Error::Closed(name.to_owned())),
            ConnectError::Secure(error) => Unmet::Failed(untrusted(error.to_string())),
            ConnectError::Lost(error) => Unmet::Broke(error),
        })?;
        let welcome = answer(header.kind, &payload)?;
        let connection = stream::over_secured(socket, self.options(), secured)?;
        Ok((connection, welcome))
    }

    fn vsock(&self) -> Result<(Connection, Welcome), Unmet> {
        let Vsock { cid, port, .. } = self.config.vsock;
        let socket =
            stream::sockets::connect_vsock(cid, port).map_err(|error| Error::NoAnswer {
                place: self.place(Communicator::Vsock),
                advice: vsock_advice(&error),
                source: Box::new(error),
            })?;
        self.stream(socket)
    }

    /// Sends the hello on a connected socket.
    fn stream(&self, socket: impl Into<OwnedFd>) -> Result<(Connection, Welcome), Unmet> {
        let socket = socket.into();
        let deadline = Some(Instant::now() + PATIENCE);
        let hello = self.hello(Transport::Stream);
        stream::handshake::send_frame(&socket, Control::Hello.kind(), 0, 0, &hello, deadline)?;
        let (header, payload) =
            stream::handshake::receive_exact_frame(&socket, MAX_PAYLOAD, deadline)?;
        let welcome = answer(header.kind, &payload)?;
        Ok((self.over(socket)?, welcome))
    }

    fn shm(&self, path: &Path) -> Result<(Connection, Welcome), Unmet> {
        let socket = dial_unix(path)?;
        let deadline = Some(Instant::now() + PATIENCE);
        let hello = self.hello(Transport::Shm);
        stream::handshake::send_frame(&socket, Control::Hello.kind(), 0, 0, &hello, deadline)?;
        let received = stream::handshake::receive_with_fds(&socket, MAX_PAYLOAD, deadline)?;
        let welcome = answer(received.header.kind, &received.payload)?;
        let ends = shm::GuestEnds::from_fds(received.fds)?;
        let connection = shm::attach(ends, socket.into(), self.rings(Transport::Shm))?;
        Ok((connection, welcome))
    }

    fn pci(&self, node: &Path) -> Result<(Connection, Welcome), Unmet> {
        let mut connection =
            pci::attach_guest(node, self.rings(Transport::Pci), staging_layout::reach)
                .map_err(|error| no_channel(node, error))?;
        if !self.config.pci.direct {
            connection.pinner = None;
        }
        let hello = self.hello(Transport::Pci);
        connection
            .sender
            .send(Control::Hello.kind(), 0, Some(0), &[&hello])?;
        // No flush: a ring gathers nothing, and the host may have refused and closed the
        // channel by now. Its answer is in the ring.
        let deadline = Instant::now() + PATIENCE;
        let welcome = loop {
            match connection.receiver.receive(Wait::Until(deadline))? {
                Some(frame) => break answer(frame.header.kind, frame.payload)?,
                None if Instant::now() >= deadline => {
                    let timeout = std::io::Error::from(std::io::ErrorKind::TimedOut);
                    return Err(Unmet::Failed(Error::NoAnswer {
                        place: self.place(Communicator::Pci),
                        advice: "is paragpud running on the VM's host? If the VM's device \
                                 process ended, replug the device (paragpu detach VM; paragpu \
                                 attach VM)",
                        source: Box::new(TravelError::io("the host sent no welcome", timeout)),
                    }));
                }
                None => {}
            }
        };
        Ok((connection, welcome))
    }
}

/// Why an attempt failed.
enum Unmet {
    Failed(Error),
    /// The connection broke during the handshake.
    Broke(TravelError),
}

impl From<Error> for Unmet {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<TravelError> for Unmet {
    fn from(error: TravelError) -> Self {
        Self::Broke(error)
    }
}

/// The address of a host, for a guest that is connected to `here`. A link-local address is
/// valid on the guest's interface: that of the host has another number.
fn on_same_link(address: &str, here: &str) -> String {
    let host = here.rsplit_once(':').map_or(here, |(host, _)| host);
    let interface = host.trim_end_matches(']').split_once('%');
    match (address.parse::<SocketAddrV6>(), interface) {
        (Ok(there), Some((_, interface))) if there.ip().is_unicast_link_local() => {
            format!("[{}%{interface}]:{}", there.ip(), there.port())
        }
        _ => address.to_owned(),
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::error::chain;

    fn guest_of(address: &str) -> Guest {
        let mut config = Guest {
            communicator: Communicator::Tcp,
            ..Guest::default()
        };
        config.tcp.address.0 = Some(address.to_owned());
        config
    }

    /// The error of a guest whose host answers a hello with `bytes` and ends the connection.
    fn error(bytes: &'static [u8]) -> (Error, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let config = guest_of(&address);
        let host = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.write_all(bytes).unwrap();
            // The guest may have left at the bytes.
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let _ = socket.read_to_end(&mut Vec::new());
        });
        let error = connect(&config, 0).unwrap_err();
        host.join().unwrap();
        (error, address)
    }

    #[test]
    fn a_broken_handshake_names_the_address() {
        for (bytes, reason) in [
            (
                &b"HTTP/1.1 400 Bad Request\r\n"[..],
                "does not speak its protocol",
            ),
            (b"", "Its log may say why"),
        ] {
            let (error, address) = error(bytes);
            let said = chain(&error);
            assert!(matches!(error, Error::Broke { .. }), "{said}");
            assert!(said.contains(&format!("tcp {address}")), "{said}");
            assert!(said.contains(reason), "{said}");
            assert!(!error.is_timeout());
        }
    }

    #[test]
    fn a_link_local_host_is_on_the_guests_interface() {
        let here = "[fe80::9%eth1]:7474";
        for (address, expected) in [
            ("[fe80::a]:7475", "[fe80::a%eth1]:7475"),
            ("[fe80::a%7]:7475", "[fe80::a%eth1]:7475"),
            ("[fd01::1]:7475", "[fd01::1]:7475"),
            ("gpu1:7475", "gpu1:7475"),
        ] {
            assert_eq!(on_same_link(address, here), expected);
        }
        assert_eq!(
            on_same_link("[fe80::a]:1", "fe80::9%2:7474"),
            "[fe80::a%2]:1"
        );
        assert_eq!(on_same_link("[fe80::a]:1", "gpu1:7474"), "[fe80::a]:1");
    }

    #[test]
    fn a_silent_host_is_a_timeout() {
        let timeout = std::io::Error::from(std::io::ErrorKind::TimedOut);
        let source = TravelError::io("the peer did not answer in time", timeout);
        let advice = broken_advice(&source);
        assert!(advice.contains("does not answer"), "{advice}");
        let place = "tcp host:1".into();
        assert!(
            Error::Broke {
                place,
                advice,
                source
            }
            .is_timeout()
        );
    }

    #[test]
    fn a_missing_certificate_is_named_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = guest_of(&listener.local_addr().unwrap().to_string());
        let missing = tempfile::tempdir().unwrap().path().join("ca.pem");
        for file in [
            &mut config.tcp.ca,
            &mut config.tcp.certificate,
            &mut config.tcp.key,
        ] {
            *file = missing.clone();
        }
        let error = connect(&config, 0).unwrap_err();
        let said = chain(&error);
        assert!(matches!(error, Error::Certificate(_)), "{said}");
        assert_eq!(said.matches("cannot be used").count(), 1, "{said}");
    }
}
