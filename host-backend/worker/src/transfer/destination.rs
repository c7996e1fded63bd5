//! Live migration, the end that the session comes to: see `source.rs`.

use std::io::BufWriter;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error, Receiver, Sender};
use paragpu_communicator_ring::{pci, shm};
use paragpu_communicator_stream::{self as stream, handshake};
use paragpu_protocol::codec::decode_all;
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{ARRIVE, Transport};
use paragpu_protocol::layout::Regions;

use super::checkpoint::Identity;
use super::handover::{self, Handover, Token};
use super::mover::Mover;
use super::regions::named;
use super::source::Line;
use super::state::{ImagePart, Kind, Scanner, StateError, Writer};
use super::stop::Filling;
use crate::connect::Life;
use crate::session::Session;

/// Longest silence of the source. It may wait for a program's long kernel.
const SILENCE: Duration = Duration::from_secs(90);

/// Sends nothing: a session that has not its connection yet.
pub(crate) struct Nobody;

impl Sender for Nobody {
    fn try_send(&self, _: u16, _: u16, _: Option<u64>, _: &[&[u8]]) -> Result<u64, Error> {
        Err(Error::Closed)
    }
    fn wait_for_room(&self, _: usize) -> Result<(), Error> {
        Err(Error::Closed)
    }
    fn flush(&self) -> Result<(), Error> {
        Err(Error::Closed)
    }
    fn close(&self) {}
    fn last_sequence(&self) -> u64 {
        0
    }
}

/// The end of the link at which a session arrives.
pub(crate) struct Destination {
    writer: Writer<BufWriter<UnixStream>>,
    scanner: Scanner<UnixStream>,
    filling: Filling,
    missing: Vec<u8>,
    connection: Option<Connection>,
    life: Option<Life>,
    /// Came with the connection.
    token: Option<Token>,
}

impl Destination {
    /// Takes the link, and says that it listens.
    pub(crate) fn new(link: OwnedFd) -> Result<Self, StateError> {
        let socket = UnixStream::from(link);
        // The daemon read its first frame without waiting.
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(SILENCE))?;
        socket.set_write_timeout(Some(SILENCE))?;
        let deadline = Some(Instant::now() + SILENCE);
        handshake::send_frame(&socket, Control::Welcome.kind(), 0, 0, &[], deadline)
            .map_err(lost)?;
        Ok(Self {
            scanner: Scanner::new(socket.try_clone()?),
            writer: Writer::new(BufWriter::new(socket)),
            filling: Filling::default(),
            missing: Vec::new(),
            connection: None,
            life: None,
            token: None,
        })
    }

    /// Fills `session` until it is this worker's. On an error the source goes
    /// on with it, and this process must end without touching the guest's
    /// connection.
    pub(crate) fn fill(
        mut self,
        session: &mut Session,
    ) -> Result<(Box<dyn Receiver>, Life), StateError> {
        let filled = self.take_all(session);
        if let Err(error) = filled {
            let sentence = error.to_string();
            let _ = self
                .writer
                .put(Kind::Refused, &[sentence.as_bytes()])
                .and_then(|()| self.writer.flush());
            // Dropping it would end the connection.
            std::mem::forget(self.connection);
            return Err(error);
        }
        let (Some(connection), Some(life)) = (self.connection, self.life) else {
            return Err(StateError::Order("no connection"));
        };
        let _ = self.writer.put(Kind::Ready, &[]);
        let _ = self.writer.flush();
        Ok((connection.receiver, life))
    }

    fn take_all(&mut self, session: &mut Session) -> Result<(), StateError> {
        loop {
            let (kind, payload) = match self.scanner.record() {
                Ok(record) => record,
                // The source may have given the session away all the same.
                Err(error) => return self.take_session().map_err(|_| error),
            };
            match kind {
                Kind::Head => session.take_identity(Identity::decode(payload)?)?,
                Kind::Image => {
                    let part: ImagePart<'_> = decode_all(payload)?;
                    if part.data.0.is_empty() {
                        if !session.images.holds(&part.hash, part.size) {
                            self.missing.extend_from_slice(&part.hash);
                        }
                    } else {
                        session.take_image(payload)?;
                    }
                }
                Kind::ImageNames => {
                    let missing = std::mem::take(&mut self.missing);
                    self.answer(Kind::Missing, &missing)?;
                }
                Kind::ObjectsEnd => {
                    session.take_record(&mut self.filling, kind, payload)?;
                    self.answer(Kind::Ready, &[])?;
                }
                Kind::Hash => {
                    let chunks = named(payload)?;
                    session.settle(&mut self.filling)?;
                    let mut mover = Mover::new(session)?;
                    let hashes = mover.hash_all(session, &chunks);
                    mover.release(session);
                    self.answer(Kind::Hashes, hashes?.as_flattened())?;
                }
                Kind::Connection => {
                    let line: Line<'_> = decode_all(payload)?;
                    let (transport, unfinished) = (line.transport, line.unfinished.0.to_vec());
                    let channel = (line.channel, line.offset, line.size);
                    session.settle(&mut self.filling)?;
                    self.take_connection(session, transport, channel, &unfinished)?;
                    self.answer(Kind::Ready, &[])?;
                }
                Kind::Commit => return self.take_session(),
                _ => session.take_record(&mut self.filling, kind, payload)?,
            }
        }
    }

    /// The session is this worker's, or an error.
    fn take_session(&self) -> Result<(), StateError> {
        match &self.token {
            Some(token) if token.take() => Ok(()),
            _ => Err(StateError::Order("a session that its source keeps")),
        }
    }

    fn answer(&mut self, kind: Kind, payload: &[u8]) -> Result<(), StateError> {
        self.writer.put(kind, &[payload])?;
        self.writer.flush()
    }

    fn take_connection(
        &mut self,
        session: &mut Session,
        transport: u8,
        channel: (u32, u64, u64),
        unfinished: &[u8],
    ) -> Result<(), StateError> {
        let deadline = Some(Instant::now() + SILENCE);
        let came =
            handshake::receive_with_fds(self.scanner.get_ref(), 0, deadline).map_err(lost)?;
        if came.header.kind != ARRIVE {
            return Err(StateError::Order("a connection without descriptors"));
        }
        let transport = Transport::try_from(transport)
            .map_err(|error| StateError::Impossible(error.to_string()))?;
        let mut fds = came.fds.into_iter();
        let token = fds.next().map(Token::of);
        let fds: Vec<OwnedFd> = fds.collect();
        let mut kept = Vec::new();
        for fd in &fds {
            kept.push(fd.try_clone()?);
        }
        self.life = Some(match (transport, fds.last()) {
            (Transport::Pci, _) | (_, None) => Life::Channel,
            (_, Some(socket)) => Life::of_peer(socket.as_fd()),
        });
        session.communicator = match (transport, &self.life) {
            (Transport::Shm, _) => "shm",
            (Transport::Pci, _) => "pci",
            (Transport::Stream, Some(Life::Unknown)) => "tcp",
            (Transport::Stream, _) => "unix",
        }
        .into();
        let connection = attach(transport, fds, channel, unfinished, session.regions)?;
        *handover::current() = Some(Handover {
            transport,
            fds: kept,
            channel,
            own_window: connection.window.is_some(),
        });
        session.sender.take_over(Arc::clone(&connection.sender));
        if let Some(window) = &connection.window {
            session.tokens.adopt(window);
            session.window = Some(Arc::clone(window));
        }
        self.connection = Some(connection);
        self.token = token;
        // What lies in the window waited for it.
        session.make_pinned(&self.filling)
    }
}

fn lost(error: Error) -> StateError {
    StateError::Impossible(format!("the source is lost: {error}"))
}

fn attach(
    transport: Transport,
    fds: Vec<OwnedFd>,
    (channel, offset, size): (u32, u64, u64),
    unfinished: &[u8],
    regions: Regions,
) -> Result<Connection, StateError> {
    let mut fds = fds.into_iter();
    let mut next = || {
        fds.next().ok_or(StateError::Order(
            "a descriptor of the connection is missing",
        ))
    };
    let options = shm::Options {
        window_address: Some(regions.window),
        ..shm::Options::default()
    };
    let attached = match transport {
        Transport::Stream => stream::take_over(next()?, stream::Options::default(), unfinished),
        Transport::Shm => {
            let ends = shm::GuestEnds {
                memory: next()?,
                host_bell: next()?,
                guest_bell: next()?,
            };
            shm::take_over(ends, next()?, options)
        }
        Transport::Pci => pci::attach_host(
            pci::HostChannel {
                memory: next()?,
                doorbell: next()?,
                interrupt: next()?,
                liveness: next().ok(),
                channel,
                offset,
                size,
            },
            options,
        ),
    };
    attached.map_err(|error| StateError::Impossible(format!("the connection: {error}")))
}
