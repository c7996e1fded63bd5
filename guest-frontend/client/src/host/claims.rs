//! Ranges of the program that threads are registering or unregistering.
//!
//! Both take several steps, and several threads may try the same range at once. One of them
//! claims it; to the others it is registered until it is private to the program again.

use std::collections::BTreeMap;
use std::ops::Range;

use paragpu_protocol::status::Status;
use parking_lot::Mutex;

use crate::error::Result;

/// The claimed ranges, none of which overlap: start and end.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<BTreeMap<u64, u64>>);

/// A range that no other thread can claim until this is dropped.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    start: u64,
}

impl Claims {
    /// Claims a range if `look`, during which no thread claims one, succeeds.
    ///
    /// # Errors
    /// `claimed` if another thread has a part of the range; those of `look`.
    pub(super) fn claim<T>(
        &self,
        range: Range<u64>,
        claimed: Status,
        look: impl FnOnce() -> Result<T>,
    ) -> Result<(Claim<'_>, T)> {
        let mut claims = self.0.lock();
        let before = claims.range(..range.end).next_back();
        if before.is_some_and(|(_, end)| *end > range.start) {
            return Err(claimed);
        }
        let found = look()?;
        claims.insert(range.start, range.end);
        let claim = Claim {
            claims: self,
            start: range.start,
        };
        Ok((claim, found))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.0.lock().remove(&self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_range_is_refused_until_it_is_dropped() {
        let claims = Claims::default();
        let claim = |range| claims.claim(range, Status::INVALID_VALUE, || Ok(()));
        let missing = claims.claim(20..30, Status::INVALID_VALUE, || {
            Err::<(), _>(Status::NOT_FOUND)
        });
        assert_eq!(missing.unwrap_err(), Status::NOT_FOUND);
        let held = claim(20..30).unwrap();
        let _beside = (claim(10..20).unwrap(), claim(30..31).unwrap());
        for range in [20..30, 15..21, 29..40, 22..23, 0..100] {
            assert_eq!(claim(range).unwrap_err(), Status::INVALID_VALUE);
        }
        drop(held);
        claim(22..23).unwrap();
    }
}
