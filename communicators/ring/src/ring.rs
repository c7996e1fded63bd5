//! The index protocol of one ring: one producer, one consumer. Neither trusts what the other
//! writes.

use paragpu_communicator::Error;
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};

use crate::layout::{PAD_KIND, RECORD_ALIGN, record_size};
use crate::sync::{AtomicU32, AtomicU64, Ordering, full_fence};

/// Memory of one ring, as both sides see it.
pub(crate) trait Ring: Send + Sync {
    /// Bytes of the ring, a power of two.
    fn size(&self) -> u64;
    /// Bytes ever produced.
    fn tail(&self) -> &AtomicU64;
    /// Bytes ever consumed.
    fn head(&self) -> &AtomicU64;
    /// 1 while the consumer needs a doorbell for new records.
    fn consumer_waits(&self) -> &AtomicU32;
    /// 1 while the producer needs a doorbell for room.
    fn producer_waits(&self) -> &AtomicU32;
    /// Copies `bytes` to `offset` (both inside the ring, not wrapping).
    fn write(&self, offset: u64, bytes: &[u8]);
    /// Copies from `offset` (both inside the ring, not wrapping).
    fn read(&self, offset: u64, bytes: &mut [u8]);
    /// Says that what is at `offset` will be written soon.
    fn prepare(&self, _offset: u64) {}
}

/// Says that the caller is about to sleep until the peer sets something, and
/// must look at it once more after this.
///
/// Pairs with [`take_request`]: the one stores its flag, fences, loads the
/// index; the other stores the index, fences, loads the flag. One of the two
/// sees the other's store, so no wake-up is lost. (Every change of a flag is a
/// swap: loom orders the changes of two threads only then.)
pub(crate) fn request(flag: &AtomicU32) {
    flag.swap(1, Ordering::Relaxed);
    full_fence();
}

/// Takes the caller's own request back: it does not sleep after all.
pub(crate) fn withdraw(flag: &AtomicU32) {
    flag.swap(0, Ordering::Relaxed);
}

/// Whether the peer asked for a doorbell after what the caller has just
/// published; takes the request, so that only one doorbell answers it.
pub(crate) fn take_request(flag: &AtomicU32) -> bool {
    full_fence();
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
}

/// `tail - head`, if these can be the indices of a ring of `size` bytes.
fn used(tail: u64, head: u64, size: u64) -> Result<u64, Error> {
    let used = tail.wrapping_sub(head);
    if used > size || !(tail | head).is_multiple_of(RECORD_ALIGN) {
        return Err(Error::protocol(format!(
            "ring indices {tail:#x} and {head:#x} in a ring of {size} bytes"
        )));
    }
    Ok(used)
}

/// The producing side's private state.
#[derive(Debug)]
pub(crate) struct Producer {
    tail: u64,
    /// The consumer's head when last looked at.
    head: u64,
}

impl Producer {
    /// Continues where the ring stands.
    pub(crate) fn attach(ring: &impl Ring) -> Result<Self, Error> {
        let tail = ring.tail().load(Ordering::Acquire);
        let head = ring.head().load(Ordering::Acquire);
        used(tail, head, ring.size())?;
        Ok(Self { tail, head })
    }

    /// Bytes from the current position that a record of `length` payload
    /// bytes takes, the padding before it included.
    fn need(&self, ring: &impl Ring, length: usize) -> u64 {
        let record = record_size(length);
        let to_end = ring.size() - (self.tail & (ring.size() - 1));
        // A record never wraps, so that each side copies it in one piece. What is
        // left before the ring's end becomes padding.
        if record > to_end {
            to_end + record
        } else {
            record
        }
    }

    /// Whether a frame of `length` payload bytes fits now.
    pub(crate) fn has_room(&mut self, ring: &impl Ring, length: usize) -> Result<bool, Error> {
        let need = self.need(ring, length);
        // The head as last known can only be too low. While that is enough, the
        // consumer's cache line stays where it is.
        if self.tail.wrapping_sub(self.head) + need <= ring.size() {
            return Ok(true);
        }
        // Acquire: the consumer has copied out what is overwritten from here on.
        let head = ring.head().load(Ordering::Acquire);
        let now_used = used(self.tail, head, ring.size())?;
        // Room that was there cannot vanish: a peer that takes it back is broken.
        if now_used > self.tail.wrapping_sub(self.head) {
            return Err(Error::protocol("the ring's head went back"));
        }
        self.head = head;
        Ok(now_used + need <= ring.size())
    }

    /// Appends a frame; false if there is no room. `header.length` is the
    /// length of all parts together.
    pub(crate) fn push(
        &mut self,
        ring: &impl Ring,
        header: FrameHeader,
        payload: &[&[u8]],
    ) -> Result<bool, Error> {
        if !self.has_room(ring, header.payload_len())? {
            return Ok(false);
        }
        let mask = ring.size() - 1;
        let record = record_size(header.payload_len());
        let to_end = ring.size() - (self.tail & mask);
        if record > to_end {
            let pad = FrameHeader {
                length: (to_end - HEADER_LEN as u64) as u32,
                kind: PAD_KIND,
                slot: 0,
                sequence: 0,
            };
            ring.write(self.tail & mask, &pad.to_bytes());
            self.tail = self.tail.wrapping_add(to_end);
        }
        let mut at = self.tail & mask;
        ring.write(at, &header.to_bytes());
        at += HEADER_LEN as u64;
        for part in payload {
            ring.write(at, part);
            at += part.len() as u64;
        }
        self.tail = self.tail.wrapping_add(record);
        // Release: a consumer that sees this tail sees the record, padding included.
        ring.tail().store(self.tail, Ordering::Release);
        // The consumer's processor has these lines from when it read them last.
        ring.prepare(self.tail & mask);
        Ok(true)
    }
}

/// Bytes after whose consumption a producer that looks finds room.
/// Less than a thread looks before it sleeps, at some microseconds a launch.
const STEP: u64 = if cfg!(loom) { 16 } else { 256 };

/// The consuming side's private state.
#[derive(Debug)]
pub(crate) struct Consumer {
    head: u64,
    /// The producer's copy of `head`.
    published: u64,
    /// How far it was when the producer's request was last looked at.
    asked: u64,
    /// The producer's tail when last looked at.
    tail: u64,
}

impl Consumer {
    /// Continues where the ring stands.
    pub(crate) fn attach(ring: &impl Ring) -> Result<Self, Error> {
        let head = ring.head().load(Ordering::Acquire);
        let tail = ring.tail().load(Ordering::Acquire);
        used(tail, head, ring.size())?;
        Ok(Self {
            head,
            published: head,
            asked: head,
            tail: head,
        })
    }

    /// Whether a record waits to be read, as far as is known without a look.
    pub(crate) fn knows_record(&self) -> bool {
        self.tail != self.head
    }

    /// Whether a record waits to be read.
    pub(crate) fn has_record(&mut self, ring: &impl Ring) -> Result<bool, Error> {
        if self.knows_record() {
            return Ok(true);
        }
        let tail = ring.tail().load(Ordering::Acquire);
        used(tail, self.head, ring.size())?;
        self.tail = tail;
        Ok(tail != self.head)
    }

    /// Copies the payload of the next frame to the begin of `buffer` and
    /// returns its header; `None` if the ring is empty.
    pub(crate) fn pop(
        &mut self,
        ring: &impl Ring,
        buffer: &mut [u8],
    ) -> Result<Option<FrameHeader>, Error> {
        if !self.has_record(ring)? {
            return Ok(None);
        }
        let mut header = self.header(ring);
        if header.kind == PAD_KIND {
            self.skip_pad(ring, header)?;
            if !self.has_record(ring)? {
                return Ok(None);
            }
            header = self.header(ring);
        }
        let available = self.available(ring);
        let length = header.payload_len();
        let record = record_size(length);
        let Some(payload) = buffer.get_mut(..length).filter(|_| record <= available) else {
            return Err(Error::protocol(format!(
                "record of {length} bytes where {available} are left"
            )));
        };
        // A producer pads only up to the ring's begin. A second padding would let a
        // peer keep this side busy without sending anything.
        if header.kind == PAD_KIND {
            return Err(Error::protocol("a padding at the ring's begin"));
        }
        let offset = self.head & (ring.size() - 1);
        ring.read(offset + HEADER_LEN as u64, payload);
        self.head = self.head.wrapping_add(record);
        Ok(Some(header))
    }

    /// Bytes that may be read from `head` on without wrapping.
    fn available(&self, ring: &impl Ring) -> u64 {
        let to_end = ring.size() - (self.head & (ring.size() - 1));
        self.tail.wrapping_sub(self.head).min(to_end)
    }

    /// A private copy of the header at `head`: 16 bytes are there, because
    /// indices are multiples of 16. Its length is not checked yet.
    fn header(&self, ring: &impl Ring) -> FrameHeader {
        let mut bytes = [0; HEADER_LEN];
        ring.read(self.head & (ring.size() - 1), &mut bytes);
        let [l0, l1, l2, l3, k0, k1, s0, s1, sequence @ ..] = bytes;
        FrameHeader {
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            kind: u16::from_le_bytes([k0, k1]),
            slot: u16::from_le_bytes([s0, s1]),
            sequence: u64::from_le_bytes(sequence),
        }
    }

    fn skip_pad(&mut self, ring: &impl Ring, pad: FrameHeader) -> Result<(), Error> {
        let offset = self.head & (ring.size() - 1);
        let to_end = ring.size() - offset;
        let length = HEADER_LEN as u64 + u64::from(pad.length);
        if offset == 0 || length != to_end || to_end > self.available(ring) {
            return Err(Error::protocol(format!(
                "padding of {length} bytes, {to_end} before the ring's end"
            )));
        }
        self.head = self.head.wrapping_add(to_end);
        Ok(())
    }

    /// Lets the producer reuse what was consumed; returns whether it must be
    /// rung because it sleeps, which is asked once `least` bytes came free.
    ///
    /// A producer that looks for room finds it after [`STEP`] bytes: with the
    /// steps in which sleepers are woken, threads that launch waited for
    /// thousands of launches at a time.
    pub(crate) fn publish(&mut self, ring: &impl Ring, least: u64) -> bool {
        let consumed = self.head.wrapping_sub(self.published);
        if consumed != 0 && consumed >= least.min(STEP) {
            self.published = self.head;
            // Release: everything up to here is copied out before it is overwritten.
            ring.head().store(self.head, Ordering::Release);
        }
        // Also what was stored without a look at the request: the producer may
        // have begun to sleep in between.
        let unasked = self.published.wrapping_sub(self.asked);
        if unasked == 0 || unasked < least {
            return false;
        }
        self.asked = self.published;
        take_request(ring.producer_waits())
    }

    /// Stores where another consumer continues. A producer that waits for room
    /// keeps waiting: that consumer's first [`publish`](Self::publish) finds
    /// its request.
    pub(crate) fn leave(self, ring: &impl Ring) {
        ring.head().store(self.head, Ordering::Release);
    }
}
