//! Memory into which large payloads are received without an extra copy.

use paragpu_protocol::frame::FrameHeader;

/// Knows the destination of the payloads of large frames.
///
/// A receiver asks while the frame is still arriving, so only the given parts of the frame
/// are known, and the rest may never arrive.
pub trait Landing {
    /// The number of bytes at the start of the payload, its head, that determine the
    /// destination of the rest. `None` if the frame has no known destination.
    fn head(&self, header: &FrameHeader) -> Option<usize>;

    /// Calls `read` with the destination of the bytes from offset `at` after the head.
    /// `read` may fill only part of it, and returns the number of bytes. Returns false
    /// without a destination: the frame is then received like any other if `at` is 0, else
    /// its further bytes are dropped.
    fn land(
        &mut self,
        header: &FrameHeader,
        head: &[u8],
        at: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool;

    /// The first `count` bytes that have landed of the frame that is still arriving.
    fn landed(&self, count: usize) -> &[u8];
}
