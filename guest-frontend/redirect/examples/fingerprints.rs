//! Writes the facts about the static runtimes of NVIDIA's wheels.
//!
//! `fingerprints VERSION=libcudart_static.a … > runtimes.txt`, oldest first;
//! `make fingerprints` fetches the wheels. `paragpu_redirect::facts` explains the format
//! and why these facts suffice.
//!
//! Of releases whose archive is in no wheel, `VERSION=NAMED,OTHER…` reads shared libraries
//! into which others linked it: NAMED has a symbol table, the others may be stripped.
//!
//! Builds whose registration functions differ in distances alone share one description of
//! these.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::{env, fs};

use object::elf::{
    R_X86_64_DTPOFF32, R_X86_64_GOTPCREL, R_X86_64_GOTPCRELX, R_X86_64_PC32, R_X86_64_PLT32,
    R_X86_64_REX_GOTPCRELX, R_X86_64_TLSLD,
};
use object::read::archive::ArchiveFile;
use object::{Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SymbolKind};
use paragpu_redirect::facts::{Facts, WINDOW, encode};
use paragpu_redirect::image::Image;
use paragpu_redirect::{find, texts};
use xxhash_rust::xxh3::xxh3_64;

/// Minimum size of a public function, which must hold the jump.
const MIN_ROOM: u64 = 16;

/// Bytes of a field that the linker writes into an instruction.
const FIELD: usize = 4;

/// The facts of one archive.
#[derive(PartialEq)]
struct Build {
    registration: Registration,
    size: usize,
    hash: u64,
    first: u64,
    window: Vec<u64>,
    /// Name and offset, sorted by name.
    entries: Vec<(String, u64)>,
    /// Offset and length, ascending.
    written: Vec<(usize, usize)>,
}

/// The registration functions: those that follow each other from the first public one.
#[derive(Clone, PartialEq)]
struct Registration {
    /// Names and lengths.
    functions: Vec<(String, u64)>,
    code: Vec<u8>,
    /// What the linker writes, and distances to functions elsewhere.
    open: Vec<bool>,
}

fn main() -> ExitCode {
    match run() {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fingerprints: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<String, Box<dyn Error>> {
    let mut builds: Vec<(Vec<String>, Build)> = Vec::new();
    let mut carriers = Vec::new();
    for argument in env::args().skip(1) {
        let (version, path) = argument.split_once('=').ok_or("usage: VERSION=ARCHIVE …")?;
        let mut files = Vec::new();
        for path in path.split(',') {
            files.push(fs::read(path).map_err(|error| format!("{path}: {error}"))?);
        }
        let build = match files.as_slice() {
            [archive] => examine(archive),
            [named, others @ ..] => of_carriers(named, others),
            [] => Err("no file".into()),
        };
        let build = build.map_err(|error| format!("{path}: {error}"))?;
        eprintln!(
            "{version}: {} entries, {} ranges written by the linker, block {:x} of {} bytes",
            build.entries.len(),
            build.written.len(),
            build.hash,
            build.size,
        );
        match builds.iter_mut().find(|(_, other)| *other == build) {
            Some((releases, _)) => releases.push(version.to_owned()),
            None => builds.push((vec![version.to_owned()], build)),
        }
        if files.len() > 1 {
            carriers.extend(files);
        }
    }
    let text = write(&builds)?;
    let facts = Facts::parse(&text)?;
    for carrier in &carriers {
        compare(carrier, &facts)?;
    }
    Ok(text)
}

/// Fails if the names in a library's code are others than those of its fingerprint.
fn compare(carrier: &[u8], facts: &Facts<'_>) -> Result<(), Box<dyn Error>> {
    let image = Image::of_file(carrier).ok_or("no object")?;
    let (mut known, mut named) = (BTreeSet::new(), BTreeSet::new());
    let mut releases = "";
    find::search(&image, facts.builds(), |place| {
        if place.exact {
            releases = place.build.releases;
            for (name, offset) in facts.entries(&place.build) {
                known.insert((name.to_owned(), place.block + u64::from(offset)));
            }
        }
    });
    texts::search(&image, facts, |runtime| {
        for (name, address) in runtime.registration(facts) {
            named.insert((name.to_owned(), address));
        }
        runtime.functions(&image, |entry| {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            named.insert((name, entry.address));
        });
    });
    match named == known && !known.is_empty() {
        true => Ok(()),
        false => Err(format!("{releases}: the names in its code differ").into()),
    }
}

/// The facts of the runtime's object in an archive.
fn examine(archive: &[u8]) -> Result<Build, Box<dyn Error>> {
    let members = ArchiveFile::parse(archive)?;
    for member in members.members() {
        let object = object::File::parse(member?.data(archive)?)?;
        if object
            .symbol_by_name("cudaGetLastError")
            .is_some_and(|symbol| symbol.is_definition())
        {
            return of_object(&object);
        }
    }
    Err("no runtime inside".into())
}

fn of_object(object: &object::File<'_>) -> Result<Build, Box<dyn Error>> {
    let text = object.section_by_name(".text").ok_or("no .text")?;
    let mut bytes = text.data()?.to_vec();
    let mut open = vec![false; bytes.len()];
    // Distances within .text.
    let mut distances = vec![false; bytes.len()];
    for (offset, relocation) in text.relocations() {
        let RelocationFlags::Elf { r_type } = relocation.flags() else {
            return Err("not ELF".into());
        };
        let field = usize::try_from(offset)?;
        // The linker may also rewrite instructions around the field.
        let (before, after) = match r_type {
            R_X86_64_PC32 | R_X86_64_PLT32 => {
                let RelocationTarget::Symbol(index) = relocation.target() else {
                    return Err("a relocation without a symbol".into());
                };
                let symbol = object.symbol_by_index(index)?;
                if symbol.section_index() == Some(text.index()) {
                    // Within .text, every linker writes the same distance.
                    let value = symbol
                        .address()
                        .wrapping_add_signed(relocation.addend())
                        .wrapping_sub(offset);
                    let low = value.to_le_bytes();
                    bytes
                        .get_mut(field..field + 4)
                        .ok_or("a relocation outside")?
                        .copy_from_slice(&low[..4]);
                    distances[field..field + 4].fill(true);
                    continue;
                }
                (0, 4)
            }
            R_X86_64_GOTPCREL | R_X86_64_DTPOFF32 => (0, 4),
            R_X86_64_GOTPCRELX => (2, 4),
            R_X86_64_REX_GOTPCRELX => (3, 4),
            R_X86_64_TLSLD => (3, 12),
            other => return Err(format!("relocation {other} is not known").into()),
        };
        let range = field.saturating_sub(before)..(field + after).min(open.len());
        open[range].fill(true);
    }
    for (byte, open) in bytes.iter_mut().zip(&open) {
        if *open {
            *byte = 0;
        }
    }
    let mut entries = Vec::new();
    for symbol in object.symbols() {
        let inside = symbol.section_index() == Some(text.index());
        if inside && symbol.kind() == SymbolKind::Text && symbol.is_global() {
            let name = symbol.name()?.to_owned();
            if paragpu_redirect::is_public(name.as_bytes()) {
                entries.push((name, symbol.address()));
            }
        }
    }
    entries.sort();
    let starts = starts(object, text.index())?;
    build(&bytes, &open, &distances, entries, &starts)
}

/// The facts about code whose `open` bytes are already zero, and of which some are known to
/// be distances between functions.
fn build(
    bytes: &[u8],
    open: &[bool],
    distances: &[bool],
    entries: Vec<(String, u64)>,
    starts: &BTreeSet<u64>,
) -> Result<Build, Box<dyn Error>> {
    for (name, offset) in &entries {
        let next = starts.range(offset + 1..).next();
        if next.is_some_and(|next| next - offset < MIN_ROOM) {
            return Err(format!("{name} has no room for a jump").into());
        }
    }
    let (first, window) = window(starts)?;
    let registration = registration(&entries, starts).ok_or("no registration functions")?;
    let at = usize::try_from(registration.0)?;
    let length: u64 = registration.1.iter().map(|(_, length)| length).sum();
    let place = at..at + usize::try_from(length)?;
    let open_or_distance = open.iter().zip(distances).map(|(a, b)| *a || *b);
    Ok(Build {
        registration: Registration {
            functions: registration.1,
            code: bytes[place.clone()].to_vec(),
            open: open_or_distance.collect::<Vec<_>>()[place].to_vec(),
        },
        size: bytes.len(),
        hash: xxh3_64(bytes),
        first,
        window,
        entries,
        written: ranges(open),
    })
}

/// Where the registration functions begin, their names and lengths.
fn registration(
    entries: &[(String, u64)],
    starts: &BTreeSet<u64>,
) -> Option<(u64, Vec<(String, u64)>)> {
    let name_at = |start| {
        let mut names = entries.iter().filter(|(_, offset)| *offset == start);
        names.next().map(|(name, _)| name.clone())
    };
    let first = entries.iter().map(|(_, offset)| *offset).min()?;
    let mut starts = starts.range(first..).copied().peekable();
    let mut functions = Vec::new();
    while let Some(start) = starts.next()
        && let Some(name) = name_at(start)
    {
        functions.push((name, starts.peek()? - start));
    }
    Some((first, functions))
}

/// Releases, and the registration functions that they have in common.
type Group = (Vec<String>, Registration);

/// One description for all builds whose registration functions differ in distances alone.
fn registrations(builds: &[(Vec<String>, Build)]) -> Result<Vec<Group>, Box<dyn Error>> {
    let mut groups: Vec<Group> = Vec::new();
    for (releases, build) in builds {
        let other = &build.registration;
        let group = groups
            .iter_mut()
            .find(|(_, group)| group.functions == other.functions);
        let Some((all, group)) = group else {
            groups.push((releases.clone(), other.clone()));
            continue;
        };
        all.extend(releases.iter().cloned());
        for (open, other) in group.open.iter_mut().zip(&other.open) {
            *open |= other;
        }
        let differ = |at: &usize| !group.open[*at] && group.code[*at] != other.code[*at];
        let differing: Vec<usize> = (0..group.code.len()).filter(differ).collect();
        for at in differing {
            open_field(&mut group.open, at);
        }
    }
    for (releases, group) in &mut groups {
        for (byte, _) in group
            .code
            .iter_mut()
            .zip(&group.open)
            .filter(|(_, open)| **open)
        {
            *byte = 0;
        }
        // What differs are fields, not code.
        let open = group.open.iter().filter(|open| **open).count();
        if open > group.open.len() / 3 {
            return Err(format!("the registration functions of {releases:?} differ").into());
        }
    }
    Ok(groups)
}

/// Opens the field that contains a byte, of which the others may be equal by chance.
fn open_field(open: &mut [bool], at: usize) {
    let stop = (at + FIELD).min(open.len());
    open[(at + 1).saturating_sub(FIELD)..stop].fill(true);
}

/// The facts of a runtime that several shared libraries contain: names from the first one's
/// symbol table, and as written by the linker what differs between them. The block begins
/// with the first public function and ends behind the last one.
fn of_carriers(named: &[u8], others: &[Vec<u8>]) -> Result<Build, Box<dyn Error>> {
    let object = object::File::parse(named)?;
    let mut entries = BTreeSet::new();
    for symbol in object.symbols() {
        let name = symbol.name()?;
        let is_function = symbol.is_definition() && symbol.kind() == SymbolKind::Text;
        // Of the compiler, in every program with kernels.
        let is_stub =
            name.starts_with("__cudaRegisterLinkedBinary_") || name == "__cudaUnregisterBinaryUtil";
        if is_function && !is_stub && paragpu_redirect::is_public(name.as_bytes()) {
            entries.insert((name.to_owned(), symbol.address()));
        }
    }
    let addresses = || entries.iter().map(|&(_, address)| address);
    let first = addresses().min().ok_or("no symbols of a runtime")?;
    let last = addresses().max().ok_or("no symbols of a runtime")?;
    let all = linked_starts(&object)?;
    let relative = |starts: &[u64]| -> Vec<u64> {
        let base = starts.first().copied().unwrap_or_default();
        starts.iter().map(|start| start - base).collect()
    };
    let inside: Vec<u64> = all.range(first..=last).copied().collect();
    if inside.first() != Some(&first) {
        return Err("no function starts at the first symbol".into());
    }
    let end = *all.range(last + 1..).next().ok_or("nothing behind it")?;
    // The last function may be the runtime's last one, and anything may follow.
    let mut size = end - first;
    let mut theirs = Vec::new();
    for (number, other) in others.iter().enumerate() {
        let other = object::File::parse(other.as_slice())?;
        let starts: Vec<u64> = linked_starts(&other)?.into_iter().collect();
        let place = starts
            .windows(inside.len() + 1)
            .find(|place| relative(&place[..inside.len()]) == relative(&inside))
            .ok_or_else(|| format!("carrier {number} has another build"))?;
        size = size.min(place[inside.len()] - place[0]);
        theirs.push((other, place[0]));
    }
    let mut bytes = code(&object, first, first + size)?.to_vec();
    let mut open = vec![false; bytes.len()];
    for (other, start) in &theirs {
        let theirs = code(other, *start, start + size)?;
        for (at, _) in (bytes.iter().zip(theirs).enumerate()).filter(|(_, (a, b))| a != b) {
            open_field(&mut open, at);
        }
    }
    for (byte, _) in bytes.iter_mut().zip(&open).filter(|(_, open)| **open) {
        *byte = 0;
    }
    let entries = entries
        .iter()
        .map(|(name, address)| (name.clone(), address - first));
    let mut starts: BTreeSet<u64> = relative(&inside).into_iter().collect();
    // There are no relocations. Whatever may be a distance to a function counts as one.
    let mut distances = vec![false; bytes.len()];
    for (at, field) in bytes.windows(FIELD).enumerate() {
        let distance = i32::from_le_bytes(field.try_into()?);
        let place = u64::try_from(at + FIELD)?.wrapping_add_signed(distance.into());
        if starts.contains(&place) {
            distances[at..at + FIELD].fill(true);
        }
    }
    starts.insert(size);
    build(&bytes, &open, &distances, entries.collect(), &starts)
}

/// The code of a linked object from an address to another.
fn code<'a>(object: &object::File<'a>, start: u64, end: u64) -> Result<&'a [u8], Box<dyn Error>> {
    let text = object.section_by_name(".text").ok_or("no .text")?;
    let code = text.data_range(start, end - start)?;
    Ok(code.ok_or("its code is not in .text")?)
}

/// The addresses of a linked object's functions, from `.eh_frame_hdr`: four bytes of
/// encodings (as GNU's linker writes them), the distance to `.eh_frame`, their number, and
/// pairs of distances from the section.
fn linked_starts(object: &object::File<'_>) -> Result<BTreeSet<u64>, Box<dyn Error>> {
    let table = object.section_by_name(".eh_frame_hdr");
    let table = table.ok_or("no .eh_frame_hdr")?;
    let data = table.data()?;
    let head = data.get(..12).ok_or("a short .eh_frame_hdr")?;
    if head[..4] != [1, 0x1b, 3, 0x3b] {
        return Err("an unknown .eh_frame_hdr".into());
    }
    let pairs = data[12..].chunks_exact(8).map(|pair| {
        let distance = i32::from_le_bytes([pair[0], pair[1], pair[2], pair[3]]);
        table.address().wrapping_add_signed(distance.into())
    });
    Ok(pairs.collect())
}

/// Offsets in .text of the functions that .eh_frame describes.
fn starts(
    object: &object::File<'_>,
    text: object::SectionIndex,
) -> Result<BTreeSet<u64>, Box<dyn Error>> {
    let frames = object.section_by_name(".eh_frame").ok_or("no .eh_frame")?;
    let data = frames.data()?;
    let word = |at: usize| -> Option<u32> {
        let bytes = data.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    // The position of the function's address in each frame description.
    let mut places = BTreeSet::new();
    let mut at = 0;
    while let Some(length) = word(at).filter(|&length| length != 0) {
        if word(at + 4).is_some_and(|owner| owner != 0) {
            places.insert(u64::try_from(at + 8)?);
        }
        at += 4 + usize::try_from(length)?;
    }
    let mut starts = BTreeSet::new();
    for (offset, relocation) in frames.relocations() {
        let RelocationTarget::Symbol(index) = relocation.target() else {
            continue;
        };
        let symbol = object.symbol_by_index(index)?;
        if places.contains(&offset) && symbol.section_index() == Some(text) {
            starts.insert(symbol.address().wrapping_add_signed(relocation.addend()));
        }
    }
    Ok(starts)
}

/// The first run of distances that is unique and has enough different values.
fn window(starts: &BTreeSet<u64>) -> Result<(u64, Vec<u64>), Box<dyn Error>> {
    let starts: Vec<u64> = starts.iter().copied().collect();
    let distances: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (index, run) in distances.windows(WINDOW).enumerate() {
        let different: BTreeSet<_> = run.iter().collect();
        let times = distances
            .windows(WINDOW)
            .filter(|other| *other == run)
            .count();
        if different.len() >= WINDOW * 2 / 3 && times == 1 {
            return Ok((starts[index], run.to_vec()));
        }
    }
    Err("no run of distances identifies it".into())
}

/// The ranges of `true`.
fn ranges(open: &[bool]) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (at, _) in open.iter().enumerate().filter(|(_, open)| **open) {
        match ranges.last_mut() {
            Some((start, length)) if *start + *length == at => *length += 1,
            _ => ranges.push((at, 1)),
        }
    }
    ranges
}

fn write(builds: &[(Vec<String>, Build)]) -> Result<String, Box<dyn Error>> {
    let names: BTreeSet<&str> = builds
        .iter()
        .flat_map(|(_, build)| build.entries.iter().map(|(name, _)| name.as_str()))
        .collect();
    let names: Vec<&str> = names.into_iter().collect();
    let mut text = format!("paragpu-runtimes 2\nnames {}\n", names.join(" "));
    for (releases, build) in builds {
        writeln!(text, "build {}", releases.join(" "))?;
        writeln!(text, "block {:x} {:x}", build.size, build.hash)?;
        window_line(&mut text, build.first, build.window.iter().copied())?;
        entries_line(&mut text, &names, &build.entries)?;
        written_line(&mut text, &build.written)?;
    }
    for (releases, group) in registrations(builds)? {
        writeln!(text, "registration {}", releases.join(" "))?;
        writeln!(
            text,
            "block {:x} {:x}",
            group.code.len(),
            xxh3_64(&group.code)
        )?;
        let lengths = group.functions.iter().map(|(_, length)| *length);
        window_line(&mut text, 0, lengths)?;
        let mut offset = 0;
        let mut entries = Vec::new();
        for (name, length) in group.functions {
            entries.push((name, offset));
            offset += length;
        }
        entries.sort();
        entries_line(&mut text, &names, &entries)?;
        written_line(&mut text, &ranges(&group.open))?;
    }
    let hash = xxh3_64(text.as_bytes());
    writeln!(text, "end {hash:x}")?;
    Ok(text)
}

fn window_line(
    text: &mut String,
    first: u64,
    distances: impl Iterator<Item = u64>,
) -> Result<(), Box<dyn Error>> {
    write!(text, "window {first:x}")?;
    for distance in distances {
        write!(text, " {distance:x}")?;
    }
    text.push('\n');
    Ok(())
}

/// Names as numbers of names skipped, so `entries` are sorted.
fn entries_line(
    text: &mut String,
    names: &[&str],
    entries: &[(String, u64)],
) -> Result<(), Box<dyn Error>> {
    text.push_str("entries ");
    let mut next = 0;
    for (name, offset) in entries {
        let index = names
            .binary_search(&name.as_str())
            .map_err(|_| "a name is missing")?;
        number(text, index - next)?;
        number(text, usize::try_from(*offset)?)?;
        next = index + 1;
    }
    text.push('\n');
    Ok(())
}

fn written_line(text: &mut String, written: &[(usize, usize)]) -> Result<(), Box<dyn Error>> {
    text.push_str("written ");
    let mut position = 0;
    for &(start, length) in written {
        number(text, start - position)?;
        number(text, length)?;
        position = start + length;
    }
    text.push('\n');
    Ok(())
}

fn number(text: &mut String, number: usize) -> Result<(), Box<dyn Error>> {
    text.extend(encode([u32::try_from(number)?]));
    Ok(())
}
