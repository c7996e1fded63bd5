//! Linking of PTX: the texts become one module, in which what one declares
//! `.extern` is what another defines.

use std::collections::HashMap;

use paragpu_device::{Error, LinkInput, Result};
use paragpu_protocol::status::Status;

use crate::module::{image_error, ptx_error};
use crate::ptx::ast::{Module, Space};
use crate::ptx::parser;

/// CUjitInputType: machine code, which for this device is PTX; PTX; a fat binary.
const KINDS: [u32; 3] = [0, 1, 2];
/// CUjitInputType of a library of objects.
const LIBRARY: u32 = 4;
/// A part of the name of CUDA's device runtime, a library of machine code...
const DEVICE_RUNTIME: &str = "cudadevrt";
/// ...and what this device has of it.
const DEVICE_RUNTIME_TEXT: &str = include_str!("devrt.ptx");
/// The version of PTX of a module that needs none in particular: 7.0.
const LEAST_VERSION: u32 = 70;
/// CUDA_ERROR_UNKNOWN, which the linker's own failures are.
const LINKER: Status = Status(999);
/// What modules have without defining it.
const BUILT_IN: [&str; 5] = [
    "vprintf",
    "__assertfail",
    "malloc",
    "free",
    "cudaGraphSetConditional",
];
/// What begins a text and may be there once.
const HEADER: [&str; 3] = [".version", ".target", ".address_size"];

/// Links the texts of the inputs.
///
/// # Errors
/// `NOT_SUPPORTED` for inputs that are not PTX and for names that two inputs
/// have for themselves, `INVALID_PTX`, or that something is missing.
pub fn link(inputs: &[LinkInput<'_>], arch: u32) -> Result<String> {
    let texts = inputs.iter().map(|input| text(input, arch));
    let texts: Vec<String> = texts.collect::<Result<_>>()?;
    let modules = texts.iter().map(|text| parser::parse(text));
    let modules: Vec<Module<'_>> = modules
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| ptx_error(&error))?;
    check(inputs, &texts, &modules)?;
    if let [only] = texts.as_slice() {
        return Ok(only.clone());
    }
    // Of nothing an empty module is linked, as natively.
    let version = modules.iter().map(|module| module.version).max();
    let version = version.unwrap_or(LEAST_VERSION);
    let target = modules.iter().map(|module| module.target).max();
    let target = target.unwrap_or(arch);
    let mut linked = format!(
        ".version {}.{}\n.target sm_{target}\n.address_size 64\n",
        version / 10,
        version % 10
    );
    let lines = texts.iter().flat_map(|text| text.lines());
    for line in lines.filter(|line| !is_header(line)) {
        linked.push_str(line);
        linked.push('\n');
    }
    // What it means must not hang on how its lines were cut.
    parser::parse(&linked).map_err(|error| ptx_error(&error))?;
    Ok(linked)
}

fn is_header(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    HEADER.contains(&first)
}

/// The PTX of an input.
fn text(input: &LinkInput<'_>, arch: u32) -> Result<String> {
    if input.kind == LIBRARY && input.name.contains(DEVICE_RUNTIME) {
        return Ok(DEVICE_RUNTIME_TEXT.to_owned());
    }
    if !KINDS.contains(&input.kind) {
        let why = format!(
            "the software GPU links PTX: {} is something else",
            input.name
        );
        return Err(Error::new(Status::NOT_SUPPORTED, why));
    }
    paragpu_fatbin::ptx_of(input.image, arch).map_err(|error| image_error(&error))
}

/// How often a name stands in a text.
fn count(text: &str, name: &str) -> usize {
    let of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    text.split(|c| !of_name(c))
        .filter(|word| *word == name)
        .count()
}

/// Each name has one definition, and each that is declared and used has one.
fn check(inputs: &[LinkInput<'_>], texts: &[String], modules: &[Module<'_>]) -> Result<()> {
    let mut defined: HashMap<&str, &str> = HashMap::new();
    for (input, module) in inputs.iter().zip(modules) {
        let functions = module.functions.iter();
        let functions = functions.filter(|function| function.body.is_some());
        let variables = module.variables.iter();
        let variables = variables.filter(|variable| !variable.external);
        let names = functions.map(|function| function.name);
        for name in names.chain(variables.map(|variable| variable.name)) {
            if let Some(other) = defined.insert(name, input.name) {
                let why = format!("{name} is in {other} and in {}", input.name);
                return Err(Error::new(Status::NOT_SUPPORTED, why));
            }
        }
    }
    for ((input, text), module) in inputs.iter().zip(texts).zip(modules) {
        let functions = module.functions.iter();
        let functions = functions.filter(|function| function.body.is_none());
        let variables = module.variables.iter();
        let variables =
            variables.filter(|variable| variable.external && variable.space != Space::Shared);
        let declared = functions.map(|function| function.name);
        let declared: Vec<&str> = declared
            .chain(variables.map(|variable| variable.name))
            .collect();
        let missing = declared.iter().find(|name| {
            let declarations = declared.iter().filter(|other| other == name).count();
            !BUILT_IN.contains(name)
                && !defined.contains_key(**name)
                && count(text, name) > declarations
        });
        if let Some(name) = missing {
            let why = format!("Undefined reference to '{name}' in '{}'", input.name);
            return Err(Error::new(LINKER, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";
    const CALLER: &str = ".extern .func (.param .b32 r) twice(.param .b32 x);\n\
        .extern .global .u32 base;\n\
        .visible .entry run(.param .u64 to) {\n\
        .param .b32 in; .param .b32 out; .reg .b32 %r;\n\
        ld.global.u32 %r, [base]; st.param.b32 [in], %r;\n\
        call (out), twice, (in); ret; }\n";
    const CALLED: &str = ".visible .global .u32 base = 3;\n\
        .visible .func (.param .b32 r) twice(.param .b32 x) { ret; }\n";

    fn inputs<'a>(texts: &'a [String]) -> Vec<LinkInput<'a>> {
        let input = |text: &'a String| LinkInput {
            kind: 1,
            name: "input",
            options: &[],
            image: text.as_bytes(),
        };
        texts.iter().map(input).collect()
    }

    fn with_head(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| format!("{HEAD}{text}")).collect()
    }

    #[test]
    fn texts_become_one() {
        let texts = with_head(&[CALLER, CALLED]);
        let linked = link(&inputs(&texts), 121).unwrap();
        assert_eq!(linked.matches(".version").count(), 1);
        let module = parser::parse(&linked).unwrap();
        assert_eq!((module.version, module.target), (80, 75));
        let bodies = module.functions.iter().filter(|f| f.body.is_some()).count();
        assert_eq!(bodies, 2);
    }

    #[test]
    fn what_is_missing_or_there_twice_is_named() {
        let missing = link(&inputs(&with_head(&[CALLER])), 121).unwrap_err();
        assert_eq!(missing.status, LINKER);
        assert!(missing.to_string().contains("twice"), "{missing}");
        let unused = link(&inputs(&with_head(&[".extern .func nobody();\n"])), 121);
        assert!(unused.is_ok(), "a declaration alone asks for nothing");
        let twice = link(&inputs(&with_head(&[CALLED, CALLED])), 121).unwrap_err();
        assert_eq!(twice.status, Status::NOT_SUPPORTED);
        let broken = link(&inputs(&with_head(&[".entry {"])), 121).unwrap_err();
        assert_eq!(broken.status, Status::INVALID_PTX);
        let mut grid = with_head(&[
            ".extern .func (.param .b32 s) cudaCGSynchronize(.param .b64 h, .param .b32 f);\n\
            .visible .entry k() { .param .b64 h; .param .b32 f; .param .b32 s;\n\
            call (s), cudaCGSynchronize, (h, f); ret; }\n",
        ]);
        let missing = link(&inputs(&grid), 121).unwrap_err();
        assert!(
            missing.to_string().contains("cudaCGSynchronize"),
            "{missing}"
        );
        grid.push("machine code".into());
        let mut with_runtime = inputs(&grid);
        with_runtime[1].kind = LIBRARY;
        assert!(
            link(&with_runtime, 121).is_err(),
            "a library of another name"
        );
        with_runtime[1].name = "libcudadevrt.a";
        link(&with_runtime, 121).unwrap();
        let mut object = inputs(&[]);
        object.push(LinkInput {
            kind: 3,
            name: "object.o",
            options: &[],
            image: b"",
        });
        let refused = link(&object, 121).unwrap_err();
        assert_eq!(refused.status, Status::NOT_SUPPORTED);
        // Of nothing, an empty module.
        let empty = link(&[], 121).unwrap();
        assert!(parser::parse(&empty).unwrap().functions.is_empty());
    }
}
