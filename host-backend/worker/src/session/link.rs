//! The session's end of the guest's connection: sending, and the state that survives a
//! lost connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paragpu_communicator::{Connection, Error as TravelError, Sender};
use paragpu_protocol::frame::{Control, MAX_PAYLOAD, REPLY};
use paragpu_protocol::reply::encode_failed;
use paragpu_protocol::status::Status;

use super::host_memory::Sharing;
use super::sender::DurableSender;
use crate::error::SessionEnd;
use crate::staging::Lent;
use crate::statistics::Statistics;

/// Data of at least this size stays in its slot until the guest has received it. The
/// guest acknowledges every
/// [`ACKNOWLEDGE_EVERY`](paragpu_protocol::frame::ACKNOWLEDGE_EVERY) bytes, so slots
/// become free again.
pub(crate) const LENT: u64 = 64 * 1024;

/// The addressee of a call's reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    /// The guest thread's slot; 0 if the call is posted.
    pub(crate) slot: u16,
    /// The call's number.
    pub(crate) call: u16,
}

/// Provides a session with new connections.
pub trait Reconnect: Send {
    /// Waits for the guest to reconnect after its connection was `lost`, and sends
    /// the welcome. `taken` is the sequence number of the last call received. `None` if
    /// the guest is gone.
    fn next(&mut self, lost: &TravelError, taken: u64, finds: Finds<'_>) -> Option<Reconnected>;

    /// Whether the guest has already opened another connection.
    fn has_reconnected(&self) -> bool {
        false
    }

    /// Waits for another connection, or for the guest's end, for at most `patience`. Returns true
    /// if neither came, and [`next`](Self::next) would wait for longer.
    fn stays_away(&self, lost: &TravelError, patience: Duration) -> bool {
        let _ = (lost, patience);
        false
    }
}

/// What a guest finds that has a window at this offset, or none.
pub type Finds<'a> = &'a mut dyn FnMut(Option<u64>) -> Sharing;

/// A connection that replaces a lost one.
#[derive(Debug)]
pub struct Reconnected {
    /// The connection, after the welcome.
    pub connection: Connection,
    /// The offset in the region of the window that comes with it, if the session gets one.
    pub window: Option<u64>,
    /// Counted frames of the session that the guest has received.
    pub received: u64,
}

/// Latencies of calls, if they are measured.
struct Latencies {
    counted: bool,
    /// By slot: when its current call was received.
    began: Vec<Option<Instant>>,
}

/// The connection to the guest, across reconnects.
pub(crate) struct Link {
    sender: Arc<DurableSender>,
    reconnect: Option<Box<dyn Reconnect>>,
    /// The highest call executed, which every frame acknowledges. Threads of
    /// host functions send frames, too.
    executed: Arc<AtomicU64>,
    /// Replies are encoded here.
    buffer: Vec<u8>,
    unflushed: bool,
    /// Kernel output was sent, and no reply since. A thread of the guest reads the frames before
    /// its reply, but none if a word ends its wait.
    has_unread_output: bool,
    /// Kept frames may refer to device memory.
    lends_device_memory: bool,
    latencies: Latencies,
    statistics: Arc<Statistics>,
}

impl Link {
    /// Sends over `sender` at first.
    pub(crate) fn new(
        sender: Arc<dyn Sender>,
        reconnect: Option<Box<dyn Reconnect>>,
        latency: bool,
        statistics: Arc<Statistics>,
    ) -> Self {
        Self {
            sender: Arc::new(DurableSender::new(sender, reconnect.is_some())),
            reconnect,
            executed: Arc::new(AtomicU64::new(0)),
            buffer: Vec::with_capacity(4096),
            unflushed: false,
            has_unread_output: false,
            lends_device_memory: false,
            latencies: Latencies {
                counted: latency,
                began: Vec::new(),
            },
            statistics,
        }
    }

    /// The sender, independent of the connection.
    pub(crate) fn sender(&self) -> &Arc<DurableSender> {
        &self.sender
    }

    /// Sets the source of further connections. Without one, no frames are kept for them.
    pub(crate) fn set_reconnect(&mut self, reconnect: Option<Box<dyn Reconnect>>) {
        if reconnect.is_none() {
            self.sender.keep_nothing();
        }
        self.reconnect = reconnect;
    }

    /// Whether the session can outlive its connection.
    pub(crate) fn is_durable(&self) -> bool {
        self.reconnect.is_some()
    }

    /// Waits for another connection: [`Reconnect::next`].
    pub(crate) fn next(
        &mut self,
        lost: &TravelError,
        taken: u64,
        finds: Finds<'_>,
    ) -> Option<Reconnected> {
        self.reconnect.as_mut()?.next(lost, taken, finds)
    }

    /// Whether the guest stays away: [`Reconnect::stays_away`].
    pub(crate) fn stays_away(&self, lost: &TravelError, patience: Duration) -> bool {
        let reconnect = self.reconnect.as_ref();
        reconnect.is_some_and(|reconnect| reconnect.stays_away(lost, patience))
    }

    /// Whether the guest has already opened another connection.
    pub(crate) fn has_reconnected(&self) -> bool {
        let reconnect = self.reconnect.as_ref();
        reconnect.is_some_and(|reconnect| reconnect.has_reconnected())
    }

    /// The highest call executed.
    pub(crate) fn executed(&self) -> u64 {
        self.executed.load(Ordering::Relaxed)
    }

    pub(crate) fn set_executed(&self, sequence: u64) {
        self.executed.store(sequence, Ordering::Relaxed);
    }

    /// The counter itself, for threads that send.
    pub(crate) fn executed_cell(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.executed)
    }

    /// An empty buffer for a reply, to be [given back](Self::keep_buffer).
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer
    }

    pub(crate) fn keep_buffer(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }

    /// Sends a frame.
    pub(crate) fn send(
        &mut self,
        kind: u16,
        slot: u16,
        payload: &[&[u8]],
    ) -> Result<(), SessionEnd> {
        self.sender
            .send(kind, slot, Some(self.executed()), payload)?;
        self.unflushed = true;
        Ok(())
    }

    /// Sends a frame if there is room, without waiting.
    pub(crate) fn try_send(&self, kind: u16, payload: &[&[u8]]) {
        // If the guest is gone, the frame is useless.
        let _ = self
            .sender
            .try_send(kind, 0, Some(self.executed()), payload);
    }

    /// Sends kernel output, of stream 1 or 2.
    pub(crate) fn send_output(&mut self, stream: u32, bytes: &[u8]) -> Result<(), SessionEnd> {
        self.note_unread_output();
        self.send(Control::Output.kind(), 0, &[&stream.to_le_bytes(), bytes])
    }

    /// Records that kernel output was sent, perhaps by another worker.
    pub(crate) fn note_unread_output(&mut self) {
        self.has_unread_output = true;
    }

    /// Whether the guest may have kernel output that none of its threads has read.
    pub(crate) fn has_unread_output(&self) -> bool {
        self.has_unread_output
    }

    /// Sends a reply.
    pub(crate) fn send_reply(&mut self, at: At, payload: &[&[u8]]) -> Result<(), SessionEnd> {
        self.ends(at.slot);
        self.has_unread_output = false;
        let length: usize = payload.iter().map(|part| part.len()).sum();
        if length > MAX_PAYLOAD {
            let mut out = Vec::new();
            let detail = format!("the reply has {length} bytes");
            encode_failed(Status::NOT_SUPPORTED, at.call, &detail, &mut out);
            self.send(at.call | REPLY, at.slot, &[&out])
        } else {
            self.send(at.call | REPLY, at.slot, payload)
        }
    }

    /// Sends data that a call requested, at `offset` of the request. Large data
    /// stays in place until the guest has received it.
    pub(crate) fn send_data(&mut self, at: At, offset: u64, bytes: Lent) -> Result<(), SessionEnd> {
        let offset = offset.to_le_bytes();
        let length = bytes.as_ref().len();
        if (length as u64) < LENT {
            self.send(Control::Data.kind(), at.slot, &[&offset, bytes.as_ref()])?;
            self.read(length);
            return Ok(());
        }
        self.lends_device_memory |= matches!(bytes, Lent::Place(_));
        let frame = (Control::Data.kind(), at.slot, self.executed());
        self.sender.send_lent(frame, &offset, bytes)?;
        self.read(length);
        Ok(())
    }

    /// Counts bytes from the device to the guest.
    pub(crate) fn read(&mut self, length: usize) {
        self.unflushed = true;
        self.statistics.bytes_from_device.add(length as u64);
    }

    /// Copies the device memory that kept frames refer to, before it is unmapped.
    pub(crate) fn own_lent(&mut self) {
        if std::mem::take(&mut self.lends_device_memory) {
            self.sender.own();
        }
    }

    /// Flushes gathered frames.
    pub(crate) fn flush(&mut self) -> Result<(), SessionEnd> {
        if self.unflushed {
            self.unflushed = false;
            self.sender.flush()?;
        }
        Ok(())
    }

    /// Records that a call was received. Slot 0 means that no thread waits for it.
    pub(crate) fn begins(&mut self, slot: u16) {
        let Latencies { counted, began } = &mut self.latencies;
        if slot == 0 || !*counted {
            return;
        }
        let place = usize::from(slot);
        if place >= began.len() {
            began.resize(place + 1, None);
        }
        if let Some(began) = began.get_mut(place) {
            *began = Some(Instant::now());
        }
    }

    /// Records that the call of this slot is answered.
    fn ends(&mut self, slot: u16) {
        if !self.latencies.counted {
            return;
        }
        let began = self.latencies.began.get_mut(usize::from(slot));
        if let Some(began) = began.and_then(Option::take) {
            self.statistics.answered(began.elapsed());
        }
    }
}
