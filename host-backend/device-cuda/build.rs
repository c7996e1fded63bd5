//! Derives the calls of the host's NVML from the description of NVML.

use std::path::PathBuf;
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let nvml = paragpu_interface::nvml()?;
    let figures = paragpu_interface::host_figures(nvml.functions());
    fs::write(out.join("figures.rs"), paragpu_interface::print(&figures)?)?;
    Ok(())
}
