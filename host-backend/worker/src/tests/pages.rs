//! Copies from and to guest memory that the host can access, with page lists of the
//! guest's kernel, or of a hostile one.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use paragpu_communicator::{Connection, Error, Wait};
use paragpu_communicator_ring::guest_memory::Range;
use paragpu_communicator_ring::layout::list;
use paragpu_communicator_ring::testing::{BASE, PAGE, PAGES, Vm, page};
use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::encode_all;
use paragpu_protocol::frame::FrameHeader;
use paragpu_protocol::handle::{DeviceAddress, StreamHandle};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::session::{Finds, Reconnect, Reconnected, Session};
use crate::staging::INBOUND;
use crate::testing::device::TestDevice;
use crate::testing::guest::{Guest, decode, pair, setup};

/// The first stream that the guest creates: handle, and the device's identifier.
const STREAM: (StreamHandle, u64) = (StreamHandle(16), 1);
/// Pages of the largest list.
const MANY: u64 = list::PIN_MAX / PAGE;

/// A guest with memory on its device and a stream.
fn begin(guest: &mut Guest) {
    let map = MemMap {
        address: DeviceAddress(guest.regions.arena),
        size: 4 * CHUNK,
    };
    guest.call(&map).unwrap();
    let create = StreamCreate {
        stream: STREAM.0,
        flags: 1,
        priority: 0,
    };
    guest.call(&create).unwrap();
}

fn guest(pages: u64) -> (Vm, Guest) {
    let (vm, memory) = Vm::with_pages(pages);
    let mut guest = Guest::reaching(memory, |_| {});
    begin(&mut guest);
    (vm, guest)
}

fn to_device(guest: &Guest, list: u32, size: u64) -> CopyPagesToDevice {
    CopyPagesToDevice {
        destination: guest.regions.arena,
        list,
        size,
        stream: STREAM.0,
    }
}

fn from_device(guest: &Guest, list: u32, size: u64) -> CopyPagesFromDevice {
    CopyPagesFromDevice {
        source: guest.regions.arena,
        list,
        size,
        stream: STREAM.0,
    }
}

fn on_device(guest: &mut Guest, size: u64) -> Vec<u8> {
    let copy = CopyFromDevice {
        source: guest.regions.arena,
        size,
        stream: StreamHandle::LEGACY,
    };
    guest.fetch(&copy, size as usize).unwrap()
}

fn fill_device(guest: &mut Guest, byte: u8, size: u64) {
    guest.post(&Memset {
        destination: guest.regions.arena,
        pitch: 0,
        value: byte.into(),
        element: 1,
        width: size,
        height: 1,
        stream: STREAM.0,
    });
    guest.call(&ContextSynchronize {}).unwrap();
}

/// Bytes of which no two pages are alike.
fn pattern(length: u64) -> Vec<u8> {
    let words = (0..length.div_ceil(8)).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length as usize);
    bytes
}

/// Pages in a scattered order, from page `first` on.
fn scattered(first: u64, count: u64) -> Vec<u64> {
    (0..count).map(|at| page(first + at * 7 % count)).collect()
}

#[test]
fn bytes_come_from_and_go_to_scattered_pages() {
    let (vm, mut guest) = guest(2 * MANY);
    vm.write(0, &pattern(list::PIN_MAX));
    let (offset, size) = (100, list::PIN_MAX - 300);
    vm.name(0, &scattered(0, MANY), offset, size, 0);
    let copy = to_device(&guest, 0, size);
    guest.call(&copy).unwrap();
    assert_eq!(vm.state(0), list::READY, "returned before the reply");

    let back = scattered(MANY, MANY);
    vm.name(3, &back, offset, size, list::WRITABLE);
    let copy = from_device(&guest, 3, size);
    guest.call(&copy).unwrap();
    assert_eq!(vm.state(3), list::READY);
    assert!(guest.aside.is_empty(), "no byte came in a frame");
    // The same order both ways gives the same bytes, except around them.
    let mut expected = vm.bytes(0, list::PIN_MAX as usize);
    let got = vm.bytes(list::PIN_MAX, list::PIN_MAX as usize);
    let (first, last) = (0, (MANY - 1) * 7 % MANY * PAGE);
    expected[..100].copy_from_slice(&got[first..][..100]);
    let tail = (last + PAGE - 200) as usize;
    expected[tail..][..200].copy_from_slice(&got[tail..][..200]);
    assert!(expected == got);
    let untouched = |at: u64| vm.byte(list::PIN_MAX + at);
    assert_eq!(untouched(0), (MANY % 256) as u8);
    assert_eq!(
        untouched(last + PAGE - 1),
        ((MANY + last / PAGE) % 256) as u8
    );

    let counters = guest.counters();
    assert_eq!(
        [counters.bytes_to_device, counters.bytes_from_device],
        [size; 2]
    );
    guest.goodbye();
}

#[test]
fn all_lists_are_used_at_once() {
    let (vm, mut guest) = guest(4 * MANY);
    guest.device.hold(STREAM.1, true);
    // More than staging memory holds: the last ones wait for it.
    for number in 0..4_u16 {
        let first = u64::from(number) * MANY;
        vm.name(number.into(), &scattered(first, MANY), 0, list::PIN_MAX, 0);
        let copy = to_device(&guest, number.into(), list::PIN_MAX);
        guest.send(number + 1, &copy);
    }
    while guest.device.count("copy") < INBOUND as usize {
        std::thread::yield_now();
    }
    // Other threads' calls continue meanwhile.
    let pong = guest.call(&Ping { value: 5 }).unwrap();
    assert_eq!(decode::<u64>(&pong), 5);
    assert!(guest.aside.is_empty());
    guest.device.hold(STREAM.1, false);
    for slot in 1..=4 {
        guest.reply(slot).unwrap();
        assert_eq!(vm.state(u64::from(slot) - 1), list::READY);
    }
    guest.goodbye();
}

#[test]
fn invalid_pages_are_neither_read_nor_written() {
    let (mut vm, mut guest) = guest(PAGES);
    let before = vm.bytes(0, (PAGES * PAGE) as usize);
    fill_device(&mut guest, 0xee, 4 * PAGE);
    let (unreached, invalid) = (Status::MAP_FAILED, Status::INVALID_VALUE);
    let all = vm.all(1);
    let elsewhere = |change: fn(&mut Range)| {
        let mut range = vm.all(1);
        change(&mut range);
        range
    };
    // Invalid lists: out of range, not the VM's, not writable, longer than their pages.
    let cases = [
        (vec![page(PAGES)], 0, PAGE, all, unreached),
        (vec![BASE - PAGE], 0, PAGE, all, unreached),
        (vec![page(PAGES - 1) | 1], 0, 2 * PAGE, all, unreached),
        (vec![page(5), !0xfff], 0, 2 * PAGE, all, unreached),
        (vec![!0], 0, PAGE, all, unreached),
        (vec![], 0, PAGE, all, invalid),
        (vec![page(0)], 1, PAGE, all, invalid),
        (vec![page(0)], u32::MAX, 1, all, invalid),
        (vec![page(0) | 0xfff], 0, list::PIN_MAX + 1, all, invalid),
        (
            vec![page(0)],
            0,
            PAGE,
            elsewhere(|range| range.file = 3),
            unreached,
        ),
        (
            vec![page(0)],
            0,
            PAGE,
            elsewhere(|range| range.size = 1),
            unreached,
        ),
        (
            vec![page(0)],
            0,
            PAGE,
            elsewhere(|range| range.offset = !0),
            unreached,
        ),
    ];
    for (entries, offset, size, range, status) in cases {
        vm.map(&[range]);
        vm.name(1, &entries, offset, size, list::WRITABLE);
        let copy = to_device(&guest, 1, size);
        guest.fails(&copy, status);
        assert_eq!(vm.state(1), list::READY, "{entries:x?}");
        let copy = from_device(&guest, 1, size);
        guest.fails(&copy, status);
        assert_eq!(vm.state(1), list::READY, "{entries:x?}");
    }
    vm.map(&[all]);
    // Invalid numbers, or those of another channel; an empty list; sizes other than the
    // list's; a read-only list.
    vm.name(u64::from(list::COUNT), &[page(0)], 0, PAGE, list::WRITABLE);
    vm.name(0, &[page(0)], 0, PAGE, 0);
    let wrong = [
        (list::COUNT, PAGE),
        (u32::MAX, PAGE),
        (2, PAGE),
        (0, PAGE - 1),
        (0, PAGE + 1),
        (0, 0),
        (0, u64::MAX),
    ];
    for (number, size) in wrong {
        let copy = to_device(&guest, number, size);
        guest.fails(&copy, invalid);
        let copy = from_device(&guest, number, size);
        guest.fails(&copy, invalid);
    }
    let copy = from_device(&guest, 0, PAGE);
    guest.fails(&copy, invalid);
    assert_eq!(vm.state(u64::from(list::COUNT)), list::READY);
    // Page 5 belonged to the program.
    let own = 5 * PAGE as usize..6 * PAGE as usize;
    let after = vm.bytes(0, before.len());
    assert!(after[..own.start] == before[..own.start]);
    assert!(after[own.end..] == before[own.end..]);
    assert!(on_device(&mut guest, PAGE) == vec![0xee; PAGE as usize]);
    // The session continues.
    let copy = to_device(&guest, 0, PAGE);
    guest.call(&copy).unwrap();
    assert!(on_device(&mut guest, PAGE) == vec![0; PAGE as usize]);
    guest.goodbye();
}

#[test]
fn overlapping_entries_access_only_those_pages() {
    let (vm, mut guest) = guest(PAGES);
    fill_device(&mut guest, 0xab, 4 * PAGE);
    // Page 3 thrice, 4 twice.
    let entries = [page(3) | 1, page(3), page(4)];
    vm.name(0, &entries, 0, 4 * PAGE, list::WRITABLE);
    let copy = from_device(&guest, 0, 4 * PAGE);
    guest.call(&copy).unwrap();
    for number in 0..PAGES {
        let expected = match number {
            3 | 4 => 0xab,
            other => other as u8,
        };
        assert_eq!(vm.byte(number * PAGE), expected);
        assert_eq!(vm.byte(number * PAGE + PAGE - 1), expected);
    }
    guest.goodbye();
}

#[test]
fn a_list_that_changes_while_it_is_read_changes_nothing() {
    let (vm, mut guest) = guest(4 * MANY);
    guest.device.hold(STREAM.1, true);
    // Three lists fill the staging memory, so that the last is read in part.
    for number in 0..3_u64 {
        vm.name(
            number,
            &[page(number * MANY) | (MANY - 1)],
            0,
            list::PIN_MAX,
            0,
        );
        let copy = to_device(&guest, number as u32, list::PIN_MAX);
        guest.send(number as u16 + 1, &copy);
    }
    guest.call(&Ping { value: 0 }).unwrap();
    assert_eq!(vm.state(2), list::BUSY);
    // Its kernel replaces the list meanwhile: by other pages, by none, by a ready one.
    vm.name(2, &[page(3 * MANY), !0xfff], 77, u64::MAX, list::WRITABLE);
    guest.device.hold(STREAM.1, false);
    for slot in 1..=3 {
        guest.reply(slot).unwrap();
    }
    let expected = vm.bytes(2 * list::PIN_MAX, list::PIN_MAX as usize);
    assert!(on_device(&mut guest, list::PIN_MAX) == expected);
    guest.goodbye();
}

#[test]
fn memory_that_the_vm_loses_is_no_longer_copied() {
    let (mut vm, mut guest) = guest(3 * MANY);
    guest.device.hold(STREAM.1, true);
    for number in 0..3_u64 {
        vm.name(
            number,
            &[page(number * MANY) | (MANY - 1)],
            0,
            list::PIN_MAX,
            0,
        );
        let copy = to_device(&guest, number as u32, list::PIN_MAX);
        guest.send(number as u16 + 1, &copy);
    }
    guest.call(&Ping { value: 0 }).unwrap();
    vm.map(&[]);
    guest.device.hold(STREAM.1, false);
    let failed = guest.reply(3);
    let number = CopyPagesToDevice::INFO.number;
    assert_eq!(failed, Err((Status::MAP_FAILED, number)));
    assert_eq!(vm.state(2), list::READY);
    guest.goodbye();
}

#[test]
fn memory_is_used_once_both_sides_were_seen_to_share_it() {
    let (vm, memory) = Vm::unchecked(PAGES);
    let mut guest = Guest::reaching(memory, |_| {});
    begin(&mut guest);
    let unreached = Status::MAP_FAILED;
    let names = |size| vm.name(0, &[page(2)], 0, size, list::WRITABLE);
    names(PAGE);
    let copies = (to_device(&guest, 0, PAGE), from_device(&guest, 0, PAGE));
    guest.fails(&copies.0, unreached);
    guest.fails(&copies.1, unreached);
    let value = u64::from_le_bytes([2; 8]);
    let check = |value| CheckPages { list: 0, value };
    guest.fails(&check(value), Status::INVALID_VALUE);
    names(16);
    guest.fails(&check(value ^ 1), unreached);
    assert_eq!(vm.bytes(2 * PAGE, 16), [2; 16]);
    guest.call(&check(value)).unwrap();
    assert_eq!(vm.bytes(2 * PAGE + 8, 8), (!value).to_le_bytes());
    assert_eq!(vm.state(0), list::READY);
    names(PAGE);
    guest.call(&copies.0).unwrap();
    guest.call(&copies.1).unwrap();
    guest.goodbye();
}

#[test]
fn a_worker_without_access_to_memory_reports_it() {
    let mut guest = Guest::new();
    begin(&mut guest);
    let copy = to_device(&guest, 0, PAGE);
    guest.fails(&copy, Status::MAP_FAILED);
    let copy = from_device(&guest, 0, PAGE);
    guest.fails(&copy, Status::MAP_FAILED);
    guest.fails(&CheckPages { list: 0, value: 0 }, Status::MAP_FAILED);
    guest.goodbye();
}

/// A session that the test drives itself.
struct Direct {
    vm: Vm,
    device: TestDevice,
    session: Session,
    host: Connection,
    guest: Connection,
    arena: u64,
    sequence: u64,
}

impl Direct {
    fn new() -> Self {
        let (vm, memory) = Vm::with_pages(4 * MANY);
        let (host, guest) = pair();
        let device = TestDevice::default();
        let setup = setup(&device);
        let arena = setup.regions.arena;
        let mut session = Session::new(setup, Arc::clone(&host.sender), None);
        session.host.pages().adopt(Some(memory));
        let mut direct = Self {
            vm,
            device,
            session,
            host,
            guest,
            arena,
            sequence: 0,
        };
        let address = DeviceAddress(arena);
        direct.offer(
            0,
            &MemMap {
                address,
                size: 4 * CHUNK,
            },
        );
        let (stream, _) = STREAM;
        direct.offer(
            0,
            &StreamCreate {
                stream,
                flags: 1,
                priority: 0,
            },
        );
        direct
    }

    fn frame<'a, C: WireCall<'a>>(&mut self, slot: u16, call: &C) -> (FrameHeader, Vec<u8>) {
        let payload = encode_all(call);
        self.sequence += 1;
        let header = FrameHeader::new(C::INFO.number, slot, self.sequence, payload.len()).unwrap();
        (header, payload)
    }

    fn offer<'a, C: WireCall<'a>>(&mut self, slot: u16, call: &C) {
        let (header, payload) = self.frame(slot, call);
        self.session.offer(header, &payload).unwrap();
    }

    /// Stalled copies in both directions.
    fn copies(&mut self) {
        self.device.hold(STREAM.1, true);
        let (stream, size) = (STREAM.0, list::PIN_MAX);
        for number in 0..3_u64 {
            let pages = [page(number * MANY) | (MANY - 1)];
            self.vm.name(number, &pages, 0, size, list::WRITABLE);
        }
        let destination = self.arena;
        let list = 0;
        self.offer(
            1,
            &CopyPagesToDevice {
                destination,
                list,
                size,
                stream,
            },
        );
        let list = 1;
        let source = self.arena;
        self.offer(
            2,
            &CopyPagesFromDevice {
                source,
                list,
                size,
                stream,
            },
        );
        assert_eq!(self.session.replies.completion.len(), 2);
        assert_eq!(self.vm.state(1), list::BUSY);
    }
}

/// The beginning of a move and of a checkpoint.
#[test]
fn a_session_stops_when_its_copies_are_complete() {
    let mut direct = Direct::new();
    direct.copies();
    // Neither stops while the device has not completed them: the session continues.
    let stopped = direct
        .session
        .stop(direct.host.receiver.as_mut(), Duration::ZERO);
    assert!(matches!(stopped, Ok(false)), "{stopped:?}");
    assert_eq!(direct.session.replies.completion.len(), 2);
    assert_eq!(direct.vm.state(1), list::BUSY);

    // One that arrives while it stops is queued; its list is not touched.
    let (stream, size) = (STREAM.0, list::PIN_MAX);
    let (destination, list) = (direct.arena, 2);
    let late = CopyPagesToDevice {
        destination,
        list,
        size,
        stream,
    };
    let (header, payload) = direct.frame(3, &late);
    let sender = &direct.guest.sender;
    let sequence = Some(header.sequence);
    sender.send(header.kind, 3, sequence, &[&payload]).unwrap();
    sender.flush().unwrap();
    direct.device.hold(STREAM.1, false);
    while direct.session.intake.is_empty() || !direct.session.replies.completion.is_empty() {
        let stopped = direct
            .session
            .stop(direct.host.receiver.as_mut(), Duration::from_secs(60));
        stopped.unwrap();
    }
    assert_eq!(
        [0, 1, 2].map(|number| direct.vm.state(number)),
        [list::READY; 3]
    );
    let written = direct.vm.bytes(list::PIN_MAX, list::PIN_MAX as usize);
    assert!(
        written == direct.vm.bytes(0, written.len()),
        "copied there and back"
    );
    for slot in [1, 2] {
        let frame = direct
            .guest
            .receiver
            .receive(Wait::Forever)
            .unwrap()
            .unwrap();
        assert_eq!((frame.header.slot, frame.payload), (slot, &[0; 4][..]));
    }
    assert!(direct.guest.receiver.receive(Wait::Poll).unwrap().is_none());
}

/// The worker to which a session moves may be unable to access the memory.
#[test]
fn a_session_that_left_the_memory_ends_its_copies_and_refuses_others() {
    let mut direct = Direct::new();
    direct.copies();
    direct.session.leave_guest_memory();
    assert_eq!(
        [0, 1].map(|number| direct.vm.state(number)),
        [list::READY; 2]
    );
    let mut fds = [PollFd::new(&direct.vm.tenure, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    assert!(
        !fds[0].revents().is_empty(),
        "the channel may belong to another process now"
    );
    let before = direct.vm.bytes(list::PIN_MAX, PAGE as usize);
    direct.device.hold(STREAM.1, false);
    let (stream, size) = (STREAM.0, list::PIN_MAX);
    let (destination, list) = (direct.arena, 2);
    direct.offer(
        3,
        &CopyPagesToDevice {
            destination,
            list,
            size,
            stream,
        },
    );
    while !direct.session.replies.completion.is_empty() {
        direct.session.answer_completed().unwrap();
    }
    assert_eq!(direct.vm.state(2), list::READY);
    assert!(direct.vm.bytes(list::PIN_MAX, PAGE as usize) == before);
}

/// Another connection of the guest, after a check of what was released.
struct Back {
    connection: Option<Connection>,
    received: u64,
    look: Box<dyn FnMut() + Send>,
}

impl Reconnect for Back {
    fn next(&mut self, _: &Error, _: u64, _: Finds<'_>) -> Option<Reconnected> {
        (self.look)();
        Some(Reconnected {
            window: None,
            connection: self.connection.take()?,
            received: self.received,
        })
    }
}

#[test]
fn lists_are_left_with_the_connection() {
    let (vm, memory) = Vm::with_pages(3 * MANY);
    let vm = Arc::new(vm);
    let (host, back) = pair();
    let seen = Arc::clone(&vm);
    let (left, was_left) = mpsc::channel();
    let mut guest = Guest::reaching(memory, |setup| {
        setup.reconnect = Some(Box::new(Back {
            connection: Some(host),
            // The replies to the three calls below.
            received: 3,
            look: Box::new(move || {
                assert_eq!([0, 1].map(|number| seen.state(number)), [list::READY; 2]);
                let mut fds = [PollFd::new(&seen.tenure, PollFlags::empty())];
                poll(&mut fds, Some(&Timespec::default())).unwrap();
                assert!(!fds[0].revents().is_empty(), "the channel is free");
                left.send(()).unwrap();
            }),
        }));
    });
    begin(&mut guest);
    guest.device.hold(STREAM.1, true);
    for number in 0..2_u64 {
        vm.name(
            number,
            &[page(number * MANY) | (MANY - 1)],
            0,
            list::PIN_MAX,
            1,
        );
    }
    let copy = to_device(&guest, 0, list::PIN_MAX);
    guest.send(1, &copy);
    let copy = from_device(&guest, 1, list::PIN_MAX);
    let last = guest.send(2, &copy);
    guest.call(&Ping { value: 1 }).unwrap();
    assert_eq!(vm.state(1), list::BUSY);
    drop(std::mem::replace(&mut guest.connection, back));
    was_left.recv().unwrap();
    guest.device.hold(STREAM.1, false);
    let number = CopyPagesFromDevice::INFO.number;
    assert_eq!(guest.reply(2), Err((Status::MAP_FAILED, number)));
    // A list of the channel's new owner.
    let copy = to_device(&guest, 1, list::PIN_MAX);
    let payload = encode_all(&copy);
    guest.raw(
        CopyPagesToDevice::INFO.number,
        3,
        Some(last + 2),
        &[&payload],
    );
    let number = CopyPagesToDevice::INFO.number;
    assert_eq!(guest.reply(3), Err((Status::MAP_FAILED, number)));
    assert_eq!(vm.state(1), list::READY);
    guest.die();
}
