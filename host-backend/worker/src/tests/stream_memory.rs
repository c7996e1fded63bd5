//! Words that streams write and wait for.

use paragpu_protocol::codec::{Bytes, encode_all};
use paragpu_protocol::handle::{DeviceAddress, StreamHandle};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{CopyFromDevice, MemMap, StreamMemory};
use paragpu_protocol::types::MemoryOperation;

use crate::testing::guest::Guest;

fn call(operations: &[u8]) -> StreamMemory<'_> {
    StreamMemory {
        stream: StreamHandle::LEGACY,
        operations: Bytes(operations),
    }
}

#[test]
fn words_are_written_and_bad_operations_refused() {
    let mut guest = Guest::new();
    let base = guest.regions.arena;
    guest
        .call(&MemMap {
            address: DeviceAddress(base),
            size: CHUNK,
        })
        .unwrap();
    let operation = |kind, flags, address, value| MemoryOperation {
        kind,
        flags,
        address,
        value,
    };
    let packed = |operations: &[MemoryOperation]| -> Vec<u8> {
        operations.iter().flat_map(encode_all).collect()
    };
    let good = packed(&[
        operation(2, 0, base, 0x0403_0201),
        operation(1, 0, base, 1),
        operation(6, 1, 0, 0),
        operation(5, 1, base + 8, u64::MAX),
    ]);
    guest.call(&call(&good)).unwrap();
    let read = CopyFromDevice {
        source: base,
        size: 16,
        stream: StreamHandle::LEGACY,
    };
    let words = [
        1, 2, 3, 4, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
    ];
    assert_eq!(guest.fetch(&read, 16).unwrap(), words);
    for (kind, flags, address) in [
        (0, 0, base),
        (3, 0, base),
        (7, 0, base),
        (u32::MAX, 0, base),
        (1, 4, base),
        (1, 1 << 30, base),
        (2, 2, base),
        (6, 2, 0),
        (2, 0, base - 4),
        (5, 0, base + CHUNK - 4),
        (2, 0, u64::MAX - 3),
    ] {
        let bad = packed(&[operation(kind, flags, address, 0)]);
        guest.fails(&call(&bad), Status::INVALID_VALUE);
    }
    let many = packed(&vec![operation(2, 0, base, 0); 257]);
    guest.fails(&call(&many), Status::INVALID_VALUE);
    guest.fails(&call(&good[..good.len() - 1]), Status::INVALID_VALUE);
    guest.goodbye();
}
