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

/// Compiles sources for an architecture and links them, with the device runtime.
fn linked(nvcc: &Path, architecture: &str, sources: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let status = Command::new(nvcc)
            .current_dir(folder.path())
            .args(["-arch", architecture])
            .args(arguments)
            .status();
        assert!(status.unwrap().success(), "{architecture}: {arguments:?}");
    };
    let mut link = vec!["-dlink", "-cubin", "-lcudadevrt", "-o", "all.cubin"];
    let objects: Vec<String> = (0..sources.len())
        .map(|number| format!("{number}.o"))
        .collect();
    for (source, object) in sources.iter().zip(&objects) {
        std::fs::write(folder.path().join("source.cu"), source).unwrap();
        run(&["-rdc=true", "-c", "source.cu", "-o", object]);
        link.push(object);
    }
    run(&link);
    std::fs::read(folder.path().join("all.cubin")).unwrap()
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
    for architecture in ["sm_75", "sm_90"] {
        let image = linked(&nvcc, architecture, &[KERNELS, ELSEWHERE]);
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
    let source = r#"
#include <cstdio>
__global__ void child() { printf("child\n"); }
extern "C" __global__ void parent() { child<<<1, 1>>>(); }
extern "C" __global__ void quiet(int *p) { *p = 1; }
"#;
    let image = linked(&nvcc, "sm_90", &[source]);
    let found = callers(&image, "vprintf", None, 1 << 24);
    assert!(found.may_include("parent") && found.may_include("_Z5childv"));
    assert!(!found.may_include("quiet"), "{found:?}");
}
