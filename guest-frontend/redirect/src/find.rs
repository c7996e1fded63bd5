//! Finds a stripped runtime by its fingerprint.
//!
//! A linker keeps the static runtime's code in one piece. `.eh_frame_hdr`
//! lists the start of every function in order, also after `strip`. A run of [`WINDOW`]
//! distances gives the possible position of a build, and the hash of the bytes there
//! confirms it. Only an equal hash counts. Of a run, the two distances that are rare are
//! looked for first ([`Build::anchor`]): a program waits for this at its start.

use xxhash_rust::xxh3::Xxh3;

use crate::facts::{Build, WINDOW};
use crate::image::{FunctionStarts, Image, Raw};

/// Entries of the table that are read at a time.
const CHUNK: usize = 512;

/// A place where a build's functions start as they should.
#[derive(Debug, Clone, Copy)]
pub struct Match<'a> {
    /// The build.
    pub build: Build<'a>,
    /// The address of its code.
    pub block: u64,
    /// Where its window begins in the table of function starts.
    pub index: u32,
    /// Whether every byte is as it should be. If not, it is another build that
    /// is not known.
    pub exact: bool,
}

/// What every build of the runtime takes from the C library, and few others
/// do. An object without these carries none.
const IMPORTS: [&[u8]; 2] = [b"get_nprocs", b"dlsym"];

/// Whether an object may carry a runtime: cheap, and never wrongly no for a
/// build that is known.
pub fn may_carry<R: Raw>(image: &Image<R>) -> bool {
    image
        .dynamic()
        .is_some_and(|dynamic| dynamic.imports(image, IMPORTS))
}

/// Calls `found` for each place of one of these builds.
pub fn search<'a: 'f, 'f, R: Raw>(
    image: &Image<R>,
    builds: impl Iterator<Item = &'f Build<'a>> + Clone,
    mut found: impl FnMut(Match<'a>),
) {
    let Some(starts) = image.starts() else {
        return;
    };
    let anchors = AnchorFilter::new(builds.clone());
    let mut bytes = [0u8; CHUNK * 8];
    let mut index = 0;
    // Starts of the two functions before the current one.
    let (mut older, mut old) = (0i32, 0i32);
    loop {
        let count = starts.read(image, index, &mut bytes);
        if count == 0 {
            return;
        }
        for entry in bytes.chunks_exact(8).take(count) {
            let Some(&start) = entry.first_chunk::<4>() else {
                return;
            };
            let start = i32::from_le_bytes(start);
            let first = old.wrapping_sub(older).cast_unsigned();
            let second = start.wrapping_sub(old).cast_unsigned();
            (older, old) = (old, start);
            if anchors.may_be([first, second]) {
                for build in builds.clone() {
                    let (skipped, anchor) = build.anchor();
                    if anchor == [first, second]
                        && let Some(at) = index.checked_sub(2 + skipped)
                        && let Some(block) = locate(image, &starts, at, build)
                    {
                        let exact = hash(image, block, build) == Some(build.hash);
                        found(Match {
                            build: *build,
                            block,
                            index: at,
                            exact,
                        });
                    }
                }
            }
            index = index.saturating_add(1);
        }
    }
}

/// The anchors of builds, as a filter.
struct AnchorFilter([u64; 16]);

impl AnchorFilter {
    fn new<'a: 'f, 'f>(builds: impl Iterator<Item = &'f Build<'a>>) -> Self {
        let mut anchors = Self([0; 16]);
        for build in builds {
            let (_, anchor) = build.anchor();
            let (word, bit) = Self::place(anchor);
            if let Some(word) = anchors.0.get_mut(word) {
                *word |= bit;
            }
        }
        anchors
    }

    /// Which word a pair of distances has, and which bit of it.
    fn place([first, second]: [u32; 2]) -> (usize, u64) {
        let mixed = (first ^ second.rotate_left(13)).wrapping_mul(0x9e37_79b9);
        let [.., high] = mixed.to_le_bytes();
        (usize::from(high >> 4), 1 << (mixed >> 22 & 63))
    }

    fn may_be(&self, distances: [u32; 2]) -> bool {
        let (word, bit) = Self::place(distances);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
}

/// Where the build's code starts, if its window is at this index of the table.
fn locate<R: Raw>(
    image: &Image<R>,
    starts: &FunctionStarts,
    at: u32,
    build: &Build<'_>,
) -> Option<u64> {
    let first = starts.start(image, at)?;
    let mut last = first;
    for (step, &distance) in (1u32..).zip(build.window()) {
        let next = starts.start(image, at.checked_add(step)?)?;
        if next.wrapping_sub(last) != u64::from(distance) {
            return None;
        }
        last = next;
    }
    let block = first.checked_sub(u64::from(build.first))?;
    image.is_code(block, u64::from(build.size)).then_some(block)
}

/// The hash of the code at an address, with what the linker writes as zero.
pub fn hash<R: Raw>(image: &Image<R>, block: u64, build: &Build<'_>) -> Option<u64> {
    let mut hasher = Xxh3::new();
    let mut chunk = [0u8; 4096];
    let mut written = build.written();
    let mut range = written.next();
    let mut position = 0u32;
    while position < build.size {
        let length = (build.size - position).min(chunk.len().try_into().unwrap_or(u32::MAX));
        let bytes = chunk.get_mut(..usize::try_from(length).ok()?)?;
        if !image.read(block.checked_add(u64::from(position))?, bytes) {
            return None;
        }
        let end = position + length;
        while let Some((start, size)) = range {
            let stop = start.checked_add(size)?;
            if start >= end {
                break;
            }
            let from = usize::try_from(start.max(position) - position).ok()?;
            let to = usize::try_from(stop.min(end).checked_sub(position)?).ok()?;
            bytes.get_mut(from..to)?.fill(0);
            if stop > end {
                break;
            }
            range = written.next();
        }
        hasher.update(bytes);
        position = end;
    }
    Some(hasher.digest())
}

const _: () = assert!(WINDOW > 2);
