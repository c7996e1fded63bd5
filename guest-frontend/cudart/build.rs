//! Derives the exported functions, and the table of the driver's functions
//! behind them, from the description of both interfaces.

use std::path::PathBuf;
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let (driver, runtime) = (paragpu_interface::driver()?, paragpu_interface::runtime()?);
    let result = syn::parse_str("cudaError_t")?;
    let exports = paragpu_interface::exports(runtime.functions(), &result, false);
    let direct = paragpu_interface::direct(runtime.functions(), &result);
    let stubs = paragpu_interface::stubs(runtime.functions(), &result);
    let table = paragpu_interface::table(&driver, &runtime);
    let boundary =
        paragpu_interface::boundary(&syn::parse_str("Error::new(cudaErrorInvalidValue)")?);
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

    // What a test compares with the linked library, and that with NVIDIA's.
    let symbols = runtime.symbols();
    let names: Vec<&str> = symbols
        .iter()
        .map(|(symbol, _)| symbol.name.as_str())
        .collect();
    fs::write(out.join("symbols.txt"), names.join("\n") + "\n")?;
    Ok(())
}
