//! Writes the prototypes of what is served: `prototypes JSON`.
//!
//! One entry for each symbol that a program built for CUDA 13.0 or NVML 13.0 may get, with the
//! types of its parameters as the description has them, for tests that call
//! everything (tests/parity).

use std::collections::BTreeMap;
use std::error::Error;

use paragpu_interface::Library;
use serde::Serialize;

/// A parameter: its name, and its type in the description.
#[derive(Serialize)]
struct Parameter {
    name: String,
    kind: String,
}

/// A function of a library.
#[derive(Serialize)]
struct Prototype {
    chapter: String,
    returns: Option<String>,
    parameters: Vec<Parameter>,
}

fn text(kind: &syn::Type) -> String {
    quote::quote!(#kind).to_string().replace(' ', "")
}

fn prototypes(library: &Library) -> BTreeMap<String, Prototype> {
    let mut found = BTreeMap::new();
    for function in library.functions().filter(|function| function.served()) {
        let prototype = |_| Prototype {
            chapter: function.chapter.clone(),
            returns: function.returns.as_ref().map(text),
            parameters: function
                .parameters
                .iter()
                .map(|parameter| Parameter {
                    name: parameter.name.clone(),
                    kind: text(&parameter.kind),
                })
                .collect(),
        };
        for symbol in function.symbols.iter().filter(|s| !s.per_thread) {
            found.insert(symbol.name.clone(), prototype(symbol));
        }
    }
    found
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: prototypes JSON")?;
    let all = BTreeMap::from([
        ("driver", prototypes(&paragpu_interface::driver()?)),
        ("runtime", prototypes(&paragpu_interface::runtime()?)),
        ("nvml", prototypes(&paragpu_interface::nvml()?)),
    ]);
    std::fs::write(path, serde_json::to_string_pretty(&all)? + "\n")?;
    Ok(())
}
