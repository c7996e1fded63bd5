//! A left factor of which only half of the elements is there (`mma.sp`, PTX ISA 9.7.14.6).
//!
//! Each row is divided into chunks, of which one half of the elements is there; four bits of
//! metadata tell which. Of a chunk of four elements of 8 or 16 bits, the bits are the columns
//! of two; of eight elements of four bits, they name two of four pairs; of two elements of 32
//! bits, they name two of four halves, which are those of one element.

use super::fragment::{Element, Shape};

/// Where the metadata of A is.
#[derive(Debug, Clone, Copy)]
pub struct Sparse {
    /// Row of the words of metadata.
    pub metadata: u32,
    /// Which of the lanes of each four has it, counted in as many as are needed.
    pub selector: u32,
}

/// Number of elements that are there in each chunk.
fn kept(element: Element) -> usize {
    match element.bits() {
        4 => 4,
        32 => 1,
        _ => 2,
    }
}

/// Number of lanes of each four whose words have the metadata, if that is possible.
#[must_use]
pub fn words([rows, _, depth]: Shape, element: Element) -> Option<u32> {
    let chunks = depth / (2 * kept(element) as u32);
    (rows == 16 && matches!(chunks, 4 | 8 | 16)).then_some(chunks / 4)
}

impl Sparse {
    /// The index in the whole A of each element that is there, both row by row. `metadata` has
    /// the words of all lanes.
    pub(super) fn places(
        self,
        metadata: &[u64; 32],
        [rows, _, depth]: Shape,
        of: Element,
    ) -> Vec<usize> {
        let (kept, depth) = (kept(of), depth as usize);
        let first = (self.selector * words([rows, 0, depth as u32], of).unwrap_or(0)) as usize;
        let bits = |row: usize, chunk: usize| {
            let (group, upper) = (row % 8, row / 8);
            // A word has four chunks of two rows, or eight of one.
            let (word, shift) = match of.bits() {
                16.. => (chunk / 4, chunk % 4 * 4 + upper * 16),
                _ => (chunk / 8 * 2 + upper, chunk % 8 * 4),
            };
            metadata[(group * 4 + first + word) % 32] >> shift
        };
        let place = |row: usize, at: usize| {
            let (chunk, at) = (at / kept, at % kept);
            let bits = bits(row, chunk) as usize;
            let column = match kept {
                1 => bits >> 1 & 1,
                _ => {
                    let pair = kept / 2;
                    (bits >> (at / pair * 2) & 3) * pair + at % pair
                }
            };
            row * depth + chunk * 2 * kept + column
        };
        let rows = 0..rows as usize;
        rows.flat_map(|row| (0..depth / 2).map(move |at| place(row, at)))
            .collect()
    }
}
