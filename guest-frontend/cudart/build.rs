//! Derives the exported functions, and the table of the driver's functions
//! behind them, from the description of both interfaces.

use paragpu_interface::Generation;
use std::path::PathBuf;
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    // A path that is also valid from cudart12, which shares this script.
    println!("cargo:rerun-if-changed=../cudart/build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    // paragpu-cudart12 is the same sources, built for the other generation.
    println!("cargo:rustc-check-cfg=cfg(cuda12)");
    let (generation, number) = match env::var("CARGO_PKG_NAME")?.as_str() {
        "paragpu-cudart12" => (Generation::Cuda12, 12),
        _ => (Generation::Cuda13, 13),
    };
    if generation == Generation::Cuda12 {
        println!("cargo:rustc-cfg=cuda12");
    }
    println!("cargo:rustc-env=PARAGPU_GENERATION={number}");
    let driver = paragpu_interface::driver()?;
    let runtime = paragpu_interface::runtime_of(generation)?;
    let cuda12 = paragpu_interface::runtime_of(Generation::Cuda12)?;
    let cuda13 = paragpu_interface::runtime_of(Generation::Cuda13)?;
    let result = syn::parse_str("cudaError_t")?;
    let exports = paragpu_interface::exports(runtime.functions(), &result, false);
    let direct = paragpu_interface::direct(runtime.functions(), &result);
    let stubs = paragpu_interface::stubs(runtime.functions(), &result);
    let table = paragpu_interface::table(&driver, &[&cuda12, &cuda13]);
    let null = syn::parse_str("Error::new(cudaErrorInvalidValue)")?;
    let mut boundary = paragpu_interface::boundary(&null);
    boundary.extend(paragpu_interface::default_streams());
    fs::write(
        out.join("boundary.rs"),
        paragpu_interface::print(&boundary)?,
    )?;
    fs::write(
        out.join("exports.rs"),
        paragpu_interface::print(&quote::quote!(#exports #direct))?,
    )?;
    fs::write(out.join("stubs.rs"), paragpu_interface::print(&stubs)?)?;
    fs::write(out.join("driver.rs"), paragpu_interface::print(&table)?)?;

    // A test compares these with the linked library, and the library with NVIDIA's.
    let symbols = runtime.symbols();
    let names: Vec<&str> = symbols
        .iter()
        .map(|(symbol, _)| symbol.name.as_str())
        .collect();
    fs::write(out.join("symbols.txt"), names.join("\n") + "\n")?;
    Ok(())
}
