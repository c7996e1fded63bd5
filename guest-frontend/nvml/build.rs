//! Derives the exported functions and the numbers of figures from the description of
//! NVML. A figure is a query that the host answers from its own NVML.

use std::fmt::Write;
use std::path::PathBuf;
use std::{env, error, fs};

use paragpu_interface::Serving;

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let nvml = paragpu_interface::nvml()?;
    let result = syn::parse_str("nvmlReturn_t")?;
    let mut exports = paragpu_interface::exports(nvml.functions(), &result, false);
    exports.extend(paragpu_interface::figures(nvml.functions(), &result));
    let stubs = paragpu_interface::stubs(nvml.functions(), &result);
    let null = syn::parse_str("Code::INVALID_ARGUMENT")?;
    let mut boundary = paragpu_interface::boundary(&null);
    boundary.extend(paragpu_interface::inputs(&null));
    for (name, code) in [
        ("exports.rs", exports),
        ("stubs.rs", stubs),
        ("boundary.rs", boundary),
    ] {
        fs::write(out.join(name), paragpu_interface::print(&code)?)?;
    }

    let (mut numbers, mut symbols) = (String::new(), String::new());
    for function in nvml.functions() {
        if let Serving::Figure { number, .. } = &function.serving {
            let name = &function.name;
            writeln!(
                numbers,
                "/// Of `{name}`.\npub const {name}: u32 = {number};"
            )?;
        }
    }
    for (symbol, function) in nvml.symbols() {
        let serving = match function.serving {
            Serving::Refused(_) => "Refused",
            Serving::Denied(_) => "Denied",
            _ => "Served",
        };
        writeln!(symbols, "({:?}, Serving::{serving}),", symbol.name)?;
    }
    fs::write(out.join("numbers.rs"), numbers)?;
    fs::write(out.join("symbols.rs"), format!("&[{symbols}]"))?;
    Ok(())
}
