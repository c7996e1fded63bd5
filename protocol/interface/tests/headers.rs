//! The description against NVIDIA's headers, where they are present
//! (tests/toolchain/fetch-cuda.sh): every prototype, parameter by parameter.

use paragpu_corpora::skip;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use paragpu_interface::{Function, Generation, Library, c_type};

/// The newest release, whose functions are all described.
const NEWEST: &str = "13.5.37";

/// How a parameter travels, as far as two languages agree on a name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passed {
    Pointer,
    Bits(u32),
    Float,
    /// A structure by value, a handle or an enumeration whose name says all.
    Other,
}

/// The headers that a runtime's wheel holds.
fn include(version: &str) -> Option<PathBuf> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache");
    let include = cache.join("runtimes").join(version).join("include");
    if include.join("cuda.h").exists() && compilers().exists() {
        return Some(include);
    }
    skip("no headers of CUDA; `make cuda` fetches them");
    None
}

/// The headers that a runtime's wheel leaves to the compiler's.
fn compilers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/cuda-13.0/include")
}

/// A header's text after the preprocessor, on one line, under each definition.
fn preprocessed(header: &Path, definitions: &[&str]) -> String {
    let mut all = String::new();
    for definition in definitions {
        let mut cc = Command::new("cc");
        cc.args(["-E", "-P", "-x", "c", "-I"]);
        cc.arg(header.parent().expect("a folder"));
        cc.arg("-I").arg(compilers());
        if !definition.is_empty() {
            cc.args(definition.split(' '));
        }
        let done = cc.arg(header).output().expect("a C compiler");
        assert!(done.status.success(), "cc -E {}", header.display());
        all += &String::from_utf8_lossy(&done.stdout).replace('\n', " ");
    }
    all
}

/// Prototypes by name: what stands between the parentheses.
fn prototypes(text: &str, result: &str, prefix: &str) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for rest in text.split(result).skip(1) {
        let Some((name, rest)) = rest.split_once('(') else {
            continue;
        };
        let name = name.trim();
        let Some((inside, _)) = rest.split_once(");") else {
            continue;
        };
        if !name.starts_with(prefix) || name.contains(' ') || inside.contains("(*") {
            continue;
        }
        let parameters = inside.split(',').map(|one| one.trim().to_owned());
        let parameters: Vec<String> = parameters
            .filter(|one| !one.is_empty() && one != "void")
            .collect();
        found.insert(name.to_owned(), parameters);
    }
    found
}

fn in_c(parameter: &str) -> Passed {
    if parameter.contains('*') || parameter.contains('[') {
        return Passed::Pointer;
    }
    let words = parameter.replace("const ", "").replace("enum ", "");
    match words.trim() {
        kind if kind.starts_with("unsigned long long") => Passed::Bits(64),
        kind if kind.starts_with("size_t") || kind.starts_with("cuuint64_t") => Passed::Bits(64),
        kind if kind.starts_with("unsigned int") || kind.starts_with("cuuint32_t") => {
            Passed::Bits(32)
        }
        kind if kind.starts_with("unsigned short") => Passed::Bits(16),
        kind if kind.starts_with("unsigned char") => Passed::Bits(8),
        kind if kind.starts_with("int ") || kind == "int" => Passed::Bits(32),
        kind if kind.starts_with("CUdeviceptr_v1") => Passed::Bits(32),
        kind if kind.starts_with("CUdeviceptr") => Passed::Bits(64),
        kind if kind.starts_with("float") => Passed::Float,
        _ => Passed::Other,
    }
}

fn in_rust(parameter: &syn::Type) -> Passed {
    match c_type(parameter).to_string().as_str() {
        kind if kind.starts_with('*') => Passed::Pointer,
        "u64" | "usize" | "i64" | "CUdeviceptr" => Passed::Bits(64),
        "c_uint" | "c_int" | "u32" | "i32" | "CUdevice" => Passed::Bits(32),
        "c_ushort" | "u16" => Passed::Bits(16),
        "c_uchar" | "u8" => Passed::Bits(8),
        "f32" => Passed::Float,
        _ => Passed::Other,
    }
}

/// What differs between the description and the header.
fn differences(library: &Library, header: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (symbol, function) in library.symbols() {
        let Some(declared) = header.get(&symbol.name) else {
            continue;
        };
        if function.parameters.is_empty() && !function.served() {
            continue;
        }
        compared += 1;
        wrong.extend(difference(&symbol.name, function, declared));
    }
    assert!(compared > 200, "{compared} prototypes were compared");
    wrong
}

fn difference(symbol: &str, function: &Function, declared: &[String]) -> Option<String> {
    if function.parameters.len() != declared.len() {
        let (ours, theirs) = (function.parameters.len(), declared.len());
        return Some(format!("{symbol} has {theirs} parameters, not {ours}"));
    }
    let pairs = function.parameters.iter().zip(declared);
    for (ours, theirs) in pairs {
        let (rust, c) = (in_rust(&ours.kind), in_c(theirs));
        // A handle is a pointer here, an enumeration an integer, and C's name
        // for either tells neither.
        let same = rust == c || c == Passed::Other || rust == Passed::Other;
        if !same {
            return Some(format!(
                "{symbol}: {} is {rust:?}, but `{theirs}`",
                ours.name
            ));
        }
    }
    None
}

#[test]
fn the_drivers_prototypes_are_the_headers() {
    let Some(include) = include(NEWEST) else {
        return;
    };
    let own = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM";
    let old = "-D__CUDA_API_VERSION_INTERNAL";
    let both = format!("{own} {old}");
    let text = preprocessed(&include.join("cuda.h"), &["", own, old, &both]);
    let library = paragpu_interface::driver().expect("a description");
    let wrong = differences(&library, &prototypes(&text, "CUresult ", "cu"));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_runtimes_prototypes_are_the_headers() {
    let Some(include) = include(NEWEST) else {
        return;
    };
    let own = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM";
    let old = "-D__CUDA_API_VERSION_INTERNAL";
    let text = preprocessed(&include.join("cuda_runtime_api.h"), &["", own, old]);
    let library = paragpu_interface::runtime().expect("a description");
    let wrong = differences(&library, &prototypes(&text, "cudaError_t ", "cuda"));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn cuda_12_is_as_its_headers_say() {
    let Some(include) = include("12.9.79") else {
        return;
    };
    let own = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM";
    let old = "-D__CUDA_API_VERSION_INTERNAL";
    let text = preprocessed(&include.join("cuda_runtime_api.h"), &["", own, old]);
    let header = prototypes(&text, "cudaError_t ", "cuda");
    let library = paragpu_interface::runtime_of(Generation::Cuda12).expect("a description");
    let wrong = differences(&library, &header);
    assert!(wrong.is_empty(), "{wrong:#?}");

    // The test can tell the generations apart.
    let library = paragpu_interface::runtime_of(Generation::Cuda13).expect("a description");
    let wrong = differences(&library, &header);
    let differs = |name: &str| wrong.iter().any(|line| line.starts_with(name));
    assert!(differs("cudaGraphAddNode "), "{wrong:#?}");
}
