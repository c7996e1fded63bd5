//! A connection over two rings: sender and receiver.

#[cfg(not(loom))]
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use paragpu_communicator::{
    Adaptive, CachePadded, Error, Frame, Polling, Receiver, Sender, Spin, Wait, Waited, Waiter,
    Wake,
};
use paragpu_protocol::frame::{FrameHeader, MAX_PAYLOAD};

use crate::doorbell::{Doorbell, Event};
#[cfg(not(loom))]
use crate::files;
use crate::layout::PAD_KIND;
use crate::ring::{Consumer, Producer, Ring, request, take_request, withdraw};
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, lock};
use crate::waiting::Waiting;

/// Which end of the channel this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Guest,
    Host,
}

/// The memory of a channel region, as seen by one side.
pub(crate) trait Region: Send + Sync {
    type Ring: Ring;
    /// The ring that this side produces into.
    fn outgoing(&self) -> &Self::Ring;
    /// The ring that this side consumes.
    fn incoming(&self) -> &Self::Ring;
    /// 1 once this side has closed the connection.
    fn closed_here(&self) -> &AtomicU32;
    /// 1 once the peer has closed it.
    fn closed_there(&self) -> &AtomicU32;
    /// Whether all data read so far came from the region. When a guest's device is removed,
    /// other memory takes its place.
    fn is_there(&self) -> bool;
}

/// State shared by sender and receiver.
struct Channel<R: Region> {
    region: R,
    bell: Box<dyn Doorbell>,
    polling: Polling,
    /// The process that connected. Dropping a forked child's copy must not end the
    /// connection.
    process: u32,
    waiting: Waiting,
    /// This side has closed the connection, or found an error.
    closed: AtomicBool,
    /// The doorbell has reported that the peer is gone.
    gone: AtomicBool,
    /// [`Wake::wake`] was called, and no receive has consumed it.
    woken: AtomicBool,
    producer: CachePadded<Mutex<Outgoing>>,
}

#[derive(Debug)]
struct Outgoing {
    ring: Producer,
    sequence: u64,
}

/// Empty polls between two system calls that check whether the peer lives.
const POLLS_BETWEEN_CHECKS: u32 = 1024;

/// Number of consecutive posted frames after which more are likely to follow.
const BURST: u32 = 8;
/// Pauses during which a few more gather: a fraction of a microsecond.
const GATHERING: u32 = 12;

/// Free bytes after which a sleeping producer is woken while there are more records to
/// read: some hundred launches, whose time all threads of the producer wait. The model never
/// does so, and thus checks that draining the ring wakes it.
fn worth_waking(ring: &impl Ring) -> u64 {
    if cfg!(loom) {
        u64::MAX
    } else {
        (ring.size() / 8).min(16 << 10)
    }
}

/// The sending and the receiving half of one side.
pub(crate) type Halves = (Arc<dyn Sender>, Box<dyn Receiver>);

/// Creates the two halves of one side of a channel, which continue at the current ring
/// indices.
pub(crate) fn connect<R: Region + 'static>(
    region: R,
    bell: Box<dyn Doorbell>,
    polling: Polling,
) -> Result<Halves, Error> {
    let producer = Producer::attach(region.outgoing())?;
    let consumer = Consumer::attach(region.incoming())?;
    let channel = Arc::new(Channel {
        region,
        bell,
        polling,
        process: std::process::id(),
        waiting: Waiting::new(),
        closed: AtomicBool::new(false),
        gone: AtomicBool::new(false),
        woken: AtomicBool::new(false),
        producer: CachePadded(Mutex::new(Outgoing {
            ring: producer,
            sequence: 0,
        })),
    });
    let receiver = RingReceiver {
        channel: Arc::clone(&channel),
        consumer,
        adaptive: Adaptive::new(polling),
        burst: 0,
        empty_polls: 0,
        buffer: vec![0; MAX_PAYLOAD].into_boxed_slice(),
    };
    Ok((Arc::new(RingSender { channel }), Box::new(receiver)))
}

/// Takes one frame without connecting, and requests a doorbell for the next.
#[cfg_attr(loom, allow(dead_code, reason = "a model runs a part of the crate"))]
pub(crate) fn take_frame(region: &impl Region) -> Result<Option<(FrameHeader, Vec<u8>)>, Error> {
    let ring = region.incoming();
    let mut consumer = Consumer::attach(ring)?;
    let mut payload = vec![0; MAX_PAYLOAD];
    // Requested before the check, so that a frame that arrives after it rings.
    request(ring.consumer_waits());
    let header = consumer.pop(ring, &mut payload)?;
    consumer.leave(ring);
    Ok(header.map(|header| {
        payload.truncate(header.payload_len());
        (header, payload)
    }))
}

impl<R: Region> Channel<R> {
    /// Whether the connection has ended, so that no frame can be sent.
    fn ended(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
            || self.gone.load(Ordering::Relaxed)
            || self.region.closed_there().load(Ordering::Acquire) != 0
    }

    fn close(&self) {
        // A forked child maps the same rings, and must not close its parent's connection.
        if self.closed.swap(true, Ordering::SeqCst) || std::process::id() != self.process {
            return;
        }
        self.region.closed_here().store(1, Ordering::SeqCst);
        self.bell.leave();
        // An error means that the peer is gone and needs no doorbell.
        let _ = self.bell.ring();
        self.waiting.interrupt(&*self.bell);
    }

    /// Sleeps until the doorbell rings; the caller has requested it. Records a peer that is
    /// gone.
    fn sleep(&self, epoch: u64, deadline: Option<Instant>) -> Result<Event, Error> {
        let event = self.waiting.wait(&*self.bell, epoch, deadline)?;
        if event == Event::Gone {
            self.gone.store(true, Ordering::Release);
        }
        Ok(event)
    }

    /// Passes a result on. A protocol violation or a failed system call ends the
    /// connection. If the region is gone, any error becomes [`Error::Closed`]: it may come
    /// from reading other memory.
    #[inline]
    fn checked<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| self.failed(error))
    }

    #[cold]
    fn failed(&self, error: Error) -> Error {
        if !self.region.is_there() {
            self.gone.store(true, Ordering::Release);
            return Error::Closed;
        }
        if matches!(error, Error::Protocol(_) | Error::Io { .. }) {
            self.close();
        }
        error
    }
}

/// The sending half.
struct RingSender<R: Region> {
    channel: Arc<Channel<R>>,
}

impl<R: Region> Drop for RingSender<R> {
    fn drop(&mut self) {
        // The receiver may continue. Only dropping both halves ends the connection.
        if Arc::strong_count(&self.channel) == 1 {
            self.channel.close();
        }
    }
}

impl<R: Region> RingSender<R> {
    fn has_room(&self, length: usize) -> Result<bool, Error> {
        let mut outgoing = lock(&self.channel.producer);
        let room = outgoing
            .ring
            .has_room(self.channel.region.outgoing(), length);
        drop(outgoing);
        self.channel.checked(room)
    }
}

impl<R: Region> Sender for RingSender<R> {
    fn try_send(
        &self,
        kind: u16,
        slot: u16,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<u64, Error> {
        let channel = &*self.channel;
        if channel.ended() {
            return Err(Error::Closed);
        }
        let length = payload.iter().map(|part| part.len()).sum();
        let mut header = FrameHeader::new(kind, slot, 0, length)
            .map_err(|error| Error::protocol(error.to_string()))?;
        if kind == PAD_KIND {
            return Err(Error::protocol("kind 0xffff is reserved"));
        }
        let ring = channel.region.outgoing();
        let pushed = {
            let mut outgoing = lock(&channel.producer);
            header.sequence = sequence.unwrap_or(outgoing.sequence.wrapping_add(1));
            let pushed = outgoing.ring.push(ring, header, payload);
            if sequence.is_none() && matches!(pushed, Ok(true)) {
                outgoing.sequence = header.sequence;
            }
            pushed
        };
        if !channel.checked(pushed)? {
            return Err(Error::Full);
        }
        // After the push, so that the peer finds the record; without the lock, because
        // ringing is a system call and other threads can push meanwhile.
        if take_request(ring.consumer_waits()) {
            channel.checked(channel.bell.ring())?;
        }
        Ok(header.sequence)
    }

    fn wait_for_room(&self, length: usize) -> Result<(), Error> {
        if length > MAX_PAYLOAD {
            return Err(Error::protocol(format!(
                "{length} bytes never fit into one frame"
            )));
        }
        let channel = &*self.channel;
        let mut spin = Spin::new(channel.polling.spin, None);
        loop {
            if channel.ended() {
                return Err(Error::Closed);
            }
            if self.has_room(length)? {
                return Ok(());
            }
            if spin.again() {
                continue;
            }
            // The order matters. If room appears after the second check, the consumer finds
            // the request and rings. If it rings after the epoch was read, the sleep ends
            // at once.
            let epoch = channel.waiting.epoch();
            request(channel.region.outgoing().producer_waits());
            if self.has_room(length)? {
                return Ok(());
            }
            if channel.ended() {
                return Err(Error::Closed);
            }
            channel.checked(channel.sleep(epoch, None))?;
        }
    }

    fn gathers(&self) -> bool {
        false
    }

    fn flush(&self) -> Result<(), Error> {
        if self.channel.ended() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    fn close(&self) {
        self.channel.close();
    }

    #[cfg(not(loom))]
    fn pass_file(&self, number: u64, file: BorrowedFd<'_>) -> Result<(), Error> {
        match self.channel.bell.files() {
            Some(socket) => files::pass(socket, number, file),
            None => Err(Error::passes_no_files()),
        }
    }

    #[cfg(not(loom))]
    fn take_file(&self, number: u64) -> Result<Option<OwnedFd>, Error> {
        let socket = self.channel.bell.files();
        socket.map_or(Ok(None), |socket| files::take(socket, number))
    }
}

/// The receiving half.
struct RingReceiver<R: Region> {
    channel: Arc<Channel<R>>,
    consumer: Consumer,
    adaptive: Adaptive,
    /// Number of consecutive posted frames.
    burst: u32,
    empty_polls: u32,
    buffer: Box<[u8]>,
}

impl<R: Region> Drop for RingReceiver<R> {
    fn drop(&mut self) {
        self.channel.close();
    }
}

impl<R: Region> RingReceiver<R> {
    /// Copies the next frame's payload to `buffer` and returns its header.
    fn pop(&mut self) -> Result<Option<FrameHeader>, Error> {
        let ring = self.channel.region.incoming();
        let popped = self.consumer.pop(ring, &mut self.buffer);
        let header = self.channel.checked(popped)?;
        // After the device is removed, the memory may read as anything, including a valid
        // frame.
        if header.is_some() && !self.channel.region.is_there() {
            return self.channel.checked(Err(Error::Closed));
        }
        // A sleeping producer is woken when much is free, or when there is nothing left to
        // read.
        let least = match header {
            Some(_) => worth_waking(ring),
            None => 0,
        };
        if self.consumer.publish(ring, least) {
            self.channel.checked(self.channel.bell.ring())?;
        }
        Ok(header)
    }

    /// In a burst of posted frames, lets some gather before the next check. Each check
    /// takes the cache line of the ring's tail from the producer's processor, and delays
    /// its next frame.
    fn gather(&mut self) -> Result<(), Error> {
        if self.burst < BURST || self.consumer.knows_record() {
            return Ok(());
        }
        for _ in 0..GATHERING {
            std::hint::spin_loop();
        }
        if !self.look()? {
            self.burst = 0;
        }
        Ok(())
    }

    /// Whether there is a record.
    #[inline]
    fn look(&mut self) -> Result<bool, Error> {
        let found = self.consumer.has_record(self.channel.region.incoming());
        self.channel.checked(found)
    }

    /// Returns the remaining frames of a connection that has ended, then the end.
    fn drain(&mut self) -> Result<FrameHeader, Error> {
        self.pop()?.ok_or(Error::Closed)
    }

    fn next(&mut self, wait: Wait) -> Result<Option<FrameHeader>, Error> {
        if self.channel.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        self.gather()?;
        if let Some(header) = self.pop()? {
            return Ok(Some(header));
        }
        if self.channel.ended() {
            return self.drain().map(Some);
        }
        let deadline = match wait {
            Wait::Poll => return self.polled(),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        };
        Ok(match self.wait(deadline)? {
            Waited::Found(header) => Some(header),
            Waited::Woken | Waited::Late => None,
        })
    }

    /// Ends a receive that does not wait and found nothing. Checks now and then whether the
    /// peer lives.
    fn polled(&mut self) -> Result<Option<FrameHeader>, Error> {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.empty_polls.is_multiple_of(POLLS_BETWEEN_CHECKS) && !self.channel.bell.peer_lives()
        {
            self.channel.gone.store(true, Ordering::Release);
            return self.drain().map(Some);
        }
        Ok(None)
    }

    fn stop_waiting(&self) {
        withdraw(self.channel.region.incoming().consumer_waits());
    }

    /// Whether a waker ended this wait. Most receives find no wake, and a load is cheaper than
    /// a swap.
    fn take_wake(&self) -> bool {
        self.channel.woken.load(Ordering::Relaxed)
            && self.channel.woken.swap(false, Ordering::AcqRel)
    }
}

impl<R: Region> Waiter for RingReceiver<R> {
    type Found = FrameHeader;

    fn adaptive(&mut self) -> &mut Adaptive {
        &mut self.adaptive
    }

    fn poll(&mut self, spin: &mut Spin) -> Result<Waited<FrameHeader>, Error> {
        while spin.again() {
            if self.look()?
                && let Some(header) = self.pop()?
            {
                return Ok(Waited::Found(header));
            }
            if self.channel.ended() {
                return self.drain().map(Waited::Found);
            }
            if self.take_wake() {
                return Ok(Waited::Woken);
            }
        }
        Ok(Waited::Late)
    }

    fn sleep(&mut self, deadline: Option<Instant>) -> Result<Waited<FrameHeader>, Error> {
        loop {
            let epoch = self.channel.waiting.epoch();
            // In this order, as in `wait_for_room`: epoch, request, second check, sleep.
            request(self.channel.region.incoming().consumer_waits());
            if let Some(header) = self.pop()? {
                self.stop_waiting();
                return Ok(Waited::Found(header));
            }
            if self.channel.ended() {
                return self.drain().map(Waited::Found);
            }
            if self.take_wake() {
                self.stop_waiting();
                return Ok(Waited::Woken);
            }
            let slept = self.channel.sleep(epoch, deadline);
            if self.channel.checked(slept)? == Event::Deadline {
                self.stop_waiting();
                return Ok(self.pop()?.map_or(Waited::Late, Waited::Found));
            }
        }
    }
}

impl<R: Region + 'static> Receiver for RingReceiver<R> {
    fn receive(&mut self, wait: Wait) -> Result<Option<Frame<'_>>, Error> {
        let Some(header) = self.next(wait)? else {
            return Ok(None);
        };
        self.burst = if header.slot == 0 {
            self.burst.saturating_add(1)
        } else {
            0
        };
        match self.buffer.get(..header.payload_len()) {
            Some(payload) => Ok(Some(Frame {
                header,
                payload,
                landed: 0,
            })),
            None => Err(Error::protocol("a frame larger than the buffer")),
        }
    }

    fn set_polls(&mut self, polls: bool) {
        self.adaptive.set_polls(polls);
    }

    fn hand_over(&mut self) -> Vec<u8> {
        // The other receiver begins at the published head.
        if self.consumer.publish(self.channel.region.incoming(), 0) {
            // An error means that the peer is gone, which the next receive reports.
            let _ = self.channel.bell.ring();
        }
        Vec::new()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::new(RingWaker {
            channel: Arc::downgrade(&self.channel),
        })
    }
}

/// Ends a waiting receive. Does not keep the connection open.
struct RingWaker<R: Region> {
    channel: std::sync::Weak<Channel<R>>,
}

impl<R: Region> Wake for RingWaker<R> {
    fn wake(&self) {
        if let Some(channel) = self.channel.upgrade() {
            // Before the interrupt: a receiver that it wakes looks here.
            channel.woken.store(true, Ordering::SeqCst);
            channel.waiting.interrupt(&*channel.bell);
        }
    }
}
