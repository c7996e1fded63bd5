//! Reports which PTX in the given files the software GPU accepts.
//!
//! ```text cargo run --release -p paragpu-device-software --example accepts --
//! [--capability 12.1] [--opcodes] FILE...
//! ```
//!
//! A file is PTX text, a fat binary, or anything that carries fat binaries (a shared
//! library, a program, a wheel's unpacked content). In each container, the entry is used
//! that a device of that compute capability would load. For each file it prints how many
//! modules and kernels are accepted, then the reasons for refusals, by kernel. With
//! `--opcodes`, it prints the number of occurrences of each opcode instead.

use paragpu_device_software::error::PtxError;
use paragpu_device_software::{decode, ptx::ast::Statement, ptx::parser};
use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;

const CONTAINER: [u8; 4] = [0x50, 0xed, 0x55, 0xba];

#[derive(Default)]
struct Count {
    containers: usize,
    without_ptx: usize,
    modules: usize,
    whole: usize,
    kernels: usize,
    accepted: usize,
    /// The number of kernels refused for each reason, with an example.
    reasons: BTreeMap<String, (usize, String)>,
}

/// The PTX texts of `data`, as a device of capability `arch` would choose them.
fn texts(data: &[u8], arch: u32, count: &mut Count) -> Vec<String> {
    if !data.windows(4).any(|w| w == CONTAINER) {
        return paragpu_fatbin::ptx_of(data, arch).into_iter().collect();
    }
    let mut out = Vec::new();
    for at in (0..data.len().saturating_sub(16)).step_by(8) {
        let Some(header) = data.get(at..at + 16).filter(|h| h.starts_with(&CONTAINER)) else {
            continue;
        };
        let size = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
        let end = usize::try_from(size)
            .ok()
            .and_then(|s| (at + 16).checked_add(s));
        let Some(container) = end.and_then(|end| data.get(at..end)) else {
            continue;
        };
        count.containers += 1;
        match paragpu_fatbin::ptx_of(container, arch) {
            Ok(text) => out.push(text),
            Err(paragpu_fatbin::ImageError::NoBinary) => count.without_ptx += 1,
            Err(error) => eprintln!("container at {at:#x}: {error}"),
        }
    }
    out
}

fn count_opcodes(list: &[Statement<'_>], opcodes: &mut BTreeMap<String, usize>) {
    for statement in list {
        match statement {
            Statement::Block(inner) => count_opcodes(inner, opcodes),
            Statement::Instruction(i) => match opcodes.get_mut(i.opcode) {
                Some(n) => *n += 1,
                None => drop(opcodes.insert(i.opcode.to_owned(), 1)),
            },
            _ => {}
        }
    }
}

fn reason(error: &PtxError) -> String {
    match error {
        PtxError::Invalid { what, .. } => format!("malformed: {what}"),
        PtxError::Unsupported { what, .. } => what.clone(),
        PtxError::Unresolved { name, .. } => format!("unresolved {name}"),
    }
}

fn line(text: &str, error: &PtxError) -> String {
    let (PtxError::Invalid { line, .. }
    | PtxError::Unsupported { line, .. }
    | PtxError::Unresolved { line, .. }) = error;
    let line = text.lines().nth((*line as usize).saturating_sub(1));
    line.unwrap_or_default().trim().chars().take(160).collect()
}

fn module(text: &str, arch: u32, count: &mut Count) {
    count.modules += 1;
    let mut refuse = |kernels: usize, error: &PtxError| {
        let entry = count
            .reasons
            .entry(reason(error))
            .or_insert_with(|| (0, line(text, error)));
        entry.0 += kernels;
    };
    let kernels = text.matches(".entry").count();
    let syntax = match parser::parse(text) {
        Ok(syntax) => syntax,
        Err(error) => {
            refuse(kernels, &error);
            count.kernels += kernels;
            return;
        }
    };
    if syntax.target > arch {
        return;
    }
    let addresses: HashMap<&str, u64> = syntax
        .variables
        .iter()
        .filter(|v| !v.external)
        .enumerate()
        .map(|(n, v)| (v.name, 0x1000_0000_0000 + 4096 * n as u64))
        .collect();
    match decode::decode(&syntax, &addresses) {
        Err(error) => {
            refuse(kernels, &error);
            count.kernels += kernels;
        }
        Ok(program) => {
            let mut whole = true;
            for func in program.funcs.iter().filter(|f| f.entry) {
                count.kernels += 1;
                match &func.refused {
                    None => count.accepted += 1,
                    Some(error) => {
                        whole = false;
                        refuse(1, error);
                    }
                }
            }
            count.whole += usize::from(whole);
        }
    }
}

fn main() -> ExitCode {
    let mut arch = 121;
    let mut arguments = std::env::args().skip(1);
    let mut files = Vec::new();
    let mut opcodes = None;
    while let Some(argument) = arguments.next() {
        if argument == "--capability" {
            let value = arguments.next().unwrap_or_default();
            let parts = value.split_once('.');
            let parsed =
                parts.and_then(|(a, b)| Some((a.parse::<u32>().ok()?, b.parse::<u32>().ok()?)));
            let Some((major, minor)) = parsed else {
                eprintln!("--capability expects MAJOR.MINOR");
                return ExitCode::from(2);
            };
            arch = major * 10 + minor;
        } else if argument == "--opcodes" {
            opcodes = Some(BTreeMap::new());
        } else {
            files.push(argument);
        }
    }
    for file in files {
        let data = match std::fs::read(&file) {
            Ok(data) => data,
            Err(error) => {
                eprintln!("{file}: {error}");
                return ExitCode::FAILURE;
            }
        };
        let mut count = Count::default();
        let texts = texts(&data, arch, &mut count);
        if let Some(opcodes) = &mut opcodes {
            for module in texts.iter().filter_map(|text| parser::parse(text).ok()) {
                for function in &module.functions {
                    count_opcodes(function.body.as_deref().unwrap_or_default(), opcodes);
                }
            }
            continue;
        }
        for text in &texts {
            module(text, arch, &mut count);
        }
        println!(
            "{file}: {} of {} modules whole, {} of {} kernels ({} containers, {} without PTX for it)",
            count.whole,
            count.modules,
            count.accepted,
            count.kernels,
            count.containers,
            count.without_ptx
        );
        let mut reasons: Vec<_> = count.reasons.into_iter().collect();
        reasons.sort_by_key(|(_, (n, _))| std::cmp::Reverse(*n));
        for (reason, (n, place)) in reasons {
            println!("{n:8}  {reason:60}  | {place}");
        }
    }
    for (opcode, n) in opcodes.unwrap_or_default() {
        println!("{n:8}  {opcode}");
    }
    ExitCode::SUCCESS
}
