//! Splits a rectangular copy into pieces that fit a staging chunk.

use paragpu_device::CopyEnd;
use paragpu_protocol::status::Status;

use crate::error::{Outcome, fail};

/// A piece of a rectangular copy: origin and extent in bytes, rows, slices. The
/// packed pieces, concatenated, are the packed whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) origin: [u64; 3],
    pub(crate) extent: [u64; 3],
}

impl Piece {
    /// Packed size of the piece.
    pub(crate) fn bytes(&self) -> u64 {
        self.extent.iter().product()
    }
}

/// Packed size of an extent.
///
/// # Errors
/// `INVALID_VALUE` past 2⁶³.
pub(crate) fn volume([width, height, depth]: [u64; 3]) -> Outcome<u64> {
    match width
        .checked_mul(height)
        .and_then(|rows| rows.checked_mul(depth))
        .filter(|bytes| *bytes <= i64::MAX as u64)
    {
        Some(bytes) => Ok(bytes),
        None => fail(Status::INVALID_VALUE, "the extent overflows"),
    }
}

/// Checks that the rows of an extent in linear memory do not overlap, as CUDA demands. So
/// the copy has no more bytes than the memory, although its pieces are checked one by one.
///
/// # Errors
/// `INVALID_VALUE`.
pub(crate) fn check_pitch(end: &CopyEnd, [width, height, depth]: [u64; 3]) -> Outcome<()> {
    match *end {
        CopyEnd::Linear { pitch, rows, .. }
            if (height > 1 || depth > 1) && pitch < width || depth > 1 && rows < height =>
        {
            fail(
                Status::INVALID_VALUE,
                "the pitch is smaller than a row, or the height than the rows",
            )
        }
        _ => Ok(()),
    }
}

/// The piece that begins at packed byte `done` and has at most `most` bytes. `done` is
/// the end of an earlier piece, below the volume of `extent`.
pub(crate) fn piece([width, height, depth]: [u64; 3], done: u64, most: u64) -> Piece {
    let slice = width * height;
    let (z, in_slice) = (done / slice, done % slice);
    let (y, x) = (in_slice / width, in_slice % width);
    let origin = [x, y, z];
    let extent = if in_slice == 0 && slice <= most {
        [width, height, (most / slice).min(depth - z)]
    } else if x == 0 && width <= most {
        [width, (most / width).min(height - y), 1]
    } else {
        [most.min(width - x), 1, 1]
    };
    Piece { origin, extent }
}

/// A source or destination, advanced to a piece's origin.
///
/// # Errors
/// `INVALID_VALUE` past the end of the address space.
pub(crate) fn shifted(end: CopyEnd, [x, y, z]: [u64; 3]) -> Outcome<CopyEnd> {
    let moved = match end {
        CopyEnd::Linear {
            address,
            pitch,
            rows,
        } => rows
            .checked_mul(z)
            .and_then(|above| above.checked_add(y))
            .and_then(|above| above.checked_mul(pitch))
            .and_then(|above| above.checked_add(x))
            .and_then(|above| above.checked_add(address))
            .map(|address| CopyEnd::Linear {
                address,
                pitch,
                rows,
            }),
        CopyEnd::Array {
            array,
            level,
            origin: [a, b, c],
        } => match (a.checked_add(x), b.checked_add(y), c.checked_add(z)) {
            (Some(a), Some(b), Some(c)) => Some(CopyEnd::Array {
                array,
                level,
                origin: [a, b, c],
            }),
            _ => None,
        },
    };
    match moved {
        Some(end) => Ok(end),
        None => fail(Status::INVALID_VALUE, "the copy's position overflows"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overflow_is_refused() {
        assert!(volume([u64::MAX, 2, 1]).is_err());
        assert!(volume([1 << 40, 1 << 40, 1]).is_err());
        assert_eq!(volume([3, 5, 7]).unwrap(), 105);
        let end = CopyEnd::Linear {
            address: u64::MAX - 10,
            pitch: 8,
            rows: 4,
        };
        assert!(shifted(end, [0, 2, 0]).is_err());
        assert!(shifted(end, [0, 1, 0]).is_ok());
        assert!(shifted(end, [0, 0, u64::MAX]).is_err());
    }

    #[test]
    fn rows_that_overlap_are_refused() {
        let end = |pitch, rows| CopyEnd::Linear {
            address: 0,
            pitch,
            rows,
        };
        assert!(check_pitch(&end(0, 0), [1 << 20, 1, 1]).is_ok());
        assert!(check_pitch(&end(7, 0), [8, 2, 1]).is_err());
        assert!(check_pitch(&end(8, 1), [8, 2, 1]).is_ok());
        assert!(check_pitch(&end(8, 1), [8, 2, 2]).is_err());
        assert!(check_pitch(&end(0, 1), [8, 1, 2]).is_err());
    }

    proptest! {
        #[test]
        fn pieces_are_the_whole_in_order(w in 1_u64..40, h in 1_u64..10, d in 1_u64..6, most in 1_u64..400) {
            let mut packed = Vec::new();
            let mut done = 0;
            while done < w * h * d {
                let Piece { origin: [x, y, z], extent: [a, b, c] } = piece([w, h, d], done, most);
                let bytes = a * b * c;
                prop_assert!(bytes > 0 && bytes <= most);
                for k in z..z + c { for j in y..y + b { for i in x..x + a {
                    prop_assert!(i < w && j < h && k < d);
                    packed.push((k * h + j) * w + i);
                } } }
                done += bytes;
            }
            prop_assert_eq!(packed, (0..w * h * d).collect::<Vec<_>>());
        }
    }
}
