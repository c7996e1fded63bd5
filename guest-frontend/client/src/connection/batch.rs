//! Calls that share a round trip.

use paragpu_protocol::call::WireCall;
use paragpu_protocol::reply::{self, Reply};

use super::Link;
use super::reply_slots::Lease;
use crate::error::Result;
use crate::statistics;

/// Maximum number of calls without a reply.
const MOST: usize = 64;

impl Link {
    /// Sends calls together, waits for all replies, and reads those of the calls that succeed.
    /// Other errors than those of the link are dropped.
    pub(crate) fn call_all<'a, C: WireCall<'a>>(
        &self,
        calls: &[C],
        mut read: impl FnMut(&C, C::Reply<'_>),
    ) -> Result<()> {
        for together in calls.chunks(MOST) {
            self.check()?;
            let _waiting = statistics::count_synchronous(C::INFO.number);
            let sent: Vec<_> = together.iter().map(|call| self.begin(call)).collect();
            let flushed = self.flush();
            for (call, lease) in together.iter().zip(sent) {
                let Some(lease) = lease else { continue };
                let payload = self.finish(&lease);
                match reply::decode::<C::Reply<'_>>(&payload) {
                    Ok(Reply::Done(value)) => read(call, value),
                    Ok(Reply::Failed(status, failure)) if status.is_sticky() => {
                        self.failed(status, failure.detail.0);
                    }
                    Ok(Reply::Failed(..)) | Err(_) => {}
                }
            }
            flushed?;
        }
        self.check()
    }

    /// Sends a call in a slot of its own. `None` if there is no slot, or the link is lost.
    pub(super) fn begin<'a, C: WireCall<'a>>(&self, call: &C) -> Option<Lease> {
        let lease = Lease::of(&self.slots)?;
        let slot = lease.slot()?;
        slot.begin(C::INFO.number, None, Vec::new());
        if self.send_call(call, lease.index()).is_err() {
            slot.take();
            return None;
        }
        Some(lease)
    }

    /// Waits for the reply to a call that was [begun](Self::begin). Empty if the link is lost.
    pub(super) fn finish(&self, lease: &Lease) -> Vec<u8> {
        let Some(slot) = lease.slot() else {
            return Vec::new();
        };
        self.wait(lease.index(), slot, self.spin());
        slot.take().unwrap_or_default()
    }
}
