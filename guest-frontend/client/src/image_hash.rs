//! The hash of an image, by which a host knows it.

use std::thread::{self, Builder};

use blake3::Hasher;
use blake3::hazmat::{self, ChainingValue, HasherExt as _, Mode};

/// Parts of at least so many bytes are worth a thread: hashing one takes half a millisecond.
const PART: usize = 1 << 20;
/// Each level of the tree that is split doubles the number of threads.
const LEVELS: u32 = 2;

/// The BLAKE3 hash of an image. A large one is hashed by several threads, because its program
/// waits, and natively nobody reads all of it.
pub(crate) fn of(image: &[u8]) -> [u8; 32] {
    if image.len() < 2 * PART {
        return *blake3::hash(image).as_bytes();
    }
    let (left, right) = halves(image, 0, LEVELS - 1);
    *hazmat::merge_subtrees_root(&left, &right, Mode::Hash).as_bytes()
}

/// The chaining values of both subtrees of a part that begins at `offset` of the image.
fn halves(part: &[u8], offset: u64, levels: u32) -> (ChainingValue, ChainingValue) {
    // BLAKE3's tree: the left subtree is the largest power of two of chunks that leaves some.
    let (left, right) = part.split_at(hazmat::left_subtree_len(part.len() as u64) as usize);
    let middle = offset + left.len() as u64;
    thread::scope(|scope| {
        let helper = Builder::new().spawn_scoped(scope, || subtree(left, offset, levels));
        let right = subtree(right, middle, levels);
        let found = helper.ok().and_then(|helper| helper.join().ok());
        // Where no thread could start, this one does all.
        let left = found.unwrap_or_else(|| subtree(left, offset, levels));
        (left, right)
    })
}

fn subtree(part: &[u8], offset: u64, levels: u32) -> ChainingValue {
    if levels == 0 || part.len() < 2 * PART {
        let mut hasher = Hasher::new();
        return hasher
            .set_input_offset(offset)
            .update(part)
            .finalize_non_root();
    }
    let (left, right) = halves(part, offset, levels - 1);
    hazmat::merge_subtrees_non_root(&left, &right, Mode::Hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_compute_the_hash() {
        let image: Vec<u8> = (0..9 * PART as u32 + 3)
            .map(|i| (i ^ i >> 9) as u8)
            .collect();
        for size in [
            0,
            1,
            1024,
            PART,
            2 * PART - 1,
            2 * PART,
            2 * PART + 1,
            3 * PART,
            5 * PART + 7,
            image.len(),
        ] {
            let image = &image[..size];
            assert_eq!(of(image), *blake3::hash(image).as_bytes(), "{size} bytes");
        }
    }
}
