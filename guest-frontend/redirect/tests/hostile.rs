//! Objects made by hand: what is found in them, and that nothing false is
//! believed.

use paragpu_redirect::facts::{Facts, WINDOW, encode};
use paragpu_redirect::find;
use paragpu_redirect::image::Image;
use paragpu_redirect::program::{Kind, Program};
use paragpu_redirect::symbols::{Shared, Table, shared};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

/// Offset of the function table's header in an object.
const TABLE: usize = 0x200;
/// Where functions start.
const CODE: usize = 0x1000;
/// Bytes of the runtime's code.
const SIZE: usize = 0x800;
/// Where in it the window starts.
const FIRST: usize = 0x40;
/// Where in it the linker writes four bytes.
const WRITTEN: usize = 0x123;

fn distance(index: usize) -> usize {
    16 * (1 + index % 5)
}

fn code() -> Vec<u8> {
    (0..SIZE).map(|at| (at * 7 + at / 256) as u8).collect()
}

fn text() -> String {
    let mut clean = code();
    clean[WRITTEN..WRITTEN + 4].fill(0);
    let window: String = (0..WINDOW)
        .map(|index| format!(" {:x}", distance(index)))
        .collect();
    let entries: String = encode([0, 0x80, 0, 0x40]).collect();
    let written: String = encode([WRITTEN as u32, 4]).collect();
    let content = format!(
        "paragpu-runtimes 2\nnames cudaFree cudaMalloc\nbuild 13.7.1\nblock {SIZE:x} {:x}\n\
         window {FIRST:x}{window}\nentries {entries}\nwritten {written}\n",
        xxh3_64(&clean),
    );
    let hash = xxh3_64(content.as_bytes());
    format!("{content}end {hash:x}\n")
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// An object whose code holds a runtime at each of these offsets.
fn object(blocks: &[usize]) -> Vec<u8> {
    let mut bytes = vec![0u8; 0x4000];
    put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
    put(&mut bytes, 16, &3u16.to_le_bytes());
    put(&mut bytes, 18, &62u16.to_le_bytes());
    put(&mut bytes, 32, &64u64.to_le_bytes());
    put(&mut bytes, 54, &56u16.to_le_bytes());
    put(&mut bytes, 56, &2u16.to_le_bytes());
    let length = bytes.len() as u64;
    // PT_LOAD, readable and executable; PT_GNU_EH_FRAME.
    for (place, kind, flags, address, size) in [
        (64, 1u32, 5u32, 0u64, length),
        (120, 0x6474_e550, 4, TABLE as u64, 0x400),
    ] {
        put(&mut bytes, place, &kind.to_le_bytes());
        put(&mut bytes, place + 4, &flags.to_le_bytes());
        put(&mut bytes, place + 8, &address.to_le_bytes());
        put(&mut bytes, place + 16, &address.to_le_bytes());
        put(&mut bytes, place + 32, &size.to_le_bytes());
    }
    let mut starts = vec![CODE];
    for &block in blocks {
        put(&mut bytes, block, &code());
        // What some linker wrote.
        put(&mut bytes, block + WRITTEN, &[block as u8 | 1, 2, 3, 4]);
        let mut start = block + FIRST;
        starts.push(start);
        for index in 0..WINDOW {
            start += distance(index);
            starts.push(start);
        }
    }
    put(&mut bytes, TABLE, &[1, 0x1b, 3, 0x3b]);
    put(&mut bytes, TABLE + 8, &(starts.len() as u32).to_le_bytes());
    for (index, start) in starts.iter().enumerate() {
        let relative = *start as i32 - TABLE as i32;
        put(&mut bytes, TABLE + 12 + index * 8, &relative.to_le_bytes());
    }
    bytes
}

/// Where runtimes are, and whether each is the known build.
fn found(bytes: &[u8]) -> Vec<(u64, bool)> {
    let text = text();
    let facts = Facts::parse(&text).expect("sound facts");
    let mut places = Vec::new();
    if let Some(image) = Image::of_file(bytes) {
        find::search(&image, facts.builds(), |place| {
            places.push((place.block, place.exact))
        });
        let dynamic = image.dynamic();
        if let Some(dynamic) = dynamic {
            shared(&image, &dynamic);
        }
        if let Some(table) = Table::of_file(&bytes) {
            table.runtime(&image, &facts);
        }
        let _ = image.build_id();
    }
    places
}

#[test]
fn a_program_is_told_by_its_headers() {
    let library = object(&[CODE]);
    let length = library.len() as u64;
    let found = |bytes: &[u8]| Program::of_file(&bytes);
    let kind = Kind::Other;
    assert_eq!(found(&library), Some(Program { kind, length }));
    // A file that was cut off says how long it was, as long as its headers are there.
    assert_eq!(found(&library[..0x300]), Some(Program { kind, length }));
    assert_eq!(found(&library[..100]), None);
    let mut executable = library.clone();
    put(&mut executable, 16, &2u16.to_le_bytes());
    let kind = Kind::Static;
    assert_eq!(found(&executable), Some(Program { kind, length }));
    put(&mut executable, 120, &3u32.to_le_bytes());
    let kind = Kind::Dynamic;
    assert_eq!(found(&executable), Some(Program { kind, length }));
    let mut endless = library;
    put(&mut endless, 64 + 8, &u64::MAX.to_le_bytes());
    assert_eq!(
        found(&endless).map(|program| program.length),
        Some(u64::MAX)
    );
}

#[test]
fn a_runtime_is_found_whatever_the_linker_wrote() {
    assert_eq!(found(&object(&[0x1800])), [(0x1800, true)]);
    assert_eq!(found(&object(&[])), []);
}

#[test]
fn two_runtimes_in_one_object_are_both_found() {
    assert_eq!(
        found(&object(&[0x1400, 0x2c00])),
        [(0x1400, true), (0x2c00, true)]
    );
}

#[test]
fn entries_lie_where_the_facts_say() {
    let text = text();
    let facts = Facts::parse(&text).expect("sound facts");
    let build = facts.builds().next().expect("a build");
    let entries: Vec<_> = facts.entries(build).collect();
    assert_eq!(entries, [("cudaFree", 0x80), ("cudaMalloc", 0x40)]);
}

#[test]
fn another_build_is_alike_but_not_known() {
    let mut bytes = object(&[0x1800]);
    bytes[0x1800 + 0x700] ^= 1;
    assert_eq!(found(&bytes), [(0x1800, false)]);
}

#[test]
fn a_truncated_runtime_is_not_found() {
    // Its functions are listed, but its end is not in the segment.
    let mut bytes = object(&[0x1800]);
    put(&mut bytes, 64 + 32, &0x1f00u64.to_le_bytes());
    assert_eq!(found(&bytes), []);
    // The file ends within it.
    let bytes = object(&[0x1800]);
    assert_eq!(found(&bytes[..0x1f00]), [(0x1800, false)]);
}

#[test]
fn code_that_is_none_is_not_found() {
    let mut bytes = object(&[0x1800]);
    put(&mut bytes, 64 + 4, &4u32.to_le_bytes());
    assert_eq!(found(&bytes), []);
}

#[test]
fn false_tables_of_functions_are_not_believed() {
    for (at, value) in [
        (TABLE, &[2u8][..]),
        (TABLE + 1, &[0xff]),
        (TABLE + 2, &[0xff]),
        (TABLE + 3, &[0x1b]),
        // It lies outside.
        (120 + 16, &[0xff; 8]),
        (120 + 16, &0x3ffcu64.to_le_bytes()),
    ] {
        let mut bytes = object(&[0x1800]);
        put(&mut bytes, at, value);
        assert_eq!(found(&bytes), [], "{at:#x}");
    }
    // More entries than there is room for: those that are there count.
    let mut bytes = object(&[0x1800]);
    put(&mut bytes, TABLE + 8, &u32::MAX.to_le_bytes());
    found(&bytes);
    // The window at the very top of the addresses.
    for place in (TABLE + 12..TABLE + 12 + 26 * 8).step_by(8) {
        let mut bytes = object(&[0x1800]);
        put(&mut bytes, place, &i32::MIN.to_le_bytes());
        assert_eq!(
            found(&bytes).iter().filter(|place| place.1).count(),
            usize::from(place == TABLE + 12)
        );
    }
}

#[test]
fn a_false_symbol_table_is_not_believed() {
    // One section, a symbol table that claims to be everywhere.
    let mut bytes = object(&[0x1800]);
    put(&mut bytes, 40, &0x3000u64.to_le_bytes());
    put(&mut bytes, 58, &64u16.to_le_bytes());
    put(&mut bytes, 60, &2u16.to_le_bytes());
    put(&mut bytes, 0x3040 + 4, &2u32.to_le_bytes());
    for (offset, size) in [(0, u64::MAX), (u64::MAX - 8, 4096), (0x100, 0x1000)] {
        put(&mut bytes, 0x3040 + 24, &u64::to_le_bytes(offset));
        put(&mut bytes, 0x3040 + 32, &u64::to_le_bytes(size));
        let text = text();
        let facts = Facts::parse(&text).expect("sound facts");
        let file = bytes.as_slice();
        let image = Image::of_file(file).expect("an object");
        let table = Table::of_file(&file).expect("a table");
        assert!(table.runtime(&image, &facts).is_none());
    }
}

#[test]
fn a_false_dynamic_section_ends() {
    let mut bytes = object(&[]);
    put(&mut bytes, 56, &3u16.to_le_bytes());
    put(&mut bytes, 176, &2u32.to_le_bytes());
    put(&mut bytes, 176 + 16, &0x3000u64.to_le_bytes());
    put(&mut bytes, 176 + 32, &0x100u64.to_le_bytes());
    // Symbols, strings, and a hash table whose chains have no end.
    let entries = [
        (6u64, 0x3200u64),
        (5, 0x3400),
        (10, 0x100),
        (0x6fff_fef5, 0x3600),
        (0, 0),
    ];
    for (index, (tag, value)) in entries.into_iter().enumerate() {
        put(&mut bytes, 0x3000 + index * 16, &tag.to_le_bytes());
        put(&mut bytes, 0x3008 + index * 16, &value.to_le_bytes());
    }
    for words in [
        [1u32, 0, 1, 0],
        [0, 0, 0, 0],
        [u32::MAX, u32::MAX, u32::MAX, 0],
    ] {
        for (index, word) in words.into_iter().enumerate() {
            put(&mut bytes, 0x3600 + index * 4, &word.to_le_bytes());
        }
        put(&mut bytes, 0x3618, &1u32.to_le_bytes());
        let file = bytes.as_slice();
        let image = Image::of_file(file).expect("an object");
        let dynamic = image.dynamic().expect("a dynamic section");
        dynamic.count(&image);
        assert_eq!(shared(&image, &dynamic), None::<Shared>);
        assert!(!find::may_carry(&image));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn damaged_objects_never_hold_a_false_runtime(
        changes in proptest::collection::vec((0usize..0x400, any::<u8>()), 1..12),
        cut in 0usize..0x4000,
    ) {
        let mut bytes = object(&[0x1800]);
        for (at, value) in changes {
            bytes[at] = value;
        }
        for bytes in [&bytes[..], &bytes[..cut]] {
            for (block, exact) in found(bytes) {
                // Damage outside the code may move it in the address space, but
                // what counts as exact has its bytes.
                if exact {
                    let image = Image::of_file(bytes).expect("found in it");
                    let mut place = [0; 16];
                    prop_assert!(image.read(block, &mut place));
                    prop_assert_eq!(&place[..], &code()[..16]);
                }
            }
        }
    }

    #[test]
    fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let mut bytes = bytes;
        found(&bytes);
        let head = object(&[])[..64.min(bytes.len())].to_vec();
        put(&mut bytes, 0, &head);
        found(&bytes);
    }
}
