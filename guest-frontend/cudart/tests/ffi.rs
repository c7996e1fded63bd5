//! The linked library: every name that NVIDIA's exports, under its version,
//! and nothing else; and it loads.
#![allow(unsafe_code)]

use paragpu_corpora::skip;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

/// 12 or 13: the build script says which (`paragpu-cudart12`, `paragpu-cudart`).
const GENERATION: &str = env!("PARAGPU_GENERATION");
const LIBRARY: &str = concat!("libcudart.so.", env!("PARAGPU_GENERATION"));

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Exported functions of a library as `nm -D` prints them, with their version.
fn exports(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output()
        .expect("run nm");
    assert!(output.status.success(), "nm {}", library.display());
    String::from_utf8(output.stdout)
        .expect("text")
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            match (words.next(), words.next()) {
                (Some("T"), Some(name)) => Some(name.to_owned()),
                (Some("A"), _) => None,
                (kind, name) => panic!("{name:?} is exported as {kind:?}"),
            }
        })
        .collect()
}

fn listed() -> BTreeSet<String> {
    include_str!(concat!(env!("OUT_DIR"), "/symbols.txt"))
        .lines()
        .map(|name| format!("{name}@@{LIBRARY}"))
        .collect()
}

#[test]
fn symbols_are_those_of_nvidias_library() {
    let newest = match GENERATION {
        "12" => "12.9.79",
        _ => "13.5.37",
    };
    let library = root().join(".cache/runtimes").join(newest).join(LIBRARY);
    if !library.exists() {
        skip("no runtime of NVIDIA's; `make cuda` fetches it");
        return;
    }
    assert_eq!(exports(&library), listed());
}

/// Our library: the one that is named, or one that is made in this folder.
fn ours(folder: &Path) -> PathBuf {
    if let Some(built) = std::env::var_os("PARAGPU_TEST_LIBRARIES") {
        return Path::new(&built).join(LIBRARY);
    }
    // The archive lies beside this test's folder: target/PROFILE/deps/library-….
    let test = std::env::current_exe().expect("own path");
    let profile = test.ancestors().nth(2).expect("target/PROFILE");
    let status = Command::new(root().join("guest-frontend/link/link.sh"))
        .arg(LIBRARY)
        .arg(folder)
        // Testing does not build the archive.
        .env("BUILD", "1")
        .env("CARGO_TARGET_DIR", profile.parent().expect("target"))
        .env(
            "PROFILE",
            match profile.file_name().and_then(|name| name.to_str()) {
                Some("debug") | None => "dev",
                Some(name) => name,
            },
        )
        .status()
        .expect("run link.sh");
    assert!(status.success(), "link.sh failed");
    folder.join("lib").join(LIBRARY)
}

#[test]
fn our_library_exports_them_and_loads() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let library = ours(folder.path());
    let mut expected = listed();
    // What the redirector sees of it.
    expected.insert("paragpu_runtime_interface@@PARAGPU_PRIVATE".into());
    assert_eq!(exports(&library), expected);

    let path = std::ffi::CString::new(library.to_str().expect("text")).expect("no NUL");
    // SAFETY: plain loading; the functions' types are those of the manual.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null(), "it does not load");
        let address = |name: &CStr| -> *mut c_void {
            let address = libc::dlsym(handle, name.as_ptr());
            assert!(!address.is_null());
            address
        };
        let version: unsafe extern "C" fn(*mut c_int) -> c_int =
            std::mem::transmute(address(c"cudaRuntimeGetVersion"));
        let mut found = 0;
        assert_eq!(version(&mut found), 0);
        assert_eq!(found, if GENERATION == "12" { 12090 } else { 13000 });
        let unserved: unsafe extern "C" fn() -> c_int =
            std::mem::transmute(address(c"cudaVDPAUGetDevice"));
        assert_eq!(unserved(), 801);
        assert_eq!(libc::dlclose(handle), 0);
    }
}

/// Most bytes of the TLS segment. It lies in the static block (`STATIC_TLS`), in which the C
/// library keeps some 1.6 KB for everything that a program opens.
const MOST_TLS: u64 = 256;

#[test]
fn our_library_may_be_opened_late() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let library = ours(folder.path());
    let output = Command::new("readelf")
        .arg("-lW")
        .arg(&library)
        .output()
        .expect("run readelf");
    let text = String::from_utf8(output.stdout).expect("text");
    let segment = text.lines().find(|line| line.trim().starts_with("TLS"));
    let size = segment.expect("a TLS segment").split_whitespace().nth(5);
    let size = size.and_then(|size| u64::from_str_radix(size.strip_prefix("0x")?, 16).ok());
    let size = size.expect("its size in memory");
    assert!(size <= MOST_TLS, "{size} bytes of TLS");

    // Both generations in one process, and more: copies are different libraries to the loader.
    for number in 0..3 {
        let copy = folder.path().join(format!("copy{number}.so"));
        std::fs::copy(&library, &copy).expect("a copy");
        let path = std::ffi::CString::new(copy.to_str().expect("text")).expect("no NUL");
        // SAFETY: plain loading; what dlerror returns is text.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!handle.is_null(), "{:?}", CStr::from_ptr(libc::dlerror()));
        }
    }
}
