//! Updates memory that guest and worker share when the connection changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paragpu_communicator::{Error as TravelError, Receiver, Sender as _, Wait, Window};
use paragpu_protocol::codec::Reader;
use paragpu_protocol::frame::{CONTROL, Control};

use crate::error::{Fault, SessionEnd};
use crate::session::Session;
use crate::session::host_memory::Pinned;

/// Maximum silence of a guest that sends the contents of pinned memory.
const SILENCE: Duration = Duration::from_secs(60);

impl Session {
    /// Adopts a window at an offset of the region. `since`: the number of calls received, if the
    /// guest may not know it.
    pub(crate) fn adopt_window(&mut self, window: &Arc<Window>, offset: u64, since: Option<u64>) {
        self.copies.tokens.adopt(window);
        self.host.adopt_window(window, offset, since);
    }

    /// Ends copies from and to guest memory, and refuses later ones: the channel of
    /// their page lists may soon belong to another process.
    pub(crate) fn leave_guest_memory(&mut self) {
        self.host.pages().adopt(None);
        self.replies.completion.leave_guest_memory();
    }

    /// Receives the contents of pinned memory from a reconnected guest, if they are
    /// missing here.
    pub(crate) fn await_pinned(&mut self, receiver: &mut dyn Receiver) -> Result<(), SessionEnd> {
        let kind = Control::Pinned.kind();
        while self.host.pinned() == Pinned::Guest {
            let deadline = Instant::now() + SILENCE;
            let Some(frame) = receiver.receive(Wait::Until(deadline))? else {
                if Instant::now() < deadline {
                    continue;
                }
                return Err(TravelError::Closed.into());
            };
            if frame.header.kind != kind {
                if frame.header.kind < CONTROL {
                    return Err(SessionEnd::Kind(frame.header.kind));
                }
                self.take(frame.header, frame.payload)?;
                continue;
            }
            let mut reader = Reader::new(frame.payload);
            let address: u64 = reader.field().map_err(|source| SessionEnd::Malformed {
                name: "Pinned",
                number: kind,
                source,
            })?;
            let bytes = reader.bytes(reader.remaining()).unwrap_or_default();
            if bytes.is_empty() {
                self.host.set_pinned(Pinned::Window);
                self.replies.link.send(kind, 0, &[])?;
                self.replies.link.sender().flush()?;
            } else {
                self.host
                    .write_shadow(address, bytes)
                    .map_err(|fault| match fault {
                        Fault::End(end) => end,
                        _ => SessionEnd::Pinned(address),
                    })?;
            }
        }
        Ok(())
    }
}
