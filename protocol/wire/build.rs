//! Derives the types of all calls from their description.

use std::path::PathBuf;
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    // What rustc's `cfg(sanitize)` says, which is not stable. Inputs for fuzzers hold the usual
    // addresses.
    println!("cargo:rustc-check-cfg=cfg(sanitizer, values(\"address\", \"thread\"))");
    if let Ok(sanitizer) = env::var("CARGO_CFG_SANITIZE")
        && env::var_os("CARGO_CFG_FUZZING").is_none()
    {
        println!("cargo:rustc-cfg=sanitizer=\"{sanitizer}\"");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let calls = paragpu_interface::calls()?;
    let code = paragpu_interface::print(&paragpu_interface::wire(&calls))?;
    fs::write(out.join("table.rs"), code)?;
    Ok(())
}
