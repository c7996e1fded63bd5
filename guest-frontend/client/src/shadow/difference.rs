//! Where two versions of the same memory differ, byte by byte. Both slices have equal length.

/// Number of bytes that are compared at once.
const UNIT: usize = 16;
/// Size of a word in bytes.
const WORD: usize = 4;

/// The first run of differing bytes at or after `at`: its first byte, and the byte after it.
pub(crate) fn changed_bytes(former: &[u8], now: &[u8], at: usize) -> Option<(usize, usize)> {
    let (former, now) = (former.get(at..)?, now.get(at..)?);
    let first = equal_bytes(former, now);
    let length = differing_bytes(former.get(first..)?, now.get(first..)?);
    (length > 0).then_some((at + first, at + first + length))
}

/// Number of bytes before the first that differs.
pub(super) fn equal_bytes(one: &[u8], other: &[u8]) -> usize {
    leading(one, other, |difference| difference, |same| same)
}

/// Number of bytes before the first that is equal.
pub(super) fn differing_bytes(one: &[u8], other: &[u8]) -> usize {
    const LOW: u128 = u128::from_le_bytes([0x01; UNIT]);
    const HIGH: u128 = u128::from_le_bytes([0x80; UNIT]);
    // The lowest bit is in the first byte that is zero. Borrows set bits only behind it.
    let zeros = |bytes: u128| bytes.wrapping_sub(LOW) & !bytes & HIGH;
    leading(one, other, zeros, |same| !same)
}

/// Number of bytes before the first that begins 16 equal ones, in steps of 16.
pub(super) fn differing_units(one: &[u8], other: &[u8]) -> usize {
    let ((units, rest), (other_units, other_rest)) =
        (one.as_chunks::<UNIT>(), other.as_chunks::<UNIT>());
    let pairs = units.iter().zip(other_units);
    let same = |(one, other): (&[u8; UNIT], &[u8; UNIT])| {
        u128::from_ne_bytes(*one) == u128::from_ne_bytes(*other)
    };
    match pairs.map(same).position(|same| same) {
        Some(unit) => unit * UNIT,
        None if rest == other_rest => units.len() * UNIT,
        None => one.len(),
    }
}

/// Number of bytes before the first word that is equal, without equal bytes at their end.
/// `offset` tells where the words begin: at its multiples of 4. The first byte differs.
pub(super) fn differing_words(one: &[u8], other: &[u8], offset: usize) -> usize {
    let first = (offset.next_multiple_of(WORD) - offset).min(one.len());
    let (rest, other_rest) = (one.get(first..), other.get(first..));
    let (words, _) = rest.unwrap_or_default().as_chunks::<WORD>();
    let (other_words, _) = other_rest.unwrap_or_default().as_chunks::<WORD>();
    let words = words.iter().zip(other_words);
    let differ = words.take_while(|(one, other)| one != other).count();
    let end = first + differ * WORD;
    // Slices, since the end of an iterator is reached through all that it leaves out.
    let (one, other) = (one.get(..end), other.get(..end));
    let (one, other) = (one.unwrap_or_default(), other.unwrap_or_default());
    let pairs = one.iter().rev().zip(other.iter().rev());
    end - pairs.take_while(|(one, other)| one == other).count()
}

/// Number of bytes before the first that ends a run: by the lowest bit of `ends`, which gets the
/// difference of a unit in little-endian order, or by whether the byte is the same.
fn leading(
    one: &[u8],
    other: &[u8],
    ends: impl Fn(u128) -> u128,
    goes_on: impl Fn(bool) -> bool,
) -> usize {
    let ((units, rest), (other_units, other_rest)) =
        (one.as_chunks::<UNIT>(), other.as_chunks::<UNIT>());
    for (at, (unit, other)) in units.iter().zip(other_units).enumerate() {
        let end = ends(u128::from_le_bytes(*unit) ^ u128::from_le_bytes(*other));
        if end != 0 {
            return at * UNIT + end.trailing_zeros() as usize / 8;
        }
    }
    let bytes = rest.iter().zip(other_rest);
    let bytes = bytes.take_while(|(one, other)| goes_on(one == other));
    units.len() * UNIT + bytes.count()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Two slices, of which long runs are equal or differ.
    fn alike() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        vec((1_usize..70, any::<bool>(), any::<u8>(), 1_u8..), 0..8).prop_map(|runs| {
            let (mut one, mut other) = (Vec::new(), Vec::new());
            for (length, differs, byte, difference) in runs {
                one.extend(vec![byte; length]);
                let difference = if differs { difference } else { 0 };
                other.extend(vec![byte ^ difference; length]);
            }
            (one, other)
        })
    }

    proptest! {
        #[test]
        fn runs_are_exactly_what_differs((former, now) in alike()) {
            let mut found = vec![false; former.len()];
            let mut at = 0;
            while let Some((from, to)) = changed_bytes(&former, &now, at) {
                prop_assert!(from >= at && to > from);
                prop_assert!(to == now.len() || former[to] == now[to]);
                found[from..to].fill(true);
                at = to;
            }
            let want: Vec<bool> = former.iter().zip(&now).map(|(a, b)| a != b).collect();
            prop_assert_eq!(found, want);
        }

        #[test]
        fn words_end_before_the_first_that_is_equal((former, now) in alike(), offset in 0_usize..4) {
            prop_assume!(former.first() != now.first());
            let found = differing_words(&former, &now, offset);
            let first = (WORD - offset) % WORD;
            prop_assert!(found <= former.len());
            prop_assert!(found == 0 || former[found - 1] != now[found - 1]);
            let differs = |at: usize| former[at..at + WORD] != now[at..at + WORD];
            let words = (first..).step_by(WORD).take_while(|at| at + WORD <= now.len());
            let end = words.clone().find(|at| !differs(*at));
            let end = end.or(words.last().map(|at| at + WORD)).unwrap_or(first.min(now.len()));
            prop_assert!(found <= end && (found..end).all(|at| former[at] == now[at]));
        }
    }
}
