//! The exported names against NVIDIA's header, where it is present
//! (tests/toolchain/fetch-cuda.sh), and what they do without a host.
#![allow(unsafe_code)]

use paragpu_corpora::skip;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::process::Command;

use paragpu_cuda::sys::entry::SYMBOLS;
use paragpu_cuda::sys::exported::exports;
use paragpu_cuda::versions::NEWEST;

/// What the names of functions contain that other headers declare.
const ELSEWHERE: [&str; 5] = ["cuProfiler", "GL", "EGL", "VDPAU", "Egl"];

/// Functions that cuda.h declares under these definitions.
fn declared(include: &Path, definitions: &[&str]) -> BTreeSet<String> {
    let done = Command::new("cc")
        .args(["-E", "-P", "-x", "c", "-I"])
        .arg(include)
        .args(definitions)
        .arg(include.join("cuda.h"))
        .output()
        .expect("a C compiler");
    assert!(done.status.success());
    let text = String::from_utf8_lossy(&done.stdout).replace('\n', " ");
    text.split("CUresult ")
        .skip(1)
        .filter_map(|rest| {
            let name = rest.trim_start().split('(').next()?.trim();
            let word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            (name.starts_with("cu") && word).then(|| name.to_owned())
        })
        .collect()
}

#[test]
fn every_name_of_the_header_exists() {
    let include =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/runtimes/13.5.37/include");
    if !include.join("cuda.h").exists() {
        skip("no headers of CUDA 13.5; `make cuda` fetches them");
        return;
    }
    let own = "-DCUDA_API_PER_THREAD_DEFAULT_STREAM";
    let old = "-D__CUDA_API_VERSION_INTERNAL";
    let mut names = BTreeSet::new();
    for definitions in [&[][..], &[own], &[old], &[own, old]] {
        names.extend(declared(&include, definitions));
    }
    assert!(names.len() > 600, "{} names were read", names.len());
    let ours: BTreeSet<String> = SYMBOLS
        .iter()
        .map(|symbol| symbol.symbol.to_owned())
        .collect();
    let missing: Vec<_> = names.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let more: Vec<_> = ours
        .difference(&names)
        // Headers of their own declare these; the graphics interfaces' need others.
        .filter(|name| !ELSEWHERE.iter().any(|of| name.contains(of)))
        .collect();
    assert!(more.is_empty(), "{more:?}");
}

#[test]
fn symbols_have_code_and_versions() {
    let addresses: BTreeSet<usize> = SYMBOLS
        .iter()
        .map(|symbol| symbol.address as usize)
        .collect();
    assert!(
        addresses.len() > SYMBOLS.len() / 3,
        "stubs may share code, functions not"
    );
    for symbol in SYMBOLS {
        assert!(
            (2000..=NEWEST).contains(&symbol.version),
            "{}",
            symbol.symbol
        );
        assert!(symbol.symbol.starts_with(symbol.name), "{}", symbol.symbol);
    }
}

#[test]
fn names_lead_to_the_version_that_a_program_knows() {
    let look = |name: &std::ffi::CStr, version: c_int, flags: u64| {
        let (mut place, mut status) = (std::ptr::null_mut::<c_void>(), -1);
        // SAFETY: a C string, and two places of ours.
        let code = unsafe {
            exports::cuGetProcAddress_v2(
                name.as_ptr(),
                &raw mut place,
                version,
                flags,
                &raw mut status,
            )
        };
        (code, place as usize, status)
    };
    let of = |symbol: &str| {
        SYMBOLS
            .iter()
            .find(|known| known.symbol == symbol)
            .unwrap()
            .address as usize
    };
    assert_eq!(look(c"cuMemAlloc", 13_000, 0), (0, of("cuMemAlloc_v2"), 0));
    assert_eq!(
        look(c"cuLaunchKernel", 13_000, 2),
        (0, of("cuLaunchKernel_ptsz"), 0)
    );
    assert_eq!(
        look(c"cuCtxCreate", 12_050, 0),
        (0, of("cuCtxCreate_v4"), 0)
    );
    assert_eq!(
        look(c"cuCtxCreate", 11_000, 0),
        (0, of("cuCtxCreate_v2"), 0)
    );
    for name in [c"cuNothing", c"cuMemAlloc_v2"] {
        assert_eq!(look(name, 13_000, 0), (0, 0, 1));
    }
    assert_eq!(look(c"cuGraphLaunch", 3000, 0), (0, 0, 2));
    // INVALID_VALUE.
    assert_eq!(look(c"cuGraphLaunch", NEWEST + 1, 0), (1, 0, -1));
}

/// One process each, because initialisation is the process's.
#[test]
fn without_a_host_there_is_no_device() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_without_a_host",
            "--ignored",
            "--nocapture",
        ])
        .env("PARAGPU_COMMUNICATOR", "unix")
        .env("PARAGPU_UNIX_SOCKET", "/nonexistent/paragpud.sock")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said.matches("/nonexistent/paragpud.sock").count(),
        1,
        "said once: {said}"
    );
    assert!(said.contains("paragpud running"), "says what to do: {said}");
}

/// A program that is to see no device hears so, and no host is asked.
#[test]
fn hidden_devices_are_not_there() {
    for list in ["", "-1", "MIG-1234"] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_that_sees_no_device",
                "--ignored",
                "--nocapture",
            ])
            .env("CUDA_VISIBLE_DEVICES", list)
            .env("PARAGPU_COMMUNICATOR", "unix")
            .env("PARAGPU_UNIX_SOCKET", "/nonexistent/paragpud.sock")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{list:?}: {said}");
        assert!(!said.contains("/nonexistent"), "{list:?}: {said}");
        assert_eq!(
            said.matches("not supported: MIG-1234 in CUDA_VISIBLE_DEVICES")
                .count(),
            usize::from(list.starts_with("MIG")),
            "{said}"
        );
    }
}

#[test]
#[ignore = "a child of hidden_devices_are_not_there"]
fn child_that_sees_no_device() {
    use paragpu_cuda::sys::exported::exports;
    // SAFETY: it takes no pointer.
    unsafe {
        assert_eq!(exports::cuInit(0), 100);
        assert_eq!(exports::cuInit(0), 100);
    }
}

#[test]
#[ignore = "a child of without_a_host_there_is_no_device"]
fn child_without_a_host() {
    use paragpu_cuda::sys::exported::exports;
    let mut number = -1;
    // SAFETY: places of ours of each function's type, or null, which is refused;
    // the names told are C strings that stay.
    unsafe {
        assert_eq!(
            exports::cuDeviceGetCount(&raw mut number),
            3,
            "before cuInit"
        );
        assert_eq!(exports::cuInit(0), 100);
        assert_eq!(exports::cuInit(0), 100);
        assert_eq!(exports::cuInit(1), 1);
        assert_eq!(exports::cuDriverGetVersion(&raw mut number), 0);
        assert_eq!(number, 13_000);
        let mut name = std::ptr::null();
        assert_eq!(exports::cuGetErrorName(700, &raw mut name), 0);
        assert_eq!(
            std::ffi::CStr::from_ptr(name),
            c"CUDA_ERROR_ILLEGAL_ADDRESS"
        );
        assert_eq!(exports::cuGetErrorName(12_345, &raw mut name), 1);
        let mut table = std::ptr::null();
        assert_eq!(
            exports::cuGetExportTable(&raw mut table, std::ptr::null()),
            1
        );
        // A null pointer is an error, not a crash.
        assert_eq!(exports::cuDriverGetVersion(std::ptr::null_mut()), 1);
    }
}

#[test]
fn unserved_functions_say_so() {
    let served = SYMBOLS.iter().filter(|symbol| symbol.served).count();
    assert!(served > 250, "{served} are served");
    for unserved in SYMBOLS.iter().filter(|symbol| !symbol.served) {
        // SAFETY: what is not served is exported as a function of this type
        // (`stubs!`).
        let call: extern "C" fn() -> c_int = unsafe { std::mem::transmute(unserved.address) };
        assert_eq!(call(), 801, "{}", unserved.symbol);
    }
}
