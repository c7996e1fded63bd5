//! Memory that two sessions of a VM share.

use std::sync::Arc;

use paragpu_communicator::Nowhere;
use paragpu_device::Platform as _;
use paragpu_device_software::{Options, SoftwarePlatform};
use paragpu_protocol::handle::DeviceAddress;
use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{MemLeave, MemMap, MemOffer, MemTake, MemUnmap};
use paragpu_protocol::types::MemoryOffer;

use super::fill;
use crate::error::{Fault, Outcome};
use crate::session::completion::Progress;
use crate::session::{Session, Setup};
use crate::testing::exchange::{Offers, daemon};
use crate::testing::read;

fn session(ordinal: u32, offers: &Offers) -> Session {
    let platform = SoftwarePlatform::with_options(Options {
        cores: 1,
        memory: 1 << 30,
        ..Options::default()
    });
    let regions = Regions::of(ordinal).unwrap();
    let device = platform.open(0, regions).unwrap();
    let setup = Setup {
        device_memory: 4 * CHUNK,
        // The guest's ordinal of the device is the same in both.
        ..Setup::new(device, platform.snapshot(0).unwrap(), 0, regions)
    };
    let mut session = Session::new(setup, Arc::new(Nowhere), None);
    session.sharing.exchange = daemon(Arc::clone(offers));
    session
}

fn status<T: std::fmt::Debug>(outcome: Outcome<T>) -> Status {
    match outcome {
        Err(Fault::Call(error)) => error.status,
        other => panic!("{other:?}"),
    }
}

fn bytes(address: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    read(address, &mut bytes);
    bytes
}

fn map(session: &mut Session, call: &MemMap) -> Outcome<Progress> {
    let (gpu, replies) = (&mut session.gpu, &mut session.replies);
    session.memory.mem_map(gpu, replies, call)
}

fn unmap(session: &mut Session, address: u64) -> Outcome<()> {
    let (gpu, replies) = (&mut session.gpu, &mut session.replies);
    let (sharing, objects) = (&mut session.sharing, &mut session.objects);
    let address = DeviceAddress(address);
    let memory = &mut session.memory;
    memory.mem_unmap(gpu, sharing, objects, replies, &MemUnmap { address })
}

fn offer(session: &mut Session, address: u64) -> Outcome<MemoryOffer> {
    let (gpu, memory) = (&mut session.gpu, &mut session.memory);
    session
        .sharing
        .mem_offer(gpu, memory, &MemOffer { address })
}

fn take(session: &mut Session, call: &MemTake) -> Outcome<()> {
    let (gpu, memory) = (&mut session.gpu, &mut session.memory);
    let replies = &mut session.replies;
    session.sharing.mem_take(gpu, memory, replies, call)
}

fn leave(session: &mut Session, address: u64) -> Outcome<()> {
    let (gpu, memory) = (&mut session.gpu, &mut session.memory);
    let (objects, replies) = (&mut session.objects, &mut session.replies);
    let sharing = &mut session.sharing;
    sharing.mem_leave(gpu, memory, objects, replies, &MemLeave { address })
}

fn settle(session: &mut Session) {
    while !session.gpu.context_query().unwrap() {}
}

#[test]
fn what_one_session_writes_another_reads() {
    let offers = Offers::default();
    let (mut one, mut other) = (session(11, &offers), session(12, &offers));
    let (mine, theirs) = (one.gpu.regions().arena, other.gpu.regions().arena);
    let first = MemMap {
        address: DeviceAddress(mine),
        size: 2 * CHUNK,
    };
    map(&mut one, &first).unwrap();
    one.objects
        .memset(&mut one.gpu, &fill(mine + CHUNK, 7, 16))
        .unwrap();
    let offered = offer(&mut one, mine + CHUNK + 5).unwrap();
    let MemoryOffer { base, size, token } = offered;
    assert_eq!((base, size), (mine, 2 * CHUNK));
    // The same memory has one token.
    assert_eq!(offer(&mut one, mine).unwrap(), offered);
    let of = |size, token| MemTake {
        address: theirs,
        size,
        token,
    };
    let own = MemTake {
        address: mine + 8 * CHUNK,
        size,
        token,
    };
    assert_eq!(status(take(&mut one, &own)), Status(201));
    for (size, token, expected) in [
        (size, [9; 16], Status::INVALID_HANDLE),
        (CHUNK, token, Status::INVALID_VALUE),
    ] {
        assert_eq!(status(take(&mut other, &of(size, token))), expected);
    }
    take(&mut other, &of(size, token)).unwrap();
    assert_eq!(bytes(theirs + CHUNK), [7; 16]);
    other
        .objects
        .memset(&mut other.gpu, &fill(theirs, 8, 16))
        .unwrap();
    settle(&mut other);
    assert_eq!(bytes(mine), [8; 16]);
    // It is charged to both.
    let more = MemMap {
        address: DeviceAddress(theirs + 2 * CHUNK),
        size: 3 * CHUNK,
    };
    assert_eq!(status(map(&mut other, &more)), Status::OUT_OF_MEMORY);
    for session in [&mut one, &mut other] {
        let moved = session.items().unwrap_err().to_string();
        assert!(moved.contains("shares device memory"), "{moved}");
    }
    // Memory of another session can be neither freed nor offered.
    assert_eq!(status(unmap(&mut other, theirs)), Status::INVALID_VALUE);
    assert_eq!(status(offer(&mut other, theirs)), Status::INVALID_VALUE);
    leave(&mut other, theirs).unwrap();
    assert_eq!(status(leave(&mut other, theirs)), Status::INVALID_VALUE);
    assert!(other.items().is_ok());
    map(&mut other, &more).unwrap();
    unmap(&mut one, mine).unwrap();
    assert!(one.items().is_ok());
    // A withdrawn offer cannot be imported, and its memory is not reused.
    unmap(&mut other, theirs + 2 * CHUNK).unwrap();
    settle(&mut other);
    map(&mut one, &first).unwrap();
    // Its reply comes after the notification that the first is gone.
    offer(&mut one, mine).unwrap();
    let late = status(take(&mut other, &of(size, token)));
    assert_eq!(late, Status::INVALID_HANDLE);
    settle(&mut one);
    assert_eq!(bytes(mine + CHUNK), [0; 16]);
}

#[test]
fn a_session_maps_its_own_memory_in_the_arena_of_another_device() {
    let offers = Offers::default();
    let mut one = session(13, &offers);
    let (mine, elsewhere) = (one.gpu.regions().arena, Regions::of(14).unwrap().arena);
    let first = MemMap {
        address: DeviceAddress(mine),
        size: CHUNK,
    };
    map(&mut one, &first).unwrap();
    let MemoryOffer { token, .. } = offer(&mut one, mine).unwrap();
    let call = MemTake {
        address: elsewhere,
        size: CHUNK,
        token,
    };
    take(&mut one, &call).unwrap();
    assert!(take(&mut one, &call).is_err());
    one.objects
        .memset(&mut one.gpu, &fill(elsewhere + 5, 7, 16))
        .unwrap();
    settle(&mut one);
    assert_eq!(bytes(mine + 5), [7; 16]);
    // It counts once.
    let more = MemMap {
        address: DeviceAddress(mine + CHUNK),
        size: 3 * CHUNK,
    };
    map(&mut one, &more).unwrap();
    leave(&mut one, elsewhere).unwrap();
    settle(&mut one);
    take(&mut one, &call).unwrap();
    assert_eq!(bytes(elsewhere + 5), [7; 16]);
}
