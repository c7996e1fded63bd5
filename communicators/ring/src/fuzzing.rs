//! Entry points of fuzz targets: rings with arbitrary memory contents.

#![allow(clippy::indexing_slicing, reason = "what fuzzes is a test")]

use std::sync::atomic::AtomicU8;

use paragpu_communicator::Error;
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN, MAX_PAYLOAD};

use crate::layout::{Extent, Layout, RECORD_ALIGN};
use crate::ring::{Consumer, Producer, Ring};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// A ring in private memory; panics on any access outside it.
struct Scribbled {
    bytes: Vec<AtomicU8>,
    tail: AtomicU64,
    head: AtomicU64,
    waits: [AtomicU32; 2],
}

impl Scribbled {
    fn new(size: usize, input: &mut Input<'_>) -> Self {
        let tail = AtomicU64::new(input.index(size as u64));
        let head = AtomicU64::new(input.index(size as u64));
        let waits = [AtomicU32::new(input.u32()), AtomicU32::new(input.u32())];
        let bytes = (0..size).map(|_| AtomicU8::new(input.u8())).collect();
        Self {
            bytes,
            tail,
            head,
            waits,
        }
    }
}

impl Ring for Scribbled {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn tail(&self) -> &AtomicU64 {
        &self.tail
    }

    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn consumer_waits(&self) -> &AtomicU32 {
        &self.waits[0]
    }

    fn producer_waits(&self) -> &AtomicU32 {
        &self.waits[1]
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let from = offset as usize;
        let place = &self.bytes[from..from + bytes.len()];
        for (to, byte) in place.iter().zip(bytes) {
            to.store(*byte, Ordering::Relaxed);
        }
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) {
        let from = offset as usize;
        let place = &self.bytes[from..from + bytes.len()];
        for (byte, from) in bytes.iter_mut().zip(place) {
            *byte = from.load(Ordering::Relaxed);
        }
    }
}

/// The fuzzer's bytes; zeros when they are used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes([self.u8(), self.u8(), self.u8(), self.u8()])
    }

    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    /// Any number, but often a plausible index.
    fn index(&mut self, size: u64) -> u64 {
        match self.u8() % 4 {
            0 => self.u64(),
            1 => u64::from(self.u8()) * RECORD_ALIGN,
            2 => (u64::from(self.u32()) % (2 * size)) & !(RECORD_ALIGN - 1),
            _ => (u64::MAX - u64::from(self.u8()) * RECORD_ALIGN) & !(RECORD_ALIGN - 1),
        }
    }
}

/// Consumes, produces, and checks a layout, on arbitrary memory that also changes between
/// the steps. Panics on an access outside the ring, and if a consumer does not terminate.
pub fn fuzz_ring(data: &[u8]) {
    let mut input = Input(data);
    let size = 64 << (input.u8() % 6);
    let ring = Scribbled::new(size, &mut input);
    let _ = consume(&ring, &mut input);
    let _ = produce(&ring, &mut input);
    check_layout(&mut input);
}

fn consume(ring: &Scribbled, input: &mut Input<'_>) -> Result<(), Error> {
    let mut consumer = Consumer::attach(ring)?;
    let mut buffer = vec![0; MAX_PAYLOAD];
    for _ in 0..200 {
        // No more records fit than this, because each has at least a header.
        let mut most = ring.size() / HEADER_LEN as u64 + 1;
        while let Some(header) = consumer.pop(ring, &mut buffer)? {
            assert!(header.payload_len() as u64 + HEADER_LEN as u64 <= ring.size());
            assert!(most > 0, "more records than the ring can hold");
            most -= 1;
            consumer.publish(ring, u64::from(input.u8()));
        }
        consumer.publish(ring, 0);
        let tail = match input.u8() % 3 {
            0 => input.index(ring.size()),
            _ => ring
                .tail
                .load(Ordering::Relaxed)
                .wrapping_add(16 * u64::from(input.u8() % 8)),
        };
        ring.tail.store(tail, Ordering::Relaxed);
        let at = input.index(ring.size()) % ring.size();
        ring.write(at, &[input.u8()]);
    }
    Ok(())
}

fn produce(ring: &Scribbled, input: &mut Input<'_>) -> Result<(), Error> {
    let mut producer = Producer::attach(ring)?;
    let payload = [0x77; 255];
    for _ in 0..200 {
        let length = usize::from(input.u8());
        let header = FrameHeader::new(1, 0, 1, length)
            .map_err(|error| Error::protocol(error.to_string()))?;
        producer.push(ring, header, &[&payload[..length]])?;
        if input.u8().is_multiple_of(3) {
            ring.head.store(input.index(ring.size()), Ordering::Relaxed);
        } else {
            let tail = ring.tail.load(Ordering::Relaxed);
            ring.head.store(tail, Ordering::Relaxed);
        }
        // The consumer may overwrite the producer's own index.
        ring.tail.store(input.u64(), Ordering::Relaxed);
    }
    Ok(())
}

fn check_layout(input: &mut Input<'_>) {
    let place = |input: &mut Input<'_>| {
        let shift = input.u8() % 64;
        Extent {
            offset: input.u64() >> shift & !0xfff,
            size: 1_u64.checked_shl(u32::from(input.u8() % 70)).unwrap_or(0),
        }
    };
    let layout = Layout {
        to_host: place(input),
        to_guest: place(input),
        bulk: place(input),
        region_size: input.u64() >> (input.u8() % 64),
    };
    let mapped = input.u64() >> (input.u8() % 64);
    if let Ok(layout) = layout.checked(mapped) {
        for part in [layout.to_host, layout.to_guest, layout.bulk] {
            assert!(part.offset >= 4096 && part.offset + part.size <= mapped);
        }
        assert!(layout.framing_size() <= mapped);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_of_ring() {
        paragpu_corpora::each("ring", |_, data| super::fuzz_ring(data));
    }
}
