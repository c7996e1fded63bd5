//! Derives the native part of a device from the description of the driver.

use std::path::PathBuf;
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let native = paragpu_interface::native_calls(&paragpu_interface::driver()?);
    fs::write(out.join("native.rs"), paragpu_interface::print(&native)?)?;
    Ok(())
}
