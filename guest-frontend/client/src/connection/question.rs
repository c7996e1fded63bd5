//! Questions that follow a call which waits for work, and share its round trip.

use paragpu_protocol::call::WireCall;
use paragpu_protocol::codec::{Bytes, Reader};
use paragpu_protocol::reply::{self, Reply};
use paragpu_protocol::table::ShadowChanges;
use paragpu_protocol::types::{ChangedRun, ChangedRuns};

use super::Link;
use super::reply_slots::Lease;
use crate::error::Result;
use crate::sys::memory::HostRows;

/// What the device has changed in shadows by the end of a wait.
#[derive(Debug, Default)]
pub(crate) struct Question {
    /// Addresses and sizes.
    ranges: Vec<u8>,
    /// Number of ranges.
    count: usize,
    /// Their bytes.
    bytes: u64,
    /// Where the reply arrives, once the question was sent.
    slot: Option<Lease>,
}

/// The answer to a question.
#[derive(Debug, Default)]
pub(crate) struct Answer(Vec<u8>);

impl Question {
    /// Asks about one more range of whole pages. Returns false if it does not fit: its changes
    /// take a round trip of their own, which is short beside the comparison of so many bytes.
    #[must_use]
    pub(crate) fn add(&mut self, (address, size): (u64, u64)) -> bool {
        let bytes = self.bytes.saturating_add(size);
        if self.count == ShadowChanges::MOST_RANGES || bytes > ShadowChanges::MOST_ASKED {
            return false;
        }
        (self.count, self.bytes) = (self.count + 1, bytes);
        self.ranges.extend_from_slice(&address.to_le_bytes());
        self.ranges.extend_from_slice(&size.to_le_bytes());
        true
    }
}

impl Answer {
    /// All that has changed; `None` if that is not known.
    pub(crate) fn runs(&self) -> Option<Vec<ChangedRun<'_>>> {
        match reply::decode::<ChangedRuns>(&self.0) {
            Ok(Reply::Done(ChangedRuns {
                complete: true,
                runs,
            })) => runs_of(runs.0),
            _ => None,
        }
    }
}

/// Decodes the runs of an answer. `None` if they are truncated.
fn runs_of(runs: &[u8]) -> Option<Vec<ChangedRun<'_>>> {
    let mut reader = Reader::new(runs);
    let mut found = Vec::new();
    while reader.remaining() > 0 {
        found.push(reader.field().ok()?);
    }
    Some(found)
}

impl Link {
    /// As [`call_with`](Self::call_with), for a call that waits for work. Sends `question`
    /// right behind it, if it asks anything, and also returns the answer.
    pub(crate) fn call_and_ask<'a, C: WireCall<'a>, R>(
        &self,
        call: &C,
        destination: Option<HostRows>,
        mut question: Question,
        read: impl FnOnce(C::Reply<'_>) -> R,
    ) -> (Result<R>, Answer) {
        let ask = |after| self.ask(&mut question, after);
        let result = self.call_within(call, self.spin(), destination, ask, read);
        let answer = question.slot.map(|slot| Answer(self.finish(&slot)));
        (result, answer.unwrap_or_default())
    }

    /// Sends a question behind the calls of a slot.
    fn ask(&self, question: &mut Question, after: u16) {
        if question.ranges.is_empty() {
            return;
        }
        // If the link is lost, the call will find out.
        question.slot = self.begin(&ShadowChanges {
            after: after.into(),
            ranges: Bytes(&question.ranges),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_no_more_than_a_host_answers() {
        let (mut question, size) = (Question::default(), ShadowChanges::MOST_ASKED / 4);
        assert!(!question.add((0, ShadowChanges::MOST_ASKED + 4096)));
        assert!((0..4).all(|at| question.add((at * size, size))));
        assert!(!question.add((0, 4096)));
        assert_eq!(question.ranges.len(), 4 * 16);
        let mut question = Question::default();
        let asked = (0..1000).filter(|at| question.add((at * 4096, 4096)));
        assert_eq!(asked.count(), ShadowChanges::MOST_RANGES);
    }

    #[test]
    fn runs_that_are_cut_off_are_no_answer() {
        let one = [&7_u64.to_le_bytes()[..], &2_u32.to_le_bytes(), &[1, 2]].concat();
        let two = [&one[..], &9_u64.to_le_bytes(), &0_u32.to_le_bytes()].concat();
        assert_eq!(runs_of(&[]), Some(vec![]));
        let run = |address, bytes| ChangedRun {
            address,
            bytes: Bytes(bytes),
        };
        assert_eq!(runs_of(&two), Some(vec![run(7, &[1, 2]), run(9, &[])]));
        for end in (0..two.len()).filter(|end| ![0, one.len()].contains(end)) {
            assert_eq!(runs_of(&two[..end]), None, "{end}");
        }
        let long = [&7_u64.to_le_bytes()[..], &u32::MAX.to_le_bytes(), &[1]].concat();
        assert_eq!(runs_of(&long), None);
    }
}
