//! The state of a link in progress.

use parking_lot::Mutex;

use super::image::Options;

/// A link in progress.
#[derive(Debug)]
pub struct Linking {
    pub(super) options: Options,
    pub(super) work: Mutex<Work>,
}

// SAFETY: the options contain pointers to the program's buffers. The program leaves them
// to the link until cuLinkDestroy, and may continue the link in any thread.
unsafe impl Send for Linking {}
// SAFETY: as above; they are written to under the lock.
unsafe impl Sync for Linking {}

#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) inputs: Vec<Input>,
    /// The result, whose address stays the same.
    pub(super) image: Option<Box<[u8]>>,
}

#[derive(Debug)]
pub(super) struct Input {
    pub(super) kind: u32,
    pub(super) name: String,
    pub(super) options: Vec<(u32, u32)>,
    pub(super) image: Vec<u8>,
}
