//! Sends pinned memory to a host that took over the session without its window. That
//! memory is zero there until the guest has sent the contents. And shares pinned memory
//! with a host over whose connection a session gets a window.

use std::sync::Arc;

use paragpu_communicator::{Error, Window};

/// Bytes in one frame.
const PIECE: usize = 128 << 10;

/// Bytes that a host lacks.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    /// Address of the first, for program and device.
    address: u64,
    bytes: Arc<Vec<u8>>,
}

impl Content {
    /// The bytes from `address` on.
    pub(crate) fn new(address: u64, bytes: Arc<Vec<u8>>) -> Self {
        Self { address, bytes }
    }

    /// The parts to send to a host that has zeros there: addresses and bytes.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let begins = (self.address..).step_by(PIECE);
        let pieces = begins.zip(self.bytes.chunks(PIECE));
        pieces.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0))
    }
}

/// A session's pinned memory, as seen by its link.
pub(crate) trait PinnedMemory: Send + Sync {
    /// The offset of the window in its region, if the session has one.
    fn window(&self) -> Option<u64>;

    /// The offset from which there is room for another one, if there is.
    fn room(&self) -> Option<u64>;

    /// The contents that a host lacks, until one has received them.
    fn missing(&self) -> Vec<Content>;

    /// Leaves the window, if the session has one. The next host [lacks](Self::missing) its
    /// contents.
    ///
    /// # Errors
    /// If the window's memory is gone.
    fn leave_window(&self) -> Result<(), Error>;

    /// Records that the host has received the contents.
    fn settle_contents(&self);

    /// Adopts the window of a new connection, if the session has none: memory that is pinned
    /// from now on lies there, and what was pinned before follows.
    fn adopt_window(self: Arc<Self>, window: Arc<Window>);
}
