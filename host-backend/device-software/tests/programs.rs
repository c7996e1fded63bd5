//! Kernels as nvcc compiles them; runs where the programs of this repository were built.

mod common;

use common::{Arg, Gpu};

fn ptx(name: &str) -> Option<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../out/programs/ptx");
    std::fs::read_to_string(format!("{path}/{name}.ptx")).ok()
}

#[test]
fn every_program_loads() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../out/programs/ptx");
    let Ok(folder) = std::fs::read_dir(path) else {
        return;
    };
    let mut gpu = Gpu::new();
    let mut failed = Vec::new();
    for entry in folder.flatten() {
        let file = entry.path();
        if file.extension().is_some_and(|e| e == "ptx") {
            let text = std::fs::read_to_string(&file).unwrap();
            if let Err(error) = gpu.load(&text) {
                failed.push(format!("{}: {error}", file.display()));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn vector_add() {
    let Some(text) = ptx("vectorAdd") else { return };
    let name = text
        .split(".entry ")
        .nth(1)
        .unwrap()
        .split('(')
        .next()
        .unwrap()
        .to_owned();
    let mut gpu = Gpu::new();
    let f = gpu.kernel(&text, &name);
    let n = 5000u32;
    let a: Vec<u32> = (0..n).map(|v| (v as f32 * 0.5).to_bits()).collect();
    let b: Vec<u32> = (0..n).map(|v| (v as f32 * 2.0).to_bits()).collect();
    gpu.put32(0, &a);
    gpu.put32(0x10000, &b);
    let base = gpu.arena;
    let args = [
        Arg::P(base),
        Arg::P(base + 0x10000),
        Arg::P(base + 0x20000),
        Arg::W(n),
    ];
    gpu.launch(&f, [n.div_ceil(256), 1, 1], [256, 1, 1], &args)
        .unwrap();
    let c = gpu.get32(0x20000, n as usize);
    for (i, v) in c.into_iter().enumerate() {
        assert_eq!(f32::from_bits(v), i as f32 * 2.5);
    }
}
