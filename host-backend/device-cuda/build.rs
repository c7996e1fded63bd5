//! Derives the table of NVIDIA's driver and the calls of the host's NVML from the
//! description of their functions.

use std::path::PathBuf;
use std::{env, error, fs};

use paragpu_interface::{Library, identifier};
use proc_macro2::TokenStream;
use quote::quote;

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let driver = paragpu_interface::driver()?;
    fs::write(out.join("driver.rs"), table(&driver).to_string())?;
    let native = paragpu_interface::native_devices(&driver);
    fs::write(out.join("native.rs"), paragpu_interface::print(&native)?)?;
    let nvml = paragpu_interface::nvml()?;
    let figures = paragpu_interface::host_figures(nvml.functions());
    fs::write(out.join("figures.rs"), paragpu_interface::print(&figures)?)?;
    Ok(())
}

/// `driver! { used { symbol(types); … } newer { … } }`: the functions that the
/// description marks for the host, with their prototypes, for the macro in
/// src/sys/driver.rs. A driver that lacks one is too old, but for newer ones.
fn table(driver: &Library) -> TokenStream {
    let (mut used, mut newer) = (TokenStream::new(), TokenStream::new());
    for function in driver.functions().filter(|function| function.host) {
        let field = identifier(function.host_symbol());
        let types = function.parameters.iter();
        let types = types.map(|parameter| paragpu_interface::c_type(&parameter.kind));
        let rows = match function.host_may_lack() {
            true => &mut newer,
            false => &mut used,
        };
        rows.extend(quote!(#field(#(#types),*);));
    }
    quote!(driver! { used { #used } newer { #newer } })
}
