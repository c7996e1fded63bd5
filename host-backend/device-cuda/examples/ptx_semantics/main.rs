//! Do the software GPU and this machine's GPU compute the same?
//!
//! Generates a PTX program for each instruction in [`cases`], runs it on both with the same random inputs (edge
//! cases among them) and compares every word of the results. See `--help`.

mod cases;

use cases::{Case, Check, Input};
use paragpu_device::conformance::settle;
use paragpu_device::{Device, Error, Launch, Platform, StreamId};
use paragpu_device_cuda::CudaPlatform;
use paragpu_device_software::{Options, SoftwarePlatform};
use paragpu_protocol::layout::{CHUNK, Regions};
use std::process::ExitCode;

const HELP: &str = "ptx_semantics: compares instructions of the software GPU with this machine's GPU

  cargo run --release -p paragpu-device-cuda --example ptx_semantics -- [OPTION]...

  --only TEXT    only cases whose instruction contains TEXT
  --rounds N     rounds of random inputs of each case (default 8)
  --seed N       seed of the inputs (default 1)
  --software     run on the software GPU alone and print a digest of each case's results
  --list         print the cases
  --emit FOLDER  write each case's PTX there, for an assembler to check
  --dump FOLDER  write what the GPU read and wrote of each case, as little-endian words: 16 of inputs and 16 of
                 results for each thread
  --recorded FOLDER  compare with what --dump wrote instead of a GPU

A case that needs a newer GPU than this machine's is skipped. Exit status: 0 where all agree within what the case
allows, 1 where one does not, 2 for wrong words or no GPU.";

/// Threads of a launch.
const THREADS: usize = 128;
/// Words that each thread reads and writes.
const WORDS: usize = 16;
const OUT: u64 = 1 << 20;

struct Arguments {
    only: String,
    rounds: u32,
    seed: u64,
    software: bool,
    list: bool,
    emit: Option<String>,
    dump: Option<String>,
    recorded: Option<String>,
}

fn arguments() -> Option<Arguments> {
    let mut parsed = Arguments {
        only: String::new(),
        rounds: 8,
        seed: 1,
        software: false,
        list: false,
        emit: None,
        dump: None,
        recorded: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--only" => parsed.only = words.next()?,
            "--rounds" => parsed.rounds = words.next()?.parse().ok()?,
            "--seed" => parsed.seed = words.next()?.parse().ok()?,
            "--software" => parsed.software = true,
            "--list" => parsed.list = true,
            "--emit" => parsed.emit = Some(words.next()?),
            "--dump" => parsed.dump = Some(words.next()?),
            "--recorded" => parsed.recorded = Some(words.next()?),
            _ => return None,
        }
    }
    Some(parsed)
}

/// splitmix64
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn word(&mut self, input: Input) -> u32 {
        let v = self.next();
        let low = v as u32;
        let half = |v: u32| v & 0x83ff | (10 + (v >> 10 & 0x3f) % 10) << 10;
        let bfloat = |v: u32| v & 0x807f | (122 + (v >> 7 & 0xff) % 10) << 7;
        match input {
            Input::Any => match v >> 60 {
                0..=5 => low,
                6 => low & 63,
                7 => 1 << (low & 31),
                8..=11 => (f32::from_bits(low & 0x007f_ffff | 0x3f80_0000) * 64.0 - 96.0).to_bits(),
                _ => EDGES[low as usize % EDGES.len()],
            },
            Input::Moderate => low & 0x807f_ffff | (120 + (v >> 40) as u32 % 14) << 23,
            Input::Halves => half(low & 0xffff) | half(low >> 16) << 16,
            Input::Bfloats => bfloat(low & 0xffff) | bfloat(low >> 16) << 16,
            // No NaN and no infinity of either 8-bit format.
            Input::Bytes8 => low & 0xb7b7_b7b7,
            Input::Doubles => low,
        }
    }
}

const EDGES: [u32; 24] = [
    0,
    1,
    0x8000_0000,
    0x8000_0001,
    0x7fff_ffff,
    0xffff_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0x7f80_0001,
    0x007f_ffff,
    0x0080_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x7f7f_ffff,
    0x4f00_0000,
    0x4f80_0000,
    0x5f00_0000,
    0x7c00_7c00,
    0xfc00_7e00,
    0x0001_8001,
    0x7bff_fbff,
    0x3c00_bc00,
    0x43e0_0000,
];

/// A device and the kernel's memory on it.
struct Machine {
    device: Box<dyn Device>,
    arena: u64,
}

impl Machine {
    fn open(platform: &dyn Platform, ordinal: u32) -> Result<Self, Error> {
        let regions = Regions::of(ordinal).expect("two devices have regions");
        let mut device = platform.open(0, regions)?;
        device.memory_map(regions.arena, CHUNK)?;
        Ok(Self {
            device,
            arena: regions.arena,
        })
    }

    fn run(&mut self, text: &str, input: &[u32]) -> Result<Vec<u32>, Error> {
        let stream = StreamId::LEGACY;
        let (module, _) = self.device.module_load(&text.into(), &[])?;
        let function = self.device.module_function(module, "k")?;
        let bytes = input.len() * 4;
        let mut buffer = vec![0u8; bytes.next_multiple_of(4096) + 4096];
        let start = (buffer.as_ptr() as u64).next_multiple_of(4096);
        let skip = (start - buffer.as_ptr() as u64) as usize;
        for (slot, word) in buffer[skip..].chunks_exact_mut(4).zip(input) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        self.device
            .host_register(start, bytes.next_multiple_of(4096) as u64)?;
        self.device.copy(self.arena, start, bytes as u64, stream)?;
        self.device
            .memset(self.arena + OUT, 0, 0, 4, input.len() as u64, 1, stream)?;
        let mut parameters = (self.arena + OUT).to_le_bytes().to_vec();
        parameters.extend(self.arena.to_le_bytes());
        let launch = Launch {
            block: [THREADS as u32, 1, 1],
            ..Launch::of_one_thread(function.id, parameters)
        };
        self.device.launch(launch, stream)?;
        self.device
            .copy(start, self.arena + OUT, bytes as u64, stream)?;
        settle(self.device.as_mut(), stream)?;
        self.device.host_unregister(start)?;
        self.device.module_unload(module)?;
        let words = buffer[skip..][..bytes].chunks_exact(4);
        Ok(words
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }
}

/// Input words `%r0` to `%r15` with views of them, output words `%o0` to `%o15`.
fn program(case: &Case) -> String {
    let mut load = String::new();
    let mut store = String::new();
    for n in 0..WORDS {
        load += &format!(
            "ld.global.b32 %r{n}, [%rdin+{}]; mov.b32 %f{n}, %r{n}; cvt.u16.u32 %rs{n}, %r{n}; mov.b32 %o{n}, 0;\n",
            4 * n
        );
        store += &format!("st.global.b32 [%rdout+{}], %o{n};\n", 4 * n);
    }
    for n in 0..WORDS / 2 {
        load += &format!(
            "mov.b64 %rd{n}, {{%r{}, %r{}}}; mov.b64 %fd{n}, %rd{n};\n",
            2 * n,
            2 * n + 1
        );
    }
    format!(
        ".version {}\n.target sm_{}\n.address_size 64
.visible .entry k(.param .u64 out, .param .u64 in) {{
.reg .pred %p<8>; .reg .b16 %rs<32>; .reg .b32 %r<32>; .reg .b32 %o<16>; .reg .b64 %rd<16>; .reg .f32 %f<32>; .reg .f64 %fd<16>;
.reg .b64 %rdin, %rdout; .reg .b32 %idx; .shared .align 128 .b8 tile[8192];
ld.param.u64 %rdout, [out]; ld.param.u64 %rdin, [in]; mov.u32 %idx, %tid.x;
mad.wide.u32 %rdin, %idx, {w}, %rdin; mad.wide.u32 %rdout, %idx, {w}, %rdout;
{load}{}\n{store}ret; }}\n",
        if case.target > 90 { "8.8" } else { "8.4" },
        case.target,
        case.body,
        w = 4 * WORDS,
    )
}

fn half(bits: u32) -> f32 {
    let (exponent, fraction) = (bits >> 10 & 31, (bits & 0x3ff) as f32);
    let size = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        e => (1.0 + fraction / 1024.0) * 2f32.powi(e as i32 - 15),
    };
    if bits & 0x8000 != 0 { -size } else { size }
}

fn near(a: f64, b: f64, relative: f64) -> bool {
    a == b
        || a.is_nan() && b.is_nan()
        || (a - b).abs() <= relative * a.abs().max(b.abs()).max(1e-30)
}

fn same(check: Check, a: &[u32], b: &[u32]) -> bool {
    let all = |f: &dyn Fn(u32, u32) -> bool| a.iter().zip(b).all(|(&x, &y)| x == y || f(x, y));
    match check {
        Check::Exact => a == b,
        Check::Single(r) => {
            all(&|x, y| near(f32::from_bits(x).into(), f32::from_bits(y).into(), r))
        }
        Check::Sum(limit) => all(&|x, y| (f32::from_bits(x) - f32::from_bits(y)).abs() <= limit),
        Check::Halves(r) => all(&|x, y| {
            [0, 16].iter().all(|s| {
                near(
                    half(x >> s & 0xffff).into(),
                    half(y >> s & 0xffff).into(),
                    r,
                )
            })
        }),
        Check::Double(r) => a.chunks_exact(2).zip(b.chunks_exact(2)).all(|(x, y)| {
            let value = |w: &[u32]| f64::from_bits(u64::from(w[0]) | u64::from(w[1]) << 32);
            x == y || near(value(x), value(y), r)
        }),
    }
}

/// Where a case's words are kept.
fn file_of(folder: &str, case: &Case) -> String {
    let name = case.body.chars().filter(char::is_ascii_alphanumeric);
    let name: String = name.take(40).collect();
    let mut hash = 0u64;
    for byte in case.body.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{folder}/{name}-{hash:016x}.words")
}

/// A file's words; none if it is missing.
fn recorded_in(file: &str) -> Vec<u32> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let words = bytes.chunks_exact(4);
    words
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

fn compare(
    case: &Case,
    arguments: &Arguments,
    software: &mut Machine,
    gpu: Option<&mut Machine>,
) -> bool {
    let text = program(case);
    let mut gpu = gpu;
    let mut digest = 0u64;
    let (mut words, mut different) = (0, 0);
    let mut dump = Vec::new();
    let recorded = arguments.recorded.as_ref();
    let recorded = recorded.map(|folder| recorded_in(&file_of(folder, case)));
    for round in 0..arguments.rounds {
        let mut random = Random(
            arguments
                .seed
                .wrapping_mul(0x1_0001)
                .wrapping_add(u64::from(round)),
        );
        let mut input: Vec<u32> = (0..THREADS * WORDS)
            .map(|_| random.word(case.input))
            .collect();
        if case.input == Input::Doubles {
            for pair in input.chunks_exact_mut(2) {
                let exponent = 1000 + (random.next() % 48) as u32;
                pair[1] = pair[1] & 0x800f_ffff | exponent << 20;
            }
        }
        let mine = match software.run(&text, &input) {
            Ok(mine) => mine,
            Err(error) => {
                println!("REFUSED  {}: {error}", case.body);
                return false;
            }
        };
        for word in &mine {
            digest = (digest ^ u64::from(*word)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let theirs = match (&recorded, gpu.as_deref_mut()) {
            (Some(words), _) => {
                let all = words.chunks_exact(2 * WORDS);
                let ours = all.skip(round as usize * THREADS).take(THREADS);
                ours.flat_map(|words| words[WORDS..].to_vec()).collect()
            }
            (None, Some(gpu)) => match gpu.run(&text, &input) {
                Ok(theirs) => theirs,
                Err(error) => {
                    println!("GPU      {}: {error}", case.body);
                    return false;
                }
            },
            (None, None) => continue,
        };
        for (thread, (mine, theirs)) in mine
            .chunks_exact(WORDS)
            .zip(theirs.chunks_exact(WORDS))
            .enumerate()
        {
            words += 1;
            if arguments.dump.is_some() {
                let read = &input[thread * WORDS..][..WORDS];
                dump.extend(
                    read.iter()
                        .chain(theirs)
                        .flat_map(|word| word.to_le_bytes()),
                );
            }
            if same(case.check, mine, theirs) {
                continue;
            }
            different += 1;
            if different == 1 {
                println!("DIFFERS  {}", case.body);
                println!(
                    "         thread {thread}: inputs   {:x?}",
                    &input[thread * WORDS..][..WORDS]
                );
                println!("         software {mine:x?}\n         GPU      {theirs:x?}");
            }
        }
    }
    match (words > 0, different) {
        (false, _) => println!("{digest:016x}  {}", case.body),
        (true, 0) => println!("ok       {}", case.body),
        (true, n) => println!("         {n} of {words} threads differ"),
    }
    if let Some(folder) = arguments.dump.as_ref() {
        let file = file_of(folder, case);
        if let Err(error) = std::fs::write(&file, dump) {
            eprintln!("{file}: {error}");
        }
    }
    different == 0
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        println!("{HELP}");
        return ExitCode::from(2);
    };
    let chosen: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| case.body.contains(&arguments.only))
        .collect();
    if arguments.list {
        for case in &chosen {
            println!("sm_{:<4} {}", case.target, case.body);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(folder) = &arguments.emit {
        for (n, case) in chosen.iter().enumerate() {
            let file = format!("{folder}/{n:03}.sm_{}.ptx", case.target);
            if let Err(error) = std::fs::write(&file, program(case)) {
                eprintln!("{file}: {error}");
                return ExitCode::from(2);
            }
        }
        return ExitCode::SUCCESS;
    }
    let options = Options {
        memory: 64 << 20,
        ..Options::default()
    };
    let software = Machine::open(&SoftwarePlatform::with_options(options), 0);
    let mut software = software.expect("the software GPU opens");
    let mut arch = u32::MAX;
    let mut gpu = None;
    if !arguments.software && arguments.recorded.is_none() {
        let opened = CudaPlatform::new().and_then(|platform| {
            let snapshot = platform.snapshot(0)?;
            let attribute = |n| {
                snapshot
                    .attributes
                    .iter()
                    .find(|a| a.0 == n)
                    .map_or(0, |a| a.1 as u32)
            };
            println!("{}", snapshot.name);
            arch = attribute(75) * 10 + attribute(76);
            Machine::open(&platform, 1)
        });
        match opened {
            Ok(machine) => gpu = Some(machine),
            Err(error) => {
                eprintln!("no GPU to compare with: {error}");
                return ExitCode::from(2);
            }
        }
    }
    let mut wrong = 0;
    let mut ran = 0;
    for case in &chosen {
        if case.target > arch {
            println!("skipped  {} (needs sm_{})", case.body, case.target);
            continue;
        }
        ran += 1;
        wrong += usize::from(!compare(case, &arguments, &mut software, gpu.as_mut()));
    }
    println!("{ran} cases, {wrong} wrong");
    ExitCode::from(u8::from(wrong != 0))
}
