//! Objects on disk, and the runtimes inside them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use memchr::memmem;
use paragpu_redirect::image::Raw;
use serde::Serialize;

/// Texts that every build of the runtime contains, and nothing else together.
const MARKS: [&[u8]; 2] = [b"/cudart.shm.%x.%x.%llx\0", b"cudaErrorCudartUnloading\0"];
/// Bytes of a file that are searched at a time.
const CHUNK: usize = 1 << 20;

/// A runtime inside an object.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Carried {
    pub object: PathBuf,
    /// "static", or "shared" for NVIDIA's library.
    pub kind: &'static str,
    /// Releases of the build; empty if it is not known.
    pub releases: Vec<String>,
    /// The library of paragpu that serves it, if there is one.
    pub served_by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    pub detail: String,
}

/// An object in a file. Only the needed parts are read, because libraries are large.
#[derive(Debug)]
pub struct OnDisk(pub File);

impl OnDisk {
    /// Whether it contains the texts of a runtime, of whatever build.
    pub fn is_marked(&self) -> bool {
        let mut missing = MARKS.to_vec();
        // Texts that begin in one chunk and end in the next one are found in the next one.
        let overlap = MARKS.iter().map(|mark| mark.len()).max().unwrap_or(0);
        let mut bytes = vec![0; CHUNK];
        let mut kept = 0;
        let mut position = 0;
        while !missing.is_empty() {
            let Some(free) = bytes.get_mut(kept..) else {
                return false;
            };
            let Ok(count @ 1..) = self.0.read_at(free, position) else {
                return false;
            };
            position = position.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
            let end = kept + count;
            let filled = bytes.get(..end).unwrap_or_default();
            missing.retain(|mark| memmem::find(filled, mark).is_none());
            kept = overlap.min(end);
            bytes.copy_within(end - kept..end, 0);
        }
        true
    }
}

impl Raw for OnDisk {
    fn read(&self, position: u64, into: &mut [u8]) -> bool {
        self.0.read_exact_at(into, position).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn marked(parts: &[&[u8]]) -> bool {
        let mut file = tempfile::tempfile().expect("a file");
        for part in parts {
            file.write_all(part).expect("it is written");
        }
        OnDisk(file).is_marked()
    }

    #[test]
    fn both_texts_mark_a_runtime_wherever_they_are() {
        let gap = vec![0x5a; CHUNK - 7];
        assert!(marked(&[MARKS[0], MARKS[1]]));
        assert!(marked(&[&gap, MARKS[1], &gap, MARKS[0]]));
        assert!(marked(&[b"x", MARKS[0], &gap, &gap, b"y", MARKS[1], b"z"]));
        for alone in MARKS {
            assert!(!marked(&[&gap, alone, &gap]));
        }
        assert!(!marked(&[]));
        assert!(!marked(&[
            &gap,
            &MARKS[0][..9],
            b"..",
            &MARKS[0][9..],
            MARKS[1]
        ]));
    }
}
