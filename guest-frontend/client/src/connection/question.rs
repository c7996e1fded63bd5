//! Questions that follow a call which waits for work, and share its round trip.

use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::Bytes;
use paragpu_protocol::reply::{self, Reply};
use paragpu_protocol::table::ShadowsChanged;

use super::reply_slots::Lease;
use super::{Link, Message, encoded};
use crate::error::Result;
use crate::sys::memory::HostRows;

/// Whether the device has changed shadows by the end of a wait.
#[derive(Debug, Default)]
pub(crate) struct Question {
    /// Addresses and sizes.
    ranges: Vec<u8>,
    /// Where the reply arrives, once the question was sent.
    slot: Option<Lease>,
}

impl Question {
    /// Maximum number of ranges.
    pub(crate) const MOST: usize = ShadowsChanged::MOST_RANGES;

    /// Asks about one more range of whole pages.
    pub(crate) fn add(&mut self, (address, size): (u64, u64)) {
        self.ranges.extend_from_slice(&address.to_le_bytes());
        self.ranges.extend_from_slice(&size.to_le_bytes());
    }
}

impl Link {
    /// As [`call_with`](Self::call_with), for a call that waits for work. Sends `question`
    /// right behind it, if it asks anything. Also returns whether the host is known to have
    /// found nothing changed.
    pub(crate) fn call_and_ask<'a, C: WireCall<'a>, R>(
        &self,
        call: &C,
        destination: Option<HostRows>,
        mut question: Question,
        read: impl FnOnce(C::Reply<'_>) -> R,
    ) -> (Result<R>, bool) {
        let ask = |after| self.ask(&mut question, after);
        let result = self.call_within(call, self.spin(), destination, ask, read);
        let unchanged = question.slot.is_some_and(|slot| self.is_no(&slot));
        (result, unchanged)
    }

    /// Sends a question behind the calls of a slot.
    fn ask(&self, question: &mut Question, after: u16) {
        if question.ranges.is_empty() {
            return;
        }
        let Some(lease) = Lease::of(&self.slots) else {
            return;
        };
        let Some(slot) = lease.slot() else { return };
        let number = ShadowsChanged::INFO.number;
        let call = ShadowsChanged {
            after: after.into(),
            ranges: Bytes(&question.ranges),
        };
        slot.begin(number, None, Vec::new());
        let sent = encoded(&call, |payload| {
            self.send(Message::new(number, lease.index(), payload), |_| {})
        });
        match sent {
            Ok(_) => question.slot = Some(lease),
            // The link is lost, as the call will find out.
            Err(_) => drop(slot.take()),
        }
    }

    /// Waits for a question's answer, which follows a call's. False if the link is lost.
    fn is_no(&self, lease: &Lease) -> bool {
        let Some(slot) = lease.slot() else {
            return false;
        };
        self.wait(lease.index(), slot, self.spin());
        let reply = slot.take().unwrap_or_default();
        matches!(reply::decode::<u32>(&reply), Ok(Reply::Done(0)))
    }
}
