//! A connection over two rings: sender and receiver.

#[cfg(not(loom))]
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use paragpu_communicator::{Adaptive, Error, Frame, Polling, Receiver, Sender, Spin, Wait, Wake};
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

/// A channel region's memory as one side uses it.
pub(crate) trait Region: Send + Sync {
    type Ring: Ring;
    /// The ring that this side produces into.
    fn outgoing(&self) -> &Self::Ring;
    /// The ring that this side consumes.
    fn incoming(&self) -> &Self::Ring;
    /// 1 once this side closed the connection.
    fn closed_here(&self) -> &AtomicU32;
    /// 1 once the peer did.
    fn closed_there(&self) -> &AtomicU32;
    /// Whether what was read until now stood in the region, whose memory a
    /// guest's device takes away with it.
    fn is_there(&self) -> bool;
}

/// Alone in its cache lines (two: the processor fetches pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Apart<T>(T);

/// State shared by sender and receiver.
struct Channel<R: Region> {
    region: R,
    bell: Box<dyn Doorbell>,
    polling: Polling,
    /// The process that connected: a forked child's copy ends nothing.
    process: u32,
    waiting: Waiting,
    /// This side closed the connection, or found it broken.
    closed: AtomicBool,
    /// The doorbell reported the peer gone.
    gone: AtomicBool,
    /// [`Wake::wake`] was called and no receive has seen it.
    woken: AtomicBool,
    producer: Apart<Mutex<Outgoing>>,
}

#[derive(Debug)]
struct Outgoing {
    ring: Producer,
    sequence: u64,
}

/// Empty polls between two questions to the system whether the peer lives.
const POLLS_BETWEEN_CHECKS: u32 = 1024;

/// Posted frames in a row after which more are likely to come.
const BURST: u32 = 8;
/// Pauses in which a few of these gather: a fraction of a microsecond.
const GATHERING: u32 = 12;

/// Bytes that come free before a producer that sleeps is woken, while there is
/// more to read. In the model never, so that the drained ring must do it.
fn worth_waking(ring: &impl Ring) -> u64 {
    if cfg!(loom) {
        u64::MAX
    } else {
        ring.size() / 8
    }
}

/// The sending and the receiving half of one side.
pub(crate) type Halves = (Arc<dyn Sender>, Box<dyn Receiver>);

/// The two halves of one side of a channel, from where its rings stand.
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
        producer: Apart(Mutex::new(Outgoing {
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

/// Takes one frame without connecting, and asks for a doorbell for the next.
#[cfg_attr(loom, allow(dead_code))]
pub(crate) fn take_frame(region: &impl Region) -> Result<Option<(FrameHeader, Vec<u8>)>, Error> {
    let ring = region.incoming();
    let mut consumer = Consumer::attach(ring)?;
    let mut payload = vec![0; MAX_PAYLOAD];
    // Before the look: a frame that comes after it rings.
    request(ring.consumer_waits());
    let header = consumer.pop(ring, &mut payload)?;
    consumer.leave(ring);
    Ok(header.map(|header| {
        payload.truncate(header.payload_len());
        (header, payload)
    }))
}

impl<R: Region> Channel<R> {
    /// Whether no frame can be sent any more.
    fn ended(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
            || self.gone.load(Ordering::Relaxed)
            || self.region.closed_there().load(Ordering::Acquire) != 0
    }

    fn close(&self) {
        // A process that was forked has the same rings. It must not close the
        // connection of its parent.
        if self.closed.swap(true, Ordering::SeqCst) || std::process::id() != self.process {
            return;
        }
        self.region.closed_here().store(1, Ordering::SeqCst);
        self.bell.leave();
        // The peer may be gone already, and then needs no doorbell.
        let _ = self.bell.ring();
        self.waiting.interrupt(&*self.bell);
    }

    /// Sleeps, having asked for a doorbell; remembers a peer that is gone.
    fn sleep(&self, epoch: u64, deadline: Option<Instant>) -> Result<Event, Error> {
        let event = self.waiting.wait(&*self.bell, epoch, deadline)?;
        if event == Event::Gone {
            self.gone.store(true, Ordering::Release);
        }
        Ok(event)
    }

    /// Passes a result on; a broken protocol or a failed system call ends the
    /// connection, and a region that is gone is a loss, whatever it looked like.
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
        // The receiver may continue; only both halves gone end the connection.
        if Arc::strong_count(&self.channel) == 1 {
            self.channel.close();
        }
    }
}

impl<R: Region> RingSender<R> {
    fn has_room(&self, length: usize) -> Result<bool, Error> {
        let mut outgoing = lock(&self.channel.producer.0);
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
            let mut outgoing = lock(&channel.producer.0);
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
        // Behind the push and outside the lock: the bell is a system call, and other
        // threads may push meanwhile.
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
            // In this order: room that comes after the second look finds the request
            // and rings; a ring after the epoch was taken ends the sleep at once.
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

    fn last_sequence(&self) -> u64 {
        lock(&self.channel.producer.0).sequence
    }
}

/// The receiving half.
struct RingReceiver<R: Region> {
    channel: Arc<Channel<R>>,
    consumer: Consumer,
    adaptive: Adaptive,
    /// Posted frames in a row, of a producer that continues.
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
    /// The next frame's header, its payload in `buffer`.
    fn pop(&mut self) -> Result<Option<FrameHeader>, Error> {
        let ring = self.channel.region.incoming();
        let popped = self.consumer.pop(ring, &mut self.buffer);
        let header = self.channel.checked(popped)?;
        // Memory of a device that was pulled reads as anything, also as a frame.
        if header.is_some() && !self.channel.region.is_there() {
            return self.channel.checked(Err(Error::Closed));
        }
        // A producer that sleeps is woken for much, or when there is nothing to read.
        let least = match header {
            Some(_) => worth_waking(ring),
            None => 0,
        };
        if self.consumer.publish(ring, least) {
            self.channel.checked(self.channel.bell.ring())?;
        }
        Ok(header)
    }

    /// In a burst of posted frames, lets the producer put some before looking
    /// again: each look takes the line of the ring's tail from its processor,
    /// which the next frame then waits for.
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

    /// Whether a record is waiting.
    #[inline]
    fn look(&mut self) -> Result<bool, Error> {
        let found = self.consumer.has_record(self.channel.region.incoming());
        self.channel.checked(found)
    }

    /// The last frames of a connection that ended, then the end.
    fn drain(&mut self) -> Result<Option<FrameHeader>, Error> {
        match self.pop()? {
            Some(header) => Ok(Some(header)),
            None => Err(Error::Closed),
        }
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
            return self.drain();
        }
        let deadline = match wait {
            Wait::Poll => return self.polled(),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        };
        let mut spin = Spin::new(self.adaptive.budget(), deadline);
        while spin.again() {
            if self.look()?
                && let Some(header) = self.pop()?
            {
                self.adaptive.found(&spin);
                return Ok(Some(header));
            }
            if self.channel.ended() {
                return self.drain();
            }
            if self.take_wake() {
                return Ok(None);
            }
        }
        let began = Instant::now();
        let header = self.slept(deadline)?;
        if header.is_some() {
            self.adaptive.slept(&spin, began.elapsed());
        }
        Ok(header)
    }

    /// Sleeps until there is something to return.
    fn slept(&mut self, deadline: Option<Instant>) -> Result<Option<FrameHeader>, Error> {
        loop {
            let epoch = self.channel.waiting.epoch();
            request(self.channel.region.incoming().consumer_waits());
            if let Some(header) = self.pop()? {
                self.stop_waiting();
                return Ok(Some(header));
            }
            if self.channel.ended() {
                return self.drain();
            }
            if self.take_wake() {
                self.stop_waiting();
                return Ok(None);
            }
            let slept = self.channel.sleep(epoch, deadline);
            if self.channel.checked(slept)? == Event::Deadline {
                self.stop_waiting();
                return self.pop();
            }
        }
    }

    /// Nothing was there for a receive that does not wait.
    fn polled(&mut self) -> Result<Option<FrameHeader>, Error> {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.empty_polls.is_multiple_of(POLLS_BETWEEN_CHECKS) && !self.channel.bell.peer_lives()
        {
            self.channel.gone.store(true, Ordering::Release);
            return self.drain();
        }
        Ok(None)
    }

    fn stop_waiting(&self) {
        withdraw(self.channel.region.incoming().consumer_waits());
    }

    fn take_wake(&self) -> bool {
        self.channel.woken.load(Ordering::Relaxed)
            && self.channel.woken.swap(false, Ordering::AcqRel)
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

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::new(RingWaker {
            channel: Arc::downgrade(&self.channel),
        })
    }
}

/// Ends a waiting receive; does not keep the connection open.
struct RingWaker<R: Region> {
    channel: std::sync::Weak<Channel<R>>,
}

impl<R: Region> Wake for RingWaker<R> {
    fn wake(&self) {
        if let Some(channel) = self.channel.upgrade() {
            channel.woken.store(true, Ordering::SeqCst);
            channel.waiting.interrupt(&*channel.bell);
        }
    }
}
