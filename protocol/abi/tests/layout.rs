//! Compares the crate's records, constants and error names with NVIDIA's
//! headers, which `tests/toolchain/fetch-cuda.sh` puts under `.cache`.

use paragpu_abi as abi;
use paragpu_abi::Layout;
use paragpu_corpora::skip;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The CUDA include folder, or nothing if the toolkit was not fetched.
fn include_folder() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/cuda-13.0");
    ["include", "nvidia/cu13/include"]
        .into_iter()
        .map(|folder| root.join(folder))
        .find(|folder| folder.join("cuda_runtime_api.h").exists())
}

/// Compiles `body` as a C++ program's `main` against the headers; its output.
fn run(include: &[PathBuf], body: &str) -> String {
    let folder = tempfile::tempdir().expect("temporary folder");
    let source = folder.path().join("oracle.cpp");
    let program = folder.path().join("oracle");
    let text = format!(
        "#include <cuda.h>\n#include <cuda_runtime_api.h>\n#include <cstddef>\n#include <cstdio>\n\
         int main() {{\n{body}return 0;\n}}\n"
    );
    std::fs::write(&source, text).expect("write source");
    let compiled = Command::new("c++")
        .args(["-w", "-O0"])
        .args(
            include
                .iter()
                .flat_map(|folder| ["-I".as_ref(), folder.as_os_str()]),
        )
        .arg("-o")
        .args([&program, &source])
        .output()
        .expect("run c++");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let output = Command::new(&program).output().expect("run oracle");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn records_match_headers() {
    let Some(include) = include_folder() else {
        skip("no CUDA headers; tests/toolchain/fetch-cuda.sh fetches them");
        return;
    };
    same_layouts(&[include], paragpu_abi::layouts());
}

/// Records that CUDA 13 changed are as CUDA 12.9 has them; all others are the
/// same in both.
#[test]
fn records_match_headers_of_cuda_12() {
    let older = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/runtimes/12.9.79/include");
    let Some(include) = include_folder().filter(|_| older.exists()) else {
        skip("no headers of CUDA 12.9; `make cuda` fetches them");
        return;
    };
    let changed: Vec<&str> = paragpu_abi::cuda12::layouts().map(|one| one.name).collect();
    let others = paragpu_abi::layouts().filter(|one| !changed.contains(&one.name));
    // The compiler's headers come with another wheel.
    same_layouts(
        &[older, include],
        paragpu_abi::cuda12::layouts().chain(others),
    );
}

fn same_layouts(include: &[PathBuf], layouts: impl Iterator<Item = &'static Layout>) {
    let mut body = String::new();
    let mut ours = String::new();
    for layout in layouts {
        let name = layout.name;
        writeln!(
            body,
            "printf(\"{name} %zu %zu\\n\", sizeof({name}), alignof({name}));"
        )
        .unwrap();
        writeln!(ours, "{name} {} {}", layout.size, layout.align).unwrap();
        for (field, offset) in layout.fields {
            let c_field = field.trim_start_matches("r#");
            writeln!(
                body,
                "printf(\"{name}.{c_field} %zu\\n\", offsetof({name}, {c_field}));"
            )
            .unwrap();
            writeln!(ours, "{name}.{c_field} {offset}").unwrap();
        }
    }
    let theirs = run(include, &body);
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn constants_match_headers() {
    let Some(include) = include_folder() else {
        skip("no CUDA headers; tests/toolchain/fetch-cuda.sh fetches them");
        return;
    };
    let mut body = String::new();
    let mut ours = String::new();
    for (name, value) in paragpu_abi::constants() {
        writeln!(body, "printf(\"{name} %lld\\n\", (long long){name});").unwrap();
        writeln!(ours, "{name} {value}").unwrap();
    }
    let theirs = run(&[include], &body);
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

/// Every code that a header's enumeration has is in the table under its name.
#[test]
fn every_error_of_the_headers_is_named() {
    let Some(include) = include_folder() else {
        skip("no CUDA headers; tests/toolchain/fetch-cuda.sh fetches them");
        return;
    };
    let mut checked = 0;
    for (header, prefix) in [("driver_types.h", "cudaError"), ("cuda.h", "CUDA_ERROR_")] {
        let text = std::fs::read_to_string(include.join(header)).expect("read header");
        for line in text.lines() {
            let Some((name, value)) = line.split_once('=') else {
                continue;
            };
            let name = name.trim();
            let value = value.trim().trim_end_matches(',');
            let (true, Ok(code)) = (name.starts_with(prefix), value.parse::<i32>()) else {
                continue;
            };
            let ours = if prefix == "cudaError" {
                paragpu_abi::runtime_error_name(code)
            } else {
                paragpu_abi::driver_error_name(code)
            };
            assert_eq!(ours.and_then(|name| name.to_str().ok()), Some(name));
            checked += 1;
        }
    }
    assert!(checked > 200, "only {checked} codes found in the headers");
}

/// A sticky error is one of which the manual says that all later work fails, or the failure of
/// a memory or a link, of which it says nothing.
#[test]
fn sticky_errors_are_those_of_the_header() {
    let Some(include) = include_folder() else {
        skip("no CUDA headers; tests/toolchain/fetch-cuda.sh fetches them");
        return;
    };
    let mut sticky = vec![
        abi::CUDA_ERROR_ECC_UNCORRECTABLE,
        abi::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    ];
    let text = std::fs::read_to_string(include.join("cuda.h")).expect("read header");
    for comment in text.split("/**").skip(1) {
        let Some((comment, rest)) = comment.split_once("*/") else {
            continue;
        };
        let words: Vec<&str> = comment
            .split_whitespace()
            .filter(|word| *word != "*")
            .collect();
        let words = words.join(" ");
        let all_fail = "any further CUDA work will return the same error";
        if words.contains(all_fail) || words.contains("context cannot be used anymore") {
            let code = rest
                .split([',', '\n'])
                .find_map(|line| line.split_once('='))
                .and_then(|(_, code)| code.trim().parse::<i32>().ok());
            sticky.push(code.expect("a code follows"));
        }
    }
    sticky.sort_unstable();
    let ours = abi::ERRORS.iter().filter(|entry| entry.sticky);
    let ours: Vec<i32> = ours.map(|entry| entry.code).collect();
    assert_eq!(ours, sticky);
}

#[test]
fn error_table_is_ascending_and_complete() {
    let mut previous = -1;
    for entry in paragpu_abi::ERRORS {
        assert!(entry.code > previous);
        previous = entry.code;
        assert!(entry.runtime.is_some() || entry.driver.is_some());
        assert!(!entry.text.is_empty());
    }
    assert!(paragpu_abi::runtime_error_name(202).is_none());
    assert_eq!(
        paragpu_abi::runtime_error_string(1),
        Some(c"invalid argument")
    );
}
