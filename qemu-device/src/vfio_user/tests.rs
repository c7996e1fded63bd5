//! The server against valid and invalid commands of every kind.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use paragpu_protocol::codec::{Field, decode_all, encode_all};
use parking_lot::Mutex;
use proptest::prelude::*;
use rustix::io::{Errno, read};

use super::connection::{Command, Connection, ConnectionEnd};
use super::guest_memory::GuestMemory;
use super::server::{DeviceEnds, Server};
use super::wire::*;
use crate::eventfd::EventFd;
use crate::layout::Layout;
use crate::window::Window;

const CHANNELS: u16 = 3;

/// A server, and the eventfds that a guest rings through it: those of the channels, then of
/// the control peer.
fn server() -> (Server, Vec<EventFd>) {
    server_of(&Arc::default())
}

/// The same, whose client reports its memory to `memory`.
fn server_of(memory: &Arc<Mutex<GuestMemory>>) -> (Server, Vec<EventFd>) {
    let layout = Layout::new(16 << 20, CHANNELS).unwrap();
    let bells: Vec<_> = (0..=CHANNELS).map(|_| EventFd::new().unwrap()).collect();
    let mut ends: Vec<_> = bells.iter().map(|bell| bell.duplicate().unwrap()).collect();
    let window = Window::new(layout, 7).unwrap();
    let ends = DeviceEnds {
        window: crate::rings::duplicate(std::os::fd::AsFd::as_fd(&window)).unwrap(),
        layout,
        control: ends.pop().unwrap(),
        channels: ends,
        memory: Arc::clone(memory),
        guard: None,
    };
    (Server::new(ends), bells)
}

fn greeted() -> (Server, Vec<EventFd>) {
    greeted_of(&Arc::default())
}

fn greeted_of(memory: &Arc<Mutex<GuestMemory>>) -> (Server, Vec<EventFd>) {
    let (mut server, bells) = server_of(memory);
    let version = Version { major: 0, minor: 1 };
    ask(&mut server, command::VERSION, &encode_all(&version)).unwrap();
    (server, bells)
}

fn header(number: u16, size: usize) -> Header {
    Header {
        id: 9,
        command: number,
        size: u32::try_from(HEADER_SIZE + size).unwrap(),
        flags: header_flags::COMMAND,
        error: 0,
    }
}

fn ask_with(
    server: &mut Server,
    number: u16,
    payload: &[u8],
    descriptors: Vec<OwnedFd>,
) -> Result<(Vec<u8>, bool), Errno> {
    let command = Command {
        header: header(number, payload.len()),
        payload,
        descriptors,
    };
    let reply = server.carry_out(command)?;
    Ok((reply.payload, reply.descriptor.is_some()))
}

fn ask(server: &mut Server, number: u16, payload: &[u8]) -> Result<Vec<u8>, Errno> {
    ask_with(server, number, payload, Vec::new()).map(|(payload, _)| payload)
}

fn access(offset: u64, region: u32, count: u32) -> Vec<u8> {
    encode_all(&Access {
        offset,
        region,
        count,
    })
}

fn write(offset: u64, region: u32, bytes: &[u8]) -> Vec<u8> {
    let mut payload = access(offset, region, u32::try_from(bytes.len()).unwrap());
    payload.extend_from_slice(bytes);
    payload
}

fn rung(bell: &EventFd) -> bool {
    read(bell, &mut [0; 8]).is_ok()
}

fn head<'a, T: Field<'a>>(payload: &'a [u8]) -> T {
    fields(payload).unwrap().0
}

fn region(server: &mut Server, index: u32, argsz: u32) -> Result<(RegionInfo, bool), Errno> {
    let question = encode_all(&RegionInfo {
        argsz,
        flags: 0,
        index,
        capabilities: 0,
        size: 0,
        offset: 0,
    });
    let (payload, descriptor) = ask_with(server, command::GET_REGION_INFO, &question, Vec::new())?;
    let info = head(&payload);
    if let Ok(area) = decode_all::<MappableArea>(payload.get(32..).unwrap_or_default()) {
        assert_eq!((area.id, area.count, area.size), (1, 1, 16 << 20));
    } else {
        assert_eq!(payload.len(), 32);
    }
    Ok((info, descriptor))
}

fn irqs(server: &mut Server, set: [u32; 4], descriptors: Vec<OwnedFd>) -> Result<(), Errno> {
    let [flags, index, start, count] = set;
    let payload = encode_all(&IrqSet {
        argsz: 20,
        flags,
        index,
        start,
        count,
    });
    ask_with(server, command::SET_IRQS, &payload, descriptors).map(drop)
}

#[test]
fn the_first_word_is_the_version_and_said_once() {
    let (mut server, _) = server();
    let asked = |major, minor| encode_all(&Version { major, minor });
    assert_eq!(ask(&mut server, command::RESET, &[]), Err(Errno::PROTO));
    let other = ask(&mut server, command::VERSION, &asked(1, 0));
    assert_eq!(other, Err(Errno::NOTSUP));
    let answer = ask(&mut server, command::VERSION, &asked(0, 9)).unwrap();
    assert_eq!(head::<Version>(&answer), VERSION);
    let text = std::str::from_utf8(&answer[4..]).unwrap();
    assert!(text.starts_with("{\"capabilities\":{") && text.ends_with("}}\0"));
    let again = ask(&mut server, command::VERSION, &asked(0, 1));
    assert_eq!(again, Err(Errno::PROTO));
}

#[test]
fn the_window_is_handed_out_where_the_answer_has_room() {
    let (mut server, _) = greeted();
    let (short, descriptor) = region(&mut server, pci::BAR2, 32).unwrap();
    assert_eq!((short.argsz, descriptor), (64, false));
    let (info, descriptor) = region(&mut server, pci::BAR2, short.argsz).unwrap();
    assert!(descriptor);
    assert_eq!((info.size, info.capabilities), (16 << 20, 32));
    assert_eq!(info.flags, 0b1111);
    for (index, size) in [(0, 4096), (1, 0), (3, 0), (6, 0), (7, 256), (8, 0)] {
        let (info, descriptor) = region(&mut server, index, 32).unwrap();
        assert_eq!((info.size, descriptor), (size, false), "region {index}");
    }
    assert_eq!(region(&mut server, 9, 64), Err(Errno::INVAL));
    assert_eq!(region(&mut server, 2, 31), Err(Errno::INVAL));
}

#[test]
fn the_doorbell_rings_who_is_named() {
    let (mut server, bells) = greeted();
    let mut ring = |value: u32| {
        let payload = write(0x0c, pci::BAR0, &value.to_le_bytes());
        ask(&mut server, command::REGION_WRITE, &payload).unwrap();
        let rang: Vec<_> = bells.iter().map(rung).collect();
        rang.iter().position(|rang| *rang)
    };
    // Peer 0 is the guest itself; peers 1 to 3 are channels, 4 is control.
    for (peer, expected) in [
        (0, None),
        (1, Some(0)),
        (3, Some(2)),
        (4, Some(3)),
        (5, None),
    ] {
        assert_eq!(ring(peer << 16), expected, "peer {peer}");
        assert_eq!(ring(peer << 16 | 1), None, "there is one vector");
    }
    assert_eq!(ring(u32::MAX), None);
}

#[test]
fn other_accesses_to_registers_do_nothing() {
    let (mut server, bells) = greeted();
    for (offset, bytes) in [
        (0x0c, &[0, 0][..]),
        (0x0c, &[0; 8]),
        (0x0d, &[1; 4]),
        (0, &[1; 4]),
    ] {
        ask(
            &mut server,
            command::REGION_WRITE,
            &write(offset, pci::BAR0, bytes),
        )
        .unwrap();
    }
    assert!(!bells.iter().any(rung));
    let answer = ask(&mut server, command::REGION_READ, &access(8, pci::BAR0, 4)).unwrap();
    assert_eq!(answer, write(8, pci::BAR0, &[0; 4]));
}

#[test]
fn accesses_stay_in_their_region() {
    let (mut server, _) = greeted();
    let window = 16_u64 << 20;
    let bad = [
        (window, 2, 1),
        (window - 1, 2, 2),
        (u64::MAX, 2, 2),
        (0, 2, 4097),
        (4096, 0, 1),
        (255, 7, 2),
        (0, 1, 1),
        (0, 9, 1),
        (0, u32::MAX, 0),
    ];
    for (offset, region, count) in bad {
        let read = ask(
            &mut server,
            command::REGION_READ,
            &access(offset, region, count),
        );
        assert_eq!(read, Err(Errno::INVAL), "{offset:#x} in {region}");
        let payload = write(offset, region, &vec![0; count as usize]);
        let written = ask(&mut server, command::REGION_WRITE, &payload);
        assert_eq!(written, Err(Errno::INVAL), "{offset:#x} in {region}");
    }
    let short = ask(&mut server, command::REGION_WRITE, &access(0, 0, 4));
    assert_eq!(short, Err(Errno::INVAL), "no bytes came");
    ask(
        &mut server,
        command::REGION_WRITE,
        &write(window - 4, 2, b"last"),
    )
    .unwrap();
    let back = ask(&mut server, command::REGION_READ, &access(window - 4, 2, 4)).unwrap();
    assert_eq!(&back[16..], b"last");
}

#[test]
fn interrupts_go_where_the_client_said_last() {
    let (mut server, _) = greeted();
    let [first, second] = [EventFd::new().unwrap(), EventFd::new().unwrap()];
    let through = irq_set_flags::DATA_EVENTFD | irq_set_flags::ACTION_TRIGGER;
    let off = irq_set_flags::DATA_NONE | irq_set_flags::ACTION_TRIGGER;
    let pass = |bell: &EventFd| {
        let copy = rustix::io::fcntl_dupfd_cloexec(bell, 0).unwrap();
        vec![copy]
    };
    server.interrupt();
    irqs(&mut server, [through, pci::MSI, 0, 1], pass(&first)).unwrap();
    server.interrupt();
    assert!(rung(&first));
    irqs(&mut server, [through, pci::MSI, 0, 1], pass(&second)).unwrap();
    server.interrupt();
    assert!(!rung(&first) && rung(&second));
    // Invalid commands change nothing.
    for set in [
        [through, pci::MSI, 0, 2],
        [through, pci::MSI, 1, 1],
        [through, 0, 0, 1],
        [through, 2, 0, 1],
        [off, 5, 0, 0],
        [u32::MAX, pci::MSI, 0, 1],
    ] {
        let refused = irqs(&mut server, set, pass(&first));
        assert_eq!(refused, Err(Errno::INVAL), "{set:?}");
    }
    let two = pass(&first).into_iter().chain(pass(&first)).collect();
    assert!(irqs(&mut server, [through, pci::MSI, 0, 1], two).is_err());
    server.interrupt();
    assert!(!rung(&first) && rung(&second));
    irqs(&mut server, [off, pci::MSI, 0, 0], Vec::new()).unwrap();
    server.interrupt();
    assert!(!rung(&second));
}

#[test]
fn reset_forgets_what_the_guest_wrote() {
    let (mut server, _) = greeted();
    let command_word = write(4, pci::CONFIG, &[6, 0]);
    ask(&mut server, command::REGION_WRITE, &command_word).unwrap();
    let question = access(4, pci::CONFIG, 2);
    let read = |server: &mut Server| ask(server, command::REGION_READ, &question).unwrap();
    assert_eq!(read(&mut server), command_word);
    ask(&mut server, command::RESET, &[]).unwrap();
    assert_eq!(read(&mut server), write(4, pci::CONFIG, &[0, 0]));
}

#[test]
fn an_interrupt_is_an_eventfd_and_never_blocks() {
    let (mut server, _) = greeted();
    let through = irq_set_flags::DATA_EVENTFD | irq_set_flags::ACTION_TRIGGER;
    let trigger = irq_set_flags::DATA_NONE | irq_set_flags::ACTION_TRIGGER;
    let (_end, pipe) = rustix::pipe::pipe().unwrap();
    let refused = irqs(&mut server, [through, pci::MSI, 0, 1], vec![pipe]);
    assert_eq!(refused, Err(Errno::INVAL));
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let passed = vec![full.try_clone().unwrap()];
    irqs(&mut server, [through, pci::MSI, 0, 1], passed).unwrap();
    irqs(&mut server, [trigger, pci::MSI, 0, 1], Vec::new()).unwrap();
    let mut count = [0; 8];
    read(&full, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), u64::MAX - 1);
}

#[test]
fn workers_lose_the_memory_when_the_guest_or_its_reset_takes_it_back() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let memory = Arc::<Mutex<GuestMemory>>::default();
    let (mut server, _) = greeted_of(&memory);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let ram = memfd_create("ram", flags).unwrap();
    ftruncate(&ram, 0x1000).unwrap();
    fcntl_add_seals(&ram, SealFlags::SHRINK).unwrap();
    let map = encode_all(&DmaMap {
        argsz: 32,
        flags: dma_flags::READ | dma_flags::WRITE,
        offset: 0,
        address: 0x8000,
        size: 0x1000,
    });
    ask_with(&mut server, command::DMA_MAP, &map, vec![ram]).unwrap();
    let worker = || memory.lock().descriptors().unwrap().swap_remove(0);
    let ranges = |table: &OwnedFd| {
        let mut count = [0; 8];
        rustix::io::pread(table, &mut count, 8).unwrap();
        u64::from_le_bytes(count)
    };
    let set = |server: &mut Server, word: u8| {
        let payload = write(4, pci::CONFIG, &[word, 0]);
        ask(server, command::REGION_WRITE, &payload).unwrap();
    };
    let first = worker();
    set(&mut server, 6);
    set(&mut server, 4);
    assert_eq!(ranges(&first), 1, "the device may still access memory");
    set(&mut server, 2);
    let second = worker();
    assert_eq!((ranges(&first), ranges(&second)), (0, 1));
    set(&mut server, 6);
    ask(&mut server, command::RESET, &[]).unwrap();
    let third = worker();
    let left = [&first, &second, &third].map(ranges);
    assert_eq!(left, [0, 0, 1]);
}

/// Payloads of a client, with words that are often small or boundary values.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        0_u32..16,
        Just(16 << 20),
        Just(u32::MAX),
        Just(0x21),
        Just(0x24),
        any::<u32>()
    ];
    let words = prop::collection::vec(word, 0..12);
    (words, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(words, rest)| {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(rest);
        bytes
    })
}

proptest! {
    #[test]
    fn no_command_breaks_the_server(
        commands in prop::collection::vec((0_u16..20, payload(), any::<bool>()), 1..40)
    ) {
        let (mut server, _) = greeted();
        for (number, payload, passes) in commands {
            let descriptors = passes
                .then(|| crate::rings::duplicate(std::os::fd::AsFd::as_fd(&std::io::stdin())))
                .and_then(Result::ok);
            let answer = ask_with(&mut server, number, &payload, descriptors.into_iter().collect());
            if let Ok((bytes, _)) = answer {
                prop_assert!(bytes.len() <= MAX_MESSAGE);
            }
            server.interrupt();
        }
        // The server still works.
        let answer = ask(&mut server, command::REGION_READ, &access(0, pci::CONFIG, 4)).unwrap();
        prop_assert_eq!(&answer[16..], &[0xf4, 0x1a, 0x10, 0x11]);
    }

    #[test]
    fn messages_are_found_wherever_the_stream_is_cut(
        commands in prop::collection::vec((any::<u16>(), prop::collection::vec(any::<u8>(), 0..99)), 1..9),
        cuts in prop::collection::vec(1_usize..60, 1..40),
    ) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours);
        let mut stream = Vec::new();
        for (number, payload) in &commands {
            stream.extend(encode_all(&header(*number, payload.len())));
            stream.extend(payload);
        }
        let mut found = Vec::new();
        let mut rest = stream.as_slice();
        for cut in cuts.iter().copied().chain([usize::MAX]) {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            theirs.write_all(now).unwrap();
            rest = later;
            while let Some(command) = connection.receive().unwrap() {
                found.push((command.header.command, command.payload.to_vec()));
            }
        }
        prop_assert_eq!(found, commands);
        drop(theirs);
        prop_assert_eq!(connection.receive().unwrap_err(), ConnectionEnd::Closed);
    }

    #[test]
    fn rubbish_ends_a_connection_or_is_a_command(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours);
        theirs.write_all(&bytes).unwrap();
        drop(theirs);
        let mut taken = 0;
        while let Ok(Some(command)) = connection.receive() {
            taken += HEADER_SIZE + command.payload.len();
        }
        prop_assert!(taken <= bytes.len());
    }
}
