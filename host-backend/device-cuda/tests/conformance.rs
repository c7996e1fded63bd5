//! The suite of `paragpu-device` on a real GPU; says so where there is none.

use std::io::Write as _;

use paragpu_device::conformance;
use paragpu_device_cuda::CudaPlatform;

/// Says why the calling test cannot run: past the capture of test programs, so
/// that `make test` counts it as skipped, and in one piece beside other threads.
fn skip(reason: &str) {
    let test = std::thread::current();
    let test = test.name().unwrap_or_default();
    let line = format!("skipped: {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[test]
fn conforms() {
    let platform = match CudaPlatform::new() {
        Ok(platform) => platform,
        Err(error) => {
            skip(&format!("no NVIDIA GPU here ({error})"));
            return;
        }
    };
    // Which part it is, for one that hangs.
    let begins = |part: &str| eprintln!("part: {part}");
    begins("memory");
    conformance::memory(&platform);
    begins("aliases");
    assert!(conformance::aliases(&platform));
    begins("handing over");
    assert!(conformance::handing_over(&platform));
    begins("peers");
    assert!(conformance::peers(&platform));
    begins("words");
    conformance::words(&platform);
    begins("streams");
    conformance::streams(&platform);
    begins("deferred work");
    assert!(conformance::deferred(&platform));
    begins("graphs");
    conformance::graphs(&platform);
    begins("host access");
    assert!(
        !conformance::host_access(&platform),
        "a GPU's memory is its own"
    );
}
