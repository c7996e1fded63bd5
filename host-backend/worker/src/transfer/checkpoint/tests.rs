//! Checkpoint files. Damaged ones are refused, whether the device or threads hash; contents
//! with any layout are restored or refused.

use paragpu_protocol::codec::encode_all;
use paragpu_protocol::handle::DeviceAddress;
use paragpu_protocol::handle::{ArrayHandle, StreamHandle};
use paragpu_protocol::layout::CHUNK;
use paragpu_protocol::table::ArrayCreate;
use paragpu_protocol::table::{MemMap, Memset};

use super::contents::Hasher;
use crate::live::Recorded;
use crate::session::Session;
use crate::transfer::regions::{Chunk, sealed};
use crate::transfer::state::{BLOCK, FILE, HEADER, Kind, Layout, Scanner, StateError, Writer};
use crate::transfer::tests::{
    PTX, SHAPE, alone, bytes_of, contents, file_of, session, settle, store,
};

const MAPPED: u64 = 9 * CHUNK;

/// A session with memory of which some chunks are zero, an array and a module.
fn written() -> Session {
    let mut session = session(2, 1 << 30);
    let arena = session.gpu.regions().arena;
    session
        .perform(&Recorded::of(&MemMap {
            address: DeviceAddress(arena),
            size: MAPPED,
        }))
        .unwrap();
    session
        .perform(&Recorded::of(&ArrayCreate {
            array: ArrayHandle(7),
            shape: SHAPE,
        }))
        .unwrap();
    store(&mut session, PTX);
    for chunk in [0, 1, 3, 4, 5, 8] {
        let set = Memset {
            destination: arena + chunk * CHUNK,
            pitch: CHUNK / 2,
            value: 0x1234_5600 + chunk as u32,
            element: 4,
            width: 1000 + chunk,
            height: 2,
            stream: StreamHandle(0),
        };
        session.perform(&Recorded::of(&set)).unwrap();
    }
    settle(&mut session);
    session
}

#[test]
fn a_file_replaces_the_last_one_when_it_is_complete() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    let mut session = written();
    for _ in 0..2 {
        let bytes = session.write_file(directory.path()).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().len(), bytes);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
    // Its device's addresses.
    drop(session);
    let state = std::fs::read(&file).unwrap();
    restored(&state, Hasher::Threads).unwrap();
}

fn state(hasher: Hasher) -> (Vec<u8>, Vec<(Chunk, blake3::Hash)>) {
    let mut session = written();
    let file = tempfile::tempfile().unwrap();
    let bytes = session.write_into(&file, Some(hasher)).unwrap();
    let state = bytes_of(file);
    assert_eq!(bytes, state.len() as u64);
    (state, contents(&mut session))
}

fn restored(state: &[u8], hasher: Hasher) -> Result<Session, StateError> {
    let mut session = session(1, 1 << 30);
    session
        .read_from(&file_of(state), Some(hasher))
        .map(|_| session)
}

#[test]
fn device_and_threads_hash_alike() {
    let _alone = alone();
    for writer in [Hasher::Device, Hasher::Threads] {
        let (state, memory) = state(writer);
        // Zeros are left out.
        assert!(state.len() as u64 > 6 * CHUNK && (state.len() as u64) < 7 * CHUNK);
        for reader in [Hasher::Device, Hasher::Threads] {
            let mut restored = restored(&state, reader).unwrap();
            assert_eq!(contents(&mut restored), memory, "{writer:?} {reader:?}");
        }
    }
}

#[test]
fn every_change_and_every_cut_is_noticed() {
    let _alone = alone();
    let (good, _) = state(Hasher::Threads);
    let records = parts(&good).1.records as usize;
    let early = (0..300)
        .step_by(7)
        .chain((300..records).step_by(records / 20));
    // Padding behind the array's level, and before the records.
    let late = [records - 1, records - 4095]
        .into_iter()
        .chain((records..good.len()).step_by(97));
    for (number, at) in early.chain(late).enumerate() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let hasher = [Hasher::Device, Hasher::Threads][number % 2];
        assert!(restored(&bad, hasher).is_err(), "byte {at}, {hasher:?}");
    }
    for cut in [0, 20, 100, 4096, records - 1, records, good.len() - 1] {
        let error = restored(&good[..cut], Hasher::Threads).unwrap_err();
        assert!(matches!(error, StateError::Incomplete), "{cut}: {error}");
    }
    let longer = [&good[..], &[0]].concat();
    let error = restored(&longer, Hasher::Threads).unwrap_err();
    assert!(matches!(error, StateError::Order(_)), "{error}");
}

/// The records before and after the contents, and the layout.
fn parts(state: &[u8]) -> (Vec<(Kind, Vec<u8>)>, Layout) {
    let mut scanner = Scanner::new(std::io::Cursor::new(state));
    let mut records = Vec::new();
    let mut layout = None;
    while let Ok((kind, payload)) = scanner.record() {
        let payload = payload.to_vec();
        if kind == Kind::Layout {
            let found: Layout = paragpu_protocol::codec::decode_all(&payload).unwrap();
            scanner.seek(found.records).unwrap();
            layout = Some(found);
        }
        records.push((kind, payload));
    }
    (records, layout.unwrap())
}

/// The state with other records, whose checksums are right.
fn rewritten(state: &[u8], records: &[(Kind, Vec<u8>)], layout: &Layout) -> Vec<u8> {
    let mut writer = Writer::new(std::io::Cursor::new(state.to_vec()));
    for (kind, payload) in records {
        match kind {
            Kind::Layout => {
                writer.put(Kind::Layout, &[&encode_all(layout)]).unwrap();
                writer.seek(layout.records).unwrap();
            }
            Kind::End => writer.end().unwrap(),
            kind => writer.put(*kind, &[payload]).unwrap(),
        }
    }
    writer.into_inner().into_inner()
}

#[test]
fn contents_of_another_layout_are_refused() {
    let _alone = alone();
    let (good, _) = state(Hasher::Threads);
    let (records, layout) = parts(&good);
    assert_eq!(rewritten(&good, &records, &layout), good);
    let at = records
        .iter()
        .position(|(kind, _)| *kind == Kind::Spans)
        .unwrap();
    let end = records
        .iter()
        .position(|(kind, _)| *kind == Kind::ObjectsEnd)
        .unwrap();
    let listed = sealed(&records[at].1).unwrap();
    let spans = |listed: &[(Chunk, [u8; 32])]| {
        let mut payload = Vec::new();
        for (chunk, hash) in listed {
            chunk.put_sealed(*hash, &mut payload);
        }
        let mut records = records.clone();
        records[at].1 = payload;
        records
    };
    let twice = |from: usize, to: usize| {
        let mut listed = listed.clone();
        listed[to] = listed[from];
        spans(&listed)
    };
    let shifted = |by: i64| {
        let mut listed = listed.clone();
        let address = listed[1].0.address().unwrap().wrapping_add_signed(by);
        listed[1].0 = listed[1].0.part(address, listed[1].0.size());
        spans(&listed)
    };
    let (mut late, mut missing, mut again) = (records.clone(), records.clone(), records.clone());
    late.swap(at, end);
    missing.remove(end);
    again.insert(end, (Kind::ObjectsEnd, Vec::new()));
    let mut contents = records.clone();
    contents.insert(end + 1, (Kind::Contents, Vec::new()));
    let refused = |name: &str, records: &[(Kind, Vec<u8>)], layout: &Layout| {
        for hasher in [Hasher::Device, Hasher::Threads] {
            let error = restored(&rewritten(&good, records, layout), hasher).unwrap_err();
            let error = error.to_string();
            assert!(
                !error.is_empty() && !error.contains('\n'),
                "{name}: {error}"
            );
        }
    };
    refused("a chunk twice", &twice(0, 1), &layout);
    refused("an overlap", &shifted(-1), &layout);
    refused("beyond the memory", &shifted(1 << 39), &layout);
    refused("fewer chunks", &spans(&listed[1..]), &layout);
    refused("a list after the objects", &late, &layout);
    refused("no objects", &missing, &layout);
    refused("objects twice", &again, &layout);
    refused("contents as a record", &contents, &layout);
    for (name, contents, records_at) in [
        ("contents before the layout", 0, layout.records),
        (
            "contents elsewhere",
            layout.contents + BLOCK,
            layout.records,
        ),
        (
            "records in the contents",
            layout.contents,
            layout.records - BLOCK,
        ),
        ("records in the head", layout.contents, HEADER as u64),
        ("records beyond the end", layout.contents, u64::MAX - 1),
    ] {
        let layout = Layout {
            contents,
            records: records_at,
        };
        let mut bad = good.clone();
        let mut writer = Writer::new(Vec::new());
        writer.put(Kind::Head, &[&records[0].1]).unwrap();
        writer.put(Kind::Layout, &[&encode_all(&layout)]).unwrap();
        let head = writer.into_inner();
        bad[..head.len()].copy_from_slice(&head);
        assert!(restored(&bad, Hasher::Threads).is_err(), "{name}");
    }
}
