//! Objects made by hand whose functions refer to their names, and what is not believed.

use paragpu_redirect::facts::{Facts, encode};
use paragpu_redirect::image::Image;
use paragpu_redirect::texts;
use xxhash_rust::xxh3::xxh3_64;

/// Registration functions, and their size.
const REGISTRATION: usize = 14;
const SMALL: usize = 48;
/// Functions between these and the public ones.
const INTERNAL: usize = 7;
/// Public functions that the oldest release has, and their size.
const FUNCTIONS: usize = 320;
const LARGE: usize = 64;
/// Where in a function the distance to its name is.
const FIELD: usize = 20;
/// Bytes of a name with its zeros.
const TEXT: usize = 32;
/// The functions that follow in other source files, whose texts are elsewhere.
const SECOND_FILE: usize = 200;

const DYNAMIC: usize = 0x200;
const CODE: usize = 0x1000;
const TABLE: usize = 0x10000;
const RELOCATIONS: usize = 0x14000;
const POINTERS: usize = 0x18000;
const TEXTS: usize = 0x1c000;
const END: usize = 0x20000;

fn name(function: usize) -> String {
    format!("cudaFunction{function:03}")
}

fn start(function: usize) -> usize {
    CODE + (REGISTRATION + INTERNAL) * SMALL + function * LARGE
}

/// The place of a function's name: later functions of a source file come first.
fn text(function: usize) -> usize {
    match function < SECOND_FILE {
        true => TEXTS + (SECOND_FILE - function) * TEXT,
        false => TEXTS + (2 * FUNCTIONS - function) * TEXT,
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn registration_code() -> Vec<u8> {
    (0..REGISTRATION * SMALL)
        .map(|at| (at * 5 + 3) as u8)
        .collect()
}

fn code(numbers: impl IntoIterator<Item = usize>) -> String {
    encode(numbers.into_iter().map(|number| number as u32)).collect()
}

/// The facts of one release and of its registration functions.
fn facts() -> String {
    let mut names: Vec<String> = (0..FUNCTIONS).map(name).collect();
    names.extend((0..REGISTRATION).map(|index| format!("cudaRegister{index:02}")));
    let window = format!(" {SMALL:x}").repeat(REGISTRATION);
    // Each name is the next one.
    let public = (0..FUNCTIONS).flat_map(|function| [0, start(function) - CODE]);
    let registration = |skipped| {
        (0..REGISTRATION)
            .flat_map(move |index| [if index == 0 { skipped } else { 0 }, index * SMALL])
    };
    let content = format!(
        "paragpu-runtimes 2\nnames {}\nbuild 13.7.1\nblock {:x} 0\nwindow 0{window}\nentries {}{}\n\
         written {}\nregistration 13.7.1 13.7.2\nblock {:x} {:x}\nwindow 0{window}\nentries {}\n\
         written {}\n",
        names.join(" "),
        start(FUNCTIONS) - CODE,
        code(public),
        code(registration(0)),
        code([0, 1]),
        REGISTRATION * SMALL,
        xxh3_64(&registration_code()),
        code(registration(FUNCTIONS)),
        code([]),
    );
    format!("{content}end {:x}\n", xxh3_64(content.as_bytes()))
}

/// Lets a function refer to a place, from one of its bytes on.
fn refer(bytes: &mut [u8], function: usize, field: usize, place: usize) {
    let at = start(function) + field;
    let distance = place as i32 - (at + 4) as i32;
    put(bytes, at, &distance.to_le_bytes());
}

/// An object of another release: with more functions than the facts have. Odd functions refer to
/// their names by pointers.
fn object(functions: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; END];
    put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
    put(&mut bytes, 16, &3u16.to_le_bytes());
    put(&mut bytes, 18, &62u16.to_le_bytes());
    put(&mut bytes, 32, &64u64.to_le_bytes());
    put(&mut bytes, 54, &56u16.to_le_bytes());
    put(&mut bytes, 56, &3u16.to_le_bytes());
    for (index, (kind, flags, address, size)) in [
        (1u32, 5u32, 0, END),
        (0x6474_e550, 4, TABLE, 0x4000),
        (2, 6, DYNAMIC, 0x100),
    ]
    .into_iter()
    .enumerate()
    {
        let place = 64 + index * 56;
        put(&mut bytes, place, &kind.to_le_bytes());
        put(&mut bytes, place + 4, &flags.to_le_bytes());
        put(&mut bytes, place + 8, &(address as u64).to_le_bytes());
        put(&mut bytes, place + 16, &(address as u64).to_le_bytes());
        put(&mut bytes, place + 32, &(size as u64).to_le_bytes());
    }
    // Strings, symbols, relocations and the number of these.
    let dynamic = [
        (5, DYNAMIC),
        (6, DYNAMIC),
        (7, RELOCATIONS),
        (0x6fff_fff9, functions / 2),
        (0, 0),
    ];
    for (index, (tag, value)) in dynamic.into_iter().enumerate() {
        put(&mut bytes, DYNAMIC + index * 16, &u64::to_le_bytes(tag));
        put(
            &mut bytes,
            DYNAMIC + index * 16 + 8,
            &(value as u64).to_le_bytes(),
        );
    }
    bytes[CODE..start(functions)].fill(0xcc);
    put(&mut bytes, CODE, &registration_code());
    let small = (0..REGISTRATION + INTERNAL).map(|index| CODE + index * SMALL);
    let starts: Vec<usize> = small.chain((0..functions).map(start)).collect();
    put(&mut bytes, TABLE, &[1, 0x1b, 3, 0x3b]);
    put(&mut bytes, TABLE + 8, &(starts.len() as u32).to_le_bytes());
    for (index, start) in starts.iter().enumerate() {
        let relative = *start as i32 - TABLE as i32;
        put(&mut bytes, TABLE + 12 + index * 8, &relative.to_le_bytes());
    }
    for function in 0..functions {
        put(&mut bytes, text(function), name(function).as_bytes());
        let pointer = POINTERS + function * 8;
        let relocation = RELOCATIONS + function / 2 * 24;
        match function % 2 {
            0 => refer(&mut bytes, function, FIELD, text(function)),
            _ => {
                refer(&mut bytes, function, FIELD, pointer);
                put(&mut bytes, relocation, &(pointer as u64).to_le_bytes());
                put(&mut bytes, relocation + 8, &8u64.to_le_bytes());
                put(
                    &mut bytes,
                    relocation + 16,
                    &(text(function) as u64).to_le_bytes(),
                );
            }
        }
    }
    bytes
}

/// Names and addresses of a runtime's functions.
fn found(bytes: &[u8]) -> Option<Vec<(String, u64)>> {
    let text = facts();
    let facts = Facts::parse(&text).expect("sound facts");
    let image = Image::of_file(bytes)?;
    let mut functions = None;
    texts::search(&image, &facts, |runtime| {
        let mut list: Vec<_> = (runtime.registration(&facts))
            .map(|(name, address)| (name.to_owned(), address))
            .collect();
        runtime.functions(&image, |entry| {
            list.push((
                String::from_utf8_lossy(entry.name).into_owned(),
                entry.address,
            ));
        });
        assert_eq!(list.len(), runtime.count(&facts));
        functions = Some(list);
    });
    functions
}

#[test]
fn a_release_without_a_fingerprint_is_found() {
    for functions in [FUNCTIONS, FUNCTIONS + 3] {
        let found = found(&object(functions)).expect("a runtime");
        let registration = (0..REGISTRATION)
            .map(|index| (format!("cudaRegister{index:02}"), CODE + index * SMALL));
        let public = (0..functions).map(|function| (name(function), start(function)));
        let expected = registration.chain(public);
        let expected: Vec<_> = expected.map(|(name, at)| (name, at as u64)).collect();
        assert_eq!(found, expected, "{functions}");
    }
}

/// As in programs that are linked to a fixed address.
#[test]
fn pointers_need_no_relocation() {
    let mut bytes = object(FUNCTIONS);
    bytes[RELOCATIONS..POINTERS].fill(0);
    assert_eq!(found(&bytes), None);
    for function in 0..FUNCTIONS {
        put(
            &mut bytes,
            POINTERS + function * 8,
            &(text(function) as u64).to_le_bytes(),
        );
    }
    assert_eq!(found(&bytes), found(&object(FUNCTIONS)));
}

#[test]
fn distances_by_chance_do_not_matter() {
    let mut bytes = object(FUNCTIONS);
    for function in 0..FUNCTIONS {
        let other = (function * 7 + 100) % FUNCTIONS;
        refer(&mut bytes, function, 40, text(other));
        refer(&mut bytes, function, 48, POINTERS + (other | 1) * 8);
    }
    assert_eq!(found(&bytes), found(&object(FUNCTIONS)));
    // An internal function just before the public ones, and the first of the second file.
    let mut bytes = object(FUNCTIONS);
    let distance = text(7) as i32 - (start(0) - 4) as i32;
    put(&mut bytes, start(0) - 8, &distance.to_le_bytes());
    refer(&mut bytes, SECOND_FILE, 40, text(3));
    assert_eq!(found(&bytes), found(&object(FUNCTIONS)));
}

#[test]
fn another_runtime_is_not_believed() {
    // Fewer functions than the oldest release.
    assert_eq!(found(&object(FUNCTIONS - 1)), None);
    // Other code in a registration function.
    let mut bytes = object(FUNCTIONS);
    bytes[CODE + 5 * SMALL] ^= 1;
    assert_eq!(found(&bytes), None);
    for function in [0, 150, SECOND_FILE, FUNCTIONS - 1] {
        // One that does not refer to its name.
        let mut bytes = object(FUNCTIONS);
        refer(&mut bytes, function, FIELD, END - 64);
        assert_eq!(found(&bytes), None, "{function}");
        // One that has another name.
        let mut bytes = object(FUNCTIONS);
        put(&mut bytes, text(function), b"cudaOther");
        assert_eq!(found(&bytes), None, "{function}");
        // One that has the name of another one.
        let mut bytes = object(FUNCTIONS);
        put(&mut bytes, text(function), name(42).as_bytes());
        assert_eq!(found(&bytes), None, "{function}");
        // One whose start is not aligned.
        let mut bytes = object(FUNCTIONS);
        let place = TABLE + 12 + (REGISTRATION + INTERNAL + function) * 8;
        let relative = (start(function) + 1) as i32 - TABLE as i32;
        put(&mut bytes, place, &relative.to_le_bytes());
        assert_eq!(found(&bytes), None, "{function}");
    }
}

#[test]
fn damaged_objects_end() {
    let bytes = object(FUNCTIONS);
    for cut in (0..END).step_by(0x333) {
        found(&bytes[..cut]);
    }
    // Relocations everywhere and nowhere.
    for (index, value) in [(2, u64::MAX), (2, 0), (3, u64::MAX), (3, 0)] {
        let mut bytes = object(FUNCTIONS);
        put(&mut bytes, DYNAMIC + index * 16 + 8, &value.to_le_bytes());
        assert_eq!(found(&bytes), None);
    }
}
