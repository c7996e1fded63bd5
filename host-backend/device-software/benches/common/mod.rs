//! An arithmetic kernel with a known number of instructions, and the time it takes.

use paragpu_device::conformance::settle;
use paragpu_device::{Launch, Platform, StreamId};
use paragpu_device_software::{Options, SoftwarePlatform};
use paragpu_protocol::layout::{CHUNK, Regions};
use std::time::Instant;

/// Multiply-adds per iteration of the loop.
const BODY: u32 = 32;
/// Other instructions per iteration: add, compare, branch.
const CONTROL: u32 = 3;
const TURNS: u32 = 4096;
const BLOCKS: u32 = 64;
const THREADS: u32 = 256;

fn kernel() -> String {
    let mut body = String::new();
    for n in 0..BODY {
        let r = n % 8;
        body += &format!("fma.rn.f32 %f{r}, %f{r}, %f8, %f9;\n");
    }
    format!(
        ".version 9.0\n.target sm_75\n.address_size 64
.visible .entry k(.param .u64 out, .param .u32 turns) {{
.reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<16>;
ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [turns];
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;
cvt.rn.f32.u32 %f0, %r5;
mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0; mov.f32 %f4, %f0;
mov.f32 %f5, %f0; mov.f32 %f6, %f0; mov.f32 %f7, %f0;
mov.f32 %f8, 0f3F7FFFF0; mov.f32 %f9, 0f358637BD; mov.u32 %r6, 0;
LOOP:
{body}
add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, %r1; @%p1 bra LOOP;
add.f32 %f0, %f0, %f1; add.f32 %f2, %f2, %f3; add.f32 %f4, %f4, %f5; add.f32 %f6, %f6, %f7;
add.f32 %f0, %f0, %f2; add.f32 %f4, %f4, %f6; add.f32 %f0, %f0, %f4;
mad.wide.u32 %rd2, %r5, 4, %rd1; st.global.f32 [%rd2], %f0;
ret; }}"
    )
}

/// Thread-instructions per second of a device with `cores` threads: the best of `rounds`.
pub fn rate(cores: u32, ordinal: u32, rounds: u32) -> f64 {
    let regions = Regions::of(ordinal).expect("ordinal");
    let options = Options {
        cores,
        memory: 64 << 20,
        ..Options::default()
    };
    let mut device = SoftwarePlatform::with_options(options)
        .open(0, regions)
        .expect("open");
    device.memory_map(regions.arena, CHUNK).expect("map");
    let (module, _) = device
        .module_load(&kernel().as_str().into(), &[])
        .expect("load");
    let function = device.module_function(module, "k").expect("kernel");
    let mut parameters = regions.arena.to_le_bytes().to_vec();
    parameters.extend(TURNS.to_le_bytes());
    let mut best = 0f64;
    for _ in 0..rounds {
        let start = Instant::now();
        let launch = Launch {
            function: function.id,
            grid: [BLOCKS, 1, 1],
            block: [THREADS, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
            programmatic: false,
            cluster: [0; 3],
            preferences: Vec::new(),
            parameters: parameters.as_slice().into(),
        };
        device.launch(launch, StreamId::LEGACY).expect("launch");
        settle(device.as_mut(), StreamId::LEGACY).expect("settle");
        let instructions =
            f64::from(BODY + CONTROL) * f64::from(TURNS) * f64::from(BLOCKS) * f64::from(THREADS);
        best = best.max(instructions / start.elapsed().as_secs_f64());
    }
    best
}
