//! Live migration, the destination's side. See `source.rs`, and
//! `source/switchover.rs` for guests that reconnect by themselves.

use std::io::BufWriter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error, Receiver};
use paragpu_communicator_ring::shm;
use paragpu_communicator_secure::Secured;
use paragpu_communicator_stream::{self as stream, handshake};
use paragpu_protocol::codec::{decode_all, encode_all};
use paragpu_protocol::frame::Control;
use paragpu_protocol::handshake::{ARRIVE, Move, Transport};
use paragpu_protocol::layout::DEVICE_STRIDE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::handover::{self, ConnectionRecord, Handover, Token};
use super::identity::Identity;
use super::lack::Lack;
use super::mover::Mover;
use super::regions::{Chunk, named};
use super::shared::{Mapping, Peers, mappings};
use super::state::{ImagePart, Kind, Scanner, StateError, Writer};
use super::stop::Filling;
use crate::connect::{attach_pci, guest_memory};
use crate::guest_life::GuestLife;
use crate::reconnect::Waiting;
use crate::session::Session;
use paragpu_control::worker::Channel;

/// Maximum silence of the source, which may be waiting for a long kernel.
const SILENCE: Duration = Duration::from_secs(90);

/// How the guest of an arrived session is connected.
pub(crate) enum Arrived {
    /// By its connection, which was handed over; and how to detect that the guest
    /// is gone.
    Connected(Box<dyn Receiver>, GuestLife),
    /// By a new connection that waits for its welcome. Closing the link then tells
    /// the source that the guest no longer uses the memory that it shared with the
    /// source's host.
    Waiting(UnixStream),
}

/// The end of the link at which a session arrives.
pub(crate) struct Destination {
    writer: Writer<BufWriter<UnixStream>>,
    scanner: Scanner<UnixStream>,
    filling: Filling,
    missing: Vec<u8>,
    connection: Option<Connection>,
    life: Option<GuestLife>,
    /// The token that came with the connection.
    token: Option<Token>,
    /// The peer access between the two devices.
    sharing: Option<Sharing>,
    peers: Peers,
}

/// How this device uses the source's memory.
#[derive(Debug, Clone, Copy)]
enum Sharing {
    /// Same device: it maps the memory.
    Memory,
    /// Another device: it copies from the memory, where it can.
    Copies,
}

impl Destination {
    /// Takes the link, and reports to the source that this worker is ready and how the
    /// guest reaches it.
    pub(crate) fn new(link: OwnedFd, home: &Move<'_>) -> Result<Self, StateError> {
        let socket = UnixStream::from(link);
        // The daemon has already read its first frame.
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(SILENCE))?;
        socket.set_write_timeout(Some(SILENCE))?;
        let deadline = Some(Instant::now() + SILENCE);
        let home = encode_all(home);
        handshake::send_frame(&socket, Control::Welcome.kind(), 0, 0, &home, deadline)
            .map_err(lost)?;
        Ok(Self {
            scanner: Scanner::new(socket.try_clone()?),
            writer: Writer::new(BufWriter::new(socket)),
            filling: Filling::default(),
            missing: Vec::new(),
            connection: None,
            life: None,
            token: None,
            sharing: None,
            peers: Peers::default(),
        })
    }

    /// Restores the session into `session` until this worker owns it. A guest that
    /// reconnects by itself waits in `waiting`. After an error the source continues with
    /// the session, and this process must exit without touching the guest's connection.
    pub(crate) fn fill(
        mut self,
        session: &mut Session,
        waiting: &Waiting,
    ) -> Result<Arrived, StateError> {
        let filled = self.take_all(session, waiting);
        self.peers.close(session);
        if let Err(error) = filled {
            let sentence = error.to_string();
            if let Some(guest) = waiting.take() {
                guest.refuse(&sentence);
            }
            let _ = self
                .writer
                .put(Kind::Refused, &[sentence.as_bytes()])
                .and_then(|()| self.writer.flush());
            // Dropping it would end the connection.
            std::mem::forget(self.connection);
            return Err(error);
        }
        // Before the source, which then leaves, so that one of the two counts at any time.
        let counts_there = session.memory.arena().share().arrive();
        // If the source is gone, it need not be notified.
        let _ = self.writer.put(Kind::Ready, &[]);
        let _ = self.writer.flush();
        let link = self.scanner.into_inner();
        let shortage = &mut session.transfer.shortage;
        if counts_there || matches!(self.sharing, Some(Sharing::Memory)) {
            shortage.begin();
        }
        Ok(match (self.connection, self.life) {
            (Some(connection), Some(life)) => {
                shortage.end_with(link);
                Arrived::Connected(connection.receiver, life)
            }
            _ => Arrived::Waiting(link),
        })
    }

    fn take_all(&mut self, session: &mut Session, waiting: &Waiting) -> Result<(), StateError> {
        loop {
            let (kind, payload) = match self.scanner.record() {
                Ok(record) => record,
                // The source may have handed over the session nevertheless.
                Err(error) => return self.take_session().map_err(|_| error),
            };
            match kind {
                Kind::Head => take_head(session, payload)?,
                Kind::Image => take_image(session, payload, &mut self.missing)?,
                Kind::ImageNames => {
                    let missing = std::mem::take(&mut self.missing);
                    self.answer(Kind::Missing, &missing)?;
                }
                Kind::Domain => {
                    let ours = session.gpu.memory_domain();
                    self.sharing = ours.map(|ours| match ours == *payload {
                        true => Sharing::Memory,
                        false => Sharing::Copies,
                    });
                    self.answer(Kind::Domain, ours.as_ref().map_or(&[], |ours| &ours[..]))?;
                }
                Kind::Shared => {
                    let (mappings, handed) = mappings(payload)?;
                    let taken = self.take_shared(session, &mappings, handed)?;
                    self.answer(Kind::Taken, &taken)?;
                }
                Kind::Freed => {
                    let (addresses, _) = payload.as_chunks();
                    session.settle(&mut self.filling)?;
                    session.let_go(addresses.iter().copied().map(u64::from_le_bytes))?;
                    self.answer(Kind::Ready, &[])?;
                }
                Kind::Fetch => {
                    let chunks = named(payload)?;
                    self.fetch(session, &chunks)?;
                    self.answer(Kind::Ready, &[])?;
                }
                Kind::ObjectsEnd => {
                    session.take_record(&mut self.filling, kind, payload)?;
                    // The driver takes a while to pin staging memory.
                    Mover::new(session)?.keep(session);
                    let answer = Lack::answer(self.filling.lack.as_ref());
                    self.answer(Kind::Ready, &answer)?;
                }
                Kind::Hash => {
                    let chunks = named(payload)?;
                    session.settle(&mut self.filling)?;
                    let mut mover = Mover::new(session)?;
                    let hashes = mover.hash_all(session, &chunks);
                    mover.keep(session);
                    self.answer(Kind::Hashes, hashes?.as_flattened())?;
                }
                Kind::Connection => {
                    let offered = Offered::read(payload)?;
                    session.settle(&mut self.filling)?;
                    self.take_connection(session, offered)?;
                    self.answer(Kind::Ready, &[])?;
                }
                Kind::Await => {
                    let alone = payload == [1];
                    session.settle(&mut self.filling)?;
                    session.make_pinned(&self.filling)?;
                    self.answer(Kind::Ready, &[])?;
                    self.await_guest(session, waiting)?;
                    return self.await_commit(alone);
                }
                Kind::Still => {}
                Kind::Refused => return Err(called_off(payload)),
                Kind::Commit => return self.take_session(),
                _ => session.take_record(&mut self.filling, kind, payload)?,
            }
        }
    }

    /// Takes ownership of the session.
    fn take_session(&self) -> Result<(), StateError> {
        match &self.token {
            Some(token) if token.take() => Ok(()),
            _ => Err(StateError::Order("the source keeps the session")),
        }
    }

    /// Waits until the guest has connected to this daemon.
    fn await_guest(&mut self, session: &Session, waiting: &Waiting) -> Result<(), StateError> {
        let deadline = Instant::now() + SILENCE;
        loop {
            match waiting.received() {
                Some(received) if received <= session.replies.link.sender().counts().1 => break,
                // It has received more from the source, which continued.
                Some(_) => return Err(StateError::Order("the guest continued elsewhere")),
                None => {}
            }
            let link = self.scanner.get_ref().as_fd();
            let mut fds = [
                PollFd::from_borrowed_fd(link, PollFlags::IN),
                PollFd::from_borrowed_fd(waiting.arrived(), PollFlags::IN),
            ];
            let left = deadline.saturating_duration_since(Instant::now());
            let polled = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
            let [link, _] = fds;
            match polled {
                Ok(0) => return Err(StateError::Impossible("the guest did not connect".into())),
                Ok(_) if !link.revents().is_empty() => match self.scanner.record()? {
                    (Kind::Still, _) => {}
                    (Kind::Refused, reason) => return Err(called_off(reason)),
                    _ => {
                        return Err(StateError::Order(
                            "an unexpected record before the guest connected",
                        ));
                    }
                },
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(StateError::Io(errno.into())),
            }
        }
        self.answer(Kind::Here, &[])
    }

    /// Waits for the source's commit. Meanwhile the guest only waits for its welcome, so
    /// a session that moves `alone` may be taken over if the link breaks.
    fn await_commit(&mut self, alone: bool) -> Result<(), StateError> {
        loop {
            match self.scanner.record() {
                Ok((Kind::Commit, _)) => return Ok(()),
                Ok((Kind::Still, _)) => {}
                Ok((Kind::Refused, reason)) => return Err(called_off(reason)),
                Ok(_) => {
                    return Err(StateError::Order(
                        "an unexpected record instead of the commit",
                    ));
                }
                Err(StateError::Incomplete | StateError::Io(_)) if alone => {
                    tracing::warn!(
                        "the link broke at the switchover; the session continues here with its guest"
                    );
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn answer(&mut self, kind: Kind, payload: &[u8]) -> Result<(), StateError> {
        self.writer.put(kind, &[payload])?;
        self.writer.flush()
    }

    fn take_shared(
        &mut self,
        session: &mut Session,
        mappings: &[Mapping],
        handed: usize,
    ) -> Result<Vec<u8>, StateError> {
        let Some(sharing) = self.sharing else {
            return Err(StateError::Order("memory that was not agreed on"));
        };
        let descriptors = self.receive_descriptors()?;
        if descriptors.len() != handed {
            return Err(StateError::Order("the wrong number of descriptors"));
        }
        session.settle(&mut self.filling)?;
        let peers = match sharing {
            Sharing::Memory => None,
            Sharing::Copies => Some(&mut self.peers),
        };
        session.take_shared(&mut self.filling, mappings, descriptors, peers)
    }

    /// Copies memory in the source's list from its device to this one.
    fn fetch(&mut self, session: &mut Session, chunks: &[Chunk]) -> Result<(), StateError> {
        session.settle(&mut self.filling)?;
        let mut mover = Mover::new(session)?;
        let fetched = mover.fetch(session, chunks, &self.peers);
        mover.keep(session);
        fetched
    }

    /// Receives the frame with descriptors that a record announced.
    fn receive_descriptors(&self) -> Result<Vec<OwnedFd>, StateError> {
        let deadline = Some(Instant::now() + SILENCE);
        let came =
            handshake::receive_with_fds(self.scanner.get_ref(), 0, deadline).map_err(lost)?;
        if came.header.kind != ARRIVE {
            return Err(StateError::Order(
                "a frame of another kind instead of descriptors",
            ));
        }
        Ok(came.fds)
    }

    fn take_connection(
        &mut self,
        session: &mut Session,
        offered: Offered,
    ) -> Result<(), StateError> {
        let (transport, channel) = (offered.transport, offered.channel);
        let offset = offered.window;
        let came = self.receive_descriptors()?;
        let mut fds = came.into_iter();
        let token = fds.next().map(Token::of);
        let fds: Vec<OwnedFd> = fds.collect();
        let mut kept = Vec::new();
        for fd in &fds {
            kept.push(fd.try_clone()?);
        }
        if transport == Transport::Pci {
            session.host.pages().adopt(guest_memory(&fds, channel));
        }
        let window = offset.map(|offset| session.gpu.regions().window + offset);
        let mut connection = offered.attach(fds, window)?;
        connection.window.take_if(|_| window.is_none());
        let handover = Handover {
            transport,
            fds: kept,
            channel,
            window: connection.window.as_ref().and(offset),
        };
        self.life = Some(handover.life());
        *handover::current() = Some(handover);
        session
            .replies
            .link
            .sender()
            .take_over(Arc::clone(&connection.sender));
        if let (Some(window), Some(offset)) = (&connection.window, offset) {
            session.adopt_window(window, offset, None);
        }
        self.connection = Some(connection);
        self.token = token;
        // Objects in the window had to wait for it.
        session.make_pinned(&self.filling)
    }
}

fn called_off(reason: &[u8]) -> StateError {
    let reason = String::from_utf8_lossy(reason);
    StateError::Impossible(format!("the source keeps the session: {reason}"))
}

/// The address of this host that a guest with connection `socket` can reach, if the
/// daemon listens on all addresses.
pub(crate) fn reachable(address: &str, socket: Option<BorrowedFd<'_>>) -> String {
    let Ok(mut address) = address.parse::<SocketAddr>() else {
        return address.to_owned();
    };
    if address.ip().is_unspecified() {
        let own = socket
            .and_then(|socket| rustix::net::getsockname(socket).ok())
            .and_then(|own| SocketAddr::try_from(own).ok());
        // A guest without a network connection is on this host.
        let own = own.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |own| own.ip());
        address.set_ip(own.to_canonical());
    }
    address.to_string()
}

fn lost(error: Error) -> StateError {
    StateError::Impossible(format!("the source is lost: {error}"))
}

/// Takes the owner of the session.
fn take_head(session: &mut Session, payload: &[u8]) -> Result<(), StateError> {
    let identity = Identity::decode(payload)?;
    // The source may be compromised: the daemon knows the VM.
    let vm = session.transfer.identity().vm.clone();
    session.take_identity(Identity { vm, ..identity })
}

/// Takes a part of an image. If it is only named and not here, adds its hash to `missing`.
fn take_image(
    session: &mut Session,
    payload: &[u8],
    missing: &mut Vec<u8>,
) -> Result<(), StateError> {
    let part: ImagePart<'_> = decode_all(payload)?;
    if !part.data.0.is_empty() {
        return session.objects.take_image(payload);
    }
    let images = session.objects.modules.images();
    if !images.holds(&part.hash, part.size) {
        missing.extend_from_slice(&part.hash);
    }
    Ok(())
}

/// The guest's connection, as the source describes it. Its descriptors follow.
struct Offered {
    transport: Transport,
    channel: Channel,
    /// The offset in the region of the window that came with it, if any.
    window: Option<u64>,
    /// The bytes of a frame that has not been received completely.
    unfinished: Vec<u8>,
    /// TLS state, if the connection is encrypted.
    secured: Option<Secured>,
}

impl Offered {
    fn read(payload: &[u8]) -> Result<Self, StateError> {
        let record: ConnectionRecord<'_> = decode_all(payload)?;
        let impossible = |error| StateError::Impossible(format!("the connection: {error}"));
        Ok(Self {
            transport: Transport::try_from(record.transport)
                .map_err(|error| StateError::Impossible(error.to_string()))?,
            channel: Channel {
                number: record.channel,
                offset: record.offset,
                size: record.size,
                lists: record.lists,
            },
            window: Some(record.window).filter(|offset| *offset < DEVICE_STRIDE),
            unfinished: record.unfinished.0.to_vec(),
            secured: match record.secured.0 {
                [] => None,
                state => Some(Secured::from_state(state).map_err(impossible)?),
            },
        })
    }

    /// Takes over the connection, and maps its window at `window_address`.
    fn attach(
        self,
        fds: Vec<OwnedFd>,
        window_address: Option<u64>,
    ) -> Result<Connection, StateError> {
        let mut fds = fds.into_iter();
        let mut next = || {
            fds.next().ok_or(StateError::Order(
                "a descriptor of the connection is missing",
            ))
        };
        let options = shm::Options {
            window_address,
            ..shm::Options::default()
        };
        let attached = match self.transport {
            Transport::Stream => {
                let options = stream::Options::default();
                stream::take_over(next()?, options, &self.unfinished, self.secured)
            }
            Transport::Shm => {
                let ends = shm::HostEnds {
                    memory: next()?,
                    host_bell: next()?,
                    guest_bell: next()?,
                };
                shm::take_over(ends, next()?, options)
            }
            Transport::Pci => attach_pci(&mut fds, self.channel, options),
        };
        attached.map_err(|error| StateError::Impossible(format!("the connection: {error}")))
    }
}
