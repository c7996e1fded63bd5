//! Staging memory and tokens of copies between guest and device.

use std::sync::Arc;

use paragpu_communicator::Window;

use crate::staging::{Inbound, Outbound};
use crate::tokens::Tokens;

/// The copies of a session.
#[derive(Debug)]
pub(crate) struct Copies {
    /// Staging memory for bytes to the device.
    pub(crate) inbound: Inbound,
    /// Staging memory for bytes from the device.
    pub(crate) outbound: Outbound,
    /// Words that tell the guest when a copy is complete.
    pub(crate) tokens: Tokens,
}

impl Copies {
    pub(crate) fn new(window: Option<Arc<Window>>) -> Self {
        Self {
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            tokens: Tokens::new(window),
        }
    }
}
