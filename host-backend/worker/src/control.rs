//! What daemon and worker say to each other: both ends of it.
//!
//! The daemon starts a worker with [`spawn`](crate::spawn), which gives the
//! worker one end of a `SOCK_SEQPACKET` pair as its standard input. One
//! message is one packet: a `u8` kind and its fields, as
//! [`paragpu_protocol::codec`] writes them.
//!
//! ```text
//! worker: Ready       the GPU is open, give me a session     (or Failed, then it exits)
//! daemon: Quota       + memfd: what all sessions of the VM may have together
//! daemon: Assign      + file descriptors
//! worker: Started     the guest has its Welcome              (or Failed, then it exits)
//! daemon: Query  →  worker: Counters     at any time, any number of times
//! daemon: End         ends the session
//! daemon: Resume      + file descriptors: the guest connected again
//! daemon: Move        asks the guest to go on elsewhere
//! worker: Stays       the guest could not
//! daemon: Migrate     + file descriptors: gives the session away
//! worker: Progress, Held, at last Done or Undone
//! daemon: Again       what the worker is to do by itself once the daemon is gone
//! daemon: Arrive      + file descriptor, instead of Assign: the session comes from elsewhere
//! worker: Finished    then it exits
//! ```
//!
//! A worker without a session exits when the daemon's end closes; one with a
//! session goes on serving it. A worker that dies without `Finished` crashed:
//! the guest's connection is closed by then, and nothing is left behind.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use paragpu_protocol::codec::{Bytes, DecodeError, Field, Reader, Text};
use paragpu_protocol::handshake::Move;
use paragpu_protocol::types::DeviceSnapshot;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use thiserror::Error;

use crate::statistics::LATENCIES;

/// Most bytes of one message.
pub const MAX_MESSAGE: usize = 64 * 1024;
/// Most file descriptors that come with one message.
pub const MAX_FDS: usize = 9;

paragpu_protocol::record! {
    /// Write the session's state into a directory; the session goes on.
    Checkpoint<'a> {
        /// An absolute path.
        directory: Text<'a>,
        /// 1: end the session then, so that it can be restored elsewhere.
        end: u8,
    }

    /// The session is written again and again, by orders of the daemon; by the
    /// worker itself once the daemon is gone.
    Again<'a> {
        /// An absolute path.
        directory: Text<'a>,
        /// Seconds from one state to the next; 0 where it is not written any more.
        every: u64,
    }

    /// Go on in the worker at the other end of a link. File descriptors: the
    /// link, and with [`held`](Self::held) two pipes, whose writer the daemon
    /// is. A byte in the first lets the session stop, once it was copied; a
    /// byte in the second commits. A pipe that closes without one ends the
    /// migration. All sessions that move together have the same two, so that
    /// one write decides for all of them.
    Migrate<'a> {
        /// 1: descriptors pass the link, and the guest's connection goes over.
        /// 0: it is of another host, and the guest must follow.
        local: u8,
        /// 1: as said above.
        held: u8,
        /// [`Arrive::wanted`](paragpu_protocol::handshake::Arrive::wanted).
        wanted: u32,
        /// [`Arrive::follows`](paragpu_protocol::handshake::Arrive::follows).
        follows: Text<'a>,
        /// 1: memory is copied while the program runs.
        precopy: u8,
        /// 1: device memory is handed over where both ends are on one GPU; 0: it
        /// is copied.
        hand_over: u8,
    }

    /// A session comes, whose hello is empty, from the worker at the other end
    /// of the one descriptor.
    Arriving<'a> {
        /// What a guest's session is assigned with.
        assign: Assign<'a>,
        /// 1: the guest is to go on over `home`, where its connection comes along.
        follows: u8,
        /// How the guest reaches the session here; its communicator is empty
        /// where it does not.
        home: Move<'a>,
    }

    /// A migration that is [`held`](Migrate::held) waits.
    Held {
        /// 1: all was copied once, and the program runs. 2: the destination
        /// has everything, and the program is stopped.
        step: u8,
    }

    /// The guest could not follow a [`Move`].
    Stayed<'a> {
        /// One sentence.
        reason: Text<'a>,
    }

    /// Take the session that a directory holds; it waits for its guest.
    Restore<'a> {
        /// What a guest's session is assigned with; its hello is empty.
        assign: Assign<'a>,
        /// An absolute path.
        directory: Text<'a>,
    }

    /// How far a checkpoint or a migration is.
    Progress {
        /// 1 while the program runs, 2 while it is stopped.
        phase: u8,
        /// Bytes of memory carried.
        done: u64,
        /// All there are.
        all: u64,
    }

    /// A checkpoint, a restore or a migration is done.
    Done {
        /// Bytes written, read or sent.
        bytes: u64,
        /// Of these, bytes sent while the program ran.
        ahead: u64,
        /// Bytes of device memory that were handed over and not sent.
        handed_over: u64,
        /// Bytes of device memory that went from GPU to GPU.
        fetched: u64,
        /// Microseconds for which the program was stopped.
        stopped: u64,
        /// Microseconds in all.
        total: u64,
    }

    /// A checkpoint or a migration failed; the session goes on.
    Undone<'a> {
        /// One sentence.
        reason: Text<'a>,
    }

    /// The worker has opened its GPU.
    Ready<'a> {
        /// The worker's process id.
        pid: u32,
        /// What the GPU is.
        snapshot: DeviceSnapshot<'a>,
    }

    /// Before a session is given: its place in its VM's account, which is the
    /// one file descriptor ([`crate::account`]).
    Quota {
        /// The session's slot.
        slot: u32,
    }

    /// Gives the worker its session. File descriptors: for the transports
    /// `Stream` and `Shm` the guest's connected socket; for `Pci` the window's
    /// memfd, the eventfd guest → host, the eventfd host → guest, and the
    /// device process's connection: the worker keeps it open while it serves
    /// the channel, and its end (readable, nothing to read) says that the
    /// guest is gone. With a `list_offset` there follow the table of the VM's
    /// memory and the files that hold it.
    Assign<'a> {
        /// Number of the session on this host, for listings.
        session: u64,
        /// Secret with which the guest may resume the session.
        token: [u8; 16],
        /// The guest's ordinal of the device.
        ordinal: u32,
        /// How many devices the guest has.
        device_count: u32,
        /// Most bytes of device memory; 0 for all there is.
        device_memory: u64,
        /// Most bytes of host memory that the worker holds for the guest
        /// (window of `Shm`, shadows); 0 for the worker's default.
        host_memory: u64,
        /// Bytes of the window that the worker makes for `Shm`; 0 for the
        /// worker's default. Ignored for the other transports.
        window: u64,
        /// Of `Pci`: bytes from the start of the window to the channel's region.
        channel_offset: u64,
        /// Of `Pci`: bytes of the channel's region.
        channel_size: u64,
        /// Of `Pci`: bytes from the start of the window to the channel's page
        /// lists; 0 where the host does not reach the VM's memory.
        list_offset: u64,
        /// Of `Pci`: the channel's number.
        channel: u32,
        /// How long the session waits for its guest to connect again when the
        /// connection is lost, in milliseconds; 0 ends it at once.
        reconnect: u32,
        /// The VM's or the user's name, for the log.
        vm: Text<'a>,
        /// Payload of the guest's hello frame, as it came.
        hello: Bytes<'a>,
    }

    /// The guest has its welcome.
    Started {
        /// As assigned.
        session: u64,
    }

    /// The worker cannot open its GPU or take the session; it exits.
    Failed<'a> {
        /// One sentence.
        reason: Text<'a>,
    }

    /// What a session has done so far.
    Counters {
        /// Calls executed.
        calls: u64,
        /// Of these, calls nobody waited for.
        posted: u64,
        /// Of these, calls a guest thread waited for.
        synchronous: u64,
        /// Bytes copied from guest memory to the device.
        bytes_to_device: u64,
        /// Bytes copied from the device to guest memory.
        bytes_from_device: u64,
        /// Bytes of device memory that the session has now.
        device_memory: u64,
        /// Bytes of host memory that the worker holds for the session now.
        host_memory: u64,
        /// Kernels launched.
        launches: u64,
        /// 1 while a call waits for the device.
        busy: u8,
        /// Nanoseconds from taking in to answering, of all calls that a guest
        /// thread waited for, together.
        waited: u64,
        /// How many of them took up to [`BOUNDS`](crate::statistics::BOUNDS)
        /// nanoseconds each; the last, how many took longer.
        latency: [u64; LATENCIES],
    }

    /// The session is over; the worker exits.
    Finished<'a> {
        /// As assigned.
        session: u64,
        /// What it did.
        counters: Counters,
        /// Empty after an orderly end; else one sentence saying what ended it.
        reason: Text<'a>,
    }
}

impl Counters {
    /// Of a session that did nothing yet.
    pub const NONE: Self = Self {
        calls: 0,
        posted: 0,
        synchronous: 0,
        bytes_to_device: 0,
        bytes_from_device: 0,
        device_memory: 0,
        host_memory: 0,
        launches: 0,
        busy: 0,
        waited: 0,
        latency: [0; LATENCIES],
    };
}

/// What a daemon says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ToWorker<'a> {
    /// Serve this session.
    Assign(Assign<'a>),
    /// Answer with [`FromWorker::Counters`].
    Query,
    /// End the session now, whatever it does.
    End,
    /// The guest of this session has connected again: token and device memory
    /// are those of [`Assign`](Self::Assign), connection and hello are new.
    Resume(Assign<'a>),
    /// Asks the guest to go on over another communicator.
    Move(Move<'a>),
    /// Write the session's state.
    Checkpoint(Checkpoint<'a>),
    /// Give the session to another daemon's worker.
    Migrate(Migrate<'a>),
    /// A session comes from another worker.
    Arrive(Arriving<'a>),
    /// A session comes from a directory.
    Restore(Restore<'a>),
    /// What the session to come shares with others of its VM.
    Quota(Quota),
    /// How the session's state is written from time to time.
    Again(Again<'a>),
}

/// What a worker says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FromWorker<'a> {
    /// Waits for a session.
    Ready(Ready<'a>),
    /// Will not serve one, and exits.
    Failed(Failed<'a>),
    /// Serves the session.
    Started(Started),
    /// Answers [`ToWorker::Query`].
    Counters(Counters),
    /// The session is over.
    Finished(Finished<'a>),
    /// How far an order is.
    Progress(Progress),
    /// An order was carried out.
    Done(Done),
    /// An order was not carried out.
    Undone(Undone<'a>),
    /// A migration waits for the others.
    Held(Held),
    /// The guest could not follow a move.
    Stayed(Stayed<'a>),
    /// The session is another worker's; how its guest reaches it.
    Left(Move<'a>),
}

/// Why daemon and worker do not understand each other.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The other process is gone.
    #[error("the other end of the control socket is gone")]
    Closed,
    /// Not a message of this version.
    #[error("a message on the control socket is not understood")]
    Message(#[from] DecodeError),
    /// The message or its file descriptors were too many.
    #[error("a message on the control socket is too long")]
    TooLong,
    /// The other end has much to read.
    #[error("the other process does not read its control socket")]
    Full,
    /// The operating system refused.
    #[error("the control socket failed")]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for ControlError {
    fn from(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Closed,
            Errno::AGAIN => Self::Full,
            other => Self::Io(other.into()),
        }
    }
}

/// A message that can be one packet.
pub trait Message<'a>: Sized {
    /// Appends the packet to `out`.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads a whole packet.
    ///
    /// # Errors
    /// [`DecodeError`].
    fn decode(packet: &'a [u8]) -> Result<Self, DecodeError>;
}

fn put<'a>(kind: u8, fields: &impl Field<'a>, out: &mut Vec<u8>) {
    out.push(kind);
    let tail = fields.encode(out);
    out.extend_from_slice(tail);
}

impl<'a> Message<'a> for ToWorker<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Assign(assign) => put(1, assign, out),
            Self::Query => put(2, &(), out),
            Self::End => put(3, &(), out),
            Self::Resume(assign) => put(4, assign, out),
            Self::Move(goal) => put(5, goal, out),
            Self::Checkpoint(checkpoint) => put(6, checkpoint, out),
            Self::Migrate(migrate) => put(7, migrate, out),
            Self::Arrive(assign) => put(8, assign, out),
            Self::Restore(restore) => put(9, restore, out),
            Self::Quota(quota) => put(10, quota, out),
            Self::Again(again) => put(11, again, out),
        }
    }
    fn decode(packet: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(packet);
        let message = match reader.field::<u8>()? {
            1 => Self::Assign(reader.field()?),
            2 => Self::Query,
            3 => Self::End,
            4 => Self::Resume(reader.field()?),
            5 => Self::Move(reader.field()?),
            6 => Self::Checkpoint(reader.field()?),
            7 => Self::Migrate(reader.field()?),
            8 => Self::Arrive(reader.field()?),
            9 => Self::Restore(reader.field()?),
            10 => Self::Quota(reader.field()?),
            11 => Self::Again(reader.field()?),
            other => return Err(DecodeError::UnknownCall(other.into())),
        };
        reader.finish()?;
        Ok(message)
    }
}

impl<'a> Message<'a> for FromWorker<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ready(ready) => put(0x81, ready, out),
            Self::Failed(failed) => put(0x82, failed, out),
            Self::Started(started) => put(0x83, started, out),
            Self::Counters(counters) => put(0x84, counters, out),
            Self::Finished(finished) => put(0x85, finished, out),
            Self::Progress(progress) => put(0x86, progress, out),
            Self::Done(done) => put(0x87, done, out),
            Self::Undone(undone) => put(0x88, undone, out),
            Self::Held(held) => put(0x89, held, out),
            Self::Stayed(stayed) => put(0x8a, stayed, out),
            Self::Left(home) => put(0x8b, home, out),
        }
    }
    fn decode(packet: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(packet);
        let message = match reader.field::<u8>()? {
            0x81 => Self::Ready(reader.field()?),
            0x82 => Self::Failed(reader.field()?),
            0x83 => Self::Started(reader.field()?),
            0x84 => Self::Counters(reader.field()?),
            0x85 => Self::Finished(reader.field()?),
            0x86 => Self::Progress(reader.field()?),
            0x87 => Self::Done(reader.field()?),
            0x88 => Self::Undone(reader.field()?),
            0x89 => Self::Held(reader.field()?),
            0x8a => Self::Stayed(reader.field()?),
            0x8b => Self::Left(reader.field()?),
            other => return Err(DecodeError::UnknownCall(other.into())),
        };
        reader.finish()?;
        Ok(message)
    }
}

/// What [`Control::receive`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// A packet is in the [`Inbox`].
    Packet,
    /// None yet; only where `wait` is false.
    Nothing,
}

/// A received packet and what came with it; to be used again and again.
#[derive(Debug, Default)]
pub struct Inbox {
    packet: Vec<u8>,
    /// File descriptors that came with the packet, in order. They are closed
    /// with the next `receive` unless taken out.
    pub fds: Vec<OwnedFd>,
}

impl Inbox {
    /// The packet as a message: `ToWorker` in a worker, `FromWorker` in a daemon.
    ///
    /// # Errors
    /// [`ControlError::Message`].
    pub fn message<'a, M: Message<'a>>(&'a self) -> Result<M, ControlError> {
        Ok(M::decode(&self.packet)?)
    }
}

/// One end of a control socket. Any thread may send and receive.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
}

impl AsFd for Control {
    /// For polling: readable when [`Control::receive`] would not wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Control {
    /// A new pair: one for the daemon, one for the worker.
    ///
    /// # Errors
    /// [`ControlError::Io`].
    pub fn pair() -> Result<(Self, Self), ControlError> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self { socket: a }, Self { socket: b }))
    }

    /// An end that was inherited.
    #[must_use]
    pub fn from_fd(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// The socket itself, to be given to another process.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }

    /// Sends one message. Waits while the other end has a socket buffer full
    /// of messages to read.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn send<'a>(
        &self,
        message: &impl Message<'a>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        self.send_flagged(message, fds, SendFlags::NOSIGNAL)
    }

    /// [`send`](Self::send), which fails where it would wait: a daemon waits
    /// for nobody.
    ///
    /// # Errors
    /// [`ControlError`]; [`ControlError::Full`].
    pub fn try_send<'a>(
        &self,
        message: &impl Message<'a>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ControlError> {
        self.send_flagged(message, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_flagged<'a>(
        &self,
        message: &impl Message<'a>,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), ControlError> {
        let mut packet = Vec::new();
        message.encode(&mut packet);
        if packet.len() > MAX_MESSAGE || fds.len() > MAX_FDS {
            return Err(ControlError::TooLong);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ControlError::TooLong);
        }
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(
                &self.socket,
                &[io::IoSlice::new(&packet)],
                &mut ancillary,
                flags,
            )
        })?;
        Ok(())
    }

    /// Receives one packet, waiting for it if `wait`.
    ///
    /// # Errors
    /// [`ControlError::Closed`] when the other end is gone.
    pub fn receive(&self, inbox: &mut Inbox, wait: bool) -> Result<Received, ControlError> {
        inbox.fds.clear();
        inbox.packet.resize(MAX_MESSAGE, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut flags = RecvFlags::CMSG_CLOEXEC;
        flags.set(RecvFlags::DONTWAIT, !wait);
        let received = loop {
            match rustix::net::recvmsg(
                &self.socket,
                &mut [io::IoSliceMut::new(&mut inbox.packet)],
                &mut ancillary,
                flags,
            ) {
                Ok(received) => break received,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if !wait => return Ok(Received::Nothing),
                Err(errno) => return Err(errno.into()),
            }
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                inbox.fds.extend(fds);
            }
        }
        if received.bytes == 0 {
            return Err(ControlError::Closed);
        }
        if received
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(ControlError::TooLong);
        }
        inbox.packet.truncate(received.bytes);
        Ok(Received::Packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assign() -> ToWorker<'static> {
        ToWorker::Assign(Assign {
            session: 7,
            token: [9; 16],
            ordinal: 1,
            device_count: 2,
            device_memory: 1 << 30,
            host_memory: 0,
            window: 0,
            channel_offset: 4096,
            channel_size: 1 << 26,
            list_offset: 0,
            channel: 3,
            reconnect: 30_000,
            vm: Text("vm"),
            hello: Bytes(b"hello"),
        })
    }

    #[test]
    fn messages_and_descriptors_cross() {
        let (daemon, worker) = Control::pair().unwrap();
        let (end, _other) = Control::pair().unwrap();
        let mut inbox = Inbox::default();
        assert_eq!(
            worker.receive(&mut inbox, false).unwrap(),
            Received::Nothing
        );
        daemon.send(&assign(), &[end.as_fd(), end.as_fd()]).unwrap();
        daemon.send(&ToWorker::Query, &[]).unwrap();
        worker.receive(&mut inbox, true).unwrap();
        assert_eq!(inbox.message::<ToWorker>().unwrap(), assign());
        assert_eq!(inbox.fds.len(), 2);
        worker.receive(&mut inbox, true).unwrap();
        assert_eq!(inbox.message::<ToWorker>().unwrap(), ToWorker::Query);
        assert!(inbox.fds.is_empty());
        assert!(inbox.message::<FromWorker>().is_err());
        drop(daemon);
        assert!(matches!(
            worker.receive(&mut inbox, true),
            Err(ControlError::Closed)
        ));
        assert!(matches!(
            worker.send(&FromWorker::Started(Started { session: 7 }), &[]),
            Err(ControlError::Closed)
        ));
    }

    #[test]
    fn every_answer_is_read_back() {
        let snapshot = DeviceSnapshot {
            driver_version: 13_000,
            total_memory: 1 << 34,
            uuid: [3; 16],
            name: Text("a GPU"),
            pci_bus_id: Text("0000:00:00.0"),
            attributes: Bytes(&[1; 16]),
        };
        let counters = Counters {
            calls: 1,
            posted: 2,
            synchronous: 3,
            bytes_to_device: 4,
            bytes_from_device: 5,
            device_memory: 6,
            host_memory: 7,
            launches: 8,
            busy: 1,
            waited: 9,
            latency: [10; LATENCIES],
        };
        let reason = Text("because");
        let session = 7;
        for message in [
            FromWorker::Ready(Ready { pid: 1, snapshot }),
            FromWorker::Failed(Failed { reason }),
            FromWorker::Started(Started { session }),
            FromWorker::Counters(counters),
            FromWorker::Finished(Finished {
                session,
                counters,
                reason,
            }),
        ] {
            let mut packet = Vec::new();
            message.encode(&mut packet);
            assert_eq!(FromWorker::decode(&packet).unwrap(), message);
            for cut in 0..packet.len() {
                assert!(FromWorker::decode(&packet[..cut]).is_err());
            }
        }
    }
}
