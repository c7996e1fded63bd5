//! Objects on disk, and the runtimes inside them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use paragpu_redirect::image::Raw;
use serde::Serialize;

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

impl Raw for OnDisk {
    fn read(&self, position: u64, into: &mut [u8]) -> bool {
        self.0.read_exact_at(into, position).is_ok()
    }
}
