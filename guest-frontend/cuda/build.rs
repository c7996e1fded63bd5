//! Derives the exported functions and the table of all names for
//! cuGetProcAddress from the description of the driver's interface.

use std::fmt::Write;
use std::path::PathBuf;
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let driver = paragpu_interface::driver()?;
    let result = syn::parse_str("CUresult")?;
    let exports = paragpu_interface::exports(driver.functions(), &result, true);
    let stubs = paragpu_interface::stubs(driver.functions(), &result);
    let null = syn::parse_str("Status::INVALID_VALUE")?;
    let mut boundary = paragpu_interface::boundary(&null);
    boundary.extend(paragpu_interface::inputs(&null));
    boundary.extend(paragpu_interface::default_streams());
    fs::write(
        out.join("boundary.rs"),
        paragpu_interface::print(&boundary)?,
    )?;
    fs::write(out.join("exports.rs"), paragpu_interface::print(&exports)?)?;
    let crossings = paragpu_interface::crossings(driver.functions());
    let crossings = paragpu_interface::print(&crossings)?;
    fs::write(out.join("crossing.rs"), crossings)?;
    fs::write(out.join("stubs.rs"), paragpu_interface::print(&stubs)?)?;

    let (mut declared, mut table) = (String::new(), String::new());
    for (symbol, function) in driver.symbols() {
        let paragpu_interface::Symbol {
            name,
            base,
            since,
            per_thread,
        } = symbol;
        writeln!(declared, "fn {name}();")?;
        writeln!(
            table,
            "Symbol {{ symbol: {name:?}, name: {base:?}, version: {since}, own: {per_thread}, \
             served: {}, address: {name} }},",
            function.served(),
        )?;
    }
    let table = format!("{{ unsafe extern \"C\" {{ {declared} }} &[{table}] }}");
    fs::write(out.join("symbols.rs"), table)?;
    Ok(())
}
