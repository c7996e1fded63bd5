//! BLAKE3 of device memory, by the device: the text of a kernel.
//!
//! The kernel's blocks hash one range each, of 2 MiB at most (BLAKE3
//! specification, sections 2.1 to 2.5). A thread compresses two chunks of
//! 1 KiB and joins their chaining values; then levels of the tree are joined in
//! shared memory until one is left. Pairs that are joined level by level, an
//! odd one going up as it is, make the tree that the specification's splits do.

use std::fmt::Write as _;

/// The kernel's name. Its parameters: the first range's address (8 bytes), the
/// bytes of each range (8), where the hashes go (8); ranges follow each other.
pub const NAME: &str = "paragpu_hash";
/// Threads of a block.
pub const THREADS: u32 = 256;
/// Longest range.
pub const MOST: u64 = 2 << 20;

const INITIAL: [u32; 8] = [
    0x6A09_E667,
    0xBB67_AE85,
    0x3C6E_F372,
    0xA54F_F53A,
    0x510E_527F,
    0x9B05_688C,
    0x1F83_D9AB,
    0x5BE0_CD19,
];
/// The order of a round's message words after that of the round before.
const PERMUTATION: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
const CHUNK_START: u32 = 1;
const CHUNK_END: u32 = 2;
const PARENT: u32 = 4;
const ROOT: u32 = 8;
/// Bytes of one of the two halves of shared memory: chaining values of the
/// pairs of the longest range; the other half takes those of the next level.
const PAIRS: u32 = (MOST / 2048) as u32 * 32;

/// PTX text under construction.
struct Text(String);

impl Text {
    fn line(&mut self, line: impl AsRef<str>) {
        let _ = writeln!(self.0, " {}", line.as_ref());
    }

    fn all(&mut self, lines: &str) {
        lines.lines().for_each(|line| self.line(line.trim()));
    }

    /// One of the eight mixings of a round.
    fn mix(&mut self, [a, b, c, d]: [usize; 4], words: [usize; 2]) {
        for (word, [first, second]) in words.into_iter().zip([[16, 12], [8, 7]]) {
            self.line(format!("add.u32 %v{a}, %v{a}, %v{b};"));
            self.line(format!("add.u32 %v{a}, %v{a}, %m{word};"));
            self.turned(d, a, first);
            self.line(format!("add.u32 %v{c}, %v{c}, %v{d};"));
            self.turned(b, c, second);
        }
    }

    /// `x = (x ^ y)` turned right.
    fn turned(&mut self, x: usize, y: usize, by: u32) {
        self.line(format!("xor.b32 %v{x}, %v{x}, %v{y};"));
        self.line(format!("shf.r.wrap.b32 %v{x}, %v{x}, %v{x}, {by};"));
    }

    /// Compresses the message `%m` into the chaining value `%c`, with the
    /// counter `%count`, the length `%len` and the flags `%flags`.
    fn compress(&mut self) {
        for (at, word) in INITIAL.iter().take(4).enumerate() {
            self.line(format!("mov.u32 %v{}, {word};", at + 8));
        }
        for at in 0..8 {
            self.line(format!("mov.u32 %v{at}, %c{at};"));
        }
        self.line("mov.u32 %v12, %count;");
        self.line("mov.u32 %v13, 0;");
        self.line("mov.u32 %v14, %len;");
        self.line("mov.u32 %v15, %flags;");
        let mut order: [usize; 16] = std::array::from_fn(|at| at);
        for _ in 0..7 {
            for column in 0..4 {
                let places = [column, column + 4, column + 8, column + 12];
                self.mix(places, [order[2 * column], order[2 * column + 1]]);
            }
            for first in 0..4 {
                let place = |row: usize| 4 * row + (first + row) % 4;
                let places = [place(0), place(1), place(2), place(3)];
                self.mix(places, [order[8 + 2 * first], order[9 + 2 * first]]);
            }
            order = PERMUTATION.map(|from| order[from]);
        }
        for at in 0..8 {
            self.line(format!("xor.b32 %c{at}, %v{at}, %v{};", at + 8));
        }
    }

    fn start(&mut self) {
        for (at, word) in INITIAL.iter().enumerate() {
            self.line(format!("mov.u32 %c{at}, {word};"));
        }
    }

    /// Joins the chaining values in `%m`; `%left` are on this level.
    fn join(&mut self) {
        self.start();
        self.line("mov.u32 %count, 0;");
        self.line("mov.u32 %len, 64;");
        self.line("setp.eq.u32 %p, %left, 2;");
        self.line(format!("selp.u32 %flags, {}, {PARENT}, %p;", PARENT | ROOT));
        self.compress();
    }

    /// Loads the block of `%len` bytes at `%at`; what is missing is zero.
    fn load(&mut self) {
        self.all(
            "@%whole bra LOAD_WHOLE;
            mov.u32 %byte, 0;",
        );
        for word in 0..16 {
            self.line(format!("mov.u32 %m{word}, 0;"));
        }
        // A byte at a time: rare, for what begins or ends anywhere.
        for word in 0..16 {
            for byte in 0..4 {
                let offset = 4 * word + byte;
                self.line(format!("setp.gt.u32 %p, %len, {offset};"));
                self.line(format!("@%p ld.global.u8 %byte, [%at+{offset}];"));
                self.line(format!("@%p shl.b32 %byte, %byte, {};", 8 * byte));
                self.line(format!("@%p or.b32 %m{word}, %m{word}, %byte;"));
            }
        }
        self.line("bra.uni LOADED;");
        self.0.push_str("LOAD_WHOLE:\n");
        for word in (0..16).step_by(4) {
            self.line(format!(
                "ld.global.v4.u32 {{%m{word}, %m{}, %m{}, %m{}}}, [%at+{}];",
                word + 1,
                word + 2,
                word + 3,
                4 * word
            ));
        }
        self.0.push_str("LOADED:\n");
    }
}

/// The kernel, for compute capability 7.0 and above.
pub fn text() -> String {
    let mut text = Text(String::new());
    text.0.push_str(&format!(
        ".version 6.3\n.target sm_70\n.address_size 64\n\
         .visible .entry {NAME}(.param .u64 base, .param .u64 bytes, .param .u64 out)\n\
         .maxntid {THREADS}, 1, 1\n{{\n"
    ));
    text.all(&format!(
        ".shared .align 16 .b8 values[{}];
        .reg .pred %p, %q, %whole;
        .reg .b32 %v<16>;
        .reg .b32 %m<16>;
        .reg .b32 %c<8>;
        .reg .b32 %s<8>;
        .reg .b32 %count, %len, %flags, %left, %half, %byte, %pair, %second, %block, %blocks;
        .reg .b32 %thread, %range, %chunks, %pairs, %from, %to, %a, %one, %place;
        .reg .b64 %base, %bytes, %out, %at, %rest, %w, %start;
        ld.param.u64 %base, [base];
        ld.param.u64 %bytes, [bytes];
        ld.param.u64 %out, [out];
        mov.u32 %thread, %tid.x;
        mov.u32 %range, %ctaid.x;
        cvt.u64.u32 %w, %range;
        mad.lo.u64 %start, %w, %bytes, %base;
        add.u64 %w, %bytes, 1023;
        shr.u64 %w, %w, 10;
        cvt.u32.u64 %chunks, %w;
        add.u32 %pairs, %chunks, 1;
        shr.u32 %pairs, %pairs, 1;
        and.b64 %w, %start, 15;
        setp.eq.u64 %p, %w, 0;
        and.b64 %w, %bytes, 63;
        setp.eq.and.u64 %whole, %w, 0, %p;
        mov.u32 %a, values;
        mov.u32 %pair, %thread;",
        PAIRS + PAIRS / 2
    ));
    // Chunks, in pairs.
    text.0.push_str("PAIR:\n");
    text.all(
        "setp.ge.u32 %p, %pair, %pairs;
        @%p bra PAIRED;
        mov.u32 %second, 0;",
    );
    text.0.push_str("CHUNK:\n");
    text.all(
        "shl.b32 %count, %pair, 1;
        add.u32 %count, %count, %second;
        cvt.u64.u32 %w, %count;
        shl.b64 %w, %w, 10;
        add.u64 %at, %start, %w;
        sub.u64 %rest, %bytes, %w;
        min.u64 %rest, %rest, 1024;
        add.u64 %w, %rest, 63;
        shr.u64 %w, %w, 6;
        cvt.u32.u64 %blocks, %w;
        mov.u32 %block, 0;",
    );
    text.start();
    text.0.push_str("BLOCK:\n");
    text.all(&format!(
        "min.u64 %w, %rest, 64;
        cvt.u32.u64 %len, %w;
        setp.eq.u32 %p, %block, 0;
        selp.u32 %flags, {CHUNK_START}, 0, %p;
        add.u32 %half, %block, 1;
        setp.eq.u32 %p, %half, %blocks;
        @%p or.b32 %flags, %flags, {CHUNK_END};
        setp.eq.and.u32 %q, %chunks, 1, %p;
        @%q or.b32 %flags, %flags, {ROOT};",
    ));
    text.load();
    text.compress();
    text.all(
        "add.u64 %at, %at, 64;
        sub.u64 %rest, %rest, %w;
        add.u32 %block, %block, 1;
        setp.lt.u32 %p, %block, %blocks;
        @%p bra BLOCK;
        setp.eq.u32 %p, %second, 1;
        @%p bra BOTH;
        add.u32 %one, %count, 1;
        setp.ge.u32 %p, %one, %chunks;
        @%p bra STORE;",
    );
    for at in 0..8 {
        text.line(format!("mov.u32 %s{at}, %c{at};"));
    }
    text.all("mov.u32 %second, 1;\nbra CHUNK;");
    text.0.push_str("BOTH:\n");
    for at in 0..8 {
        text.line(format!("mov.u32 %m{at}, %s{at};"));
        text.line(format!("mov.u32 %m{}, %c{at};", at + 8));
    }
    text.line("mov.u32 %left, %chunks;");
    text.join();
    text.0.push_str("STORE:\n");
    text.all("shl.b32 %place, %pair, 5;\nadd.u32 %place, %place, %a;");
    text.store();
    text.all(&format!(
        "add.u32 %pair, %pair, {THREADS};
        bra PAIR;"
    ));
    // Levels of the tree.
    text.0.push_str("PAIRED:\n");
    text.all(&format!(
        "mov.u32 %from, %a;
        add.u32 %to, %a, {PAIRS};
        mov.u32 %left, %pairs;"
    ));
    text.0.push_str("LEVEL:\n");
    text.all(
        "bar.sync 0;
        setp.le.u32 %p, %left, 1;
        @%p bra DONE;
        add.u32 %half, %left, 1;
        shr.u32 %half, %half, 1;
        mov.u32 %pair, %thread;",
    );
    text.0.push_str("NODE:\n");
    text.all(
        "setp.ge.u32 %p, %pair, %half;
        @%p bra NODES;
        shl.b32 %place, %pair, 6;
        add.u32 %place, %place, %from;",
    );
    for at in 0..8 {
        text.line(format!("ld.shared.u32 %c{at}, [%place+{}];", 4 * at));
    }
    text.all(
        "shl.b32 %one, %pair, 1;
        add.u32 %one, %one, 1;
        setp.ge.u32 %p, %one, %left;
        @%p bra KEEP;",
    );
    for at in 0..8 {
        text.line(format!("mov.u32 %m{at}, %c{at};"));
        text.line(format!(
            "ld.shared.u32 %m{}, [%place+{}];",
            at + 8,
            32 + 4 * at
        ));
    }
    text.join();
    text.0.push_str("KEEP:\n");
    text.all("shl.b32 %place, %pair, 5;\nadd.u32 %place, %place, %to;");
    text.store();
    text.all(&format!(
        "add.u32 %pair, %pair, {THREADS};
        bra NODE;"
    ));
    text.0.push_str("NODES:\n");
    text.all(
        "mov.u32 %place, %from;
        mov.u32 %from, %to;
        mov.u32 %to, %place;
        mov.u32 %left, %half;
        bra LEVEL;",
    );
    text.0.push_str("DONE:\n");
    text.all(
        "setp.ge.u32 %p, %thread, 8;
        @%p bra END;
        shl.b32 %place, %thread, 2;
        cvt.u64.u32 %w, %place;
        add.u32 %place, %place, %from;
        ld.shared.u32 %one, [%place];
        add.u64 %out, %out, %w;
        cvt.u64.u32 %w, %range;
        shl.b64 %w, %w, 5;
        add.u64 %out, %out, %w;
        st.global.u32 [%out], %one;",
    );
    text.0.push_str("END:\n ret;\n}\n");
    text.0
}

impl Text {
    /// Stores the chaining value at `%place` in shared memory.
    fn store(&mut self) {
        for at in 0..8 {
            self.line(format!("st.shared.u32 [%place+{}], %c{at};", 4 * at));
        }
    }
}

/// `ranges` as runs that one launch hashes: first address, bytes of each, how
/// many follow each other.
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

    /// The hashes of ranges of device memory, by the software GPU at the
    /// addresses of the guest's device `ordinal`.
    fn hashed(ordinal: u32, content: &[u8], skip: u64, each: u64, count: u32) -> Vec<u8> {
        let regions = Regions::of(ordinal).unwrap();
        let mut device = SoftwarePlatform::new().open(0, regions).unwrap();
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
        let (module, _) = device.module_load(text().as_bytes(), &[]).unwrap();
        let kernel = device.module_function(module, NAME).unwrap();
        let out = base + 3 * CHUNK;
        let parameters = [base + skip, each, out].map(u64::to_le_bytes).concat();
        device
            .launch(
                Launch {
                    function: kernel.id,
                    grid: [count, 1, 1],
                    block: [THREADS, 1, 1],
                    dynamic_shared: 0,
                    cooperative: false,
                    cluster: [0; 3],
                    parameters: parameters.into(),
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
            MOST - 1,
            MOST,
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
