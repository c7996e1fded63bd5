//! Sends frames across reconnects.
//!
//! Frames that belong to the session are kept until the guest acknowledges them, so
//! that the next connection can resend what the last one lost. Sending never fails
//! because of a lost connection. Only [`flush`](Sender::flush) reports it, which the
//! session calls between calls, never inside one.

use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use paragpu_communicator::{Error, Retained, Sender};
use paragpu_protocol::frame::{FrameHeader, is_counted};

use super::host_account::{Charge, HostAccount};
use crate::staging::Lent;

/// Maximum bytes kept for a guest that acknowledges nothing; beyond it the session
/// ends.
const MAX_KEPT: usize = 256 << 20;
/// Above this many kept bytes, copies to the guest wait, and the bytes are charged to the VM.
const HIGH_WATER: usize = 4 << 20;
/// Granularity of charges in bytes.
const CHARGED: u64 = 1 << 20;

/// The sending half of a session.
pub(crate) struct DurableSender {
    state: Mutex<State>,
    /// The connection, so that it can be closed while a thread waits in it.
    current: Mutex<Arc<dyn Sender>>,
    /// Frames are kept, because the session can outlive its connection.
    durable: AtomicBool,
    /// The connection is lost.
    down: AtomicBool,
    /// Frames wait in the connection for a flush.
    gathers: AtomicBool,
    /// The guest was asked something, and has not answered.
    asked: AtomicBool,
}

struct State {
    sender: Arc<dyn Sender>,
    kept: Retained<Lent>,
    /// Counted frames that the guest has acknowledged.
    received: u64,
    /// Counted frames sent.
    sent: u64,
    /// A query to the guest, to be sent over the next connection.
    pending_query: Option<(u16, Vec<u8>)>,
    /// The host memory charged for kept frames; `None` if it is not accounted.
    held: Option<Charge>,
}

impl DurableSender {
    /// Sends over `sender` at first.
    pub(crate) fn new(sender: Arc<dyn Sender>, durable: bool) -> Self {
        Self {
            down: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            gathers: AtomicBool::new(sender.gathers()),
            state: Mutex::new(State {
                sender: Arc::clone(&sender),
                kept: Retained::default(),
                received: 0,
                sent: 0,
                pending_query: None,
                held: None,
            }),
            current: Mutex::new(sender),
            durable: AtomicBool::new(durable),
        }
    }

    /// Charges kept frames.
    pub(crate) fn count_for(&self, account: &Arc<HostAccount>) {
        self.state.lock().held = Some(account.open());
    }

    /// Records the guest's acknowledgement. Returns false if the number is impossible.
    pub(crate) fn received(&self, count: u64) -> bool {
        let mut state = self.state.lock();
        if count > state.sent {
            return false;
        }
        state.forget(count);
        true
    }

    /// Takes over an existing connection from another process. Nothing is resent.
    pub(crate) fn take_over(&self, sender: Arc<dyn Sender>) {
        let mut state = self.state.lock();
        self.attach_sender(&mut state, sender);
    }

    /// Counted frames acknowledged and sent.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.received, state.sent)
    }

    /// Sets the counts of a session that arrived.
    pub(crate) fn set_counts(&self, received: u64, sent: u64) {
        let mut state = self.state.lock();
        (state.received, state.sent) = (received, sent);
    }

    /// Calls a function with each kept frame, in order, until it fails.
    pub(crate) fn each_kept<E>(
        &self,
        visit: impl FnMut(FrameHeader, [&[u8]; 2]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.state.lock().kept.each(visit)
    }

    /// Copies lent data, whose memory is about to be freed.
    pub(crate) fn own(&self) {
        self.state.lock().kept.own();
    }

    /// Keeps a frame that another process sent.
    pub(crate) fn keep(&self, header: FrameHeader, payload: &[u8]) {
        self.state.lock().kept.push(header, &[payload]);
    }

    /// Keeps no frames from now on: the guest acknowledges none.
    pub(crate) fn keep_nothing(&self) {
        let mut state = self.state.lock();
        self.durable.store(false, Ordering::Relaxed);
        let sent = state.sent;
        state.forget(sent);
    }

    /// Whether the kept frames reach the limit at which the guest should acknowledge
    /// first.
    pub(crate) fn is_behind(&self) -> bool {
        self.durable.load(Ordering::Relaxed) && self.state.lock().kept.len() >= HIGH_WATER
    }

    /// Sends a frame that belongs to the connection, if there is room, without waiting
    /// for a thread that sends.
    pub(crate) fn notify(&self, kind: u16, payload: &[&[u8]]) {
        let sender = Arc::clone(&*self.current.lock());
        let _ = sender.try_send(kind, 0, Some(0), payload);
        let _ = sender.flush();
    }

    /// Like [`notify`](Self::notify), but repeated on the next connection if this one is
    /// closed.
    pub(crate) fn query(&self, kind: u16, payload: &[u8]) {
        self.asked.store(true, Ordering::Release);
        // First without the lock of `state`: a thread may hold it for as long as
        // the connection is full.
        let sent = self.connection().try_send(kind, 0, Some(0), &[payload]);
        if sent.is_ok() {
            let _ = self.connection().flush();
            return;
        }
        let mut state = self.state.lock();
        let sent = state.sender.try_send(kind, 0, Some(0), &[payload]);
        if sent.and_then(|_| state.sender.flush()).is_err() {
            state.pending_query = Some((kind, payload.to_vec()));
        }
    }

    /// Whether the guest has yet to answer a query. From then on it has answered.
    pub(crate) fn take_query(&self) -> bool {
        self.asked.swap(false, Ordering::AcqRel)
    }

    /// The current connection.
    pub(crate) fn connection(&self) -> Arc<dyn Sender> {
        Arc::clone(&*self.current.lock())
    }

    /// Closes the current connection. The session continues.
    pub(crate) fn cut(&self) {
        // Not through `state`: a thread that waits for room in the connection holds
        // its lock, and only closing the connection ends that wait.
        self.current.lock().close();
    }

    /// Continues over a new connection. The guest has received `received` counted frames,
    /// and the others are resent. Returns false if the number is impossible. If the
    /// connection breaks again, the next flush reports it.
    pub(crate) fn resume(&self, sender: Arc<dyn Sender>, received: u64) -> bool {
        let mut state = self.state.lock();
        // Frames before `state.received` are no longer kept. Only a connection that was
        // opened before the last one can ask for them.
        if received > state.sent || received < state.received {
            return false;
        }
        state.forget(received);
        state.sender.close();
        self.attach_sender(&mut state, Arc::clone(&sender));
        let again = state.kept.each(|header, payload| {
            let sequence = Some(header.sequence);
            sender
                .send(header.kind, header.slot, sequence, &payload)
                .map(drop)
        });
        if let Some((kind, payload)) = state.pending_query.take() {
            let _ = sender.try_send(kind, 0, Some(0), &[&payload]);
        }
        if again.and_then(|()| sender.flush()).is_err() {
            self.lose();
        }
        true
    }

    fn attach_sender(&self, state: &mut State, sender: Arc<dyn Sender>) {
        self.gathers.store(sender.gathers(), Ordering::Relaxed);
        self.down.store(false, Ordering::Relaxed);
        state.sender = Arc::clone(&sender);
        *self.current.lock() = sender;
    }

    /// Records the loss of the connection.
    fn lose(&self) {
        self.down.store(true, Ordering::Relaxed);
    }

    fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Sends a frame by `send` over the current connection, and keeps it by `keep`.
    fn pass<T>(
        &self,
        kind: u16,
        frame: T,
        send: impl FnOnce(&dyn Sender, &T) -> Result<u64, Error>,
        keep: impl FnOnce(&mut Retained<Lent>, T),
    ) -> Result<(), Error> {
        // One lock covers sending and keeping: the next connection resends frames
        // in the order in which they were kept, which must be the order of sending.
        let mut state = self.state.lock();
        let outcome = if self.is_down() {
            Err(Error::Closed)
        } else {
            send(&*state.sender, &frame)
        };
        match outcome {
            Ok(_) => {}
            // The frame is kept, so the caller has nothing to undo. `flush` reports
            // the loss between two calls, where the session can switch to a new
            // connection.
            Err(error) if error.is_loss() => self.lose(),
            Err(error) => return Err(error),
        }
        if is_counted(kind) {
            state.sent += 1;
            if self.durable.load(Ordering::Relaxed) {
                keep(&mut state.kept, frame);
            }
            if state.kept.len() > MAX_KEPT || !state.counts() {
                return Err(Error::protocol("the guest does not acknowledge frames"));
            }
        }
        Ok(())
    }

    /// Sends a frame with `send`, and keeps a copy of its payload. Returns its sequence
    /// number.
    fn pass_bytes(
        &self,
        (kind, slot, sequence): (u16, u16, Option<u64>),
        payload: &[&[u8]],
        send: impl FnOnce(&dyn Sender) -> Result<u64, Error>,
    ) -> Result<u64, Error> {
        let number = sequence.unwrap_or(0);
        self.pass(
            kind,
            payload,
            |sender, _| send(sender),
            |kept, payload| keep_copy(kept, (kind, slot, number), payload),
        )?;
        Ok(number)
    }

    /// Sends a frame of this kind, slot and sequence number. Its payload is `start`
    /// followed by the bytes of `end`, which stay unchanged until the guest has
    /// acknowledged them.
    pub(crate) fn send_lent(
        &self,
        (kind, slot, sequence): (u16, u16, u64),
        start: &[u8],
        end: Lent,
    ) -> Result<(), Error> {
        let length = start.len() + end.as_ref().len();
        self.pass(
            kind,
            end,
            |sender, end| sender.send(kind, slot, Some(sequence), &[start, end.as_ref()]),
            |kept, end| {
                if let Ok(header) = FrameHeader::new(kind, slot, sequence, length) {
                    kept.push_lent(header, start, end);
                }
            },
        )
    }
}

/// Keeps a copy of a frame.
fn keep_copy(
    kept: &mut Retained<Lent>,
    (kind, slot, sequence): (u16, u16, u64),
    payload: &[&[u8]],
) {
    let length = payload.iter().map(|part| part.len()).sum();
    if let Ok(header) = FrameHeader::new(kind, slot, sequence, length) {
        kept.push(header, payload);
    }
}

impl State {
    /// Charges kept frames. Returns false if the account has no room.
    fn counts(&mut self) -> bool {
        let Some(held) = &mut self.held else {
            return true;
        };
        let wanted = self.kept.len().saturating_sub(HIGH_WATER) as u64;
        match wanted.checked_sub(held.bytes()) {
            None | Some(0) => true,
            Some(more) => held.grow(more.max(CHARGED)).is_ok(),
        }
    }

    fn forget(&mut self, count: u64) {
        let Self { kept, received, .. } = self;
        kept.trim(|_| {
            let arrived = *received < count;
            *received += u64::from(arrived);
            arrived
        });
        self.received = self.received.max(count);
        if let Some(held) = &mut self.held {
            let wanted = self.kept.len().saturating_sub(HIGH_WATER) as u64;
            held.shrink(held.bytes().saturating_sub(wanted + CHARGED));
            if wanted == 0 {
                held.shrink(CHARGED);
            }
        }
    }
}

impl Sender for DurableSender {
    fn try_send(
        &self,
        kind: u16,
        slot: u16,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<u64, Error> {
        self.pass_bytes((kind, slot, sequence), payload, |sender| {
            sender.try_send(kind, slot, sequence, payload)
        })
    }

    fn send(
        &self,
        kind: u16,
        slot: u16,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<u64, Error> {
        self.pass_bytes((kind, slot, sequence), payload, |sender| {
            sender.send(kind, slot, sequence, payload)
        })
    }

    fn wait_for_room(&self, length: usize) -> Result<(), Error> {
        let sender = Arc::clone(&*self.current.lock());
        match sender.wait_for_room(length) {
            Err(error) if error.is_loss() => Ok(()),
            other => other,
        }
    }

    fn gathers(&self) -> bool {
        self.gathers.load(Ordering::Relaxed)
    }

    fn flush(&self) -> Result<(), Error> {
        if self.is_down() {
            // The connection knows how it was lost.
            return self.state.lock().sender.flush().and(Err(Error::Closed));
        }
        if !self.gathers() {
            return Ok(());
        }
        let state = self.state.lock();
        state.sender.flush().inspect_err(|_| self.lose())
    }

    fn settle(&self, deadline: Instant) -> Result<bool, Error> {
        let sender = Arc::clone(&*self.current.lock());
        sender.settle(deadline)
    }

    /// Closes the session's last connection.
    fn close(&self) {
        self.cut();
    }

    fn take_file(&self, number: u64) -> Result<Option<OwnedFd>, Error> {
        self.connection().take_file(number)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use paragpu_communicator::{Connection, Wait};
    use paragpu_communicator_stream::{Options, over};
    use paragpu_device::{MemoryDevice, StreamId};
    use paragpu_protocol::frame::{Control, REPLY};
    use paragpu_protocol::layout::CHUNK;

    use super::*;
    use crate::sys::device_bytes::DeviceBytes;
    use crate::testing::device::TestDevice;

    fn pair() -> (Connection, Connection) {
        let (a, b) = UnixStream::pair().unwrap();
        let options = Options::default();
        (over(a, options).unwrap(), over(b, options).unwrap())
    }

    fn next(connection: &mut Connection) -> (u16, Vec<u8>) {
        let frame = connection.receiver.receive(Wait::Forever).unwrap().unwrap();
        (frame.header.kind, frame.payload.to_vec())
    }

    #[test]
    fn lent_bytes_are_copied_before_their_memory_is_freed() {
        let mut device = TestDevice::default();
        device.state().in_place = true;
        device.memory_map(CHUNK, CHUNK).unwrap();
        let bytes = DeviceBytes::of(&mut device, CHUNK + 8, 4, StreamId::LEGACY).unwrap();
        bytes.fill(0, |memory| memory.copy_from_slice(&[1, 2, 3, 4]));
        let (host, _guest) = pair();
        let sender = DurableSender::new(Arc::clone(&host.sender), true);
        let frame = (Control::Data.kind(), 1, 1);
        sender.send_lent(frame, &[9], Lent::Place(bytes)).unwrap();
        sender.own();
        device.memory_unmap(CHUNK).unwrap();
        let mut kept = Vec::new();
        let kept_all = sender.each_kept(|_, parts| -> Result<(), ()> {
            kept.push(parts.concat());
            Ok(())
        });
        assert_eq!((kept_all, kept), (Ok(()), vec![vec![9, 1, 2, 3, 4]]));
    }

    #[test]
    fn lost_frames_are_resent_once_and_in_order() {
        let (host, mut guest) = pair();
        let sender = DurableSender::new(Arc::clone(&host.sender), true);
        for value in 0..5_u8 {
            sender.send(1 | REPLY, 1, Some(1), &[&[value]]).unwrap();
        }
        // It belongs to the connection, so it is not kept.
        sender
            .send(Control::Taken.kind(), 0, Some(0), &[&[0; 8]])
            .unwrap();
        sender.flush().unwrap();
        for value in 0..5 {
            assert_eq!(next(&mut guest), (1 | REPLY, vec![value]));
        }
        assert!(sender.received(2));
        assert!(!sender.received(6), "more than were sent");
        drop((host, guest));
        for value in 5..8_u8 {
            sender
                .send(Control::HostFunc.kind(), 0, Some(1), &[&[value]])
                .unwrap();
        }
        assert!(sender.flush().is_err());
        let (host, mut guest) = pair();
        assert!(
            !sender.resume(Arc::clone(&host.sender), 1),
            "dropped already"
        );
        assert!(sender.resume(Arc::clone(&host.sender), 4));
        sender.flush().unwrap();
        assert_eq!(next(&mut guest), (1 | REPLY, vec![4]));
        for value in 5..8 {
            assert_eq!(next(&mut guest), (Control::HostFunc.kind(), vec![value]));
        }
    }
}
