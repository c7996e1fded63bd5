//! Memory that is handed over, and peers that hand over something else.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::live::Recorded;
use paragpu_communicator_stream::handshake::{MAX_FDS, receive_exact_frame, send_with_fds};
use paragpu_device::StreamId;
use paragpu_protocol::codec::{Field, Text};
use paragpu_protocol::handle::{DeviceAddress, ObjectKind};
use paragpu_protocol::handshake::{ARRIVE, Move};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::table::{MemMap, MemUnmap};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::destination::Destination;
use super::regions::Span;
use super::replay::Item;
use super::shared::{Delivery, Mapping, Shared, mappings};
use super::sharing::Parts;
use super::state::{Kind, StateError, Writer};
use super::tests::{alone, settle, shareable};
use crate::reconnect::Waiting;
use crate::session::Session;

const SIZE: u64 = 2 * CHUNK;
const DOMAIN: &[u8] = b"software GPU\0\0\0\0";

fn map(session: &mut Session, at: u64) -> u64 {
    let address = session.gpu.regions().arena + at * SIZE;
    let map = Recorded::of(&MemMap {
        address: DeviceAddress(address),
        size: SIZE,
    });
    session.perform(&map).unwrap();
    address
}

fn unmap(session: &mut Session, address: u64) {
    let unmap = Recorded::of(&MemUnmap {
        address: DeviceAddress(address),
    });
    session.perform(&unmap).unwrap();
}

fn fill(session: &mut Session, address: u64, value: u32) {
    let set = session
        .gpu
        .memset(address, 0, value, 4, SIZE / 4, 1, StreamId::LEGACY);
    set.unwrap();
    settle(session);
}

/// The hash of a whole mapping.
fn hash(session: &mut Session, address: u64) -> Vec<[u8; 32]> {
    let mut chunks = session.chunks().unwrap();
    chunks.retain(|chunk| chunk.owner() == (ObjectKind::Memory, address));
    let mut mover = super::mover::Mover::new(session).unwrap();
    let hashes = mover.hash_all(session, &chunks).unwrap();
    mover.release(session);
    hashes
}

fn mapping(address: u64, handed: u8) -> Mapping {
    Mapping {
        address,
        size: SIZE,
        handed,
    }
}

fn payload(mappings: &[Mapping]) -> Vec<u8> {
    let mut payload = Vec::new();
    for mapping in mappings {
        let tail = mapping.encode(&mut payload);
        payload.extend_from_slice(tail);
    }
    payload
}

fn memory(size: u64, seals: SealFlags) -> OwnedFd {
    let memory = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, size).unwrap();
    fcntl_add_seals(&memory, seals).unwrap();
    memory
}

fn share(session: &mut Session, parts: &Parts) -> Result<bool, StateError> {
    let (gpu, memory) = (&mut session.gpu, &mut session.memory);
    let (objects, replies) = (&mut session.objects, &mut session.replies);
    session.sharing.share(gpu, memory, objects, replies, parts)
}

/// A program frees memory while rounds describe it, so that no round may wait for an offer.
#[test]
fn a_round_does_not_wait_for_memory_that_nobody_offers() {
    let _alone = alone();
    let mut session = shareable();
    let address = session.gpu.regions().arena;
    let mut part = vec![0];
    part.extend(address.to_le_bytes());
    part.extend(SIZE.to_le_bytes());
    part.push(1);
    part.extend([7; 16]);
    let parts = Parts::decode(&part).unwrap();
    assert!(
        !share(&mut session, &parts).unwrap(),
        "it is left to the stop"
    );
    assert!(share(&mut session, &Parts::decode(&[0]).unwrap()).unwrap());
    part.pop();
    assert!(Parts::decode(&part).is_err() && Parts::decode(&[]).is_err());
}

#[test]
fn only_new_mappings_are_handed_over_again() {
    let _alone = alone();
    let mut session = shareable();
    let [first, second] = [0, 1].map(|at| map(&mut session, at));
    let domain = session.gpu.memory_domain();
    let mut shared = Shared::new(domain);
    shared.agree(b"");
    assert!(
        !shared.is_behind(&session).unwrap(),
        "nothing is handed over"
    );
    shared.agree(&domain.unwrap());
    let round = |shared: &mut Shared, session: &mut Session, taken: &[u8]| {
        shared.begin(session).unwrap();
        let batch = shared.next(session).unwrap().run();
        assert_eq!(batch.descriptors.len(), taken.len());
        assert!(shared.named(&batch.named), "an answer follows");
        let (named, _) = mappings(&batch.payload).unwrap();
        shared.answered(taken).unwrap();
        assert!(shared.next(session).is_none() && !shared.is_behind(session).unwrap());
        named
            .iter()
            .map(|mapping| mapping.address)
            .collect::<Vec<_>>()
    };
    assert!(shared.is_behind(&session).unwrap());
    assert_eq!(round(&mut shared, &mut session, &[1, 0]), [first, second]);
    assert_eq!(shared.bytes(&session, Delivery::Taken), SIZE);
    // The same address and size: the same memory, which stayed mapped.
    unmap(&mut session, first);
    assert_eq!(shared.bytes(&session, Delivery::Taken), 0);
    map(&mut session, 0);
    assert!(!shared.is_behind(&session).unwrap());
    // And different memory.
    unmap(&mut session, first);
    session.memory.give_up(first);
    session.gpu.memory_unmap(first).unwrap();
    settle(&mut session);
    map(&mut session, 0);
    assert_eq!(round(&mut shared, &mut session, &[0]), [first]);
    let chunks = session.chunks().unwrap();
    let replaced: Vec<bool> = chunks.iter().map(|chunk| shared.replaced(chunk)).collect();
    assert_eq!(replaced, [true, true, false, false]);
    let is_sent = |chunk| shared.delivery_of(chunk) == Delivery::Sent;
    assert!(chunks.iter().all(is_sent));
    let more = shared.answered(&[1]).unwrap_err();
    assert!(matches!(more, StateError::Order(_)), "nobody asked: {more}");
}

#[test]
fn other_memory_is_copied() {
    let _alone = alone();
    let mut source = shareable();
    let address = map(&mut source, 0);
    fill(&mut source, address, 0x1234_5678);
    let items = source.items().unwrap();
    let expected = hash(&mut source, address);
    let handed = source.gpu.memory_export(address).unwrap();
    // A session at a time uses these addresses.
    drop(source);
    let mut session = shareable();
    let take = |session: &mut Session, handed, descriptors| {
        session.take_shared(&items, &[mapping(address, handed)], descriptors, None)
    };
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let (pipe, _writer) = std::io::pipe().unwrap();
    for foreign in [
        OwnedFd::from(pipe),
        memory(SIZE, SealFlags::empty()),
        memory(SIZE / 2, all),
        memory(2 * SIZE, all),
        memory(SIZE, all | SealFlags::WRITE),
        std::fs::File::open("/dev/zero").unwrap().into(),
    ] {
        assert_eq!(take(&mut session, 1, vec![foreign]).unwrap(), [0]);
        assert_ne!(hash(&mut session, address), expected);
        fill(&mut session, address, 0x1234_5678);
        assert_eq!(hash(&mut session, address), expected, "it is mapped");
    }
    fill(&mut session, address, 9);
    let handed = || handed.try_clone().unwrap();
    assert_eq!(take(&mut session, 1, vec![handed()]).unwrap(), [1]);
    assert_eq!(hash(&mut session, address), expected);
    assert_eq!(take(&mut session, 1, vec![handed()]).unwrap(), [1], "again");
    // Different memory from then on: what was handed over stays unchanged.
    assert_eq!(take(&mut session, 0, vec![]).unwrap(), [0]);
    fill(&mut session, address, 5);
    assert_eq!(take(&mut session, 1, vec![handed()]).unwrap(), [1]);
    assert_eq!(hash(&mut session, address), expected);
    let missing = take(&mut session, 1, vec![]).unwrap_err();
    assert!(missing.to_string().contains("missing"), "{missing}");
    assert_eq!(session.memory.arena().live(), SIZE);
}

/// The destination's refusal of a source that does this.
fn refusal(hostile: impl FnOnce(&UnixStream, &mut Writer<UnixStream>) + Send) -> String {
    let mut session = shareable();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let head = session
        .transfer
        .identity()
        .encode(0, session.host.pinned_without_window(), 0);
    std::thread::scope(|scope| {
        let source = scope.spawn(move || {
            let deadline = Some(Instant::now() + Duration::from_secs(20));
            receive_exact_frame(&theirs, 4096, deadline).unwrap();
            let mut writer = Writer::new(theirs.try_clone().unwrap());
            writer.put(Kind::Head, &[&head]).unwrap();
            hostile(&theirs, &mut writer);
            theirs
        });
        let home = Move {
            communicator: Text(""),
            address: Text(""),
        };
        let destination = Destination::new(ours.into(), &home).unwrap();
        let filled = destination.fill(&mut session, &Waiting::new().unwrap());
        drop(source.join());
        match filled {
            Ok(_) => "it was taken".into(),
            Err(error) => error.to_string(),
        }
    })
}

fn send(socket: &UnixStream, kind: u16, descriptors: &[BorrowedFd<'_>]) {
    send_with_fds(socket, kind, 0, 0, &[], descriptors, None).unwrap();
}

#[test]
fn a_source_that_hands_over_other_memory_is_refused() {
    let _alone = alone();
    let address = {
        let mut session = shareable();
        map(&mut session, 0)
    };
    let file = std::fs::File::open("/dev/zero").unwrap();
    let one = payload(&[mapping(address, 1)]);
    let objects = {
        let call = Recorded::of(&MemMap {
            address: DeviceAddress(address),
            size: SIZE,
        });
        let mut objects = Vec::new();
        Item::new(call).put(&mut objects);
        objects
    };
    let unasked = refusal(|socket, writer| {
        writer.put(Kind::Shared, &[&one]).unwrap();
        send(socket, ARRIVE, &[file.as_fd()]);
    });
    assert!(unasked.contains("not agreed on"), "{unasked}");
    for domain in [DOMAIN, b"another GPU 0123"] {
        let strange = refusal(|socket, writer| {
            writer.put(Kind::Domain, &[domain]).unwrap();
            writer.put(Kind::Shared, &[&one]).unwrap();
            send(socket, ARRIVE, &[file.as_fd()]);
        });
        assert!(strange.contains("not the session's"), "{strange}");
    }
    for domain in [DOMAIN, b"another GPU 0123"] {
        let foreign = refusal(|_, writer| {
            let mut names = Vec::new();
            let tail = Span {
                place: 1,
                level: 0,
                name: address,
                offset: 0,
                size: CHUNK,
            }
            .encode(&mut names)
            .to_vec();
            names.extend(tail);
            writer.put(Kind::Domain, &[domain]).unwrap();
            writer.put(Kind::Fetch, &[&names]).unwrap();
        });
        assert!(foreign.contains("cannot be copied"), "{foreign}");
    }
    for descriptors in [vec![], vec![file.as_fd(); 2], vec![file.as_fd(); MAX_FDS]] {
        let wrong = refusal(|socket, writer| {
            writer.put(Kind::Domain, &[DOMAIN]).unwrap();
            writer.put(Kind::Objects, &[&objects]).unwrap();
            writer.put(Kind::Shared, &[&one]).unwrap();
            send(socket, ARRIVE, &descriptors);
        });
        assert!(wrong.contains("wrong number of descriptors"), "{wrong}");
    }
    let kind = refusal(|socket, writer| {
        writer.put(Kind::Domain, &[DOMAIN]).unwrap();
        writer.put(Kind::Shared, &[&one]).unwrap();
        send(socket, ARRIVE + 1, &[file.as_fd()]);
    });
    assert!(kind.contains("another kind"), "{kind}");
    let many = payload(&vec![mapping(address, 0); MAX_FDS + 1]);
    let many = refusal(|_, writer| {
        writer.put(Kind::Domain, &[DOMAIN]).unwrap();
        writer.put(Kind::Shared, &[&many]).unwrap();
    });
    assert!(many.contains("too many"), "{many}");
    let cut = refusal(|_, writer| {
        writer.put(Kind::Domain, &[DOMAIN]).unwrap();
        writer.put(Kind::Shared, &[&one[..5]]).unwrap();
    });
    assert!(cut.contains("not understood"), "{cut}");
}
