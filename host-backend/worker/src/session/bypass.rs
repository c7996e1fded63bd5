//! Copies to and from device memory that wait for no stream of the guest.
//!
//! The program's memory at a managed variable or a map of device memory is
//! synchronized while a host function runs, too. The function's stream stalls until
//! then, and with it everything behind it: other streams, calls in the queue, and
//! copies in staging memory. So these copies have a stream and staging memory of
//! their own.

use paragpu_communicator::{Polling, Spin};
use paragpu_device::StreamId;
use paragpu_protocol::status::Status;
use std::time::Duration;

use super::copy_out::LEAST_SLOTS;
use super::gpu::Gpu;
use crate::error::{Outcome, fail};
use crate::staging::{Outbound, SLOT, pinned};
use crate::sys::mapping::Mapping;

/// CU_STREAM_NON_BLOCKING: the legacy stream may be behind a host function.
const NON_BLOCKING: u32 = 1;
/// More urgent than any stream of a guest; the driver takes its highest priority.
/// A GPU has few hardware queues, and streams that share one wait for each other.
const URGENT: i32 = -100;
/// Maximum wait between two polls of the device.
const NAP: Duration = Duration::from_micros(50);

/// Where bytes to the device are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Aside {
    /// Their address for the device.
    pub(crate) address: u64,
    /// The stream that copies them.
    pub(crate) stream: StreamId,
}

/// The stream and the staging memory, once they are used.
#[derive(Debug)]
pub(crate) struct Bypass {
    stream: Option<StreamId>,
    /// One slot: the session waits for its copies.
    inbound: Option<Mapping>,
    outbound: Outbound,
}

impl Default for Bypass {
    fn default() -> Self {
        Self {
            stream: None,
            inbound: None,
            outbound: Outbound::new(LEAST_SLOTS),
        }
    }
}

impl Bypass {
    /// The stream.
    ///
    /// # Errors
    /// Errors of the device, which creates it at the first use.
    pub(crate) fn stream(&mut self, gpu: &mut Gpu) -> Outcome<StreamId> {
        match self.stream {
            Some(stream) => Ok(stream),
            None => Ok(*self.stream.insert(gpu.stream_create(NON_BLOCKING, URGENT)?)),
        }
    }

    /// The staging memory of copies to the guest, if they are in this stream.
    pub(super) fn outbound_of(&mut self, stream: StreamId) -> Option<&mut Outbound> {
        (self.stream == Some(stream)).then_some(&mut self.outbound)
    }

    /// Puts at most [`SLOT`] bytes where the device can read them, until the next
    /// call. The caller copies from there and then [settles](Self::settle).
    ///
    /// # Errors
    /// `INVALID_VALUE` for more bytes; `OUT_OF_MEMORY`; errors of the device.
    pub(crate) fn stage(&mut self, gpu: &mut Gpu, bytes: &[u8]) -> Outcome<Aside> {
        let stream = self.stream(gpu)?;
        let inbound = match &self.inbound {
            Some(inbound) => inbound,
            None => self.inbound.insert(pinned(gpu, 1)?),
        };
        if !inbound.copy_in(0, bytes) {
            let (length, most) = (bytes.len(), SLOT);
            return fail(
                Status::INVALID_VALUE,
                format!("{length} bytes, more than {most}"),
            );
        }
        Ok(Aside {
            address: inbound.address(),
            stream,
        })
    }

    /// Waits until the copies are complete. They wait for nothing of the guest's,
    /// so this takes as long as the device takes for a slot, and for copies to the
    /// guest that it has begun.
    ///
    /// # Errors
    /// The error of failed work.
    pub(crate) fn settle(gpu: &mut Gpu, aside: Aside) -> Outcome<()> {
        let mut spin = Spin::new(Polling::default().spin, None);
        while !gpu.stream_query(aside.stream)? {
            if !spin.again() {
                gpu.stream_doze(aside.stream, NAP)?;
            }
        }
        Ok(())
    }
}
