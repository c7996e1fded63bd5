//! Device memory, pinned memory, shadows, files.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use paragpu_protocol::codec::Bytes;
use paragpu_protocol::frame::Control;
use paragpu_protocol::handle::{
    AliasAddress, DeviceAddress, ShadowAddress, StreamHandle, WindowOffset,
};
use paragpu_protocol::layout::{CHUNK, MAX_DEVICES, Regions};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::*;

use super::waiting::STREAMS;
use crate::testing::device::TOTAL;
use crate::testing::guest::Guest;
use crate::testing::share_of_host_memory;

fn map(address: u64, size: u64) -> MemMap {
    MemMap {
        address: DeviceAddress(address),
        size,
    }
}

fn unmap(address: u64) -> MemUnmap {
    MemUnmap {
        address: DeviceAddress(address),
    }
}

#[test]
fn mapping_the_same_range_again_costs_the_device_nothing() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    for _ in 0..100 {
        guest.call(&map(base, 2 * CHUNK)).unwrap();
        guest.post(&unmap(base));
    }
    assert_eq!(guest.memory_info().free, TOTAL);
    assert_eq!(guest.device.count("memory_map"), 1);
    assert_eq!(guest.device.count("memory_unmap"), 0);
    // A different size there needs the device.
    guest.call(&map(base + CHUNK, 2 * CHUNK)).unwrap();
    assert_eq!(guest.device.count("memory_unmap"), 1);
    guest.goodbye();
}

#[test]
fn a_reused_range_waits_for_the_work_before_its_unmapping() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    guest.call(&map(base, CHUNK)).unwrap();
    guest.device.hold(0, true);
    guest.post(&super::fill(base, 1, 16));
    guest.post(&unmap(base));
    guest.send(5, &map(base, CHUNK));
    // Other calls continue meanwhile.
    guest.call(&Ping { value: 1 }).unwrap();
    assert!(guest.counters().busy);
    guest.device.hold(0, false);
    guest.reply(5).unwrap();
    assert_eq!(guest.device.count("memory_map"), 1);
    guest.goodbye();
}

fn alias(address: u64, size: u64, memory: u64) -> MemAlias {
    MemAlias {
        address: AliasAddress(address),
        size,
        memory: DeviceAddress(memory),
        access: 3,
    }
}

fn end(address: u64) -> MemAliasEnd {
    MemAliasEnd {
        address: AliasAddress(address),
    }
}

/// Sixteen bytes of device memory.
fn read(guest: &mut Guest, source: u64) -> Vec<u8> {
    let read = CopyFromDevice {
        source,
        size: 16,
        stream: StreamHandle(0),
    };
    guest.fetch(&read, 16).unwrap()
}

#[test]
fn memory_has_a_second_address() {
    let mut guest = Guest::with(|setup| setup.device_memory = 4 * CHUNK);
    let base = guest.regions.arena;
    let (one, two) = (base + 16 * CHUNK, base + 20 * CHUNK);
    guest.call(&map(base, 4 * CHUNK)).unwrap();
    guest.call(&alias(one, 4 * CHUNK, base)).unwrap();
    guest.call(&alias(two, CHUNK, base)).unwrap();
    // It is the same memory, and counts once.
    assert_eq!(guest.counters().device_memory, 4 * CHUNK);
    guest.call(&super::fill(two, 7, 16)).unwrap();
    for address in [base, one, two] {
        assert_eq!(read(&mut guest, address), [7; 16]);
    }
    guest.call(&end(two)).unwrap();
    guest.fails(&end(two), Status::INVALID_VALUE);
    assert_eq!(read(&mut guest, one), [7; 16]);
    // The aliases end with their memory, and no call can end them after that.
    guest.call(&unmap(base)).unwrap();
    guest.fails(&end(one), Status::INVALID_VALUE);
    guest.call(&map(one, CHUNK)).unwrap();
    guest.goodbye();
}

#[test]
fn invalid_aliases_are_refused() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    let free = base + 16 * CHUNK;
    guest.call(&map(base, 2 * CHUNK)).unwrap();
    guest.call(&map(base + 4 * CHUNK, CHUNK)).unwrap();
    guest.call(&alias(base + 8 * CHUNK, CHUNK, base)).unwrap();
    for bad in [
        alias(base, CHUNK, base),
        alias(base + CHUNK, CHUNK, base),
        alias(base + 3 * CHUNK, 2 * CHUNK, base),
        alias(base + 8 * CHUNK, CHUNK, base),
        alias(base + 7 * CHUNK, 2 * CHUNK, base),
        alias(free, 3 * CHUNK, base),
        alias(free, 0, base),
        alias(free, CHUNK / 2, base),
        alias(free + 1, CHUNK, base),
        alias(free, CHUNK, base + CHUNK),
        alias(free, CHUNK, base + 8 * CHUNK),
        alias(free, CHUNK, free),
        alias(base - CHUNK, CHUNK, base),
        alias(u64::MAX - CHUNK + 1, CHUNK, base),
        alias(0, CHUNK, base),
        MemAlias {
            access: 2,
            ..alias(free, CHUNK, base)
        },
        MemAlias {
            access: 0,
            ..alias(free, CHUNK, base)
        },
    ] {
        guest.fails(&bad, Status::INVALID_VALUE);
    }
    guest.fails(&map(base + 8 * CHUNK, CHUNK), Status::INVALID_VALUE);
    guest.fails(&unmap(base + 8 * CHUNK), Status::INVALID_VALUE);
    guest.fails(&end(base), Status::INVALID_VALUE);
    // Memory kept for reuse makes room.
    guest.call(&unmap(base + 4 * CHUNK)).unwrap();
    guest.call(&alias(base + 4 * CHUNK, CHUNK, base)).unwrap();
    assert_eq!(guest.device.count("memory_unmap"), 1);
    // An alias that the device fails to create leaves nothing.
    let failure = ("memory_alias", Status::OUT_OF_MEMORY);
    guest.device.state().fail.extend([failure]);
    guest.fails(&alias(free, CHUNK, base), Status::OUT_OF_MEMORY);
    guest.call(&alias(free, CHUNK, base)).unwrap();
    guest.goodbye();
}

#[test]
fn the_memory_limit_holds() {
    let mut guest = Guest::with(|setup| setup.device_memory = 4 * CHUNK);
    let base = guest.regions.arena;
    let info = guest.memory_info();
    assert_eq!((info.free, info.total), (4 * CHUNK, 4 * CHUNK));
    guest.fails(&map(base, 5 * CHUNK), Status::OUT_OF_MEMORY);
    guest.call(&map(base, 3 * CHUNK)).unwrap();
    assert_eq!(guest.memory_info().free, CHUNK);
    guest.fails(&map(base + 4 * CHUNK, 2 * CHUNK), Status::OUT_OF_MEMORY);
    guest.call(&unmap(base)).unwrap();
    guest.call(&map(base + 4 * CHUNK, 4 * CHUNK)).unwrap();
    assert_eq!(guest.counters().device_memory, 4 * CHUNK);
    guest.goodbye();
}

#[test]
fn idle_memory_is_released_for_new_mappings() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    guest.call(&map(base, CHUNK)).unwrap();
    guest.call(&unmap(base)).unwrap();
    guest.call(&map(base + CHUNK, TOTAL)).unwrap();
    assert_eq!(guest.device.count("memory_unmap"), 1);
    guest.call(&unmap(base + CHUNK)).unwrap();
    // The device itself may report that memory is short.
    guest.call(&map(base, CHUNK)).unwrap();
    guest.call(&unmap(base)).unwrap();
    guest
        .device
        .state()
        .fail
        .insert("memory_map", Status::OUT_OF_MEMORY);
    guest.call(&map(base + 9 * CHUNK, CHUNK)).unwrap();
    guest.goodbye();
}

#[test]
fn bad_ranges_are_refused() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    for bad in [
        map(base + 1, CHUNK),
        map(base, 0),
        map(base, CHUNK + 1),
        map(base - CHUNK, CHUNK),
        map(u64::MAX - CHUNK + 1, CHUNK),
        map(0, CHUNK),
    ] {
        guest.fails(&bad, Status::INVALID_VALUE);
    }
    guest.call(&map(base, 2 * CHUNK)).unwrap();
    guest.fails(&map(base, CHUNK), Status::INVALID_VALUE);
    guest.fails(&unmap(base + CHUNK), Status::INVALID_VALUE);
    guest.call(&unmap(base)).unwrap();
    guest.fails(&unmap(base), Status::INVALID_VALUE);
    guest.goodbye();
}

#[test]
fn window_memory_is_pinned_once() {
    let mut guest = Guest::with_window();
    let map = |offset, size| HostMap {
        offset: WindowOffset(offset),
        size,
    };
    let unmap = |offset| HostUnmap {
        offset: WindowOffset(offset),
    };
    guest.call(&map(4096, 8192)).unwrap();
    for bad in [
        map(0, 4096),
        map(16384, 0),
        map(16384, 1),
        map(1 << 40, 4096),
    ] {
        guest.fails(&bad, Status::INVALID_VALUE);
    }
    guest.fails(&map(u64::MAX - 4095, 4096), Status::INVALID_VALUE);
    guest.fails(&map(8192, 4096), Status::HOST_MEMORY_ALREADY_REGISTERED);
    guest.fails(&unmap(8192), Status::HOST_MEMORY_NOT_REGISTERED);
    // Work that may use it is waited for.
    guest.device.hold(0, true);
    let stream = StreamHandle::LEGACY;
    let base = guest.regions.arena;
    guest.call(&super::memory::map(base, CHUNK)).unwrap();
    guest.post(&CopyToDevice {
        destination: base,
        stream,
        data: Bytes(b"bytes"),
    });
    guest.send(7, &unmap(4096));
    guest.call(&Ping { value: 0 }).unwrap();
    assert_eq!(guest.device.count("host_unregister"), 0);
    guest.device.hold(0, false);
    guest.reply(7).unwrap();
    assert_eq!(guest.device.count("host_unregister"), 1);
    guest.call(&map(4096, 8192)).unwrap();
    guest.goodbye();

    let mut guest = Guest::new();
    guest.fails(&map(4096, 4096), Status::NOT_SUPPORTED);
    guest.fails(&unmap(4096), Status::NOT_SUPPORTED);
    guest.call(&WaitToken { token: 1 }).unwrap();
    guest.goodbye();
}

/// Its thread has the shadow locked, which the function may need.
#[test]
fn a_shadow_that_cannot_join_the_window_waits_for_no_host_function() {
    let mut guest = Guest::with_window();
    let [(stream, id), (other, _)] = STREAMS;
    for stream in [stream, other] {
        let create = StreamCreate {
            stream,
            flags: 1,
            priority: 0,
        };
        guest.call(&create).unwrap();
    }
    let (arena, shadow) = (guest.regions.arena, guest.regions.shadow);
    guest.call(&map(arena, 8 * CHUNK)).unwrap();
    let create = ShadowCreate {
        address: ShadowAddress(shadow),
        size: 4096,
    };
    guest.call(&create).unwrap();
    guest.post(&HostFuncLaunch {
        stream: other,
        id: 1,
    });
    guest.next_where(|frame| frame.kind == Control::HostFunc.kind());
    // More than staging holds: the last one waits for room.
    guest.device.hold(id, true);
    let bytes = vec![3; 200_000];
    for index in 0..60 {
        guest.post(&CopyToDevice {
            destination: arena + index * 200_000,
            stream,
            data: Bytes(&bytes),
        });
    }
    guest.fails(
        &ShadowJoin {
            address: ShadowAddress(shadow),
            offset: WindowOffset(0),
        },
        Status::NOT_READY,
    );
    guest.device.hold(id, false);
    guest.post(&HostFuncDone { id: 1 });
    guest.call(&ContextSynchronize {}).unwrap();
    guest.goodbye();
}

#[test]
fn a_shadow_becomes_a_part_of_the_window() {
    let mut guest = Guest::with_window();
    let shadow = guest.regions.shadow;
    let (size, offset) = (2 * 4096, 3 * 4096);
    let join = |offset| ShadowJoin {
        address: ShadowAddress(shadow),
        offset: WindowOffset(offset),
    };
    guest.fails(&join(offset), Status::HOST_MEMORY_NOT_REGISTERED);
    let create = ShadowCreate {
        address: ShadowAddress(shadow),
        size,
    };
    guest.call(&create).unwrap();
    assert_eq!(guest.counters().shadow_memory, size);
    for bad in [0, 1, 4096 + 8, 64 << 20, u64::MAX - 4095] {
        guest.fails(&join(bad), Status::INVALID_VALUE);
    }
    // Both sides agree on the first bytes, the device changes three of them, and the program
    // others, in the window.
    let write = |data| ShadowWrite {
        address: shadow,
        data: Bytes(data),
    };
    guest.call(&write(b"agreed upon")).unwrap();
    let to_device = |destination, data| CopyToDevice {
        destination,
        stream: StreamHandle::LEGACY,
        data: Bytes(data),
    };
    let window = Arc::clone(guest.connection.window.as_ref().unwrap());
    window.copy_in(offset, b"AGREED upon").unwrap();
    guest.device.hold(0, true);
    guest.post(&to_device(shadow + 7, b"off"));
    // Its time is over while the device is busy, which it is not again.
    guest.fails(&join(offset), Status::NOT_READY);
    assert_eq!(guest.counters().shadow_memory, size);
    guest.send(5, &join(offset));
    guest.device.hold(0, false);
    guest.reply(5).unwrap();
    assert_eq!(guest.counters().shadow_memory, 0);
    let in_window = |at, length| {
        let mut bytes = vec![0; length];
        window.copy_out(at, &mut bytes).unwrap();
        bytes
    };
    assert_eq!(in_window(offset, 12), b"AGREED offn\0");
    // What was sent before is older than what the window has; the rest goes to no copy.
    guest.call(&write(b"late")).unwrap();
    guest.fails(&write(&[0; 8193]), Status::INVALID_VALUE);
    assert_eq!(in_window(offset, 6), b"AGREED");
    guest
        .call(&to_device(shadow + 4096, b"seen at once"))
        .unwrap();
    guest.call(&ContextSynchronize {}).unwrap();
    assert_eq!(in_window(offset + 4096, 12), b"seen at once");
    let question = |size| ShadowRead {
        address: shadow,
        size,
    };
    assert!(guest.fetch(&question(size), 0).unwrap().is_empty());
    guest.fails(&join(offset), Status::HOST_MEMORY_ALREADY_REGISTERED);
    let destroy = ShadowDestroy {
        address: ShadowAddress(shadow),
    };
    guest.call(&destroy).unwrap();
    guest.call(&create).unwrap();
    assert_eq!(guest.counters().shadow_memory, size);
    assert_eq!(in_window(offset, 6), b"AGREED");
    guest.goodbye();
}

#[test]
fn a_shadow_may_be_in_the_region_of_another_device() {
    let mut guest = Guest::new();
    let mut others = (1..MAX_DEVICES).filter_map(Regions::of);
    let elsewhere = others.find(|regions| *regions != guest.regions).unwrap();
    // Other tests use the first addresses of all regions.
    let shadow = elsewhere.shadow + (1 << 36);
    let create = |address| ShadowCreate {
        address: ShadowAddress(address),
        size: 4096,
    };
    guest.call(&create(shadow)).unwrap();
    let write = ShadowWrite {
        address: shadow,
        data: Bytes(b"theirs"),
    };
    guest.call(&write).unwrap();
    // The device sees it there.
    let read = CopyFromDevice {
        source: shadow,
        size: 6,
        stream: StreamHandle(0),
    };
    assert_eq!(guest.fetch(&read, 6).unwrap(), b"theirs");
    guest.fails(&create(elsewhere.arena), Status::INVALID_VALUE);
    guest.goodbye();
}

#[test]
fn shadows_agree_page_by_page() {
    let share = share_of_host_memory((2 << 20) + 4096).unwrap();
    let mut guest = Guest::with(|setup| setup.share = share.clone());
    let (base, shadow) = (guest.regions.arena, guest.regions.shadow);
    let create = |address, size| ShadowCreate {
        address: ShadowAddress(address),
        size,
    };
    guest.call(&map(base, CHUNK)).unwrap();
    // A mapping counts as an object.
    let objects = guest.counters().host_memory;
    assert!(objects < 1024, "{objects}");
    guest.call(&create(shadow, 16 * 4096)).unwrap();
    let first = Regions::of(0).unwrap().shadow;
    for bad in [create(first - 4096, 4096), create(shadow + 7, 4096)] {
        guest.fails(&bad, Status::INVALID_VALUE);
    }
    guest.fails(&create(shadow + (1 << 30), 0), Status::INVALID_VALUE);
    guest.fails(
        &create(shadow + 4096, 4096),
        Status::HOST_MEMORY_ALREADY_REGISTERED,
    );
    guest.fails(&create(shadow + (1 << 30), 1 << 20), Status::OUT_OF_MEMORY);

    let write = |address, data| ShadowWrite {
        address,
        data: Bytes(data),
    };
    guest.call(&write(shadow + 4090, b"across a page")).unwrap();
    guest.fails(&write(shadow + 16 * 4096 - 1, b"ab"), Status::INVALID_VALUE);
    guest.fails(&write(u64::MAX, b"a"), Status::INVALID_VALUE);
    let patch = |address, runs| ShadowPatch {
        address,
        runs: Bytes(runs),
    };
    // "ab", three bytes left alone, "c".
    let runs = b"\x00\0\0\0\x02\0\0\0ab\x03\0\0\0\x01\0\0\0c";
    guest.call(&patch(shadow + 16 * 4096 - 6, runs)).unwrap();
    guest.fails(&patch(shadow + 16 * 4096 - 5, runs), Status::INVALID_VALUE);
    guest.fails(&patch(u64::MAX, runs), Status::INVALID_VALUE);
    for cut in 1..runs.len() {
        if cut != 10 {
            guest.fails(&patch(shadow, &runs[..cut]), Status::INVALID_VALUE);
        }
    }
    let read = |address, size| ShadowRead { address, size };
    let size = 16 * 4096;
    // The guest's own writes are not returned.
    guest.fetch(&read(shadow, size), size as usize).unwrap();
    assert_eq!(guest.counters().bytes_from_device, 0);
    // The device writes two pages.
    for (at, page) in [(shadow + 8192, 2), (shadow + 5 * 4096, 5)] {
        let set = Memset {
            destination: at,
            pitch: 0,
            value: page,
            element: 4,
            width: 10,
            height: 1,
            stream: StreamHandle::LEGACY,
        };
        guest.post(&set);
    }
    guest.call(&ContextSynchronize {}).unwrap();
    let bytes = guest.fetch(&read(shadow, size), size as usize).unwrap();
    assert_eq!(guest.counters().bytes_from_device, 2 * 4096);
    assert_eq!((bytes[8192], bytes[5 * 4096]), (2, 5));
    guest.fails(&read(shadow, size + 4096), Status::INVALID_VALUE);
    guest.fails(&read(shadow + 1, 4096), Status::INVALID_VALUE);
    let destroy = |address| ShadowDestroy {
        address: ShadowAddress(address),
    };
    guest.fails(&destroy(shadow + 4096), Status::HOST_MEMORY_NOT_REGISTERED);
    guest.call(&destroy(shadow)).unwrap();
    guest.fails(&destroy(shadow), Status::HOST_MEMORY_NOT_REGISTERED);
    assert_eq!(guest.counters().host_memory, objects);
    guest.call(&create(shadow, 1 << 20)).unwrap();
    guest.goodbye();
}

#[test]
fn device_memory_is_read_and_written_like_a_shadow() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    guest.call(&map(base, CHUNK)).unwrap();
    let write = |address, data| ShadowWrite {
        address,
        data: Bytes(data),
    };
    let patch = |address, runs| ShadowPatch {
        address,
        runs: Bytes(runs),
    };
    let read = |address, size| ShadowRead { address, size };
    // At no page's start, and more than a frame.
    let size = 600_001_usize;
    guest.call(&write(base + 17, b"first")).unwrap();
    // "ab", three bytes left alone, a run of nothing, "c".
    let runs = b"\x01\0\0\0\x02\0\0\0ab\x01\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0c";
    guest.call(&patch(base + 600_000, runs)).unwrap();
    guest.call(&write(base + CHUNK, b"")).unwrap();
    let bytes = guest.fetch(&read(base + 17, size as u64), size).unwrap();
    assert_eq!(bytes[..5], *b"first");
    assert_eq!(bytes[5..599_984], [0; 599_979]);
    assert_eq!(bytes[599_984..599_992], *b"ab\0\0\0c\0\0");
    assert_eq!(guest.counters().bytes_from_device, size as u64);
    assert_eq!(guest.counters().bytes_to_device, 8);
    assert!(guest.fetch(&read(base, 0), 0).unwrap().is_empty());

    let bad = [base - 1, base + CHUNK - 1, 0, 8, 0x7fff_0000_0000, u64::MAX];
    for address in bad {
        guest.fails(&write(address, b"ab"), Status::INVALID_VALUE);
        // Its run begins a byte later.
        let before = address.wrapping_sub(1);
        guest.fails(&patch(before, &runs[..10]), Status::INVALID_VALUE);
        guest.fails(&read(address, 2), Status::INVALID_VALUE);
    }
    for size in [CHUNK + 1, 1 << 63, u64::MAX] {
        guest.fails(&read(base, size), Status::INVALID_VALUE);
    }
    for cut in (1..runs.len()).filter(|cut| ![10, 18].contains(cut)) {
        guest.fails(&patch(base, &runs[..cut]), Status::INVALID_VALUE);
    }
    // Runs before the refused one are written.
    guest.fails(&patch(base + CHUNK - 6, runs), Status::INVALID_VALUE);
    assert_eq!(guest.fetch(&read(base + CHUNK - 5, 2), 2).unwrap(), b"ab");
    // Invalid, as the address range of shadows has no shadow there.
    guest.fails(&write(guest.regions.shadow, b"a"), Status::INVALID_VALUE);
    guest.fails(&read(guest.regions.window, 4096), Status::INVALID_VALUE);
    guest.goodbye();
}

#[test]
fn a_file_is_shared() {
    const PAGE: u64 = 4096;
    let mut guest = Guest::with_window();
    let shadow = guest.regions.shadow;
    let memory = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(memory);
    file.set_len(4 * PAGE - 7).unwrap();
    let map = |address, size, offset, file| FileMap {
        address,
        size,
        offset,
        file,
    };
    let mut number = 0;
    let mut pass = |guest: &Guest, file: &dyn AsFd| {
        number += 1;
        guest
            .connection
            .sender
            .pass_file(number, file.as_fd())
            .unwrap();
        number
    };
    guest.fails(&map(shadow, PAGE, 0, 1), Status::NOT_SUPPORTED);
    let first = pass(&guest, &file);
    guest.call(&map(shadow, 2 * PAGE, PAGE, first)).unwrap();
    assert_eq!(guest.device.count("host_register"), 1);
    // The device's writes are in the file, and its last page is complete.
    let last = pass(&guest, &file);
    guest
        .call(&map(shadow + 2 * PAGE, PAGE, 3 * PAGE, last))
        .unwrap();
    for (at, value) in [(shadow + PAGE, 7), (shadow + 2 * PAGE, 8)] {
        guest.post(&super::fill(at, value, 16));
    }
    guest.call(&ContextSynchronize {}).unwrap();
    for (at, value) in [(2 * PAGE, 7), (3 * PAGE, 8)] {
        let mut bytes = [0; 17];
        file.read_exact_at(&mut bytes, at).unwrap();
        assert_eq!(bytes[..16], [value; 16]);
        assert_eq!(bytes[16], 0);
    }
    // Invalid addresses and ranges.
    let free = shadow + (1 << 30);
    for (address, size, offset) in [
        (free, 0, 0),
        (free, PAGE + 1, 0),
        (free, PAGE, 1),
        (free, PAGE, 4 * PAGE),
        (free, PAGE, u64::MAX - PAGE + 1),
        (free + 1, PAGE, 0),
        (shadow - PAGE, 2 * PAGE, 0),
        (u64::MAX - PAGE + 1, PAGE, 0),
    ] {
        let passed = pass(&guest, &file);
        guest.fails(&map(address, size, offset, passed), Status::INVALID_VALUE);
    }
    // Overlaps, in either order.
    let passed = pass(&guest, &file);
    let taken = Status::HOST_MEMORY_ALREADY_REGISTERED;
    guest.fails(&map(shadow + PAGE, PAGE, 0, passed), taken);
    let create = |address| ShadowCreate {
        address: ShadowAddress(address),
        size: PAGE,
    };
    guest.fails(&create(shadow + PAGE), taken);
    guest.call(&create(free)).unwrap();
    let passed = pass(&guest, &file);
    guest.fails(&map(free, PAGE, 0, passed), taken);
    // A descriptor that is not a file, and a file that cannot be written.
    let (pipe, _writer) = std::io::pipe().unwrap();
    let passed = pass(&guest, &pipe);
    guest.fails(&map(free + PAGE, PAGE, 0, passed), Status::INVALID_VALUE);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let passed = pass(&guest, &File::open(path).unwrap());
    guest.fails(&map(free + PAGE, PAGE, 0, passed), Status::OUT_OF_MEMORY);
    // It is unmapped behind the work that uses it, and once.
    let unmap = FileUnmap { address: shadow };
    guest.device.hold(0, true);
    guest.post(&super::fill(shadow, 9, 16));
    guest.send(7, &unmap);
    guest.call(&Ping { value: 1 }).unwrap();
    assert_eq!(guest.device.count("host_unregister"), 0);
    guest.device.hold(0, false);
    guest.reply(7).unwrap();
    assert_eq!(guest.device.count("host_unregister"), 1);
    guest.fails(&unmap, Status::HOST_MEMORY_NOT_REGISTERED);
    guest.goodbye();
}
