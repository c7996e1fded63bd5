//! The suite of `paragpu-device` on a real GPU; says so where there is none.

use paragpu_device::conformance;
use paragpu_device_cuda::CudaPlatform;

#[test]
fn conforms() {
    let platform = match CudaPlatform::new() {
        Ok(platform) => platform,
        Err(error) => {
            eprintln!("skipped: no NVIDIA GPU here ({error})");
            return;
        }
    };
    conformance::memory(&platform);
    assert!(conformance::handing_over(&platform));
    assert!(conformance::peers(&platform));
    conformance::streams(&platform);
    conformance::graphs(&platform);
    assert!(
        !conformance::host_access(&platform),
        "a GPU's memory is its own"
    );
}
