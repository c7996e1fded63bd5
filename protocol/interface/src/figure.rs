//! NVML's plain questions: scalars in, scalars or a text out. Both ends derive
//! from the description, the guest's function and the host's call of NVML.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{GenericArgument, PathArguments, Type};

use crate::export::{c_type, is};
use crate::function::{Function, Parameter, Serving};
use crate::identifier;

/// The role of a parameter of such a function.
enum Part {
    /// The device.
    Device,
    /// An input number, which must be below the limit.
    In(u32),
    /// So many numbers that come out.
    Out(usize),
    /// As `Out`, but the program may pass null.
    Optional(usize),
    /// An output buffer for text.
    Text,
    /// Bytes that there are for it.
    Length,
}

/// How many numbers an `Out<T>` or `Optional<T>` holds: an array has its length.
fn numbers(kind: &Type) -> usize {
    let Type::Path(path) = kind else { return 1 };
    let Some(last) = path.path.segments.last() else {
        return 1;
    };
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return 1;
    };
    match arguments.args.first() {
        Some(GenericArgument::Type(Type::Array(array))) => {
            let length = &array.len;
            quote!(#length).to_string().parse().unwrap_or(1)
        }
        _ => 1,
    }
}

fn parts(parameters: &[Parameter], limits: &[u32]) -> Vec<Part> {
    let mut limits = limits.iter();
    let mut text = false;
    let part = |parameter: &Parameter| match &parameter.kind {
        kind if is(kind, "nvmlDevice_t") => Part::Device,
        kind if is(kind, "Out") => Part::Out(numbers(kind)),
        kind if is(kind, "Optional") => Part::Optional(numbers(kind)),
        Type::Ptr(_) => {
            text = true;
            Part::Text
        }
        _ if text => Part::Length,
        _ => Part::In(limits.next().copied().unwrap_or(0)),
    };
    parameters.iter().map(part).collect()
}

/// The guest's functions: each asks the host (`super::ask`, `super::ask_text`)
/// under `super::guard` and writes the answer where it belongs
/// (`super::scatter`, `super::put_text`). As NVIDIA's library does, it refuses null
/// pointers before it asks, so that a call that fails writes nothing. An `Optional`
/// may be null: nvidia-smi passes null to learn whether a GPU supports a function.
#[must_use]
pub fn figures<'f>(functions: impl Iterator<Item = &'f Function>, result: &Type) -> TokenStream {
    let mut code = TokenStream::new();
    for function in functions {
        let Serving::Figure { number, limits } = &function.serving else {
            continue;
        };
        let doc = &function.doc;
        let parameters = &function.parameters;
        let names: Vec<Ident> = parameters.iter().map(|p| identifier(&p.name)).collect();
        let types = parameters.iter().map(|p| c_type(&p.kind));
        let mut arguments = Vec::new();
        let mut device = quote!(super::first()?);
        let (mut checks, mut puts) = (TokenStream::new(), TokenStream::new());
        let (mut place, mut text) = (0_usize, false);
        for (name, part) in names.iter().zip(parts(parameters, limits)) {
            match part {
                Part::Device => device = quote!(super::device(#name)?),
                Part::In(_) => arguments.push(quote!(#name)),
                Part::Out(count) => {
                    checks.extend(quote!(super::present(#name)?;));
                    // SAFETY: of the generated code: the caller vouches for the
                    // pointer.
                    puts.extend(quote!(unsafe { super::scatter(#name, &answer, #place) }?;));
                    place += count;
                }
                Part::Optional(count) => {
                    // SAFETY: of the generated code: as above.
                    puts.extend(quote! {
                        if !#name.is_null() {
                            unsafe { super::scatter(#name, &answer, #place) }?;
                        }
                    });
                    place += count;
                }
                Part::Text => text = true,
                Part::Length => {}
            }
        }
        let body = if text {
            let [.., place, length] = names.as_slice() else {
                continue;
            };
            // SAFETY: of the generated code: as of a value, for `length` bytes.
            quote! {
                let text = super::ask_text(device, #number)?;
                unsafe { super::put_text(#place, #length, &text) }
            }
        } else {
            quote! {
                #checks
                let answer = super::ask(device, #number, &[#((#arguments, #limits)),*])?;
                #puts
                Ok(())
            }
        };
        for symbol in &function.symbols {
            let exported = identifier(&symbol.name);
            let types = types.clone();
            code.extend(quote! {
                #[doc = #doc]
                ///
                /// # Safety
                /// The pointers are as NVML's manual asks under this name.
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn #exported(#(#names: #types),*) -> #result {
                    super::guard(|| {
                        let device = #device;
                        #body
                    })
                }
            });
        }
    }
    code
}

/// The host's end: `figure(nvml, device, number, arguments)`, which calls the
/// function of this number in NVML (`nvml.find(NAME)`, `None` if it is
/// missing) and returns an `Answer`.
#[must_use]
pub fn host_figures<'f>(functions: impl Iterator<Item = &'f Function>) -> TokenStream {
    let mut arms = TokenStream::new();
    for function in functions {
        let Serving::Figure { number, limits } = &function.serving else {
            continue;
        };
        let symbol = &function.name;
        let parameters = &function.parameters;
        let types: Vec<_> = parameters.iter().map(|p| c_type(&p.kind)).collect();
        let (mut lets, mut passed, mut gathered) =
            (TokenStream::new(), Vec::new(), TokenStream::new());
        let (mut argument, mut place) = (0_usize, 0_usize);
        let mut text = quote!(String::new());
        let all = parts(parameters, limits);
        for (parameter, part) in parameters.iter().zip(&all) {
            // A prefix keeps a parameter from hiding what the code below calls
            // `code`, `answer` or `arguments`.
            let name = format_ident!("of_{}", parameter.name);
            match part {
                Part::Device => passed.push(quote!(device)),
                Part::In(limit) => {
                    lets.extend(quote! {
                        let #name = u32::from(arguments[#argument]);
                        if #name >= #limit {
                            return Answer::refused(INVALID_ARGUMENT);
                        }
                    });
                    passed.push(quote!(#name));
                    argument += 1;
                }
                Part::Out(count) | Part::Optional(count) => {
                    lets.extend(quote!(let mut #name = Default::default();));
                    passed.push(quote!(&raw mut #name));
                    gathered.extend(quote!(Figure::gather(#name, &mut answer.values[#place..]);));
                    place += count;
                }
                Part::Text => {
                    lets.extend(quote!(let mut #name = [0_u8; TEXT];));
                    passed.push(quote!(#name.as_mut_ptr().cast()));
                    text = quote!(text_of(&#name));
                }
                Part::Length => passed.push(quote!(TEXT as c_uint)),
            }
        }
        arms.extend(quote! {
            #number => {
                let Some(address) = nvml.find(#symbol) else {
                    return Answer::refused(NOT_SUPPORTED);
                };
                #lets
                // SAFETY: the type is nvml.h's for this name; what is passed
                // lives on this frame, and the device is NVML's own handle.
                let code = unsafe {
                    let function = std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn(#(#types),*) -> c_uint,
                    >(address);
                    function(#(#passed),*)
                };
                let mut answer = Answer::refused(code);
                #gathered
                if code == 0 {
                    answer.text = #text;
                }
                answer
            }
        });
    }
    quote! {
        // A function whose answer is a text has no numbers.
        #[allow(
            unused_mut,
            clippy::undocumented_unsafe_blocks,
            clippy::if_same_then_else,
        )]
        fn figure(nvml: &Nvml, device: nvmlDevice_t, number: u32, arguments: [u8; 4]) -> Answer {
            match number {
                #arms
                _ => Answer::refused(NOT_SUPPORTED),
            }
        }
    }
}
