//! Batches: lists of operations in which each run shares one set of attributes.

use paragpu_protocol::status::Status;

use crate::sys::Result;

/// The index of the attributes of each of `count` operations: attributes `k` apply
/// from operation `firsts[k]` on.
///
/// # Errors
/// `INVALID_VALUE` unless the first run begins at 0, each later one after its
/// predecessor, and the last inside the batch.
pub fn attributes(count: usize, firsts: &[usize]) -> Result<Vec<usize>> {
    let ascending = firsts.is_sorted_by(|one, next| one < next);
    let inside = firsts.last().is_some_and(|last| *last < count);
    if firsts.first() != Some(&0) || !ascending || !inside {
        return Err(Status::INVALID_VALUE);
    }
    let mut found = Vec::with_capacity(count);
    for (index, next) in firsts.iter().skip(1).chain([&count]).enumerate() {
        found.resize(*next, index);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_share_attributes() {
        assert_eq!(attributes(3, &[0]), Ok(vec![0, 0, 0]));
        assert_eq!(attributes(5, &[0, 2, 3]), Ok(vec![0, 0, 1, 2, 2]));
        assert_eq!(attributes(1, &[0]), Ok(vec![0]));
    }

    #[test]
    fn runs_that_do_not_fit_are_refused() {
        for (count, firsts) in [
            (0, &[][..]),
            (0, &[0][..]),
            (3, &[]),
            (3, &[1]),
            (3, &[0, 0]),
            (3, &[0, 2, 1]),
            (3, &[0, 3]),
            (3, &[0, usize::MAX]),
        ] {
            let found = attributes(count, firsts);
            assert_eq!(found, Err(Status::INVALID_VALUE), "{count} {firsts:?}");
        }
    }
}
