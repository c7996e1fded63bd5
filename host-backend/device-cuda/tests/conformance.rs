//! The suite of `paragpu-device` on a real GPU; says so if there is none.

use paragpu_corpora::skip;

use paragpu_device::conformance;
use paragpu_device_cuda::CudaPlatform;

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
    begins("launches from threads");
    assert!(conformance::launch_targets(&platform));
    begins("graphs");
    conformance::graphs(&platform);
    begins("host access");
    assert!(
        !conformance::host_access(&platform),
        "a GPU's memory is its own"
    );
}
