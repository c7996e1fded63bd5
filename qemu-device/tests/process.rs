//! The device process between a hypervisor, a guest and a daemon, without a VM.

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};

use common::{CHANNELS, Guest, LONG, Process, is_ready, receive, ring};
use paragpu_communicator_ring::layout::{self as rings, device};
use paragpu_protocol::codec::{Text, decode_all, encode_all};
use paragpu_protocol::frame::{Control, FrameHeader, HEADER_LEN};
use paragpu_protocol::handshake::{ATTACH, Attach, Refusal, VERSION};
use paragpu_qemu_device::layout::state::{FREE, HOST_CLOSED, OPEN, RELEASED};

fn refusal_of(guest: &Guest, channel: u16) -> String {
    let (header, payload) = guest.first_received(channel).expect("a frame");
    assert_eq!(Control::from_kind(header.kind), Some(Control::Refusal));
    let refusal: Refusal<'_> = decode_all(&payload).unwrap();
    refusal.reason.0.to_owned()
}

/// Takes a channel that the process offers, and checks the offer. Returns the connection.
fn take_offer(daemon: &UnixListener, channel: u16, guest: &Guest) -> UnixStream {
    assert!(is_ready(daemon, LONG), "no offer");
    let (connection, _) = daemon.accept().unwrap();
    let (bytes, descriptors) = receive(&connection, 4096);
    assert_eq!(descriptors.len(), 3);
    let (header, payload) = bytes.split_first_chunk::<HEADER_LEN>().unwrap();
    assert_eq!(FrameHeader::from_bytes(header).unwrap().kind, ATTACH);
    let attach: Attach<'_> = decode_all(payload).unwrap();
    assert_eq!(attach.vm.0, "test");
    assert_eq!(attach.channel, u32::from(channel));
    assert_eq!(attach.channel_offset, guest.place(channel));
    assert_eq!(attach.channel_size, guest.long(device::CHANNEL_SIZE as u64));
    assert_eq!(attach.hello.0, Guest::hello());

    // Checks the descriptors: the window, the eventfd that the guest rings, the eventfd
    // that interrupts the guest.
    let [window, doorbell, interrupt] = <[_; 3]>::try_from(descriptors).unwrap();
    let mut magic = [0; 4];
    std::fs::File::from(window)
        .read_exact_at(&mut magic, 0)
        .unwrap();
    assert_eq!(u32::from_le_bytes(magic), device::MAGIC_VALUE);
    ring(&guest.channels[usize::from(channel)]);
    assert!(is_ready(&doorbell, LONG));
    ring(&interrupt);
    assert!(is_ready(&guest.interrupt, LONG));
    connection
}

fn is_pending(guest: &Guest, channel: u16) -> bool {
    guest.word(device::PENDING as u64) & 1 << channel != 0
}

fn consumed(guest: &Guest, channel: u16) -> u64 {
    guest.long(guest.place(channel) + (rings::TO_HOST + rings::index::HEAD) as u64)
}

#[test]
fn a_fresh_device_is_as_specified() {
    let process = Process::start();
    let guest = Guest::connect(&process);
    assert_eq!(guest.word(device::MAGIC as u64), device::MAGIC_VALUE);
    assert_eq!(
        guest.word(device::CHANNEL_COUNT as u64),
        u32::from(CHANNELS)
    );
    assert_eq!(guest.window.metadata().unwrap().len(), 16 << 20);
    for channel in 0..CHANNELS {
        assert_eq!(guest.state(channel), FREE);
        let place = guest.place(channel);
        assert_eq!(guest.word(place), rings::MAGIC_VALUE);
    }
    // No process can shrink memory that others have mapped.
    assert!(guest.window.set_len(4096).is_err());
    let mode = std::fs::metadata(process.socket()).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
}

#[test]
fn a_channel_is_handed_over_ended_and_scrubbed() {
    let process = Process::start();
    let daemon = process.daemon();
    let guest = Guest::connect(&process);
    guest.open_and_greet(1);
    let worker = take_offer(&daemon, 1, &guest);
    assert_eq!(consumed(&guest, 1), 80, "the hello has been consumed");

    let secret = guest.place(1) + guest.long(guest.place(1) + rings::BULK_OFFSET as u64);
    guest.set_word(secret, 0x5ec7e7);
    guest.set_state(1, RELEASED);
    // The worker is told, by flag, doorbell and connection.
    assert!(is_ready(&worker, LONG));
    assert_eq!(receive(&worker, 1).0.len(), 0);
    assert_eq!(
        guest.word(guest.place(1) + rings::CLOSED_BY_GUEST as u64),
        1
    );
    // The channel is not reused as long as the worker uses it.
    guest.set_state(1, RELEASED);
    guest.open_and_greet(2);
    let other = take_offer(&daemon, 2, &guest);
    assert_eq!(guest.state(1), RELEASED);
    assert_eq!(guest.word(secret), 0x5ec7e7);

    drop(worker);
    guest.until(1, FREE);
    assert_eq!(guest.word(secret), 0);
    assert_eq!(guest.word(guest.place(1)), rings::MAGIC_VALUE);
    assert_eq!(consumed(&guest, 1), 0);

    guest.open_and_greet(1);
    take_offer(&daemon, 1, &guest);
    drop(other);
}

#[test]
fn a_worker_that_dies_closes_the_channel() {
    let process = Process::start();
    let daemon = process.daemon();
    let guest = Guest::connect(&process);
    guest.open_and_greet(0);
    drop(take_offer(&daemon, 0, &guest));
    guest.until(0, HOST_CLOSED);
    assert!(is_pending(&guest, 0));
    assert_eq!(guest.word(guest.place(0) + rings::CLOSED_BY_HOST as u64), 1);
    guest.set_state(0, RELEASED);
    guest.until(0, FREE);
}

#[test]
fn a_device_process_that_is_killed_closes_its_channels() {
    for is_killed in [true, false] {
        let mut process = Process::start();
        let daemon = process.daemon();
        let earlier = Guest::connect(&process).window;
        let guest = Guest::connect(&process);
        guest.open_and_greet(0);
        let _worker = take_offer(&daemon, 0, &guest);
        guest.set_state(1, OPEN);
        assert_eq!(guest.word(device::HOST_GONE as u64), 0);
        match is_killed {
            true => process.kill(),
            false => drop(process.terminate()),
        }
        for channel in [0, 1] {
            guest.until(channel, HOST_CLOSED);
            assert_eq!(
                guest.word(guest.place(channel) + rings::CLOSED_BY_HOST as u64),
                1
            );
        }
        assert_eq!(guest.state(2), FREE);
        assert_eq!(guest.word(device::HOST_GONE as u64), 1);
        // An earlier device has another end: its hypervisor left.
        let mut gone = [0; 4];
        earlier
            .read_exact_at(&mut gone, device::HOST_GONE as u64)
            .unwrap();
        assert_eq!(gone, [0; 4]);
    }
}

#[test]
fn without_a_daemon_the_guest_gets_a_sentence() {
    let process = Process::start();
    let guest = Guest::connect(&process);
    guest.open_and_greet(0);
    guest.until(0, HOST_CLOSED);
    assert!(refusal_of(&guest, 0).contains("no paragpu daemon runs on the host"));
    guest.set_state(0, RELEASED);
    guest.until(0, FREE);

    // A daemon that starts later is found.
    let daemon = process.daemon();
    guest.open_and_greet(0);
    take_offer(&daemon, 0, &guest);
}

#[test]
fn the_daemons_refusal_reaches_the_guest() {
    let process = Process::start();
    let daemon = process.daemon();
    let guest = Guest::connect(&process);
    guest.open_and_greet(2);
    let mut connection = take_offer(&daemon, 2, &guest);
    let payload = encode_all(&Refusal {
        version: VERSION,
        reason: Text("the VM has as many sessions as it may"),
    });
    let header = FrameHeader::new(Control::Refusal.kind(), 0, 0, payload.len()).unwrap();
    connection.write_all(&header.to_bytes()).unwrap();
    connection.write_all(&payload).unwrap();
    guest.until(2, HOST_CLOSED);
    assert_eq!(
        refusal_of(&guest, 2),
        "the VM has as many sessions as it may"
    );
}

#[test]
fn a_busy_daemon_is_asked_again() {
    let process = Process::start();
    let daemon = process.daemon();
    // Fill its backlog.
    let address = rustix::net::SocketAddrUnix::new(process.folder.path().join("daemon.devices"));
    let mut waiting = Vec::new();
    loop {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        if connect(&socket, address.as_ref().unwrap()).is_err() {
            break;
        }
        waiting.push(socket);
    }
    let guest = Guest::connect(&process);
    guest.open_and_greet(0);
    // The hello was taken, so the offer has been tried. Now make room.
    while consumed(&guest, 0) == 0 {
        std::thread::yield_now();
    }
    for _ in &waiting {
        daemon.accept().unwrap();
    }
    take_offer(&daemon, 0, &guest);
}

#[test]
fn what_is_no_hello_is_refused() {
    let mut process = Process::start();
    let daemon = process.daemon();
    let guest = Guest::connect(&process);
    let frames: [(u16, &[u8]); 3] = [
        (7, b"a call"),
        (Control::Hello.kind(), b"short"),
        (Control::Hello.kind(), &[0; 4096]),
    ];
    for (kind, payload) in frames {
        guest.set_state(0, OPEN);
        guest.send_first(0, kind, payload);
        guest.until(0, HOST_CLOSED);
        assert!(refusal_of(&guest, 0).contains("did not send a valid hello"));
        guest.set_state(0, RELEASED);
        guest.until(0, FREE);
    }
    assert!(!is_ready(&daemon, std::time::Duration::ZERO));
    assert!(process.is_alive());
}

#[test]
fn rubbish_in_the_window_hurts_nobody_else() {
    let mut process = Process::start();
    let daemon = process.daemon();
    let guest = Guest::connect(&process);
    guest.open_and_greet(2);
    let served = take_offer(&daemon, 2, &guest);
    for byte in [0xff, 0x01, 0x80] {
        guest.set_state(0, OPEN);
        let header = vec![byte; 4096];
        guest.window.write_all_at(&header, guest.place(0)).unwrap();
        ring(&guest.channels[0]);
        guest.until(0, HOST_CLOSED);
        // States that no driver writes.
        guest.set_state(1, u32::from(byte) << 8);
        guest.set_state(1, HOST_CLOSED);
        guest.set_state(1, FREE);
        guest.set_state(0, RELEASED);
        guest.until(0, FREE);
        assert_eq!(guest.word(guest.place(0)), rings::MAGIC_VALUE);
    }
    assert_eq!(guest.state(2), OPEN);
    assert!(!is_ready(&served, std::time::Duration::ZERO));
    assert!(process.is_alive());
}

#[test]
fn a_flood_of_doorbells_delays_but_loses_nothing() {
    let mut process = Process::start();
    let daemon = process.daemon();
    let guest = Guest::connect(&process);
    for _ in 0..20_000 {
        ring(&guest.control);
    }
    guest.open_and_greet(0);
    take_offer(&daemon, 0, &guest);
    assert!(process.is_alive());
}

#[test]
fn a_second_hypervisor_is_turned_away() {
    let process = Process::start();
    let guest = Guest::connect(&process);
    let second = UnixStream::connect(process.socket()).unwrap();
    assert_eq!(receive(&second, 8).0.len(), 0);
    guest.open_and_greet(0);
    guest.until(0, HOST_CLOSED);
}

#[test]
fn a_new_vm_shares_nothing_with_the_one_before() {
    let process = Process::start();
    let daemon = process.daemon();
    let guest = Guest::connect(&process);
    let generation = guest.word(device::GENERATION as u64);
    guest.open_and_greet(0);
    let worker = take_offer(&daemon, 0, &guest);
    let Guest { socket, window, .. } = guest;
    drop(socket);
    // The worker is told that the VM is gone.
    assert!(is_ready(&worker, LONG));
    assert_eq!(receive(&worker, 1).0.len(), 0);

    let guest = Guest::connect(&process);
    assert_ne!(guest.word(device::GENERATION as u64), generation);
    assert_eq!(guest.state(0), FREE);
    let offset = guest.place(2);
    window.write_all_at(b"from the old VM", offset).unwrap();
    assert_eq!(guest.word(offset), rings::MAGIC_VALUE);
}

#[test]
fn a_hypervisor_that_talks_or_leaves_early_is_dropped() {
    let mut process = Process::start();
    for _ in 0..50 {
        drop(UnixStream::connect(process.socket()).unwrap());
    }
    let mut talker = UnixStream::connect(process.socket()).unwrap();
    talker.set_read_timeout(Some(LONG)).unwrap();
    talker.write_all(&[0xff; 64]).unwrap();
    // The connection ends properly or by a reset, because its data was never read.
    while matches!(talker.read(&mut [0; 64]), Ok(1..)) {}
    assert!(process.is_alive());
    // The previous connections may not have ended yet, and a hypervisor that connects
    // meanwhile is refused.
    let mut version = [0; 8];
    let comes = || UnixStream::connect(process.socket()).unwrap();
    while comes().read_exact(&mut version).is_err() {}
    Guest::connect(&process);
}

#[test]
fn the_sockets_path_is_taken_only_from_the_dead() {
    let complaint = |folder: &tempfile::TempDir| {
        let output = Process::command(folder).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let process = Process::start();
    assert!(complaint(&process.folder).contains("another process serves"));

    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("device.sock"), "a file").unwrap();
    assert!(complaint(&folder).contains("is not a socket of this user"));
    assert!(folder.path().join("device.sock").exists());

    let folder = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(folder.path().join("device.sock")).unwrap());
    Guest::connect(&Process::start_in(folder));
}

#[test]
fn a_process_that_is_asked_to_end_leaves_no_socket() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start_in(folder);
    let guest = Guest::connect(&process);
    assert_eq!(process.terminate().code(), Some(0));
    assert!(!process.socket().exists());
    drop(guest);
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let full = std::fs::File::create("/dev/full").unwrap();
    let mut child = Process::command(&folder).stderr(full).spawn().unwrap();
    let socket = folder.path().join("device.sock");
    let connection = loop {
        match UnixStream::connect(&socket) {
            Ok(connection) => break Some(connection),
            Err(_) if child.try_wait().unwrap().is_some() => break None,
            Err(_) => std::thread::yield_now(),
        }
    };
    // It serves connections after it has logged that it listens.
    let version = connection.map(|mut connection| connection.read_exact(&mut [0; 8]));
    let _ = child.kill();
    child.wait().unwrap();
    version.expect("it listens").unwrap();
}
