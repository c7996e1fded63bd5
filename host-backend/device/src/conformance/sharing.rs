//! Memory shared between devices.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;

use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;

use super::{set, settle, word};
use crate::{Device, Platform, Result, StreamId};

/// Memory is handed over with its contents from one device to another, and from there to
/// a third; other descriptors are refused. Returns false if the device does not support
/// handing over.
///
/// # Panics
/// Where the device does not conform.
pub fn handing_over(platform: &dyn Platform) -> bool {
    let [here, there, last] = [0, 1, 2].map(|n| Regions::of(n).expect("regions"));
    let mut giver = platform.open(0, here).expect("device 0 opens");
    let mut taker = platform.open(0, there).expect("device 0 opens again");
    let (from, to) = (here.arena, there.arena);
    giver.memory_map(from, 2 * CHUNK).expect("map");
    if giver.memory_domain().is_none() {
        let refused = giver.memory_export(from).unwrap_err();
        assert_eq!(refused.status, Status::NOT_SUPPORTED);
        return false;
    }
    assert_eq!(giver.memory_domain(), taker.memory_domain());
    let missing = giver.memory_export(from + CHUNK);
    assert_eq!(missing.unwrap_err().status, Status::INVALID_VALUE);
    let set = |device: &mut dyn Device, at, value| set(device, at, value, 4096);
    let end = 2 * CHUNK - 4096;
    set(giver.as_mut(), from + end, 0x5eed_0001);
    let handed = giver.memory_export(from).expect("export");
    let copies = || handed.try_clone().expect("a descriptor more");
    // Outside the arena, over another mapping, and larger than the memory.
    taker.memory_map(to + 2 * CHUNK, CHUNK).expect("map");
    for (address, size) in [
        (to - CHUNK, 2 * CHUNK),
        (to + CHUNK, 2 * CHUNK),
        (to + 4096, 2 * CHUNK),
        (to + 4 * CHUNK, 4 * CHUNK),
    ] {
        let refused = taker.memory_import(address, size, copies());
        assert!(refused.is_err(), "{size} bytes at {address:#x} were taken");
    }
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    let foreign = taker.memory_import(to, 2 * CHUNK, reader.into());
    assert!(foreign.is_err(), "a pipe was taken for memory");
    let file = std::fs::File::open("/dev/zero").expect("/dev/zero");
    let foreign = taker.memory_import(to, 2 * CHUNK, file.into());
    assert!(foreign.is_err(), "a file was taken for memory");
    // A failure leaves the range free; the memory is shared with its contents.
    taker
        .memory_import(to, 2 * CHUNK, copies())
        .expect("import");
    drop(handed);
    assert_eq!(word(taker.as_mut(), to + end), 0x5eed_0001);
    set(taker.as_mut(), to + end, 0x5eed_0002);
    assert_eq!(word(giver.as_mut(), from + end), 0x5eed_0002);
    // It outlives the original mapping and device.
    giver.memory_unmap(from).expect("unmap");
    giver.memory_map(from, 2 * CHUNK).expect("map again");
    assert_eq!(word(giver.as_mut(), from + end), 0, "memory of its own");
    drop(giver);
    assert_eq!(word(taker.as_mut(), to + end), 0x5eed_0002);
    // It can be handed over again.
    let handed = taker.memory_export(to).expect("export what was imported");
    let mut third = platform.open(0, last).expect("device 0 opens again");
    third
        .memory_import(last.arena, 2 * CHUNK, handed)
        .expect("import");
    taker.memory_unmap(to).expect("unmap");
    drop(taker);
    assert_eq!(word(third.as_mut(), last.arena + end), 0x5eed_0002);
    third.memory_unmap(last.arena).expect("unmap");
    true
}

/// A device copies from the memory of another one, and maps it, if there are two, while that
/// continues to use it; other descriptors are refused. Returns false if the device does
/// not support handing over.
///
/// # Panics
/// Where the device does not conform.
pub fn peers(platform: &(dyn Platform + Sync)) -> bool {
    let [here, there, third] = [0, 1, 2].map(|n| Regions::of(n).expect("regions"));
    let (from, to) = (here.arena, there.arena);
    let set = |device: &mut dyn Device, at, value| set(device, at, value, CHUNK);
    // A device belongs to the thread that opened it, so the owner has its own thread, which
    // ends with the channel.
    let (change, changes) = mpsc::channel::<u32>();
    let (handed, owned) = mpsc::channel::<Option<OwnedFd>>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut owner = platform.open(0, here).expect("device 0 opens");
            if owner.memory_domain().is_none() {
                return;
            }
            owner.memory_map(from, 2 * CHUNK).expect("map");
            set(owner.as_mut(), from, 0x5eed_0001);
            set(owner.as_mut(), from + CHUNK, 0x5eed_0002);
            for _ in 0..3 {
                let exported = owner.memory_export(from).expect("export");
                handed.send(Some(exported)).expect("the reader waits");
            }
            for value in changes {
                set(owner.as_mut(), from, value);
                handed.send(None).expect("the reader waits");
            }
            drop(owner);
            // The reader may have ended by now.
            let _ = handed.send(None);
        });
        let Ok(Some(exported)) = owned.recv() else {
            return false;
        };
        let other = 1.min(platform.device_count() - 1);
        let mut reader = platform.open(other, there).expect("the other opens");
        reader.memory_map(to, CHUNK).expect("map");
        let (pipe, _writer) = std::io::pipe().expect("a pipe");
        let foreign = reader.peer_open(2 * CHUNK, pipe.into());
        assert!(foreign.is_err(), "a pipe was taken for memory");
        let more = reader.peer_open(4 * CHUNK, exported);
        assert!(more.is_err(), "more than there is");
        let exported = owned.recv().expect("the owner").expect("a descriptor");
        let peer = reader.peer_open(2 * CHUNK, exported).expect("open");
        let mapped = owned.recv().expect("the owner").expect("a descriptor");
        let mut fetch = |offset: u64, size: u64| -> Result<u32> {
            reader.peer_copy(to, peer, offset, size, StreamId::LEGACY)?;
            settle(reader.as_mut(), StreamId::LEGACY)?;
            Ok(word(reader.as_mut(), to + size - 4))
        };
        assert_eq!(fetch(0, CHUNK).expect("copy"), 0x5eed_0001);
        assert_eq!(fetch(CHUNK, 4096).expect("copy"), 0x5eed_0002);
        // Beyond its end, and beyond the reader's own memory.
        for (offset, size) in [
            (CHUNK + 4, CHUNK),
            (2 * CHUNK, 4),
            (u64::MAX - 3, 4),
            (0, 2 * CHUNK),
        ] {
            let error = fetch(offset, size).unwrap_err();
            assert_eq!(error.status, Status::INVALID_VALUE, "{size} at {offset:#x}");
        }
        // The owner's writes are visible; the memory outlives the owner.
        change.send(0x5eed_0003).expect("the owner waits");
        owned.recv().expect("the owner");
        assert_eq!(fetch(4096, 4096).expect("copy"), 0x5eed_0003);
        drop(change);
        owned.recv().expect("the owner");
        assert_eq!(fetch(8192, 4096).expect("copy"), 0x5eed_0003);
        reader.peer_close(peer).expect("close");
        let closed = reader.peer_close(peer).unwrap_err();
        assert_eq!(closed.status, Status::INVALID_HANDLE);
        let closed = reader.peer_copy(to, peer, 0, 4, StreamId::LEGACY);
        assert_eq!(closed.unwrap_err().status, Status::INVALID_HANDLE);
        // It can be mapped, too, while an export for another thread is not over.
        let export = reader.memory_exporter(to).expect("an export");
        reader
            .peer_map(third.arena, 2 * CHUNK, mapped)
            .expect("map of the owner's memory");
        let last = third.arena + 2 * CHUNK - 4;
        assert_eq!(word(reader.as_mut(), last), 0x5eed_0002);
        reader.memory_unmap(third.arena).expect("unmap");
        export().expect("export");
        true
    })
}
