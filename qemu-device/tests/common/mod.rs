//! The real process. The tests act as hypervisor, guest kernel and daemon: they implement
//! the protocols from their specifications, and access the window through its descriptor.
//! Each test program uses a part of this module.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs::File;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use paragpu_communicator_ring::layout::{self as ring, device};
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::frame::{Control, FrameHeader, HEADER_LEN};
use paragpu_protocol::handshake::{Hello, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// A timeout that is long enough for any machine. Only a failing test waits for it.
pub const LONG: Duration = Duration::from_secs(30);

/// Channels of the device under test.
pub const CHANNELS: u16 = 3;

/// The process under test, with its own folder.
pub struct Process {
    pub folder: tempfile::TempDir,
    child: Child,
}

impl Process {
    pub fn command(folder: &tempfile::TempDir) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paragpu-qemu-device"));
        command
            .args(["--vm", "test", "--window-size", "16M", "--channels"])
            .arg(CHANNELS.to_string())
            .arg("--socket")
            .arg(folder.path().join("device.sock"))
            .arg("--daemon")
            .arg(folder.path().join("daemon.sock"));
        command
    }

    pub fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap())
    }

    pub fn start_in(folder: tempfile::TempDir) -> Self {
        Self::start_command(folder, &[])
    }

    /// Starts it with further arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_command(tempfile::tempdir().unwrap(), arguments)
    }

    fn start_command(folder: tempfile::TempDir, arguments: &[&str]) -> Self {
        let mut child = Self::command(&folder)
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The first line of its log says that it listens.
        let mut first = [0];
        child
            .stderr
            .as_mut()
            .unwrap()
            .read_exact(&mut first)
            .unwrap();
        Self { folder, child }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("device.sock")
    }

    pub fn daemon(&self) -> UnixListener {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let address = SocketAddrUnix::new(self.folder.path().join("daemon.devices")).unwrap();
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        // A backlog smaller than the limit of descriptors, so that a test can fill it.
        rustix::net::listen(&socket, 64).unwrap();
        socket.into()
    }

    /// Tells the process to terminate, and waits until it has.
    pub fn terminate(&mut self) -> ExitStatus {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap()
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Receives up to `limit` bytes and the descriptors with them.
pub fn receive(stream: &UnixStream, limit: usize) -> (Vec<u8>, Vec<OwnedFd>) {
    assert!(is_ready(stream, LONG), "nothing came");
    let mut bytes = vec![0; limit];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let count = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .unwrap()
    .bytes;
    bytes.truncate(count);
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(passed) => Some(passed),
            _ => None,
        })
        .flatten()
        .collect();
    (bytes, descriptors)
}

pub fn is_ready(descriptor: impl AsFd, patience: Duration) -> bool {
    let mut list = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut list, Some(&Timespec::try_from(patience).unwrap())).unwrap() > 0
}

pub fn ring(eventfd: impl AsFd) {
    rustix::io::write(eventfd, &1_u64.to_ne_bytes()).unwrap();
}

/// A hypervisor with a guest in it.
pub struct Guest {
    pub socket: UnixStream,
    pub window: File,
    pub channels: Vec<OwnedFd>,
    pub control: OwnedFd,
    pub interrupt: OwnedFd,
}

impl Guest {
    /// Connects as QEMU does, and checks all messages.
    pub fn connect(process: &Process) -> Self {
        let socket = UnixStream::connect(process.socket()).unwrap();
        let message = || {
            let (bytes, mut descriptors) = receive(&socket, 8);
            assert!(descriptors.len() <= 1);
            let number = i64::from_le_bytes(bytes.try_into().unwrap());
            (number, descriptors.pop())
        };
        assert!(matches!(message(), (0, None)), "version");
        assert!(matches!(message(), (0, None)), "own number");
        let (number, window) = message();
        assert_eq!(number, -1);
        let channels = (1..=i64::from(CHANNELS))
            .map(|peer| {
                let (number, doorbell) = message();
                assert_eq!(number, peer);
                doorbell.unwrap()
            })
            .collect();
        let (number, control) = message();
        assert_eq!(number, i64::from(CHANNELS) + 1);
        let (number, interrupt) = message();
        assert_eq!(number, 0);
        Self {
            window: File::from(window.unwrap()),
            channels,
            control: control.unwrap(),
            interrupt: interrupt.unwrap(),
            socket,
        }
    }

    pub fn word(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.window.read_exact_at(&mut bytes, offset).unwrap();
        u32::from_le_bytes(bytes)
    }

    pub fn set_word(&self, offset: u64, value: u32) {
        self.window
            .write_all_at(&value.to_le_bytes(), offset)
            .unwrap();
    }

    pub fn long(&self, offset: u64) -> u64 {
        u64::from(self.word(offset)) | u64::from(self.word(offset + 4)) << 32
    }

    fn state_word(channel: u16) -> u64 {
        device::STATE as u64 + 4 * u64::from(channel)
    }

    pub fn state(&self, channel: u16) -> u32 {
        self.word(Self::state_word(channel))
    }

    /// Writes a state word and rings the control peer.
    pub fn set_state(&self, channel: u16, state: u32) {
        self.set_word(Self::state_word(channel), state);
        ring(&self.control);
    }

    /// Waits for interrupts until the channel is in `state`.
    pub fn until(&self, channel: u16, state: u32) {
        while self.state(channel) != state {
            assert!(
                is_ready(&self.interrupt, LONG),
                "state {} instead of {state}",
                self.state(channel)
            );
            rustix::io::read(&self.interrupt, &mut [0; 8]).unwrap();
        }
    }

    /// The offset of a channel in the window.
    pub fn place(&self, channel: u16) -> u64 {
        self.long(device::CHANNEL_OFFSET as u64)
            + u64::from(channel) * self.long(device::CHANNEL_SIZE as u64)
    }

    /// Writes one record to the start of the channel's ring, and rings.
    pub fn send_first(&self, channel: u16, kind: u16, payload: &[u8]) {
        let place = self.place(channel);
        let header = FrameHeader::new(kind, 0, 0, payload.len()).unwrap();
        let start = place + self.long(place + ring::TO_HOST_OFFSET as u64);
        self.window.write_all_at(&header.to_bytes(), start).unwrap();
        let body = start + HEADER_LEN as u64;
        self.window.write_all_at(payload, body).unwrap();
        let tail = (HEADER_LEN + payload.len()).next_multiple_of(16) as u32;
        self.set_word(place + (ring::TO_HOST + ring::index::TAIL) as u64, tail);
        ring(&self.channels[usize::from(channel)]);
    }

    pub fn hello() -> Vec<u8> {
        encode_all(&Hello::new(Transport::Pci, 0, 4711))
    }

    pub fn open_and_greet(&self, channel: u16) {
        self.set_state(channel, 1);
        self.send_first(channel, Control::Hello.kind(), &Self::hello());
    }

    /// The first record that the host sent.
    pub fn first_received(&self, channel: u16) -> Option<(FrameHeader, Vec<u8>)> {
        let place = self.place(channel);
        if self.long(place + (ring::TO_GUEST + ring::index::TAIL) as u64) == 0 {
            return None;
        }
        let start = place + self.long(place + ring::TO_GUEST_OFFSET as u64);
        let mut bytes = [0; HEADER_LEN];
        self.window.read_exact_at(&mut bytes, start).unwrap();
        let header = FrameHeader::from_bytes(&bytes).unwrap();
        let mut payload = vec![0; header.payload_len()];
        let body = start + HEADER_LEN as u64;
        self.window.read_exact_at(&mut payload, body).unwrap();
        Some((header, payload))
    }
}
