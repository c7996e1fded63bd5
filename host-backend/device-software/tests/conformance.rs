//! The suite every device passes; it takes ordinal 0 of this process, so it is alone here.

use paragpu_device::conformance;
use paragpu_device_software::{Options, SoftwarePlatform};

#[test]
fn conforms() {
    let options = Options {
        memory: 64 << 20,
        cores: 2,
        ..Options::default()
    };
    let platform = SoftwarePlatform::with_options(options);
    conformance::memory(&platform);
    conformance::writes(&platform);
    conformance::streams(&platform);
    conformance::graphs(&platform);
}
