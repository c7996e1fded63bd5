//! Memory into which large payloads are received without an extra copy.

use paragpu_protocol::frame::FrameHeader;

/// Who knows where the payloads of large frames go.
///
/// A receiver asks it while a frame is still on its way, so what it is told of
/// the frame is all that is known: the frame may never become whole.
pub trait Landing {
    /// How many of the payload's first bytes say where the others go; `None`
    /// where the frame goes to no memory that is known.
    fn head(&self, header: &FrameHeader) -> Option<usize>;

    /// Has `read` fill memory where the frame's bytes go from the `at`-th
    /// after the head on. `read` may fill less than it is given, and says how
    /// much. False if there is no such memory: before the first byte the
    /// frame is received like any other, later its bytes are dropped.
    fn land(
        &mut self,
        header: &FrameHeader,
        head: &[u8],
        at: usize,
        read: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool;

    /// The first `count` bytes that landed of the frame that is on its way.
    fn landed(&self, count: usize) -> &[u8];
}
