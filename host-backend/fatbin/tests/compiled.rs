//! Callers in code that nvcc compiles. Runs if the compiler is here.

use std::path::{Path, PathBuf};
use std::process::Command;

use paragpu_corpora::skip;
use paragpu_fatbin::{Callers, callers};

const KERNELS: &str = r#"
#include <cassert>
#include <cstdio>
extern __device__ void elsewhere(int);
extern __device__ int quiet_elsewhere(int);
typedef void (*Function)(int);
__device__ __noinline__ void says(int x) { printf("says %d\n", x); }
__device__ Function chosen = says;
extern "C" {
__global__ void direct(int x) { printf("direct %d\n", x); }
__global__ void through_one(int x) { if (x > 3) says(x); }
__global__ void through_another(int x) { elsewhere(x); }
__global__ void by_address(int x) { chosen(x); }
__global__ void quiet(int *p, int x) { *p = quiet_elsewhere(x); }
__global__ void asserts(int *p, int x) { assert(*p > x); }
__global__ void allocates(int **p) { *p = (int *)malloc(64); }
}
"#;
const ELSEWHERE: &str = r#"
#include <cstdio>
__device__ void elsewhere(int x) { printf("elsewhere %d\n", x); }
__device__ int quiet_elsewhere(int x) { return x * x; }
"#;
const PRINTING: [&str; 4] = ["direct", "through_one", "through_another", "by_address"];
const OTHERS: [&str; 3] = ["quiet", "asserts", "allocates"];

fn nvcc() -> Option<PathBuf> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../.cache/cuda-13.0/bin/nvcc"
    );
    let found = Path::new(path).exists().then(|| path.into());
    if found.is_none() {
        skip("no CUDA compiler; `make cuda` fetches it");
    }
    found
}

/// Compiles in `folder` for an architecture. The last argument names the result.
fn compile(nvcc: &Path, folder: &Path, architecture: &str, arguments: &[&str]) {
    let status = Command::new(nvcc)
        .current_dir(folder)
        .args(["-arch", architecture])
        .args(arguments)
        .status();
    assert!(status.unwrap().success(), "{architecture}: {arguments:?}");
}

/// Reads the image with bytes changed in many places, and cut off there.
fn survives_damage(image: &[u8]) {
    let mut damaged = image.to_vec();
    for at in (0..image.len()).step_by(11) {
        let byte = std::mem::replace(&mut damaged[at], !image[at]);
        let _ = callers(&damaged, "vprintf", None, 1 << 20);
        let _ = callers(&image[..at], "vprintf", None, 1 << 20);
        damaged[at] = byte;
    }
}

#[test]
fn kernels_that_print_are_told_from_others() {
    let Some(nvcc) = nvcc() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("kernels.cu"), KERNELS).unwrap();
    std::fs::write(folder.join("elsewhere.cu"), ELSEWHERE).unwrap();
    for architecture in ["sm_75", "sm_90"] {
        let compile = |arguments: &[&str]| compile(&nvcc, folder, architecture, arguments);
        for part in ["kernels", "elsewhere"] {
            compile(&[
                "-rdc=true",
                "-c",
                &format!("{part}.cu"),
                "-o",
                &format!("{part}.o"),
            ]);
        }
        compile(&[
            "-dlink",
            "-cubin",
            "kernels.o",
            "elsewhere.o",
            "-o",
            "all.cubin",
        ]);
        let image = std::fs::read(folder.join("all.cubin")).unwrap();
        let found = callers(&image, "vprintf", None, 1 << 20);
        assert_ne!(found, Callers::Any, "{architecture}");
        for kernel in PRINTING {
            assert!(found.may_include(kernel), "{architecture}: {kernel}");
        }
        for kernel in OTHERS {
            assert!(!found.may_include(kernel), "{architecture}: {kernel}");
        }
        survives_damage(&image);
    }
}

/// A child may print, and the kernel that launches it returns after it.
#[test]
fn kernels_that_launch_others_may_print() {
    let Some(nvcc) = nvcc() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let source = r#"
#include <cstdio>
__global__ void child() { printf("child\n"); }
extern "C" __global__ void parent() { child<<<1, 1>>>(); }
extern "C" __global__ void quiet(int *p) { *p = 1; }
"#;
    std::fs::write(folder.join("nested.cu"), source).unwrap();
    compile(
        &nvcc,
        folder,
        "sm_90",
        &["-rdc=true", "-c", "nested.cu", "-o", "nested.o"],
    );
    compile(
        &nvcc,
        folder,
        "sm_90",
        &[
            "-dlink",
            "-cubin",
            "nested.o",
            "-lcudadevrt",
            "-o",
            "nested.cubin",
        ],
    );
    let image = std::fs::read(folder.join("nested.cubin")).unwrap();
    let found = callers(&image, "vprintf", None, 1 << 24);
    assert!(found.may_include("parent") && found.may_include("_Z5childv"));
    assert!(!found.may_include("quiet"), "{found:?}");
}
