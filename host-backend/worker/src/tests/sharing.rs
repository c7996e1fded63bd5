//! Memory that two sessions of a VM share.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use paragpu_communicator::Nowhere;
use paragpu_control::exchange::{Ask, Offer, Token};
use paragpu_control::socket::{Control, Inbox};
use paragpu_control::worker::FromWorker;
use paragpu_device::Platform as _;
use paragpu_device_software::{Options, SoftwarePlatform};
use paragpu_protocol::handle::DeviceAddress;
use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::status::Status;
use paragpu_protocol::table::{MemLeave, MemMap, MemOffer, MemTake, MemUnmap};
use paragpu_protocol::types::MemoryOffer;
use parking_lot::Mutex;

use super::fill;
use crate::error::{Fault, Outcome};
use crate::exchange::{Answer, Exchange};
use crate::session::{Session, Setup};
use crate::testing::read;

type Offers = Arc<Mutex<BTreeMap<Token, (Offer, OwnedFd)>>>;

/// Answers one worker as a daemon does.
fn daemon(offers: Offers) -> Arc<Exchange> {
    let (daemon, worker) = Control::pair().unwrap();
    let exchange = Arc::new(Exchange::new(Arc::new(worker)));
    let answering = Arc::clone(&exchange);
    std::thread::spawn(move || {
        let (mut inbox, mut tokens) = (Inbox::default(), 0);
        while daemon.receive(&mut inbox, true).is_ok() {
            let memory = inbox.fds.pop();
            let FromWorker::Exchange { request, ask } = inbox.message().unwrap() else {
                panic!("another message");
            };
            let mut offers = offers.lock();
            let mut answer = Answer {
                offer: None,
                memory: None,
            };
            match ask {
                Ask::Offer { size, domain } => {
                    tokens += 1;
                    let token = [tokens; 16];
                    let offer = Offer {
                        token,
                        size,
                        domain,
                    };
                    offers.insert(token, (offer, memory.unwrap()));
                    answer.offer = Some(offer);
                }
                Ask::Again(offer) => {
                    offers.insert(offer.token, (offer, memory.unwrap()));
                    answer.offer = Some(offer);
                }
                Ask::Withdraw(token) => drop(offers.remove(&token)),
                Ask::Take(token) => {
                    if let Some((offer, memory)) = offers.get(&token) {
                        answer.offer = Some(*offer);
                        answer.memory = Some(memory.as_fd().try_clone_to_owned().unwrap());
                    }
                }
            }
            answering.answered(request, answer);
        }
    });
    exchange
}

fn session(ordinal: u32, offers: &Offers) -> Session {
    let platform = SoftwarePlatform::with_options(Options {
        cores: 1,
        memory: 1 << 30,
        ..Options::default()
    });
    let regions = Regions::of(ordinal).unwrap();
    let setup = Setup {
        device: platform.open(0, regions).unwrap(),
        snapshot: platform.snapshot(0).unwrap(),
        // The guest's ordinal of the device is the same in both.
        ordinal: 0,
        regions,
        device_memory: 4 * CHUNK,
        host_memory: 0,
        images: Default::default(),
        output: None,
        statistics: Arc::default(),
        latency: false,
        reconnect: None,
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

fn settle(session: &mut Session) {
    while !session.gpu.context_query().unwrap() {}
}

#[test]
fn what_one_session_writes_another_reads() {
    let offers = Offers::default();
    let (mut one, mut other) = (session(11, &offers), session(12, &offers));
    let (mine, theirs) = (one.gpu.regions().arena, other.gpu.regions().arena);
    let map = MemMap {
        address: DeviceAddress(mine),
        size: 2 * CHUNK,
    };
    one.mem_map(&map).unwrap();
    one.objects
        .memset(&mut one.gpu, &fill(mine + CHUNK, 7, 16))
        .unwrap();
    let offer = one.mem_offer(&MemOffer {
        address: mine + CHUNK + 5,
    });
    let offer @ MemoryOffer { base, size, token } = offer.unwrap();
    assert_eq!((base, size), (mine, 2 * CHUNK));
    // The same memory has one token.
    assert_eq!(one.mem_offer(&MemOffer { address: mine }).unwrap(), offer);
    let take = |size, token| MemTake {
        address: theirs,
        size,
        token,
    };
    let own = MemTake {
        address: mine + 8 * CHUNK,
        size,
        token,
    };
    assert_eq!(status(one.mem_take(&own)), Status(201));
    for (size, token, expected) in [
        (size, [9; 16], Status::INVALID_HANDLE),
        (CHUNK, token, Status::INVALID_VALUE),
    ] {
        assert_eq!(status(other.mem_take(&take(size, token))), expected);
    }
    other.mem_take(&take(size, token)).unwrap();
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
    assert_eq!(status(other.mem_map(&more)), Status::OUT_OF_MEMORY);
    for session in [&mut one, &mut other] {
        let moved = session.items().unwrap_err().to_string();
        assert!(moved.contains("shares device memory"), "{moved}");
    }
    // Memory of another session can be neither freed nor offered.
    let unmap = |address| MemUnmap {
        address: DeviceAddress(address),
    };
    assert_eq!(
        status(other.mem_unmap(&unmap(theirs))),
        Status::INVALID_VALUE
    );
    let again = MemOffer { address: theirs };
    assert_eq!(status(other.mem_offer(&again)), Status::INVALID_VALUE);
    let leave = MemLeave { address: theirs };
    other.mem_leave(&leave).unwrap();
    assert_eq!(status(other.mem_leave(&leave)), Status::INVALID_VALUE);
    assert!(other.items().is_ok());
    other.mem_map(&more).unwrap();
    one.mem_unmap(&unmap(mine)).unwrap();
    assert!(one.items().is_ok());
    // A withdrawn offer cannot be imported, and its memory is not reused.
    other.mem_unmap(&unmap(theirs + 2 * CHUNK)).unwrap();
    settle(&mut other);
    one.mem_map(&map).unwrap();
    // Its reply comes after the notification that the first is gone.
    one.mem_offer(&MemOffer { address: mine }).unwrap();
    let late = status(other.mem_take(&take(size, token)));
    assert_eq!(late, Status::INVALID_HANDLE);
    settle(&mut one);
    assert_eq!(bytes(mine + CHUNK), [0; 16]);
}

#[test]
fn a_session_maps_its_own_memory_in_the_arena_of_another_device() {
    let offers = Offers::default();
    let mut one = session(13, &offers);
    let (mine, elsewhere) = (one.gpu.regions().arena, Regions::of(14).unwrap().arena);
    let map = MemMap {
        address: DeviceAddress(mine),
        size: CHUNK,
    };
    one.mem_map(&map).unwrap();
    let MemoryOffer { token, .. } = one.mem_offer(&MemOffer { address: mine }).unwrap();
    let take = MemTake {
        address: elsewhere,
        size: CHUNK,
        token,
    };
    one.mem_take(&take).unwrap();
    assert!(one.mem_take(&take).is_err());
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
    one.mem_map(&more).unwrap();
    let leave = MemLeave { address: elsewhere };
    one.mem_leave(&leave).unwrap();
    settle(&mut one);
    one.mem_take(&take).unwrap();
    assert_eq!(bytes(elsewhere + 5), [7; 16]);
}
