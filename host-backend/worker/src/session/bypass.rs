//! Copies to and from device memory that wait for no stream of the guest.
//!
//! The program's memory at a managed variable or a map of device memory is also
//! synchronized while a host function runs. The function's stream stalls until then, and
//! with it everything queued behind it: other streams, calls in the queue, and copies in
//! staging memory. So these copies have a separate stream and staging memory.

use paragpu_abi::CU_STREAM_NON_BLOCKING;
use paragpu_communicator::{Polling, Spin};
use paragpu_device::StreamId;
use paragpu_protocol::status::Status;
use std::time::Duration;

use super::copy_out::MIN_SLOTS;
use super::gpu::Gpu;
use crate::error::{Outcome, fail};
use crate::staging::{Outbound, SLOT, pinned};
use crate::sys::mapping::Mapping;

/// Above the driver's highest priority, to which it is clamped. A GPU has few hardware
/// queues, and streams that share one wait for each other. A queue of a rarely used
/// priority is least likely to be shared.
const URGENT: i32 = -100;
/// Maximum wait between two polls of the device.
const MAX_SLEEP: Duration = Duration::from_micros(50);

/// The location of bytes to the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BypassSource {
    /// Their address for the device.
    pub(crate) address: u64,
    /// The stream that copies them.
    pub(crate) stream: StreamId,
}

/// The stream, and memory for bytes to the device.
#[derive(Debug)]
struct Open {
    stream: StreamId,
    /// One slot: the session waits for its copies.
    inbound: Mapping,
}

/// The stream and the staging memory.
#[derive(Debug)]
pub(crate) struct Bypass {
    open: Option<Open>,
    outbound: Outbound,
}

impl Default for Bypass {
    fn default() -> Self {
        Self {
            open: None,
            outbound: Outbound::new(MIN_SLOTS),
        }
    }
}

impl Bypass {
    /// Creates both at the first use. That is the first read of a variable or a map,
    /// before host functions use it: a driver may wait for the device to pin memory.
    fn open(&mut self, gpu: &mut Gpu) -> Outcome<&Open> {
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                // The legacy stream may be behind a host function.
                let stream = gpu.stream_create(CU_STREAM_NON_BLOCKING, URGENT)?;
                match pinned(gpu, 1) {
                    Ok(inbound) => Open { stream, inbound },
                    Err(fault) => {
                        let _ = gpu.stream_destroy(stream);
                        return Err(fault);
                    }
                }
            }
        };
        Ok(self.open.insert(open))
    }

    /// The stream.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; errors of the device, at the first use.
    pub(crate) fn stream(&mut self, gpu: &mut Gpu) -> Outcome<StreamId> {
        Ok(self.open(gpu)?.stream)
    }

    /// The staging memory of copies to the guest, if they are in this stream.
    pub(super) fn outbound_of(&mut self, stream: StreamId) -> Option<&mut Outbound> {
        let open = self.open.as_ref();
        let own = open.is_some_and(|open| open.stream == stream);
        own.then_some(&mut self.outbound)
    }

    /// Puts at most [`SLOT`] bytes where the device can read them, until the next
    /// call. The caller copies from there and then [settles](Self::settle).
    ///
    /// # Errors
    /// `INVALID_VALUE` for more bytes; `OUT_OF_MEMORY`; errors of the device.
    pub(crate) fn stage(&mut self, gpu: &mut Gpu, bytes: &[u8]) -> Outcome<BypassSource> {
        let Open { stream, inbound } = self.open(gpu)?;
        if !inbound.copy_in(0, bytes) {
            let (length, most) = (bytes.len(), SLOT);
            return fail(
                Status::INVALID_VALUE,
                format!("{length} bytes, more than {most}"),
            );
        }
        Ok(BypassSource {
            address: inbound.address(),
            stream: *stream,
        })
    }

    /// Waits until the copies are complete. They do not wait for work of the guest, so
    /// this only takes as long as the device needs for a slot, and for copies to the
    /// guest that it has begun.
    ///
    /// # Errors
    /// The error of failed work.
    pub(crate) fn settle(gpu: &mut Gpu, aside: BypassSource) -> Outcome<()> {
        let mut spin = Spin::new(Polling::default().spin, None);
        while !gpu.stream_query(aside.stream)? {
            if !spin.again() {
                gpu.stream_doze(aside.stream, MAX_SLEEP)?;
            }
        }
        Ok(())
    }
}
