//! Entry points of the fuzz targets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paragpu_communicator::{Error, Sender};
use paragpu_protocol::frame::{FrameHeader, MAX_PAYLOAD};
use paragpu_protocol::layout::{CHUNK, Regions};
use paragpu_protocol::table::CALLS;

use crate::images::ImageStore;
use crate::session::{Session, Setup};
use crate::testing::device::{TestDevice, snapshot};
use crate::testing::share_of_host_memory;

/// Accepts every frame, like a guest that reads.
#[derive(Debug, Default)]
struct Sink(AtomicU64);

impl Sender for Sink {
    fn try_send(
        &self,
        _: u16,
        _: u16,
        sequence: Option<u64>,
        payload: &[&[u8]],
    ) -> Result<u64, Error> {
        let length: usize = payload.iter().map(|part| part.len()).sum();
        assert!(
            length <= MAX_PAYLOAD,
            "an oversized frame of {length} bytes"
        );
        Ok(sequence.unwrap_or_else(|| self.0.fetch_add(1, Ordering::Relaxed) + 1))
    }
    fn wait_for_room(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }
    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }
    fn close(&self) {}
}

/// Feeds a session with calls made of `data`: for each a byte that selects the call, a
/// slot byte, a length byte, and as many payload bytes. Odd length bytes mean 16 times as
/// many.
pub fn fuzz_session(data: &[u8]) {
    let (Some(regions), Ok(share)) = (Regions::of(0), share_of_host_memory(1 << 20)) else {
        return;
    };
    let setup = Setup {
        device_memory: 8 * CHUNK,
        share,
        images: ImageStore {
            directory: None,
            limit: 1 << 16,
        },
        latency: true,
        ..Setup::new(Box::new(TestDevice::default()), snapshot(), 0, regions)
    };
    let mut session = Session::new(setup, Arc::new(Sink::default()), None);
    let mut rest = data;
    let mut sequence = 0;
    while let Some(([choice, slot, length], after)) = rest.split_first_chunk::<3>() {
        let scale = if length % 2 == 1 { 16 } else { 1 };
        let length = (usize::from(*length) * scale).min(after.len());
        let (payload, after) = after.split_at(length);
        rest = after;
        let info = CALLS.get(usize::from(*choice) % CALLS.len());
        let kind = info.map_or(0, |info| info.number);
        sequence += 1;
        let Ok(header) = FrameHeader::new(kind, u16::from(*slot), sequence, length) else {
            return;
        };
        if session.offer(header, payload).is_err() {
            break;
        }
    }
    session.objects.host_functions.close();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn seeds_are_sessions() {
        paragpu_corpora::each("session", |_, data| fuzz_session(data));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_session(data in proptest::collection::vec(any::<u8>(), 0..2000)) {
            fuzz_session(&data);
        }

        /// Payloads of the right lengths, small handles and sizes: these get
        /// past the decoder.
        #[test]
        fn plausible_calls_are_a_session(
            calls in proptest::collection::vec((any::<u8>(), 0..4_u8, any::<[u8; 4]>()), 1..100)
        ) {
            use paragpu_protocol::table::recode;
            let mut data = Vec::new();
            for (choice, slot, values) in calls {
                let info = CALLS[usize::from(choice) % CALLS.len()];
                let payload: Vec<u8> = (0..128).map(|i| if i % 8 == 0 { values[i / 8 % 4] % 24 } else { 0 }).collect();
                let fit = (0..128).find(|l| recode(info.number, &payload[..*l]).is_ok());
                // Only even lengths are taken literally.
                let Some(length) = fit.filter(|length| length % 2 == 0) else { continue };
                data.extend([choice, slot, length as u8]);
                data.extend(&payload[..length]);
            }
            fuzz_session(&data);
        }
    }
}
