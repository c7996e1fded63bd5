//! Reads the first frame of a connection, without blocking and without reading a byte
//! beyond it: the rest belongs to the worker.
#![forbid(unsafe_code)]

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use paragpu_communicator_secure::{Error as Secure, Handshake};
use paragpu_control::worker::Keys;
use paragpu_protocol::codec::{Reader, Text, decode_all, encode_all};
use paragpu_protocol::frame::{Control, FrameHeader, HEADER_LEN};
use paragpu_protocol::handshake::{
    ANY_DEVICE, ARRIVE, ATTACH, ATTACH_FDS, Arrive, Attach, Hello, MAGIC, Move, Refusal, Transport,
    VERSION, Version,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown};

use crate::listener::Peer;
use crate::protection::{Certified, Protection};
use crate::received_fd::{PeerKind, ReceivedFd};

/// Maximum payload of a first frame. A hello is shorter; that of a later version may be
/// longer and should get an answer.
pub const MAX_FIRST: usize = 4096;

/// The refusal of a guest without TLS if TLS is required.
const NEEDS_TLS: &str = "the host's tcp.listen takes guests under TLS: name tcp.ca, \
     tcp.certificate and tcp.key in guest.toml, which `paragpu certificate DIRECTORY --vm NAME` \
     makes on the host";

/// Minimum descriptors of an [`Attach`]: window, eventfd guest to host, eventfd
/// host to guest.
const CHANNEL_FDS: usize = 3;

/// A connection whose first frame is incomplete.
#[derive(Debug)]
pub struct Pending {
    /// The connection.
    pub guest: Guest,
    /// Its deadline.
    pub deadline: Instant,
    bytes: Vec<u8>,
    /// Descriptors, accepted only from a device process.
    fds: Vec<ReceivedFd>,
}

/// A connected socket and its peer.
#[derive(Debug)]
pub struct Guest {
    socket: ReceivedFd,
    protection: Protection,
    /// The peer.
    pub peer: Peer,
}

/// A guest's request.
#[derive(Debug)]
pub struct SessionRequest {
    /// The validated hello.
    pub hello: Hello,
    /// Its transport.
    pub transport: Transport,
    /// `unix`, `tcp`, `vsock`, `shm` or `pci`.
    pub communicator: &'static str,
    /// The VM, user or address.
    pub vm: String,
    /// The channel of a PCI device's window.
    pub channel: Option<Channel>,
    /// The session comes from another worker.
    pub arrives: Option<Arrival>,
    /// The required GPU by its index on this host; `None` leaves the choice to the
    /// configured placement.
    pub gpu: Option<u32>,
}

/// A session that comes from another worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Its secret.
    pub token: [u8; 16],
    /// The guest's connection is handed over.
    pub local: bool,
    /// Its guest will reconnect over [`SessionRequest::communicator`].
    pub follows: bool,
    /// Its connection is not handed over: the guest reconnects before the session is complete.
    pub reconnects: bool,
    /// When its guest's certificate expires, in seconds since 1970, by the source's daemon;
    /// `None` if the guest showed none.
    pub expires: Option<u64>,
}

/// A channel of a PCI device's window.
#[derive(Debug)]
pub struct Channel {
    /// Its number.
    pub number: u32,
    /// Offset of its region in the window.
    pub offset: u64,
    /// Size of its region.
    pub size: u64,
    /// Offset of its page lists in the window; 0 for none.
    pub lists: u64,
    /// Window, eventfd guest to host, eventfd host to guest.
    pub fds: [ReceivedFd; CHANNEL_FDS],
    /// With page lists: the table of the VM's memory, and its files.
    pub memory: Vec<ReceivedFd>,
}

/// The state of a first frame.
#[derive(Debug)]
pub enum Progress {
    /// More bytes follow.
    More,
    /// It is complete and valid.
    Complete(Box<SessionRequest>),
    /// The peer speaks the protocol, but cannot be served: one sentence.
    Refused(String),
    /// The peer does not speak the protocol, or is gone.
    Invalid(&'static str),
    /// The peer disconnected without sending anything, for example after probing the
    /// socket.
    Left,
}

impl Pending {
    /// A connection with a deadline.
    #[must_use]
    pub fn new(guest: Guest, deadline: Instant) -> Self {
        Self {
            guest,
            deadline,
            bytes: Vec::new(),
            fds: Vec::new(),
        }
    }

    /// Reads what has arrived, at most to the end of the frame.
    pub fn advance(&mut self) -> Progress {
        loop {
            let wanted = match self.wanted() {
                Ok(0) => return self.complete(),
                Ok(wanted) => wanted,
                Err(reason) => return Progress::Invalid(reason),
            };
            match self.read(wanted) {
                Ok(0) => return self.ended(),
                Ok(_) => {}
                Err(Secure::Io(rustix::io::Errno::INTR)) => {}
                Err(Secure::Io(rustix::io::Errno::AGAIN)) => return Progress::More,
                Err(Secure::Io(rustix::io::Errno::MSGSIZE)) => {
                    return Progress::Invalid("sent unexpected file descriptors");
                }
                Err(Secure::Io(_)) => return Progress::Invalid("failed before its hello"),
                Err(Secure::Plain) => {
                    self.guest.protection = Protection::Plain;
                    return Progress::Refused(NEEDS_TLS.into());
                }
                Err(Secure::Ended) => return self.ended(),
                Err(error) => {
                    tracing::info!(peer = %self.guest.peer, %error, "TLS refuses a connection");
                    self.guest.drain();
                    return Progress::Invalid("failed before its hello");
                }
            }
            if self.fds.len() > ATTACH_FDS {
                return Progress::Invalid("sent too many file descriptors");
            }
        }
    }

    /// The outcome if the peer sends no more before its hello is complete.
    fn ended(&self) -> Progress {
        let silent = match &self.guest.protection {
            Protection::Handshaking(handshake) => handshake.is_silent(),
            _ => self.bytes.is_empty(),
        };
        match silent {
            true => Progress::Left,
            false => Progress::Invalid("ended before its hello"),
        }
    }

    /// Bytes that are missing from the header, or from the frame.
    fn wanted(&self) -> Result<usize, &'static str> {
        let Some((header, payload)) = self.bytes.split_first_chunk::<HEADER_LEN>() else {
            return Ok(HEADER_LEN - self.bytes.len());
        };
        let header = FrameHeader::from_bytes(header).map_err(|_| "sent no frame")?;
        if ![Control::Hello.kind(), ATTACH, ARRIVE].contains(&header.kind) {
            return Err("did not begin with a hello");
        }
        if header.payload_len() > MAX_FIRST {
            return Err("sent a hello of impossible length");
        }
        Ok(header.payload_len().saturating_sub(payload.len()))
    }

    /// The token of the session that it resumes, once read.
    #[must_use]
    pub fn token(&self) -> Option<[u8; 16]> {
        let (header, payload) = self.bytes.split_first_chunk::<HEADER_LEN>()?;
        if FrameHeader::from_bytes(header).ok()?.kind != Control::Hello.kind() {
            return None;
        }
        let mut reader = Reader::new(payload);
        // The beginning of a hello: magic, version, transport, device.
        if reader.field::<[u8; 8]>().ok()? != MAGIC {
            return None;
        }
        reader.field::<Version>().ok()?;
        reader.field::<u8>().ok()?;
        reader.field::<u32>().ok()?;
        reader.field().ok()
    }

    fn read(&mut self, wanted: usize) -> Result<usize, Secure> {
        let Guest {
            socket,
            protection,
            peer,
        } = &mut self.guest;
        match (peer, protection) {
            (_, Protection::Handshaking(handshake)) => {
                handshake.read(&*socket, wanted, &mut self.bytes)
            }
            (Peer::Device { .. }, _) => Ok(self.read_with_descriptors(wanted)?),
            _ => Ok(self.read_plainly(wanted)?),
        }
    }

    /// Reads bytes that came without descriptors. Reading bytes with descriptors without
    /// receiving those would close them, which may block. So this peeks first, and leaves
    /// such bytes unread.
    fn read_plainly(&mut self, wanted: usize) -> Result<usize, rustix::io::Errno> {
        let peeked = self.receive(wanted, RecvFlags::PEEK, &mut RecvAncillaryBuffer::default())?;
        self.receive(
            peeked,
            RecvFlags::empty(),
            &mut RecvAncillaryBuffer::default(),
        )
    }

    fn read_with_descriptors(&mut self, wanted: usize) -> Result<usize, rustix::io::Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ATTACH_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = self.receive(wanted, RecvFlags::CMSG_CLOEXEC, &mut ancillary);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                for fd in fds {
                    // The process that closes it last must not wait for the peer.
                    let _ = rustix::net::sockopt::set_socket_linger(&fd, None);
                    self.fds.push(ReceivedFd::new(fd, PeerKind::Device));
                }
            }
        }
        received
    }

    /// Appends up to `wanted` bytes. `MSGSIZE` if `ancillary` has no room for
    /// descriptors that arrived.
    fn receive(
        &mut self,
        wanted: usize,
        flags: RecvFlags,
        ancillary: &mut RecvAncillaryBuffer<'_>,
    ) -> Result<usize, rustix::io::Errno> {
        let start = self.bytes.len();
        self.bytes.resize(start + wanted, 0);
        let room = self.bytes.get_mut(start..).unwrap_or_default();
        let received = rustix::net::recvmsg(
            &self.guest.socket,
            &mut [std::io::IoSliceMut::new(room)],
            ancillary,
            flags | RecvFlags::DONTWAIT,
        );
        let peeks = flags.contains(RecvFlags::PEEK);
        let count = received.as_ref().map_or(0, |received| received.bytes);
        self.bytes.truncate(start + if peeks { 0 } else { count });
        match received {
            Ok(received) if received.flags.contains(ReturnFlags::CTRUNC) => {
                Err(rustix::io::Errno::MSGSIZE)
            }
            Ok(_) => Ok(count),
            Err(errno) => Err(errno),
        }
    }

    fn complete(&mut self) -> Progress {
        match self.guest.introduce() {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => return Progress::Refused(reason),
            Err(error) => {
                tracing::info!(peer = %self.guest.peer, %error, "TLS refuses a connection");
                return Progress::Invalid("failed before its hello");
            }
        }
        let Some((header, payload)) = self.bytes.split_first_chunk::<HEADER_LEN>() else {
            return Progress::Invalid("sent no frame");
        };
        // In every version, both frames begin with magic and version.
        let mut reader = Reader::new(payload);
        let (Ok(magic), Ok(version)) = (reader.field::<[u8; 8]>(), reader.field::<Version>())
        else {
            return Progress::Invalid("sent a hello too short");
        };
        if magic != MAGIC {
            return Progress::Invalid("does not speak paragpu's protocol");
        }
        if let Err(error) = VERSION.check(version) {
            return Progress::Refused(error.to_string());
        }
        let kind = FrameHeader::from_bytes(header).map_or(0, |header| header.kind);
        let fds = std::mem::take(&mut self.fds);
        let request = match (kind, &self.guest.peer) {
            (ATTACH, Peer::Device { .. }) => attached(payload, fds),
            (ATTACH, _) => {
                Err("device processes must connect to the daemon's socket for them".into())
            }
            (_, Peer::Device { .. }) => Err(
                "guests must connect to daemon.socket: this socket is for device processes".into(),
            ),
            (ARRIVE, peer) => arrived(payload, peer),
            (_, Peer::Host { .. }) => {
                Err("guests must connect to tcp.listen: this port is for migrations".into())
            }
            (_, peer) => said_hello(payload, peer),
        };
        match request {
            Ok(request) => Progress::Complete(Box::new(request)),
            Err(reason) => Progress::Refused(reason),
        }
    }
}

fn said_hello(payload: &[u8], peer: &Peer) -> Result<SessionRequest, String> {
    let hello: Hello = decode_all(payload).map_err(|error| format!("bad hello: {error}"))?;
    let transport = hello.check().map_err(|error| error.to_string())?;
    let communicator = match (transport, peer) {
        (Transport::Stream, Peer::Local { .. } | Peer::Device { .. }) => "unix",
        (Transport::Stream, Peer::Remote(_) | Peer::Certified(_) | Peer::Host { .. }) => "tcp",
        (Transport::Stream, Peer::Cid(_) | Peer::Vm(_)) => "vsock",
        (Transport::Shm, Peer::Local { .. }) => "shm",
        (Transport::Shm, _) => {
            return Err("shared memory works only over the daemon's unix socket".into());
        }
        (Transport::Pci, _) => {
            return Err("a channel of a PCI device must come from its device process".into());
        }
    };
    Ok(SessionRequest {
        hello,
        transport,
        communicator,
        vm: peer.to_string(),
        channel: None,
        arrives: None,
        gpu: None,
    })
}

/// Checks a session that arrives from another worker, as that worker's daemon announces it.
/// It brings memory and a secret, and names its VM, so only a process with this daemon's
/// privileges or a host with a certificate may announce it.
fn arrived(payload: &[u8], peer: &Peer) -> Result<SessionRequest, String> {
    let arrive: Arrive<'_> =
        decode_all(payload).map_err(|error| format!("bad arrival: {error}"))?;
    let own = rustix::process::geteuid().as_raw();
    let local = match peer {
        Peer::Local { uid, .. } if *uid == own || *uid == 0 => true,
        Peer::Host { .. } => false,
        _ => {
            return Err(
                "a session is taken only from root or the user that paragpud runs as, and from \
                 hosts with a certificate at migration.listen"
                    .into(),
            );
        }
    };
    let follows = !arrive.follows.0.is_empty();
    if !local && !follows {
        return Err("a connection cannot be handed over from another host".into());
    }
    let communicator = match follows {
        true => arrive.follows.0,
        false => arrive.communicator.0,
    };
    let (communicator, transport) = match communicator {
        "unix" => ("unix", Transport::Stream),
        "tcp" => ("tcp", Transport::Stream),
        "vsock" => ("vsock", Transport::Stream),
        "shm" => ("shm", Transport::Shm),
        "pci" => ("pci", Transport::Pci),
        other => return Err(format!("a session cannot arrive over {other:?}")),
    };
    let hello = Hello::new(transport, arrive.device, arrive.guest_pid);
    Ok(SessionRequest {
        hello,
        transport,
        communicator,
        vm: arrive.vm.0.to_owned(),
        channel: None,
        arrives: Some(Arrival {
            token: arrive.token,
            local,
            follows,
            // A connection that is handed over need not follow to its own communicator.
            reconnects: !local || arrive.follows.0 == arrive.communicator.0,
            expires: (arrive.expires != 0).then_some(arrive.expires),
        }),
        gpu: (arrive.wanted != ANY_DEVICE).then_some(arrive.wanted),
    })
}

fn attached(payload: &[u8], mut fds: Vec<ReceivedFd>) -> Result<SessionRequest, String> {
    let attach: Attach<'_> = decode_all(payload).map_err(|error| format!("bad attach: {error}"))?;
    let hello: Hello = decode_all(attach.hello.0).map_err(|error| format!("bad hello: {error}"))?;
    if hello.check().map_err(|error| error.to_string())? != Transport::Pci {
        return Err("the hello in a PCI device's channel has another transport".into());
    }
    let memory = fds.split_off(fds.len().min(CHANNEL_FDS));
    let fds = <[ReceivedFd; CHANNEL_FDS]>::try_from(fds).map_err(|fds| {
        format!(
            "a channel comes with {CHANNEL_FDS} file descriptors, not {}",
            fds.len()
        )
    })?;
    if memory.is_empty() != (attach.list_offset == 0) || memory.len() == 1 {
        return Err("a VM's memory requires page lists, a table and its files".into());
    }
    Ok(SessionRequest {
        hello,
        transport: Transport::Pci,
        communicator: "pci",
        vm: attach.vm.0.to_owned(),
        channel: Some(Channel {
            number: attach.channel,
            offset: attach.channel_offset,
            size: attach.channel_size,
            lists: attach.list_offset,
            fds,
            memory,
        }),
        arrives: None,
        gpu: None,
    })
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Guest {
    /// The peer at the other end of a socket.
    #[must_use]
    pub fn new(socket: OwnedFd, peer: Peer) -> Self {
        let giver = match peer {
            Peer::Device { .. } => PeerKind::Device,
            _ => PeerKind::Guest,
        };
        let socket = ReceivedFd::new(socket, giver);
        Self {
            socket,
            protection: Protection::Plain,
            peer,
        }
    }

    /// Whether its end of the connection is open.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        let mut ends = [PollFd::new(self, PollFlags::RDHUP)];
        let polled = poll(&mut ends, Some(&Timespec::default()));
        polled.is_ok() && ends.iter().all(|end| end.revents().is_empty())
    }

    /// A peer that begins with a TLS handshake.
    #[must_use]
    pub fn handshaking(socket: OwnedFd, peer: Peer, handshake: Handshake) -> Self {
        Self {
            protection: Protection::Handshaking(Box::new(handshake)),
            ..Self::new(socket, peer)
        }
    }

    /// Whether the TLS handshake is in progress.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        matches!(self.protection, Protection::Handshaking(_))
    }

    /// Reads what has arrived: closing a socket with unread bytes discards what was sent,
    /// such as a TLS alert.
    fn drain(&self) {
        let mut place = [0; 4096];
        for _ in 0..4 {
            let read = rustix::net::recv(&self.socket, &mut place, RecvFlags::DONTWAIT);
            if !matches!(read, Ok((_, 1..))) {
                break;
            }
        }
    }

    /// The TLS state for a worker that takes over the connection.
    #[must_use]
    pub fn keys(&self) -> Option<Keys> {
        match &self.protection {
            Protection::Secured(secured) => Some(Keys(secured.state())),
            _ => None,
        }
    }

    /// Identifies the peer by its certificate, if one is required. Otherwise
    /// returns a sentence for the peer.
    fn introduce(&mut self) -> Result<Result<(), String>, Secure> {
        let identity = match self.protection.settle()? {
            Ok(Some(identity)) => identity,
            Ok(None) => return Ok(Ok(())),
            Err(reason) => return Ok(Err(reason)),
        };
        let Peer::Remote(from) = self.peer else {
            return Ok(Err("only guests may connect with TLS".into()));
        };
        let identity = Arc::new(identity);
        self.peer = Peer::Certified(Certified { from, identity });
        Ok(Ok(()))
    }

    /// Sends a [`Refusal`] and closes the connection. Does not wait: a peer that does not
    /// read gets no reason.
    pub fn refuse(self, reason: &str) {
        let payload = encode_all(&Refusal {
            version: VERSION,
            reason: Text(reason),
        });
        self.answer(Control::Refusal, &payload);
    }

    /// Sends a [`Move`] instead of a welcome, and ends the connection as
    /// [`refuse`](Self::refuse) does.
    pub fn redirect(self, communicator: &str, address: &str) {
        let mut address = address.to_owned();
        // The daemon is on this host and listens on all addresses.
        if let Ok(mut all) = address.parse::<SocketAddr>()
            && all.ip().is_unspecified()
        {
            let own = rustix::net::getsockname(&self.socket)
                .ok()
                .and_then(|own| SocketAddr::try_from(own).ok());
            let own = own.map_or(Ipv4Addr::LOCALHOST.into(), |own| own.ip());
            all.set_ip(own.to_canonical());
            address = all.to_string();
        }
        let payload = encode_all(&Move {
            communicator: Text(communicator),
            address: Text(&address),
        });
        self.answer(Control::Move, &payload);
    }

    fn answer(mut self, kind: Control, payload: &[u8]) {
        let Ok(header) = FrameHeader::new(kind.kind(), 0, 0, payload.len()) else {
            return;
        };
        let mut frame = header.to_bytes().to_vec();
        frame.extend_from_slice(payload);
        self.protection.send(&self.socket, &frame);
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u16, payload: &[u8]) -> Vec<u8> {
        let header = FrameHeader::new(kind, 0, 0, payload.len()).unwrap();
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    /// The outcome for a connection that sent `bytes`, and the bytes left unread.
    fn read(bytes: &[u8], peer: Peer) -> (Progress, Vec<u8>) {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(bytes).unwrap();
        let guest = Guest::new(theirs.try_clone().unwrap().into(), peer);
        let mut pending = Pending::new(guest, Instant::now());
        let progress = pending.advance();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        (&theirs).read_to_end(&mut rest).unwrap();
        (progress, rest)
    }

    const LOCAL: Peer = Peer::Local {
        uid: 0,
        owner: 0,
        pid: 1,
    };
    const DEVICE: Peer = Peer::Device {
        uid: 0,
        pid: 1,
        process: 1,
    };

    #[test]
    fn not_a_byte_past_the_hello_is_read() {
        let hello = encode_all(&Hello::new(Transport::Stream, 3, 4));
        let mut bytes = frame(Control::Hello.kind(), &hello);
        bytes.extend_from_slice(b"the worker's");
        let (progress, rest) = read(&bytes, LOCAL);
        assert!(matches!(progress, Progress::Complete(request) if request.hello.device == 3));
        assert_eq!(rest, b"the worker's");
    }

    #[test]
    fn an_attach_without_descriptors_is_refused() {
        let hello = encode_all(&Hello::new(Transport::Pci, 0, 1));
        let attach = encode_all(&Attach {
            magic: MAGIC,
            version: VERSION,
            vm: Text("vm"),
            channel: 0,
            channel_offset: 0,
            channel_size: 0,
            list_offset: 0,
            hello: paragpu_protocol::codec::Bytes(&hello),
        });
        let (progress, _) = read(&frame(ATTACH, &attach), DEVICE);
        assert!(matches!(progress, Progress::Refused(reason) if reason.contains("not 0")));
    }

    #[test]
    fn a_silent_peer_is_not_invalid() {
        for (bytes, silent) in [(&b""[..], true), (b"x", false)] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(bytes).unwrap();
            drop(ours);
            let progress = Pending::new(Guest::new(theirs.into(), LOCAL), Instant::now()).advance();
            assert_eq!(matches!(progress, Progress::Left), silent, "{progress:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_outcome(bytes in prop::collection::vec(any::<u8>(), 0..6000)) {
            let _ = read(&bytes, LOCAL);
        }

        #[test]
        fn any_first_frame_has_an_outcome(
            attach in any::<bool>(),
            good_start in any::<bool>(),
            payload in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut body = Vec::new();
            if good_start {
                body.extend_from_slice(&MAGIC);
                body.extend_from_slice(&encode_all(&VERSION));
            }
            body.extend_from_slice(&payload);
            let kind = if attach { ATTACH } else { Control::Hello.kind() };
            let peer = if attach { DEVICE } else { LOCAL };
            let (progress, rest) = read(&frame(kind, &body), peer);
            prop_assert!(rest.is_empty());
            prop_assert!(!matches!(progress, Progress::More));
            // An attach without descriptors is incomplete.
            prop_assert!(!(attach && matches!(progress, Progress::Complete(_))));
        }

        #[test]
        fn a_changed_hello_is_refused_or_a_hello(place in 0..200_usize, value in any::<u8>()) {
            let mut hello = encode_all(&Hello::new(Transport::Stream, 0, 1));
            let place = place % hello.len();
            hello[place] = value;
            let (progress, _) = read(&frame(Control::Hello.kind(), &hello), LOCAL);
            prop_assert!(!matches!(progress, Progress::More));
        }
    }
}
