//! Facts about the known builds of the static runtime.
//!
//! `make fingerprints` creates `runtimes.txt` from NVIDIA's wheels, and of releases that
//! they lack from libraries that contain them. It contains only facts,
//! and is parsed in place, without allocation:
//!
//! ```text
//! paragpu-runtimes 2
//! names cudaA cudaB …                sorted
//! build 13.0.48 13.0.88 13.0.96      releases that share one build
//! block SIZE HASH                    of .text or its public functions, in hexadecimal
//! window OFFSET DISTANCE × 24        function starts, in hexadecimal
//! entries CODE                       for each entry: names skipped, offset
//! written CODE                       bytes the linker writes: gap, length
//! registration 13.0.48 … 13.5.37     releases whose registration functions have equal code
//! block, window, entries, written    of these functions alone, less distances to others
//! end HASH                           of everything before
//! ```
//!
//! The registration functions are those that the compiler's code calls, such as
//! `__cudaRegisterFatBinary`. They come first among the public ones, one after another.
//!
//! A `CODE` is a sequence of numbers, five bits per character, least significant first; the
//! sixth bit of a character means that another one follows.

use core::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// Number of distances between function starts that identify a build.
pub const WINDOW: usize = 24;
/// Fewest of them: there are more registration functions.
const MIN_WINDOW: usize = 12;
/// Maximum number of builds in a file.
const MAX_BUILDS: usize = 64;
/// The first line of a file of this version.
const TITLE: &str = "paragpu-runtimes 2";
/// The character for zero.
const ZERO: u8 = b'0';

/// The facts that are compiled in.
pub const TEXT: &str = include_str!("runtimes.txt");

/// Why a file is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// Another version, or another kind of file.
    Version,
    /// The hash at its end does not match its content.
    Damaged,
    /// A malformed line.
    Malformed,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Version => "the facts about runtimes are of another version",
            Self::Damaged => "the facts about runtimes are damaged",
            Self::Malformed => "the facts about runtimes are malformed",
        })
    }
}

impl core::error::Error for Error {}

/// The parsed facts.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    names: &'a str,
    builds: [Option<Build<'a>>; MAX_BUILDS],
}

/// The extent of what a [`Build`] describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Whole,
    Registration,
}

/// One build of the static runtime, or of its registration functions.
#[derive(Debug, Clone, Copy)]
pub struct Build<'a> {
    extent: Extent,
    /// The releases that contain it.
    pub releases: &'a str,
    /// Size of its `.text` in bytes.
    pub size: u32,
    /// Hash of these bytes, with zeros for those that the linker writes.
    pub hash: u64,
    /// Offset of the window's first function.
    pub first: u32,
    /// Distances of the functions from there, and their number.
    window: [u32; WINDOW],
    functions: usize,
    /// As [`anchor`](Self::anchor) gives it.
    anchor: (u32, [u32; 2]),
    entries: &'a str,
    written: &'a str,
}

/// The value on the next line, which must begin with `keyword`.
fn value_of<'a>(lines: &mut core::str::Lines<'a>, keyword: &str) -> Result<&'a str, Error> {
    lines
        .next()
        .and_then(|line| line.strip_prefix(keyword))
        .and_then(|rest| rest.strip_prefix(' '))
        .ok_or(Error::Malformed)
}

fn hexadecimal(word: Option<&str>) -> Result<u64, Error> {
    let word = word.ok_or(Error::Malformed)?;
    u64::from_str_radix(word, 16).map_err(|_| Error::Malformed)
}

fn small(word: Option<&str>) -> Result<u32, Error> {
    u32::try_from(hexadecimal(word)?).map_err(|_| Error::Malformed)
}

impl<'a> Facts<'a> {
    /// Parses a file.
    pub fn parse(text: &'a str) -> Result<Self, Error> {
        if text.lines().next() != Some(TITLE) {
            return Err(Error::Version);
        }
        let (content, end) = text.rsplit_once("end ").ok_or(Error::Damaged)?;
        if hexadecimal(Some(end.trim_end())) != Ok(xxh3_64(content.as_bytes())) {
            return Err(Error::Damaged);
        }
        let mut lines = content.lines();
        lines.next();
        let names = value_of(&mut lines, "names")?;
        let mut facts = Self {
            names,
            builds: [None; MAX_BUILDS],
        };
        let mut places = facts.builds.iter_mut();
        while let Some(head) = lines.next() {
            let (extent, releases) = match head.split_once(' ') {
                Some(("build", releases)) => (Extent::Whole, releases),
                Some(("registration", releases)) => (Extent::Registration, releases),
                _ => return Err(Error::Malformed),
            };
            let build = Build::parse(extent, releases, &mut lines)?;
            *places.next().ok_or(Error::Malformed)? = Some(build);
        }
        Ok(facts)
    }

    /// The builds.
    pub fn builds(&self) -> impl Iterator<Item = &Build<'a>> + Clone {
        self.all(Extent::Whole)
    }

    /// The builds of the registration functions.
    pub fn registrations(&self) -> impl Iterator<Item = &Build<'a>> + Clone {
        self.all(Extent::Registration)
    }

    fn all(&self, extent: Extent) -> impl Iterator<Item = &Build<'a>> + Clone {
        let builds = self.builds.iter().flatten();
        builds.filter(move |build| build.extent == extent)
    }

    /// Whether some release exports a function of this name.
    #[must_use]
    pub fn knows(&self, name: &[u8]) -> bool {
        // The list is sorted: bisect it by bytes.
        let names = self.names.as_bytes();
        let (mut low, mut high) = (0, names.len());
        while low < high {
            let middle = low.midpoint(high);
            let start = names
                .get(low..middle)
                .and_then(|part| part.iter().rposition(|&byte| byte == b' '))
                .map_or(low, |space| low + space + 1);
            let rest = names.get(start..high).unwrap_or_default();
            let word = rest.split(|&byte| byte == b' ').next().unwrap_or_default();
            match word.cmp(name) {
                core::cmp::Ordering::Equal => return true,
                core::cmp::Ordering::Less => low = start + word.len() + 1,
                core::cmp::Ordering::Greater => high = start,
            }
        }
        false
    }

    /// The public entries of a build: name and offset in its `.text`.
    pub fn entries(&self, build: &Build<'a>) -> impl Iterator<Item = (&'a str, u32)> + use<'a> {
        let size = build.size;
        let mut names = self.names.split(' ');
        let mut numbers = Numbers(build.entries.as_bytes());
        core::iter::from_fn(move || {
            let skipped = numbers.next()?;
            let offset = numbers.next()?;
            let name = names.nth(usize::try_from(skipped).ok()?)?;
            Some((name, offset))
        })
        .filter(move |&(_, offset)| offset < size)
    }
}

impl<'a> Build<'a> {
    fn parse(
        extent: Extent,
        releases: &'a str,
        lines: &mut core::str::Lines<'a>,
    ) -> Result<Self, Error> {
        let mut block = value_of(lines, "block")?.split(' ');
        let mut window = value_of(lines, "window")?.split(' ');
        let mut build = Self {
            extent,
            releases,
            size: small(block.next())?,
            hash: hexadecimal(block.next())?,
            first: small(window.next())?,
            window: [0; WINDOW],
            functions: 0,
            anchor: (0, [0; 2]),
            entries: "",
            written: "",
        };
        for distance in window {
            let place = build.window.get_mut(build.functions);
            *place.ok_or(Error::Malformed)? = small(Some(distance))?;
            build.functions += 1;
        }
        if build.functions < MIN_WINDOW {
            return Err(Error::Malformed);
        }
        let pairs = build.window().windows(2).filter_map(<[u32]>::first_chunk);
        if let Some((skipped, pair)) = (0u32..).zip(pairs).max_by_key(|(_, [large, _])| *large) {
            build.anchor = (skipped, *pair);
        }
        build.entries = value_of(lines, "entries")?;
        build.written = value_of(lines, "written")?;
        Ok(build)
    }

    /// The distances between function starts that identify it.
    #[must_use]
    pub fn window(&self) -> &[u32] {
        self.window.get(..self.functions).unwrap_or_default()
    }

    /// The largest of these distances and the one behind it, and how many are before them. Most
    /// functions are short, so few objects have these two by chance.
    #[must_use]
    pub fn anchor(&self) -> (u32, [u32; 2]) {
        self.anchor
    }

    /// The oldest release that contains it.
    #[must_use]
    pub fn oldest(&self) -> &'a str {
        self.releases.split(' ').next().unwrap_or(self.releases)
    }

    /// The newest release that contains it.
    #[must_use]
    pub fn newest(&self) -> &'a str {
        self.releases.rsplit(' ').next().unwrap_or(self.releases)
    }

    /// The ranges that the linker writes: offset and length, ascending.
    pub fn written(&self) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let mut numbers = Numbers(self.written.as_bytes());
        let mut position = 0u32;
        core::iter::from_fn(move || {
            let start = position.checked_add(numbers.next()?)?;
            let length = numbers.next()?;
            position = start.checked_add(length)?;
            Some((start, length))
        })
    }
}

/// The numbers of a `CODE`; ends at the first malformed one.
struct Numbers<'a>(&'a [u8]);

impl Iterator for Numbers<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let mut number = 0u32;
        for shift in (0..32).step_by(5) {
            let (&character, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = character.checked_sub(ZERO).filter(|&bits| bits < 64)?;
            let part = u32::from(bits & 31);
            if part.leading_zeros() < shift {
                return None;
            }
            number |= part << shift;
            if bits & 32 == 0 {
                return Some(number);
            }
        }
        None
    }
}

/// Encodes numbers as a `CODE`: its characters.
pub fn encode(numbers: impl IntoIterator<Item = u32>) -> impl Iterator<Item = char> {
    numbers.into_iter().flat_map(|number| {
        let mut left = Some(number);
        core::iter::from_fn(move || {
            let number = left?;
            let bits = (number & 31).to_le_bytes()[0];
            left = Some(number >> 5).filter(|more| *more != 0);
            let more = u8::from(left.is_some()) << 5;
            Some(char::from(ZERO + (bits | more)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(numbers: &[u32]) -> String {
        encode(numbers.iter().copied()).collect()
    }

    /// A text with one build of three entries.
    fn sample() -> String {
        let window = " 10".repeat(WINDOW);
        let content = format!(
            "{TITLE}\nnames __cudaA cudaB cudaC cudaD\nbuild 13.0.1 13.0.2\n\
             block 200 abc\nwindow 40{window}\nentries {}\nwritten {}\n",
            code(&[0, 0x30, 1, 0x100, 0, 0x50]),
            code(&[4, 4, 100, 8]),
        );
        let hash = xxh3_64(content.as_bytes());
        format!("{content}end {hash:x}\n")
    }

    #[test]
    fn a_text_is_read_as_it_was_written() {
        let text = sample();
        let facts = Facts::parse(&text).expect("sound");
        let build = facts.builds().next().expect("one build");
        assert_eq!(
            (build.newest(), build.size, build.hash),
            ("13.0.2", 0x200, 0xabc)
        );
        assert_eq!((build.first, build.window()), (0x40, &[16; WINDOW][..]));
        let entries: Vec<_> = facts.entries(build).collect();
        assert_eq!(
            entries,
            [("__cudaA", 0x30), ("cudaC", 0x100), ("cudaD", 0x50)]
        );
        assert_eq!(build.written().collect::<Vec<_>>(), [(4, 4), (108, 8)]);
        for name in ["__cudaA", "cudaB", "cudaC", "cudaD"] {
            assert!(facts.knows(name.as_bytes()), "{name}");
        }
        for name in ["", "cuda", "cudaBB", "zz", "A"] {
            assert!(!facts.knows(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn damage_and_other_versions_are_refused() {
        let text = sample();
        assert_eq!(
            Facts::parse(&text.replace("runtimes 2", "runtimes 1")).err(),
            Some(Error::Version)
        );
        assert_eq!(Facts::parse("").err(), Some(Error::Version));
        assert_eq!(
            Facts::parse(&text.replace("cudaB", "cudaX")).err(),
            Some(Error::Damaged)
        );
        for cut in 0..text.len() - 1 {
            if let Some(part) = text.get(..cut) {
                assert!(Facts::parse(part).is_err(), "cut at {cut}");
            }
        }
        // A sound hash over lines that are not as they should be.
        let content = format!("{TITLE}\nnames a\nbuild 1\nblock zz 1\n");
        let text = format!("{content}end {:x}\n", xxh3_64(content.as_bytes()));
        assert_eq!(Facts::parse(&text).err(), Some(Error::Malformed));
    }

    #[test]
    fn the_facts_compiled_in_are_sound() {
        let facts = Facts::parse(TEXT).expect("sound");
        let mut builds = 0;
        for build in facts.builds() {
            builds += 1;
            let mut entries: Vec<_> = facts.entries(build).collect();
            assert!(entries.len() > 390, "{}", build.releases);
            assert!(entries.iter().all(|(name, _)| facts.knows(name.as_bytes())));
            entries.sort_by_key(|&(_, offset)| offset);
            for pair in entries.windows(2) {
                assert!(pair[1].1 - pair[0].1 >= 16, "{pair:?} overlap");
            }
            let last = build.written().last().expect("relocated bytes");
            assert!(last.0 + last.1 <= build.size);
        }
        assert!(builds >= 18, "{builds} builds");
        for minor in [0, 1, 2, 3, 4, 5, 6, 8, 9] {
            let release = format!("12.{minor}");
            let mut builds = facts.builds();
            assert!(
                builds.any(|build| build.releases.starts_with(&release)),
                "{release}"
            );
        }
    }

    /// Where the runtime's thread-local data begins depends on the thread-local data of what
    /// it is linked into. Three instructions hold that offset, in 12.4 according to the
    /// relocations of its archive.
    #[test]
    fn offsets_of_thread_local_data_are_the_linkers() {
        let facts = Facts::parse(TEXT).expect("sound");
        let fields = [
            ("12.1.105", 0x29ff7),
            ("12.4", 0x2b39f),
            ("12.5", 0x2b47f),
            ("12.6", 0x2b63f),
        ];
        for (release, first) in fields {
            let build = facts.builds().find(|build| build.releases == release);
            let written: Vec<_> = build.expect(release).written().collect();
            for field in [first, first + 10, first + 33] {
                let is_within = |&(start, length): &(u32, u32)| {
                    (start..start + length).contains(&field)
                        && (start..start + length).contains(&(field + 3))
                };
                assert!(written.iter().any(is_within), "{release}: {field:x}");
            }
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back(numbers in proptest::collection::vec(any::<u32>(), 0..40)) {
            let text = code(&numbers);
            prop_assert_eq!(Numbers(text.as_bytes()).collect::<Vec<_>>(), numbers);
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Numbers(&bytes).count();
        }
    }
}
