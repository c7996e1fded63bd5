//! Staging memory and tokens of copies between guest and device.

use std::sync::Arc;

use paragpu_communicator::Window;
use paragpu_device::StreamId;

use super::bypass::Bypass;
use crate::staging::{Inbound, OUTBOUND, Outbound};
use crate::statistics::Statistics;
use crate::tokens::Tokens;

/// The copies of a session.
#[derive(Debug)]
pub(crate) struct Copies {
    /// Staging memory for bytes to the device.
    pub(crate) inbound: Inbound,
    /// Staging memory for bytes from the device.
    outbound: Outbound,
    /// Copies that wait for no stream of the guest.
    pub(crate) bypass: Bypass,
    /// Words that tell the guest when a copy is complete.
    pub(crate) tokens: Tokens,
    /// Counts their bytes.
    pub(crate) statistics: Arc<Statistics>,
}

impl Copies {
    pub(crate) fn new(window: Option<Arc<Window>>, statistics: Arc<Statistics>) -> Self {
        Self {
            inbound: Inbound::default(),
            outbound: Outbound::new(OUTBOUND),
            bypass: Bypass::default(),
            tokens: Tokens::new(window),
            statistics,
        }
    }

    /// The staging memory of copies from the device in a stream.
    pub(crate) fn outbound_of(&mut self, stream: StreamId) -> &mut Outbound {
        match self.bypass.outbound_of(stream) {
            Some(outbound) => outbound,
            None => &mut self.outbound,
        }
    }
}
