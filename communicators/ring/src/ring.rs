//! The index protocol of one ring: one producer, one consumer. Neither trusts the other's
//! writes.

use paragpu_communicator::Error;
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};

use crate::layout::{PAD_KIND, RECORD_ALIGN, record_size};
use crate::sync::{AtomicU32, AtomicU64, Ordering, full_fence};

/// The shared memory of one ring.
pub(crate) trait Ring: Send + Sync {
    /// Bytes of the ring, a power of two.
    fn size(&self) -> u64;
    /// Total bytes produced.
    fn tail(&self) -> &AtomicU64;
    /// Total bytes consumed.
    fn head(&self) -> &AtomicU64;
    /// 1 while the consumer needs a doorbell for new records.
    fn consumer_waits(&self) -> &AtomicU32;
    /// 1 while the producer needs a doorbell for room.
    fn producer_waits(&self) -> &AtomicU32;
    /// Copies `bytes` to `offset` (both inside the ring, not wrapping).
    fn write(&self, offset: u64, bytes: &[u8]);
    /// Copies from `offset` (both inside the ring, not wrapping).
    fn read(&self, offset: u64, bytes: &mut [u8]);
    /// Hints that the memory at `offset` will be written soon.
    fn prepare(&self, _offset: u64) {}
}

/// Announces that the caller is about to sleep until the peer publishes something. The
/// caller must check for it once more after this.
///
/// Pairs with [`take_request`]: one side stores the flag, fences, and loads the index; the
/// other stores the index, fences, and loads the flag. At least one of them sees the
/// other's store, so no wake-up is lost. (All changes of a flag are swaps, because loom
/// orders the changes of two threads only then.)
pub(crate) fn request(flag: &AtomicU32) {
    flag.swap(1, Ordering::Relaxed);
    full_fence();
}

/// Withdraws the caller's own request, because it does not sleep after all.
pub(crate) fn withdraw(flag: &AtomicU32) {
    flag.swap(0, Ordering::Relaxed);
}

/// Whether the peer has requested a doorbell for what the caller has just published.
/// Consumes the request, so that it is answered by one doorbell only.
pub(crate) fn take_request(flag: &AtomicU32) -> bool {
    full_fence();
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
}

/// `tail - head`, if these are valid indices of a ring of `size` bytes.
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
    /// The consumer's head as last read.
    head: u64,
}

impl Producer {
    /// Continues at the current indices of the ring.
    pub(crate) fn attach(ring: &impl Ring) -> Result<Self, Error> {
        let tail = ring.tail().load(Ordering::Acquire);
        let head = ring.head().load(Ordering::Acquire);
        used(tail, head, ring.size())?;
        Ok(Self { tail, head })
    }

    /// Bytes from the current position that a record with `length` payload bytes takes,
    /// including padding before it.
    fn need(&self, ring: &impl Ring, length: usize) -> u64 {
        let record = record_size(length);
        let to_end = ring.size() - (self.tail & (ring.size() - 1));
        // A record never wraps, so that each side copies it in one piece. The rest before
        // the ring's end becomes padding.
        if record > to_end {
            to_end + record
        } else {
            record
        }
    }

    /// Whether a frame of `length` payload bytes fits now.
    pub(crate) fn has_room(&mut self, ring: &impl Ring, length: usize) -> Result<bool, Error> {
        let need = self.need(ring, length);
        // The last known head can only be too low. While it leaves enough room, the
        // consumer's cache line is not touched.
        if self.tail.wrapping_sub(self.head) + need <= ring.size() {
            return Ok(true);
        }
        // Acquire: the consumer has copied out the bytes that are overwritten from here on.
        let head = ring.head().load(Ordering::Acquire);
        let now_used = used(self.tail, head, ring.size())?;
        // Room cannot shrink. A peer that takes it back violates the protocol.
        if now_used > self.tail.wrapping_sub(self.head) {
            return Err(Error::protocol("the ring's head moved backwards"));
        }
        self.head = head;
        Ok(now_used + need <= ring.size())
    }

    /// Appends a frame. Returns false if there is no room. `header.length` is the total
    /// length of all parts.
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
        // Release: a consumer that sees this tail sees the record, including padding.
        ring.tail().store(self.tail, Ordering::Release);
        // The next lines are still in the cache of the consumer's processor, which read
        // them last.
        ring.prepare(self.tail & mask);
        Ok(true)
    }
}

/// The consumer publishes its head after this many bytes. They are a few launches of some
/// microseconds each, so that a producer that polls for room finds it before it would
/// sleep.
const STEP: u64 = if cfg!(loom) { 16 } else { 256 };

/// The consuming side's private state.
#[derive(Debug)]
pub(crate) struct Consumer {
    head: u64,
    /// The head as last published to the producer.
    published: u64,
    /// The published head when the producer's request was last checked.
    asked: u64,
    /// The producer's tail as last read.
    tail: u64,
}

impl Consumer {
    /// Continues at the current indices of the ring.
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

    /// Whether a record is known to be available, without reading the ring's tail.
    pub(crate) fn knows_record(&self) -> bool {
        self.tail != self.head
    }

    /// Whether a record is available.
    pub(crate) fn has_record(&mut self, ring: &impl Ring) -> Result<bool, Error> {
        if self.knows_record() {
            return Ok(true);
        }
        let tail = ring.tail().load(Ordering::Acquire);
        used(tail, self.head, ring.size())?;
        self.tail = tail;
        Ok(tail != self.head)
    }

    /// Copies the payload of the next frame to the start of `buffer` and returns its
    /// header; `None` if the ring is empty.
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
        // After padding comes the start of the ring, where a producer never pads. Accepting
        // more padding would let a peer keep this side busy without sending anything.
        if header.kind == PAD_KIND {
            return Err(Error::protocol("padding at the start of the ring"));
        }
        let offset = self.head & (ring.size() - 1);
        ring.read(offset + HEADER_LEN as u64, payload);
        self.head = self.head.wrapping_add(record);
        Ok(Some(header))
    }

    /// Bytes that can be read from `head` without wrapping.
    fn available(&self, ring: &impl Ring) -> u64 {
        let to_end = ring.size() - (self.head & (ring.size() - 1));
        self.tail.wrapping_sub(self.head).min(to_end)
    }

    /// A private copy of the header at `head`. Its 16 bytes are inside the ring, because
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

    /// Lets the producer reuse consumed bytes. Returns whether it sleeps and must be rung,
    /// which is checked once `least` bytes have become free.
    ///
    /// A producer that polls for room finds it after [`STEP`] bytes. With the larger steps
    /// in which sleepers are woken, launching threads waited for thousands of launches at a
    /// time.
    pub(crate) fn publish(&mut self, ring: &impl Ring, least: u64) -> bool {
        let consumed = self.head.wrapping_sub(self.published);
        if consumed != 0 && consumed >= least.min(STEP) {
            self.published = self.head;
            // Release: everything up to here is copied out before it is overwritten.
            ring.head().store(self.head, Ordering::Release);
        }
        // Also counts bytes published without a check of the request, because the producer
        // may have gone to sleep in between.
        let unasked = self.published.wrapping_sub(self.asked);
        if unasked == 0 || unasked < least {
            return false;
        }
        self.asked = self.published;
        take_request(ring.producer_waits())
    }

    /// Publishes the position at which another consumer continues. A producer that waits
    /// for room keeps waiting: that consumer's first [`publish`](Self::publish) finds its
    /// request.
    pub(crate) fn leave(self, ring: &impl Ring) {
        ring.head().store(self.head, Ordering::Release);
    }
}
