//! The suite that every device passes. It uses ordinal 0 of this process, so it is the only
//! test here.

use paragpu_device::conformance;
use paragpu_device_software::{Options, SoftwarePlatform};

#[test]
fn conforms() {
    let options = Options {
        memory: 64 << 20,
        cores: 2,
        ..Options::default()
    };
    let platform = SoftwarePlatform::with_options(options.clone());
    conformance::memory(&platform);
    assert!(
        !conformance::handing_over(&platform),
        "not unless it is asked for"
    );
    let shareable = SoftwarePlatform::with_options(Options {
        shareable: true,
        ..options.clone()
    });
    conformance::memory(&shareable);
    assert!(conformance::handing_over(&shareable));
    let two = SoftwarePlatform::with_options(Options {
        shareable: true,
        devices: 2,
        ..options.clone()
    });
    assert!(conformance::peers(&two));
    assert!(conformance::aliases(&platform) && conformance::aliases(&shareable));
    conformance::words(&platform);
    conformance::writes(&platform);
    conformance::streams(&platform);
    assert!(!conformance::launch_targets(&platform));
    conformance::graphs(&platform);
    assert!(conformance::host_access(&platform));
}
