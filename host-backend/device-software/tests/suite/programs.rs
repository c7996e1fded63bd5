//! Kernels as nvcc compiles them. Runs if the programs of this repository are built.

use paragpu_corpora::skip;
use std::path::PathBuf;

use crate::common::{Arg, Gpu};

/// The text of each program; `None`, with a message, if they are not built.
fn programs() -> Option<Vec<(PathBuf, String)>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../out/programs/ptx");
    let Ok(folder) = std::fs::read_dir(path) else {
        skip("no test programs; `make programs` builds them");
        return None;
    };
    let texts: Vec<_> = folder
        .flatten()
        .map(|entry| entry.path())
        .filter(|file| file.extension().is_some_and(|e| e == "ptx"))
        .map(|file| {
            let text = std::fs::read_to_string(&file).unwrap();
            (file, text)
        })
        .collect();
    assert!(!texts.is_empty(), "{path} holds no PTX");
    Some(texts)
}

#[test]
fn every_program_loads() {
    let Some(programs) = programs() else { return };
    let mut gpu = Gpu::new();
    let mut failed = Vec::new();
    for (file, text) in programs {
        // The log names the kernels that are refused.
        // Words of errors are in the device runtime, which the program is linked with.
        let is_linked = |line: &str| line.contains("__cudaCDP2GetError");
        match gpu.device.module_load(&text.as_str().into(), &[]) {
            Ok((_, log)) if log.lines().all(is_linked) => {}
            Ok((_, log)) => failed.push(format!("{}: {log}", file.display())),
            Err(error) => failed.push(format!("{}: {error}", file.display())),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn vector_add() {
    let Some(programs) = programs() else { return };
    let (_, text) = programs
        .into_iter()
        .find(|(file, _)| file.file_stem().is_some_and(|stem| stem == "vectorAdd"))
        .unwrap();
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

#[test]
fn damaged_programs_are_refused_or_decoded_but_never_crash() {
    use paragpu_device_software::{decode, ptx::parser};
    use std::collections::HashMap;
    let Some(programs) = programs() else { return };
    let texts: Vec<String> = programs.into_iter().map(|(_, text)| text).collect();
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % n.max(1) as u64) as usize
    };
    let rounds: usize = std::env::var("DAMAGE_ROUNDS").map_or(3, |v| v.parse().unwrap());
    for text in &texts {
        for _ in 0..rounds {
            let mut lines: Vec<&str> = text.lines().collect();
            for _ in 0..1 + random(3) {
                let (a, b) = (random(lines.len()), random(lines.len()));
                match random(3) {
                    0 => lines.swap(a, b),
                    1 => lines[a] = lines[b],
                    _ => drop(lines.remove(a)),
                }
            }
            let mut damaged = lines.join("\n").into_bytes();
            for _ in 0..random(3) {
                let at = random(damaged.len());
                damaged[at] = b" {}[](),;.%r0189-+@!|<>:_x"[random(26)];
            }
            let damaged = String::from_utf8_lossy(&damaged);
            let Ok(module) = parser::parse(&damaged) else {
                continue;
            };
            let addresses: HashMap<&str, u64> =
                module.variables.iter().map(|v| (v.name, 0x1000)).collect();
            for var in &module.variables {
                let _ = decode::image(var, &addresses, &HashMap::new());
            }
            let _ = decode::decode(&module, &addresses);
        }
    }
}

/// The kernels of tensorCores.cu on one tile, each type.
#[test]
fn tensor_cores() {
    let Some(programs) = programs() else { return };
    let (_, text) = programs
        .into_iter()
        .find(|(file, _)| file.file_stem().is_some_and(|stem| stem == "tensorCores"))
        .unwrap();
    let mut gpu = Gpu::new();
    let single = |v: f32| v.to_bits();
    let half = |v: f32| {
        // Multiples of 1/16 below 1 are exact.
        let bits = v.to_bits();
        if v == 0.0 {
            0
        } else {
            bits >> 16 & 0x8000 | ((bits >> 23 & 0xff) - 112) << 10 | bits >> 13 & 0x3ff
        }
    };
    type Encode<'a> = &'a dyn Fn(f32) -> u32;
    let types: [(&str, usize, f32, Encode<'_>, Encode<'_>); 4] = [
        ("6__half", 2, 16.0, &half, &single),
        ("13__nv_bfloat16", 2, 16.0, &|v| single(v) >> 16, &single),
        ("ff", 4, 16.0, &single, &single),
        ("ai", 1, 1.0, &|v| v as i8 as u32 & 0xff, &|v| {
            v as i32 as u32
        }),
    ];
    for (name, width, scale, factor, sum) in types {
        let part = format!("_Z8multiplyI{name}");
        let kernel = text
            .split(".entry ")
            .skip(1)
            .map(|rest| rest.split('(').next().unwrap())
            .find(|kernel| kernel.starts_with(&part))
            .unwrap();
        let f = gpu.kernel(&text, kernel);
        let value = |n: usize, seed: usize| ((n * 7 + n / 16 * seed) % 31) as f32 - 15.0;
        let matrix = |seed: usize, encode: Encode<'_>| -> Vec<u32> {
            (0..256).map(|n| encode(value(n, seed) / scale)).collect()
        };
        gpu.put(0, &matrix(3, factor), width);
        gpu.put(0x1000, &matrix(5, factor), width);
        gpu.put32(0x2000, &matrix(11, sum));
        let base = gpu.arena;
        let args = [
            Arg::P(base),
            Arg::P(base + 0x1000),
            Arg::P(base + 0x2000),
            Arg::P(base + 0x3000),
            Arg::W(16),
        ];
        gpu.launch(&f, [1, 1, 1], [32, 1, 1], &args).unwrap();
        for (n, got) in gpu.get32(0x3000, 256).into_iter().enumerate() {
            let (row, column) = (n / 16, n % 16);
            let products = (0..16).map(|k| value(row * 16 + k, 3) * value(column * 16 + k, 5));
            let want = products.sum::<f32>() / scale / scale + value(n, 11) / scale;
            assert_eq!(got, sum(want), "{name}: row {row} column {column}");
        }
    }
}
