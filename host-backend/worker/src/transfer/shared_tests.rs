//! Memory that is handed over, and peers that hand over something else.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::live::Recorded;
use paragpu_communicator_stream::handshake::{MAX_FDS, receive_exact_frame, send_with_fds};
use paragpu_control::account::{Account, Book, Share};
use paragpu_control::exchange::Offer;
use paragpu_device::StreamId;
use paragpu_protocol::codec::{Field, Text};
use paragpu_protocol::handle::{AliasAddress, DeviceAddress, ObjectKind};
use paragpu_protocol::handshake::{ARRIVE, Move};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::table::{MemAlias, MemMap, MemOffer, MemTake, MemUnmap};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};

use super::destination::Destination;
use super::lack::Lack;
use super::regions::Span;
use super::replay::Item;
use super::shared::{Delivery, Mapping, Offered, Shared, mappings};
use super::sharing::Parts;
use super::state::{Kind, StateError, Writer};
use super::stop::Filling;
use super::tests::{alone, limited, settle, shareable};
use crate::reconnect::Waiting;
use crate::session::Session;
use crate::testing::exchange::{Offers, daemon};
use crate::testing::read;

const SIZE: u64 = 2 * CHUNK;
const DOMAIN: &[u8] = b"software GPU\0\0\0\0";

fn map(session: &mut Session, at: u64) -> u64 {
    let address = session.gpu.regions().arena + at * SIZE;
    session.perform(&mem_map(address)).unwrap();
    address
}

fn mem_map(address: u64) -> Recorded {
    Recorded::of(&MemMap {
        address: DeviceAddress(address),
        size: SIZE,
    })
}

fn unmap(session: &mut Session, address: u64) {
    let unmap = Recorded::of(&MemUnmap {
        address: DeviceAddress(address),
    });
    session.perform(&unmap).unwrap();
}

/// Maps other memory in the place of a mapping.
fn replace(session: &mut Session, at: u64) {
    let address = session.gpu.regions().arena + at * SIZE;
    unmap(session, address);
    session.memory.give_up(address);
    session.gpu.memory_unmap(address).unwrap();
    settle(session);
    map(session, at);
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

fn mapping(address: u64, offered: Offered) -> Mapping {
    Mapping {
        address,
        size: SIZE,
        offered: offered as u8,
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
    let link = &mut session.replies.link;
    session.sharing.share(gpu, memory, link, parts)
}

/// Whose a mapping is that the session shares.
#[derive(Clone, Copy, PartialEq)]
enum Whose {
    Own = 0,
    Others = 1,
}

/// Has a destination take a round that describes mappings of the session's own, each with the
/// memory that is handed over, if any, and what the session shares, with the first byte of its
/// token.
fn round(
    session: &mut Session,
    own: &[(u64, Option<&OwnedFd>)],
    shared: &[(u64, Whose, u8)],
) -> Result<(), StateError> {
    let filling = &mut Filling::default();
    begin_round(session, filling, own, shared)?;
    let handed = own
        .iter()
        .filter_map(|(address, fd)| Some((*address, (*fd)?)));
    let (named, fds): (Vec<_>, Vec<_>) = handed
        .map(|(address, fd)| (mapping(address, Offered::Memory), fd.try_clone().unwrap()))
        .unzip();
    session.take_shared(filling, &named, fds, None)?;
    session.take_record(filling, Kind::ObjectsEnd, &[])?;
    assert_eq!(filling.lack, None);
    Ok(())
}

/// The part of a round before memory is handed over.
fn begin_round(
    session: &mut Session,
    filling: &mut Filling,
    own: &[(u64, Option<&OwnedFd>)],
    shared: &[(u64, Whose, u8)],
) -> Result<(), StateError> {
    let mut parts = vec![0];
    for (address, whose, token) in shared {
        parts.extend(address.to_le_bytes());
        parts.extend(SIZE.to_le_bytes());
        parts.push(*whose as u8);
        parts.extend([*token; 16]);
    }
    let mut objects = Vec::new();
    for (address, _) in own {
        Item::new(mem_map(*address)).put(&mut objects);
    }
    session.take_record(filling, Kind::Sharing, &parts)?;
    session.take_record(filling, Kind::Objects, &objects)
}

/// Memory that a worker hands over, filled with a byte.
fn filled(byte: u8) -> OwnedFd {
    let memory = memory(SIZE, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    pwrite(&memory, &[byte; 64], 0).unwrap();
    memory
}

/// The first byte of memory that a session offers.
fn offered(offers: &Offers, token: [u8; 16]) -> Option<u8> {
    let mut byte = [0];
    let offers = offers.lock();
    let (_, memory) = offers.get(&token)?;
    pread(memory, &mut byte, 0).unwrap();
    Some(byte[0])
}

/// A session, with the offers of its VM and an address of its arena.
fn sharing() -> (Session, Offers, u64) {
    let (offers, mut session) = (Offers::default(), shareable());
    session.sharing.exchange = daemon(Arc::clone(&offers));
    let address = session.gpu.regions().arena;
    (session, offers, address)
}

/// Managed memory moves to another device, and is freed and allocated anew, while rounds
/// describe it.
#[test]
fn own_memory_takes_the_place_of_others() {
    let _alone = alone();
    let theirs = filled(7);
    for mine in [None, Some(&filled(8))] {
        let (mut session, offers, address) = sharing();
        let offer = Offer {
            token: [1; 16],
            size: SIZE,
            domain: session.gpu.domain(),
        };
        let memory = theirs.try_clone().unwrap();
        offers.lock().insert(offer.token, (offer, memory));
        round(&mut session, &[], &[(address, Whose::Others, 1)]).unwrap();
        let mut byte = [0];
        read(address, &mut byte);
        assert_eq!(byte, [7]);

        let own = [(address, mine)];
        round(&mut session, &own, &[(address, Whose::Own, 2)]).unwrap();
        assert!(!session.sharing.is_taken(address));
        read(address, &mut byte);
        let expected = mine.map_or(0, |_| 8);
        assert_eq!(byte, [expected]);
        assert_eq!(offered(&offers, [2; 16]), Some(expected));

        round(&mut session, &[], &[(address, Whose::Others, 1)]).unwrap();
        read(address, &mut byte);
        assert_eq!(byte, [7]);
        assert_eq!(offered(&offers, [2; 16]), None);
    }
}

/// The source lacks memory that its program has freed.
#[test]
fn memory_that_the_source_lacks_is_unmapped_at_once() {
    let _alone = alone();
    let mut session = shareable();
    let address = session.gpu.regions().arena;
    let [first, second] = [filled(1), filled(2)];
    let own = [(address, Some(&first)), (address + SIZE, Some(&second))];
    round(&mut session, &own, &[]).unwrap();
    let free = |session: &mut Session| session.gpu.memory_info().unwrap().free;
    let (before, arena) = (free(&mut session), address + SIZE);
    // What a round does not name stays mapped for reuse.
    round(&mut session, &own[..1], &[]).unwrap();
    assert_eq!(free(&mut session), before);
    session.let_go([].into_iter()).unwrap();
    settle(&mut session);
    assert_eq!(free(&mut session), before + SIZE);
    session.let_go([address].into_iter()).unwrap();
    settle(&mut session);
    assert_eq!(free(&mut session), before + 2 * SIZE);
    assert_eq!(session.memory.arena().live(), 0);
    for gone in [address, arena] {
        assert!(session.let_go([gone].into_iter()).is_err());
    }
    // The source has allocated memory there since.
    let third = filled(3);
    round(&mut session, &[(address, Some(&third))], &[]).unwrap();
    let mut byte = [0];
    read(address, &mut byte);
    assert_eq!(byte, [3]);
}

/// The sessions of a VM that move together have what one of them has freed.
#[test]
fn a_round_without_room_is_answered_so() {
    let _alone = alone();
    let [account, gpu] = [(); 2].map(|()| Arc::new(Account::new().unwrap()));
    account.limit_to(Book::Device, 3 * SIZE);
    (0..2).for_each(|slot| account.clear(slot));
    (0..2).for_each(|slot| gpu.clear(slot));
    let other = Share::new(Arc::clone(&account), 1);
    assert!(other.take(2 * SIZE));
    let share = Share::new(Arc::clone(&account), 0).on_gpu(Arc::clone(&gpu), 0);
    let mut session = limited(share);
    let address = session.gpu.regions().arena;
    let memory = [filled(1), filled(2)];
    let own = [
        (address, Some(&memory[0])),
        (address + SIZE, Some(&memory[1])),
    ];
    let filling = &mut Filling::default();
    begin_round(&mut session, filling, &own, &[]).unwrap();
    let [one, two] = own.map(|(address, _)| mapping(address, Offered::Memory));
    let fds = memory.iter().map(|fd| fd.try_clone().unwrap());
    let taken = session.take_shared(filling, &[one, two], fds.collect(), None);
    assert_eq!(
        taken.unwrap(),
        [Delivery::Taken as u8, Delivery::Absent as u8]
    );
    session.take_record(filling, Kind::ObjectsEnd, &[]).unwrap();
    let Some(Lack::Room { limit, why }) = &filling.lack else {
        panic!("{:?}", filling.lack);
    };
    assert_eq!(*limit, Some(3 * SIZE));
    let expected = format!("limited to {} bytes", 3 * SIZE);
    assert!(
        why.contains(&expected) && why.contains("0 are free"),
        "{why}"
    );
    assert_eq!(account.used(Book::Device), 3 * SIZE);

    // The other one's round releases it.
    other.give_back(SIZE);
    round(&mut session, &own, &[]).unwrap();
    let mut byte = [0];
    read(address + SIZE, &mut byte);
    assert_eq!((byte, account.used(Book::Device)), ([2], 3 * SIZE));

    // More memory than the GPU has, of what the VM may have.
    account.limit_to(Book::Device, 4 * SIZE);
    gpu.limit_to(Book::Device, 2 * SIZE);
    let filling = &mut Filling::default();
    begin_round(
        &mut session,
        filling,
        &[(address + 2 * SIZE, None), own[0], own[1]],
        &[],
    )
    .unwrap();
    session.take_record(filling, Kind::ObjectsEnd, &[]).unwrap();
    let Some(Lack::Room { limit: None, why }) = &filling.lack else {
        panic!("{:?}", filling.lack);
    };
    assert!(why.contains("software.memory"), "{why}");
}

/// The program allocated memory at the addresses of memory that it has freed, and has not
/// offered it yet.
#[test]
fn an_offer_of_freed_memory_is_not_one_of_the_memory_in_its_place() {
    let _alone = alone();
    let (mut session, offers, address) = sharing();
    let (former, now) = (filled(1), filled(2));
    let own = [(address, Some(&former))];
    round(&mut session, &own, &[(address, Whose::Own, 9)]).unwrap();
    assert_eq!(offered(&offers, [9; 16]), Some(1));
    round(&mut session, &[(address, Some(&now))], &[]).unwrap();
    assert_eq!(offered(&offers, [9; 16]), None);

    let (gpu, memory) = (&mut session.gpu, &mut session.memory);
    let offer = MemOffer { address };
    let offer = session.sharing.mem_offer(gpu, memory, &offer).unwrap();
    assert_eq!(offered(&offers, offer.token), Some(2));
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
    // The same memory, which a round did not name: the destination may not have it any more.
    unmap(&mut session, first);
    shared.begin(&session).unwrap();
    assert!(shared.next(&mut session).is_none());
    map(&mut session, 0);
    assert!(shared.is_behind(&session).unwrap());
    assert_eq!(round(&mut shared, &mut session, &[1]), [first]);
    assert_eq!(shared.bytes(&session, Delivery::Taken), SIZE);
    // And different memory.
    replace(&mut session, 0);
    assert_eq!(round(&mut shared, &mut session, &[0]), [first]);
    let chunks = session.chunks().unwrap();
    let replaced: Vec<bool> = chunks.iter().map(|chunk| shared.replaced(chunk)).collect();
    assert_eq!(replaced, [true, true, false, false]);
    let is_sent = |chunk| shared.delivery_of(chunk) == Delivery::Sent;
    assert!(chunks.iter().all(is_sent));
    let more = shared.answered(&[1]).unwrap_err();
    assert!(matches!(more, StateError::Order(_)), "nobody asked: {more}");
}

/// The program frees memory after the objects of a round were sent. On a full GPU there would be
/// no room for what it maps in its place.
#[test]
fn memory_that_is_unmapped_during_a_round_is_not_offered() {
    let _alone = alone();
    let mut session = shareable();
    let addresses = [0, 1, 2].map(|at| map(&mut session, at));
    let domain = session.gpu.memory_domain();
    let mut shared = Shared::new(domain);
    shared.agree(&domain.unwrap());
    let mut round = |session: &mut Session, freed: &[u64], answer: &[u8]| {
        shared.begin(session).unwrap();
        freed.iter().for_each(|address| unmap(session, *address));
        let batch = shared.next(session).unwrap().run();
        assert!(shared.named(&batch.named), "an answer follows");
        let (offered, handed) = mappings(&batch.payload).unwrap();
        assert_eq!(handed, batch.descriptors.len());
        assert_eq!(shared.answered(answer).unwrap(), freed);
        let is_behind = shared.is_behind(session).unwrap();
        assert!(shared.next(session).is_none() && !is_behind);
        let offered = offered.iter();
        let offered = offered.map(|mapping| (mapping.address, mapping.offered().unwrap()));
        offered.collect::<Vec<_>>()
    };
    let [first, second, third] = addresses;
    assert_eq!(
        round(&mut session, &[second], &[1, 3, 1]),
        [
            (first, Offered::Memory),
            (second, Offered::Nothing),
            (third, Offered::Memory)
        ]
    );
    // Memory that the destination had, and that is mapped and unmapped again.
    replace(&mut session, 0);
    map(&mut session, 1);
    assert_eq!(
        round(&mut session, &[first], &[3, 1]),
        [(first, Offered::Nothing), (second, Offered::Memory)]
    );
}

/// The same at the destination, for which memory may also be missing that another object needs.
#[test]
fn unmapped_memory_is_not_created() {
    let _alone = alone();
    let mut session = shareable();
    let first = session.gpu.regions().arena;
    let second = first + SIZE;
    let memory = filled(7);
    let own = [(first, Some(&memory)), (second, None)];
    let alias = Item::new(Recorded::of(&MemAlias {
        address: AliasAddress(first + 4 * SIZE),
        size: SIZE,
        memory: DeviceAddress(second),
        access: 3,
    }));
    for needed in [false, true] {
        let filling = &mut Filling::default();
        begin_round(&mut session, filling, &own, &[]).unwrap();
        if needed {
            let mut payload = Vec::new();
            alias.put(&mut payload);
            session
                .take_record(filling, Kind::Objects, &payload)
                .unwrap();
        }
        let round = [
            mapping(first, Offered::Memory),
            mapping(second, Offered::Nothing),
        ];
        let fds = vec![memory.try_clone().unwrap()];
        let taken = session.take_shared(filling, &round, fds, None).unwrap();
        assert_eq!(taken, [Delivery::Taken as u8, Delivery::Absent as u8]);
        session.take_record(filling, Kind::ObjectsEnd, &[]).unwrap();
        assert_eq!(filling.lack, needed.then_some(Lack::Unmapped));
        assert_eq!(session.memory.arena().live(), SIZE);
    }
}

/// The program has moved managed memory to another device, whose session offers it now.
#[test]
fn memory_that_has_become_another_sessions_is_not_let_go_of() {
    let _alone = alone();
    let (mut session, offers, address) = sharing();
    let domain = session.gpu.memory_domain().unwrap();
    let mut shared = Shared::new(Some(domain));
    shared.agree(&domain);
    map(&mut session, 0);
    shared.begin(&session).unwrap();
    let batch = shared.next(&mut session).unwrap().run();
    assert!(shared.named(&batch.named));
    shared.answered(&[1]).unwrap();
    unmap(&mut session, address);
    let offer = Offer {
        token: [1; 16],
        size: SIZE,
        domain: session.gpu.domain(),
    };
    offers.lock().insert(offer.token, (offer, filled(7)));
    let take = Recorded::of(&MemTake {
        address,
        size: SIZE,
        token: offer.token,
    });
    session.perform(&take).unwrap();
    // The destination maps it there as well in this round.
    shared.begin(&session).unwrap();
    assert_eq!(shared.let_go(&session), [] as [u8; 0]);
}

#[test]
fn other_memory_is_copied() {
    let _alone = alone();
    let mut source = shareable();
    let address = map(&mut source, 0);
    fill(&mut source, address, 0x1234_5678);
    let mut filling = Filling::default();
    filling.items = source.items().unwrap();
    let expected = hash(&mut source, address);
    let handed = source.gpu.memory_export(address).unwrap();
    // A session at a time uses these addresses.
    drop(source);
    let mut session = shareable();
    let mut take = |session: &mut Session, offered, descriptors| {
        session.take_shared(
            &mut filling,
            &[mapping(address, offered)],
            descriptors,
            None,
        )
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
        assert_eq!(
            take(&mut session, Offered::Memory, vec![foreign]).unwrap(),
            [0]
        );
        assert_ne!(hash(&mut session, address), expected);
        fill(&mut session, address, 0x1234_5678);
        assert_eq!(hash(&mut session, address), expected, "it is mapped");
    }
    fill(&mut session, address, 9);
    let handed = || handed.try_clone().unwrap();
    assert_eq!(
        take(&mut session, Offered::Memory, vec![handed()]).unwrap(),
        [1]
    );
    assert_eq!(hash(&mut session, address), expected);
    assert_eq!(
        take(&mut session, Offered::Memory, vec![handed()]).unwrap(),
        [1],
        "again"
    );
    // Different memory from then on: what was handed over stays unchanged.
    assert_eq!(take(&mut session, Offered::Contents, vec![]).unwrap(), [0]);
    fill(&mut session, address, 5);
    assert_eq!(
        take(&mut session, Offered::Memory, vec![handed()]).unwrap(),
        [1]
    );
    assert_eq!(hash(&mut session, address), expected);
    let missing = take(&mut session, Offered::Memory, vec![]).unwrap_err();
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
            let deadline = Some(Instant::now() + Duration::from_secs(60));
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
    let one = payload(&[mapping(address, Offered::Memory)]);
    let objects = {
        let mut objects = Vec::new();
        Item::new(mem_map(address)).put(&mut objects);
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
    let many = payload(&vec![mapping(address, Offered::Contents); MAX_FDS + 1]);
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
