//! The device process over vfio-user. The test acts as hypervisor, guest kernel and daemon.

mod common;

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};

use common::{CHANNELS, Guest, LONG, Process, is_ready, receive};
use paragpu_communicator_ring::guest_memory::{CHECKED, GuestMemory, List, ListError};
use paragpu_communicator_ring::layout::{device, list};
use paragpu_qemu_device::layout::Layout;
use paragpu_qemu_device::layout::state::{FREE, HOST_CLOSED, OPEN, RELEASED};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const PROTOCOL: [&str; 2] = ["--protocol", "vfio-user"];
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const GET_REGION_INFO: u16 = 5;
const SET_IRQS: u16 = 8;
const REGION_WRITE: u16 = 10;
const RESET: u16 = 13;

/// A client that encodes messages by hand.
struct Client(UnixStream);

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Client {
    fn connect(process: &Process) -> Self {
        let client = Self(UnixStream::connect(process.socket()).unwrap());
        let (answer, _) = client.ask(VERSION, b"\0\0\x01\0{\"capabilities\":{}}\0", None);
        assert_eq!(&answer[..4], [0, 0, 1, 0]);
        client
    }

    /// Sends a command. Returns the message.
    fn send(&self, command: u16, payload: &[u8], descriptor: Option<&OwnedFd>) -> Vec<u8> {
        let size = 16 + payload.len() as u32;
        let mut message = words(&[u32::from(command) << 16 | 77, size, 0, 0]);
        message.extend(payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let passed = descriptor.map(|descriptor| [descriptor.as_fd()]);
        if let Some(passed) = &passed {
            control.push(SendAncillaryMessage::ScmRights(passed));
        }
        let bytes = [IoSlice::new(&message)];
        sendmsg(&self.0, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
        message
    }

    fn ask(
        &self,
        command: u16,
        payload: &[u8],
        descriptor: Option<&OwnedFd>,
    ) -> (Vec<u8>, Vec<OwnedFd>) {
        let message = self.send(command, payload, descriptor);
        let (mut answer, descriptors) = receive(&self.0, 4096);
        let rest = answer.split_off(16);
        assert_eq!(answer[..4], message[..4], "the reply to another command");
        assert_eq!(answer[8..16], [1, 0, 0, 0, 0, 0, 0, 0], "an error");
        (rest, descriptors)
    }

    /// The guest's doorbell register.
    fn ring(&self, peer: u32) {
        let payload = words(&[0x0c, 0, 0, 4, peer << 16]);
        self.ask(REGION_WRITE, &payload, None);
    }

    /// The window that the guest would map.
    fn window(&self) -> std::fs::File {
        let question = words(&[64, 0, 2, 0, 0, 0, 0, 0]);
        let (_, mut descriptors) = self.ask(GET_REGION_INFO, &question, None);
        descriptors.pop().expect("the window").into()
    }

    fn interrupt(&self) -> OwnedFd {
        let interrupt = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let question = words(&[20, 1 << 2 | 1 << 5, 1, 0, 1]);
        self.ask(SET_IRQS, &question, Some(&interrupt));
        interrupt
    }
}

/// The guest's view of the device. Its doorbells are unused, because the register rings.
fn guest(client: &Client) -> Guest {
    let nobody = || eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    Guest {
        window: client.window(),
        channels: (0..CHANNELS).map(|_| nobody()).collect(),
        control: nobody(),
        interrupt: client.interrupt(),
        socket: client.0.try_clone().unwrap(),
    }
}

/// Bytes of the VM's memory.
const RAM: u64 = 64 << 10;
/// Their first address.
const BASE: u64 = 0x10_0000;

/// The VM's memory, which the host shares.
fn ram(client: &Client) -> std::fs::File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let ram = rustix::fs::memfd_create("ram", flags).unwrap();
    rustix::fs::ftruncate(&ram, RAM).unwrap();
    rustix::fs::fcntl_add_seals(&ram, SealFlags::SHRINK).unwrap();
    client.ask(
        DMA_MAP,
        &words(&[32, 3, 0, 0, BASE as u32, 0, RAM as u32, 0]),
        Some(&ram),
    );
    ram.into()
}

/// The process that serves a channel, and its view of the VM's memory.
struct Worker {
    connection: UnixStream,
    memory: GuestMemory,
    lists: u64,
}

impl Worker {
    /// That of a guest process that opens `channel`.
    fn of(channel: u16, client: &Client, guest: &Guest, daemon: &UnixListener) -> Self {
        guest.open_and_greet(channel);
        client.ring(u32::from(CHANNELS) + 1);
        assert!(is_ready(daemon, LONG), "no offer");
        let (connection, _) = daemon.accept().unwrap();
        let (_, mut descriptors) = receive(&connection, 4096);
        assert_eq!(descriptors.len(), 5, "rings, table and file");
        let files = descriptors.split_off(4);
        let table = descriptors.pop().unwrap();
        let layout = Layout::with_lists(16 << 20, CHANNELS).unwrap();
        let lists = layout.lists_of(channel).unwrap();
        let tenure = connection.try_clone().unwrap().into();
        let window = descriptors[0].as_fd();
        let memory = GuestMemory::new(window, lists, table, &files, tenure).unwrap();
        Self {
            connection,
            memory,
            lists,
        }
    }

    /// Takes list `number`, in which the guest's kernel names the memory's first page.
    fn take(&self, guest: &Guest, number: u32) -> List {
        let base = self.lists + u64::from(number) * list::SIZE;
        let put = |offset: usize, bytes: &[u8]| {
            let at = base + offset as u64;
            guest.window.write_all_at(bytes, at).unwrap();
        };
        put(list::COUNT_OF, &words(&[1, 0, list::WRITABLE]));
        put(list::LENGTH, &CHECKED.to_le_bytes());
        put(list::ENTRY, &BASE.to_le_bytes());
        put(list::STATE, &list::READY.to_le_bytes());
        self.memory.take(number).unwrap()
    }

    /// Lets guest and host check that they share the memory.
    fn check(&mut self, guest: &Guest, ram: &std::fs::File) -> Result<(), ListError> {
        let value = 0x5eed_u64;
        ram.write_all_at(&value.to_le_bytes(), 0).unwrap();
        let named = self.take(guest, 0);
        self.memory.check(&named, value)
    }
}

#[test]
fn a_reset_ends_the_access_of_workers_from_before() {
    let process = Process::start_with(&PROTOCOL);
    let daemon = process.daemon();
    let client = Client::connect(&process);
    let guest = guest(&client);
    let ram = ram(&client);
    let mut early = Worker::of(1, &client, &guest, &daemon);
    early.check(&guest, &ram).unwrap();
    let named = early.take(&guest, 1);
    early.memory.write(&named, 0, &[1]).unwrap();

    client.ask(RESET, &[], None);
    let gone = Err(ListError::NotMapped(BASE));
    assert_eq!(early.memory.write(&named, 0, &[2]), gone);
    assert_eq!(early.check(&guest, &ram), gone);
    // A VM that wakes up is reset too: its sessions go on.
    assert_eq!(guest.state(1), OPEN);
    assert!(!is_ready(&early.connection, std::time::Duration::ZERO));

    let mut late = Worker::of(2, &client, &guest, &daemon);
    late.check(&guest, &ram).unwrap();
    let more = words(&[32, 3, 0, 0, 2 * BASE as u32, 0, RAM as u32, 0]);
    let file = ram.try_clone().unwrap().into();
    client.ask(DMA_MAP, &more, Some(&file));
    late.check(&guest, &ram).unwrap();
    assert_eq!(early.check(&guest, &ram), gone);
}

#[test]
fn an_interrupt_that_blocks_does_not_keep_the_process() {
    let mut process = Process::start_with(&PROTOCOL);
    let client = Client::connect(&process);
    let interrupt = client.interrupt();
    // A hypervisor that undoes what the process did, as both have one open file.
    rustix::fs::fcntl_setfl(&interrupt, OFlags::empty()).unwrap();
    rustix::io::write(&interrupt, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    client.send(SET_IRQS, &words(&[20, 1 | 1 << 5, 1, 0, 1]), None);
    // The command is executed even if the signal comes first.
    assert_eq!(process.terminate().code(), Some(0));
}

#[test]
fn a_guest_whose_device_process_is_killed_is_told_by_interrupt() {
    let mut process = Process::start_with(&PROTOCOL);
    let client = Client::connect(&process);
    let guest = guest(&client);
    guest.set_state(1, OPEN);
    process.kill();
    assert!(is_ready(&guest.interrupt, LONG), "no interrupt");
    guest.until(1, HOST_CLOSED);
    assert_eq!(guest.word(device::HOST_GONE as u64), 1);
}

#[test]
fn a_guest_without_a_daemon_is_told_by_interrupt() {
    let process = Process::start_with(&PROTOCOL);
    let client = Client::connect(&process);
    let guest = guest(&client);
    assert_eq!(guest.state(1), FREE);
    guest.open_and_greet(1);
    client.ring(u32::from(CHANNELS) + 1);
    guest.until(1, HOST_CLOSED);
    guest.set_state(1, RELEASED);
    client.ring(u32::from(CHANNELS) + 1);
    guest.until(1, FREE);
}

#[test]
fn an_interrupt_turned_on_anew_is_used() {
    let process = Process::start_with(&PROTOCOL);
    let client = Client::connect(&process);
    let mut guest = guest(&client);
    let earlier = std::mem::replace(&mut guest.interrupt, client.interrupt());
    guest.open_and_greet(0);
    client.ring(u32::from(CHANNELS) + 1);
    guest.until(0, HOST_CLOSED);
    assert!(!is_ready(&earlier, std::time::Duration::ZERO));
}

#[test]
fn a_channels_doorbell_reaches_who_serves_it() {
    let process = Process::start_with(&PROTOCOL);
    let daemon = process.daemon();
    let client = Client::connect(&process);
    let guest = guest(&client);
    guest.open_and_greet(2);
    client.ring(u32::from(CHANNELS) + 1);
    assert!(is_ready(&daemon, LONG), "no offer");
    let (worker, _) = daemon.accept().unwrap();
    let (_, descriptors) = receive(&worker, 4096);
    let [_, doorbell, interrupt] = <[OwnedFd; 3]>::try_from(descriptors).unwrap();
    client.ring(3);
    assert!(is_ready(&doorbell, LONG));
    while is_ready(&guest.interrupt, std::time::Duration::ZERO) {
        rustix::io::read(&guest.interrupt, &mut [0; 8]).unwrap();
    }
    common::ring(&interrupt);
    assert!(is_ready(&guest.interrupt, LONG));
    assert_eq!(guest.state(2), OPEN);
    // The end of the VM ends the session.
    drop((client, guest));
    assert!(is_ready(&worker, LONG));
    assert_eq!(receive(&worker, 1).0.len(), 0);
}

#[test]
fn a_second_client_waits_for_the_first_to_be_gone() {
    let process = Process::start_with(&PROTOCOL);
    let first = Client::connect(&process);
    let second = UnixStream::connect(process.socket()).unwrap();
    drop(first);
    let second = Client(second);
    second.ask(VERSION, b"\0\0\x01\0", None);
    assert_eq!(guest(&second).state(0), FREE);
}

#[test]
fn clients_that_talk_rubbish_are_dropped_and_followed() {
    let mut process = Process::start_with(&PROTOCOL);
    let header = |command: u32, size: u32, flags: u32| words(&[command << 16, size, flags, 0]);
    let rubbish: [Vec<u8>; 6] = [
        vec![0xff; 64],
        header(1, 15, 0),
        header(1, 1 << 20, 0),
        header(1, u32::MAX, 0),
        header(1, 16, 1),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ];
    for bytes in &rubbish {
        let mut talker = UnixStream::connect(process.socket()).unwrap();
        // The process may disconnect it before everything is written.
        let _ = talker.write_all(bytes);
        assert!(is_ready(&talker, LONG), "not dropped: {bytes:x?}");
    }
    // A client that does not read the replies.
    let mut silent = UnixStream::connect(process.socket()).unwrap();
    silent
        .set_write_timeout(Some(std::time::Duration::from_millis(200)))
        .unwrap();
    while silent.write_all(&header(4, 16, 0)).is_ok() {}
    drop(silent);
    assert!(process.is_alive());
    let client = Client::connect(&process);
    assert_eq!(guest(&client).state(0), FREE);
}
