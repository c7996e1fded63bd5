//! The kernel that computes BLAKE3 of device memory: see [hash.ptx](hash.ptx).

use std::fmt::Write as _;

/// The kernel's name. Its parameters: the first range's address (8 bytes), the size of
/// each range (8), the address of the hashes (8). The ranges are contiguous.
pub const NAME: &str = "paragpu_hash";
/// Threads per block.
pub const THREADS: u32 = 256;
/// Maximum size of a range in bytes.
pub const MAX_RANGE: u64 = 2 << 20;

/// The kernel without the two parts that are generated unrolled.
const KERNEL: &str = include_str!("hash.ptx");
/// The markers of these parts.
const COMPRESS: &str = " // {compress}\n";
const LOAD: &str = " // {load the bytes}\n";

/// The first words of BLAKE3's initial value.
const INITIAL: [u32; 4] = [0x6A09_E667, 0xBB67_AE85, 0x3C6E_F372, 0xA54F_F53A];
/// The permutation of message words from one round to the next.
const PERMUTATION: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];

/// The kernel, for compute capability 7.0 and above.
pub fn text() -> String {
    KERNEL.replace(COMPRESS, &compress()).replace(LOAD, &load())
}

/// Appends a line of PTX.
macro_rules! line {
    // Writing to a String cannot fail.
    ($to:expr, $($format:tt)*) => { let _ = writeln!($to, " {}", format_args!($($format)*)); };
}

/// Compresses the message `%m` into the chaining value `%c`, with the counter
/// `%count`, the length `%len` and the flags `%flags`.
fn compress() -> String {
    let mut text = String::new();
    for (at, word) in INITIAL.iter().enumerate() {
        line!(text, "mov.u32 %v{}, {word};", at + 8);
    }
    for at in 0..8 {
        line!(text, "mov.u32 %v{at}, %c{at};");
    }
    line!(text, "mov.u32 %v12, %count;");
    line!(text, "mov.u32 %v13, 0;");
    line!(text, "mov.u32 %v14, %len;");
    line!(text, "mov.u32 %v15, %flags;");
    let mut order: [usize; 16] = std::array::from_fn(|at| at);
    for _ in 0..7 {
        for column in 0..4 {
            let places = [column, column + 4, column + 8, column + 12];
            mix(
                &mut text,
                places,
                [order[2 * column], order[2 * column + 1]],
            );
        }
        for first in 0..4 {
            let place = |row: usize| 4 * row + (first + row) % 4;
            let places = [place(0), place(1), place(2), place(3)];
            let words = [order[8 + 2 * first], order[9 + 2 * first]];
            mix(&mut text, places, words);
        }
        order = PERMUTATION.map(|from| order[from]);
    }
    for at in 0..8 {
        line!(text, "xor.b32 %c{at}, %v{at}, %v{};", at + 8);
    }
    text
}

/// One of the eight mixing steps of a round.
fn mix(text: &mut String, [a, b, c, d]: [usize; 4], words: [usize; 2]) {
    for (word, [first, second]) in words.into_iter().zip([[16, 12], [8, 7]]) {
        line!(text, "add.u32 %v{a}, %v{a}, %v{b};");
        line!(text, "add.u32 %v{a}, %v{a}, %m{word};");
        turned(text, d, a, first);
        line!(text, "add.u32 %v{c}, %v{c}, %v{d};");
        turned(text, b, c, second);
    }
}

/// `x = (x ^ y)`, rotated right.
fn turned(text: &mut String, x: usize, y: usize, by: u32) {
    line!(text, "xor.b32 %v{x}, %v{x}, %v{y};");
    line!(text, "shf.r.wrap.b32 %v{x}, %v{x}, %v{x}, {by};");
}

/// Loads the block of `%len` bytes at `%at` into `%m`, which is zeroed.
fn load() -> String {
    let mut text = String::new();
    for word in 0..16 {
        for byte in 0..4 {
            let offset = 4 * word + byte;
            line!(text, "setp.gt.u32 %p, %len, {offset};");
            line!(text, "@%p ld.global.u8 %byte, [%at+{offset}];");
            line!(text, "@%p shl.b32 %byte, %byte, {};", 8 * byte);
            line!(text, "@%p or.b32 %m{word}, %m{word}, %byte;");
        }
    }
    text
}

/// Groups `ranges` into runs that one launch hashes: first address, size of each range,
/// number of contiguous ranges.
pub fn runs(ranges: &[(u64, u64)]) -> Vec<(u64, u64, u32)> {
    let mut runs: Vec<(u64, u64, u32)> = Vec::new();
    for &(address, size) in ranges {
        match runs.last_mut() {
            Some((first, each, count))
                if *each == size && *first + *each * u64::from(*count) == address =>
            {
                *count += 1;
            }
            _ => runs.push((address, size, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_device::{Launch, Platform as _, StreamId};
    use paragpu_device_software::SoftwarePlatform;
    use paragpu_protocol::layout::{CHUNK, Regions};

    /// Hashes ranges of device memory on the software GPU, at the addresses of the guest's
    /// device `ordinal`.
    fn hashed(ordinal: u32, content: &[u8], skip: u64, each: u64, count: u32) -> Vec<u8> {
        let regions = Regions::of(ordinal).unwrap();
        let mut device = SoftwarePlatform::default().open(0, regions).unwrap();
        let base = regions.arena;
        device.memory_map(base, 4 * CHUNK).unwrap();
        let mut host = vec![0_u8; content.len() + 3 * 4096];
        let at = (host.as_mut_ptr() as u64).next_multiple_of(4096);
        let size = (content.len() as u64 + 4096).next_multiple_of(4096);
        let from = (at - host.as_ptr() as u64) as usize;
        host[from..from + content.len()].copy_from_slice(content);
        device.host_register(at, size).unwrap();
        let whole = content.len() as u64;
        device
            .copy(base + skip, at, whole, StreamId::LEGACY)
            .unwrap();
        let (module, _) = device.module_load(&text().as_str().into(), &[]).unwrap();
        let kernel = device.module_function(module, NAME).unwrap();
        let out = base + 3 * CHUNK;
        let parameters = [base + skip, each, out].map(u64::to_le_bytes).concat();
        device
            .launch(
                Launch {
                    grid: [count, 1, 1],
                    block: [THREADS, 1, 1],
                    ..Launch::of_one_thread(kernel.id, parameters)
                },
                StreamId::LEGACY,
            )
            .unwrap();
        let bytes = u64::from(count) * 32;
        device.copy(at, out, bytes, StreamId::LEGACY).unwrap();
        while !device.stream_query(StreamId::LEGACY).unwrap() {
            std::thread::yield_now();
        }
        device.host_unregister(at).unwrap();
        host[from..from + bytes as usize].to_vec()
    }

    #[test]
    fn the_kernel_is_blake3() {
        let sizes = [
            1,
            63,
            64,
            65,
            1023,
            1024,
            1025,
            2048,
            2049,
            3072,
            5000,
            7168,
            65_536,
            524_289,
            MAX_RANGE - 1,
            MAX_RANGE,
        ];
        for (size, skip) in sizes.into_iter().flat_map(|size| [(size, 0), (size, 5)]) {
            let content: Vec<u8> = (0..size).map(|at| ((at * 7919) >> 3) as u8).collect();
            let expected = blake3::hash(&content);
            assert_eq!(
                hashed(0, &content, skip, size, 1),
                expected.as_bytes(),
                "{size} at {skip}"
            );
        }
    }

    #[test]
    fn each_block_has_its_range() {
        let content: Vec<u8> = (0..40_000_u32).map(|at| ((at * 31) >> 2) as u8).collect();
        let expected: Vec<u8> = content
            .chunks(4000)
            .flat_map(|range| *blake3::hash(range).as_bytes())
            .collect();
        assert_eq!(hashed(1, &content, 0, 4000, 10), expected);
    }

    #[test]
    fn neighbours_of_one_size_are_a_run() {
        let ranges = [(0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (40, 4)];
        assert_eq!(runs(&ranges), [(0, 8, 3), (24, 4, 2), (40, 4, 1)]);
    }
}
