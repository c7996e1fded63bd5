//! Green contexts: life cycle, invalid handles, malformed splits.

use paragpu_protocol::codec::{Bytes, encode_all};
use paragpu_protocol::handle::{GreenHandle, StreamHandle};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::*;
use paragpu_protocol::types::{SmResource, SmSplit};

use crate::testing::guest::{Guest, decode};

const GREEN: GreenHandle = GreenHandle(20);
const STREAM: StreamHandle = StreamHandle(21);

fn create(way: &[u8], count: u32) -> GreenCreate<'_> {
    GreenCreate {
        green: GREEN,
        count,
        way: Bytes(way),
    }
}

fn in_green(green: GreenHandle) -> GreenStreamCreate {
    GreenStreamCreate {
        stream: STREAM,
        green,
        priority: 0,
    }
}

fn step() -> Vec<u8> {
    encode_all(&SmSplit {
        groups: 2,
        flags: 0,
        least: 4,
        members: [1; 32],
    })
}

#[test]
fn streams_end_before_their_green_context() {
    let mut guest = Guest::new();
    let made = guest.call(&create(&step(), 8)).unwrap();
    assert_eq!(decode::<SmResource>(&made).count, 8);
    guest.fails(&create(&[], 0), Status::INVALID_HANDLE);
    guest.post(&in_green(GREEN));
    guest.call(&StreamSynchronize { stream: STREAM }).unwrap();
    guest.fails(&in_green(GREEN), Status::INVALID_HANDLE);
    guest.fails(&GreenDestroy { green: GREEN }, Status::INVALID_HANDLE);
    guest.post(&StreamDestroy { stream: STREAM });
    guest.post(&GreenDestroy { green: GREEN });
    guest.call(&ContextSynchronize {}).unwrap();
    guest.fails(&GreenDestroy { green: GREEN }, Status::INVALID_HANDLE);
    guest.fails(&in_green(GREEN), Status::INVALID_HANDLE);
    assert!(guest.goodbye().is_orderly());
}

#[test]
fn invalid_handles_are_refused() {
    let mut guest = Guest::new();
    let split = |green| SmResourceSplit {
        green,
        groups: 1,
        flags: 0,
        least: 1,
    };
    guest.call(&split(GreenHandle::default())).unwrap();
    guest.fails(&split(GREEN), Status::INVALID_HANDLE);
    guest.fails(&in_green(GreenHandle::default()), Status::INVALID_HANDLE);
    let none = GreenCreate {
        green: GreenHandle::default(),
        ..create(&[], 0)
    };
    guest.fails(&none, Status::INVALID_HANDLE);
    guest.fails(&create(&step()[..43], 0), Status::INVALID_VALUE);
    guest.fails(&create(&step().repeat(9), 0), Status::INVALID_VALUE);
    guest.fails(&create(&[], 9), Status(915));
    guest.call(&create(&step().repeat(8), 8)).unwrap();
    assert!(guest.goodbye().is_orderly());
}

#[test]
fn their_number_is_limited() {
    let mut guest = Guest::new();
    let way = step().repeat(8);
    let made = |green| GreenCreate {
        green: GreenHandle(green),
        ..create(&way, 1)
    };
    for green in 100..132 {
        guest.call(&made(green)).unwrap();
    }
    guest.fails(&made(132), Status::OUT_OF_MEMORY);
    guest.post(&GreenDestroy {
        green: GreenHandle(100),
    });
    guest.call(&made(132)).unwrap();
    guest.fails(&create(&[], 1), Status::OUT_OF_MEMORY);
    assert!(guest.goodbye().is_orderly());
}
