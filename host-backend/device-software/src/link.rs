//! Links PTX texts into one module, in which `.extern` declarations of one text refer to
//! definitions of another.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use paragpu_abi::{
    CU_JIT_INPUT_CUBIN, CU_JIT_INPUT_FATBINARY, CU_JIT_INPUT_LIBRARY, CU_JIT_INPUT_PTX,
};
use paragpu_device::{Error, LinkInput, Result};
use paragpu_protocol::status::Status;

use crate::device_runtime::{self, DEVICE_RUNTIME_TEXT};
use crate::module::{check_text, image_error, ptx_error};
use crate::ptx::ast::{Module, Space};
use crate::ptx::parser;

/// The accepted inputs: machine code, which for this device is PTX; PTX; a fat binary.
const KINDS: [u32; 3] = [CU_JIT_INPUT_CUBIN, CU_JIT_INPUT_PTX, CU_JIT_INPUT_FATBINARY];
/// A part of the file name of CUDA's device runtime, a library of machine code...
const DEVICE_RUNTIME: &str = "cudadevrt";
/// The PTX version of a module that needs no particular one: 7.0.
const MIN_VERSION: u32 = 70;
/// Prefixes of the device runtime's functions in nvcc's output. Those that this device
/// lacks are refused with the kernels that call them, so that the module's other kernels
/// run.
const RUNTIME_CALLS: [&str; 2] = ["__cudaCDP2", "cudaGraph"];
/// Prefix of further ones, such as those of multi-device groups.
const LINKED_RUNTIME_CALL: &str = "cuda";
/// A function that identifies CUDA's device runtime.
const LAUNCH: &str = "__cudaCDP2LaunchDeviceV2";
/// Names that need no definition.
const BUILT_IN: [&str; 6] = [
    "vprintf",
    "__assertfail",
    "malloc",
    "__cuda_syscall_aligned_malloc",
    "free",
    "cudaGraphSetConditional",
];
/// Directives of definitions that other texts may repeat.
const WEAK: [&str; 2] = [".weak", ".common"];
/// Directives at the start of a text, of which a module has one each.
const HEADER: [&str; 3] = [".version", ".target", ".address_size"];

/// Links the texts of the inputs.
///
/// # Errors
/// `NOT_SUPPORTED` for inputs that are not PTX, and for names that two inputs define
/// globally; `INVALID_PTX`; `UNKNOWN` for undefined references.
pub fn link(inputs: &[LinkInput<'_>], arch: u32) -> Result<String> {
    let texts = inputs.iter().map(|input| Ok((*input, text(input, arch)?)));
    let mut texts: Vec<(LinkInput<'_>, String)> = texts.collect::<Result<_>>()?;
    // The device runtime may be among the inputs and also in a library.
    let mut runtimes = 0;
    texts.retain(|(_, text)| {
        runtimes += usize::from(text == DEVICE_RUNTIME_TEXT);
        text != DEVICE_RUNTIME_TEXT || runtimes == 1
    });
    let (inputs, mut texts): (Vec<LinkInput<'_>>, Vec<String>) = texts.into_iter().unzip();
    if runtimes > 0 {
        let more = device_runtime::errors(&texts);
        if let Some(text) = texts.iter_mut().find(|text| *text == DEVICE_RUNTIME_TEXT) {
            text.push_str(&more);
        }
    }
    let texts = without_copies(with_names_apart(texts)?)?;
    let modules = texts.iter().map(|text| parser::parse(text));
    let modules: Vec<Module<'_>> = modules
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| ptx_error(&error))?;
    check(&inputs, &texts, &modules, runtimes > 0)?;
    if let [only] = texts.as_slice() {
        return Ok(only.clone());
    }
    // The trees take more memory than the texts.
    let of_module = |module: Module<'_>| (module.version, module.target);
    let modules: Vec<(u32, u32)> = modules.into_iter().map(of_module).collect();
    // As natively, linking no inputs gives an empty module.
    let version = modules.iter().map(|(version, _)| *version).max();
    let version = version.unwrap_or(MIN_VERSION);
    let target = modules.iter().map(|(_, target)| *target).max();
    let target = target.unwrap_or(arch);
    let mut linked = format!(
        ".version {}.{}\n.target sm_{target}\n.address_size 64\n",
        version / 10,
        version % 10
    );
    let lines = texts.iter().flat_map(|text| text.lines());
    for line in lines {
        linked.push_str(without_header(line));
        linked.push('\n');
        check_text(linked.len())?;
    }
    // Parsed as a check, because the text was edited line by line.
    parser::parse(&linked).map_err(|error| ptx_error(&error))?;
    Ok(linked)
}

/// Removes duplicate `.weak` and `.common` definitions. One definition of each name stays,
/// if possible one that is not weak.
fn without_copies(mut texts: Vec<String>) -> Result<Vec<String>> {
    let mut weak = Vec::new();
    let mut kept: HashSet<String> = HashSet::new();
    for text in &texts {
        if !WEAK.iter().any(|word| text.contains(word)) {
            weak.push(Vec::new());
            kept.extend(names(text)?);
            continue;
        }
        let names = names(text)?;
        let found = weak_definitions(text, &names);
        let mut strong = names;
        for (name, _) in &found {
            strong.remove(name);
        }
        kept.extend(strong);
        weak.push(found);
    }
    for (text, weak) in texts.iter_mut().zip(weak) {
        let copies = weak.into_iter();
        let copies = copies.filter_map(|(name, range)| (!kept.insert(name)).then_some(range));
        let copies: Vec<Range<usize>> = copies.collect();
        if !copies.is_empty() {
            *text = without(text, &copies);
        }
    }
    Ok(texts)
}

/// A text without some ranges, which are in order.
fn without(text: &str, ranges: &[Range<usize>]) -> String {
    let starts = ranges.iter().map(|range| range.start).chain([text.len()]);
    let ends = [0].into_iter().chain(ranges.iter().map(|range| range.end));
    let kept = ends.zip(starts).filter_map(|(from, to)| text.get(from..to));
    kept.collect()
}

/// Renames definitions that are private to one text (neither `.visible` nor `.weak`) if
/// other texts define the same name. For example, every text that calls `printf` has a
/// `$str`.
fn with_names_apart(mut texts: Vec<String>) -> Result<Vec<String>> {
    if texts.len() < 2 {
        return Ok(texts);
    }
    let mut definitions: HashMap<String, u32> = HashMap::new();
    let mut own: Vec<HashSet<String>> = Vec::new();
    for text in &texts {
        let module = parser::parse(text).map_err(|error| ptx_error(&error))?;
        for name in defined(&module) {
            *definitions.entry(name).or_default() += 1;
        }
        own.push(module.own.iter().copied().map(str::to_owned).collect());
    }
    for (number, (text, own)) in texts.iter_mut().zip(own).enumerate() {
        let shared = own
            .into_iter()
            .filter(|name| definitions.get(name).is_some_and(|count| *count > 1));
        let renamed: HashMap<String, String> = shared
            .map(|name| {
                let mut other = format!("{name}$of{number}");
                let mut tries = 0_u32;
                while definitions.contains_key(&other) {
                    tries += 1;
                    // A short name, whatever names the texts define.
                    other = format!("{name}$of{number}_{tries}");
                }
                (name, other)
            })
            .collect();
        if !renamed.is_empty() {
            *text = with_other_names(text, &renamed)?;
        }
    }
    Ok(texts)
}

/// Replaces all occurrences of some names in a text.
///
/// # Errors
/// `OUT_OF_MEMORY` if the text becomes too long.
fn with_other_names(text: &str, renamed: &HashMap<String, String>) -> Result<String> {
    let mut made = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_of_name) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c| !is_of_name(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        made.push_str(before);
        made.push_str(renamed.get(word).map_or(word, String::as_str));
        check_text(made.len())?;
        rest = after;
    }
    made.push_str(rest);
    Ok(made)
}

/// The names that a text defines.
fn names(text: &str) -> Result<HashSet<String>> {
    let module = parser::parse(text).map_err(|error| ptx_error(&error))?;
    Ok(defined(&module))
}

/// The names that a module defines.
fn defined(module: &Module<'_>) -> HashSet<String> {
    let functions = module.functions.iter();
    let functions = functions.filter(|function| function.body.is_some());
    let variables = module
        .variables
        .iter()
        .filter(|variable| !variable.external);
    let names = functions.map(|function| function.name);
    let names = names.chain(variables.map(|variable| variable.name));
    names.map(str::to_owned).collect()
}

/// The `.weak` and `.common` definitions of a text, in order: name and byte range.
fn weak_definitions(text: &str, names: &HashSet<String>) -> Vec<(String, Range<usize>)> {
    let mut found = Vec::new();
    let mut start = 0;
    // The end of the last definition. Its own text may repeat the directive.
    let mut past = 0;
    for line in text.split_inclusive('\n') {
        let code = line.split("//").next().unwrap_or_default();
        let mut places: Vec<(usize, &str)> = WEAK
            .iter()
            .flat_map(|word| code.match_indices(word))
            .collect();
        places.sort_unstable();
        for (at, word) in places {
            let at = start + at;
            let rest = text.get(at..).unwrap_or_default();
            let behind = rest.get(word.len()..).unwrap_or_default();
            if at < past || !behind.starts_with(char::is_whitespace) {
                continue;
            }
            // What has no end here has none further on.
            let Some((head, end)) = definition(rest) else {
                return found;
            };
            past = at + end;
            let name = head.and_then(|head| {
                let mut words = head.split(|c| !is_of_name(c));
                words.find(|word| names.contains(*word))
            });
            if let Some(name) = name {
                found.push((name.to_owned(), at..past));
            }
        }
        start += line.len();
    }
    found
}

/// The definition at the start of a text: what precedes the body of a function, or a whole
/// variable, and the definition's end. A prototype has no head.
fn definition(text: &str) -> Option<(Option<&str>, usize)> {
    let (mut depth, mut comment) = (0_u32, false);
    let (mut is_function, mut body) = (false, None);
    for (at, byte) in text.bytes().enumerate() {
        let begins = |word: &str| text.get(at..).is_some_and(|rest| rest.starts_with(word));
        match byte {
            b'\n' => comment = false,
            _ if comment => {}
            b'/' if begins("//") => comment = true,
            b'.' if depth == 0 => is_function |= begins(".func") || begins(".entry"),
            b'{' => {
                if depth == 0 && is_function {
                    body = Some(at);
                }
                depth += 1;
            }
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0
                    && let Some(body) = body
                {
                    return Some((text.get(..body), at + 1));
                }
            }
            b';' if depth == 0 => {
                let head = text.get(..=at).filter(|_| !is_function);
                return Some((head, at + 1));
            }
            _ => {}
        }
    }
    None
}

/// Whether it can be part of the name of a function or variable.
fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

/// What is behind the directives of a text's start that begin a line.
fn without_header(line: &str) -> &str {
    let mut rest = line.trim_start();
    while let Some(values) = HEADER.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = behind_list(values);
    }
    rest
}

/// What is behind values that commas separate.
fn behind_list(values: &str) -> &str {
    let is_of_value = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    let mut rest = values;
    loop {
        rest = rest
            .trim_start()
            .trim_start_matches(is_of_value)
            .trim_start();
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return rest,
        }
    }
}

/// The PTX of an input.
fn text(input: &LinkInput<'_>, arch: u32) -> Result<String> {
    if input.kind == CU_JIT_INPUT_LIBRARY && input.name.contains(DEVICE_RUNTIME) {
        return Ok(DEVICE_RUNTIME_TEXT.to_owned());
    }
    if !KINDS.contains(&input.kind) {
        let why = format!(
            "the software GPU links PTX: {} is something else",
            input.name
        );
        return Err(Error::new(Status::NOT_SUPPORTED, why));
    }
    // For the device runtime, the newest PTX is used, which may be for a newer device.
    let newest = paragpu_fatbin::ptx_of(input.image, u32::MAX);
    if newest.is_ok_and(|text| defines(&text, LAUNCH)) {
        return Ok(DEVICE_RUNTIME_TEXT.to_owned());
    }
    paragpu_fatbin::ptx_of(input.image, arch).map_err(|error| image_error(&error))
}

/// Whether a text defines a function of this name, which others declare.
fn defines(text: &str, name: &str) -> bool {
    text.split([';', '}']).any(|statement| {
        let head = statement.split('{').next().unwrap_or_default();
        let head = head.split(".extern").next().unwrap_or_default();
        let function = head.split_once(".func");
        function.is_some_and(|(_, function)| function.contains(name))
    })
}

/// How often each of some names occurs in a text.
fn counts<'a>(text: &str, names: &[&'a str]) -> HashMap<&'a str, usize> {
    let mut counts: HashMap<&str, usize> = names.iter().map(|name| (*name, 0)).collect();
    for word in text.split(|c| !is_of_name(c)) {
        if let Some(count) = counts.get_mut(word) {
            *count += 1;
        }
    }
    counts
}

/// Checks that each name has at most one definition, and that each name that is used has
/// one.
fn check(
    inputs: &[LinkInput<'_>],
    texts: &[String],
    modules: &[Module<'_>],
    with_runtime: bool,
) -> Result<()> {
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
    let is_of_runtime = |name: &str| {
        RUNTIME_CALLS.iter().any(|prefix| name.starts_with(prefix))
            || with_runtime && name.starts_with(LINKED_RUNTIME_CALL)
    };
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
        let mut declarations: HashMap<&str, usize> = HashMap::new();
        for name in &declared {
            *declarations.entry(name).or_default() += 1;
        }
        let used = counts(text, &declared);
        let missing = declared.iter().find(|name| {
            !BUILT_IN.contains(name)
                && !is_of_runtime(name)
                && !defined.contains_key(**name)
                && used.get(**name) > declarations.get(**name)
        });
        if let Some(name) = missing {
            let why = format!("Undefined reference to '{name}' in '{}'", input.name);
            return Err(Error::new(Status::UNKNOWN, why));
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
    fn code_may_follow_the_directives_in_their_line() {
        for head in [
            ".version 8.0 .target sm_75, debug .address_size 64 ",
            ".version 8.0//of the compiler\n.target sm_75 ,debug/**/ .address_size 64 ",
        ] {
            let texts = [CALLER, CALLED].map(|body| [head, body].concat());
            let linked = link(&inputs(&texts), 75).unwrap();
            assert!(
                linked.contains("run(") && linked.contains("base = 3"),
                "{linked}"
            );
        }
    }

    #[test]
    fn of_weak_definitions_one_stays() {
        // nvcc names a definition in a comment before it, and may declare it first.
        let weak = ".weak .func (.param .b32 r) twice(.param .b32 x);\n\t// .weak\ttwice\n\
            .weak .func (.param .b32 r) twice(.param .b32 x) { { ret; } } // }\n\
            .weak .global .align 4 .b32 table[2] = {1, 2};\n.common .global .u32 word;\n";
        let strong = ".visible .func (.param .b32 r) twice(.param .b32 x) { ret; }\n";
        for texts in [[weak, weak], [strong, weak], [weak, strong]] {
            let linked = link(&inputs(&with_head(&texts)), 121).unwrap();
            let module = parser::parse(&linked).unwrap();
            let bodies = module.functions.iter().filter(|f| f.body.is_some()).count();
            assert_eq!((bodies, module.variables.len()), (1, 2), "{linked}");
            assert_eq!(linked.contains(".visible"), texts.contains(&strong));
        }
    }

    #[test]
    fn a_definition_may_repeat_its_directive() {
        let twice = ".weak .weak .func (.param .b32 r) twice(.param .b32 x) { ret; }\n";
        for texts in [vec![twice], vec![twice, twice]] {
            let linked = link(&inputs(&with_head(&texts)), 121).unwrap();
            let module = parser::parse(&linked).unwrap();
            let bodies = module.functions.iter().filter(|f| f.body.is_some()).count();
            assert_eq!(bodies, 1, "{linked}");
        }
        // Without a definition behind it.
        let text = format!("{HEAD}{}", ".weak ".repeat(100_000));
        assert!(link(&inputs(&[text]), 121).is_ok());
    }

    #[test]
    fn many_declarations_are_checked_in_one_pass() {
        let declared = (0..20_000).map(|number| format!(".extern .func f{number}();\n"));
        let text = format!("{HEAD}{}", declared.collect::<String>());
        assert!(link(&inputs(&[text]), 121).is_ok());
    }

    /// Each of these texts took hours when the linker searched the same bytes again for each
    /// definition.
    #[test]
    fn every_text_is_linked_in_one_pass() {
        const MANY: usize = 400_000;
        let of = |pattern: &str| {
            let all = (0..MANY).map(|n| pattern.replace('#', &n.to_string()));
            format!("{HEAD}{}", all.collect::<String>())
        };
        // On one line, and all of them twice.
        let weak = of(".weak .global .b8 v#;");
        let linked = link(&inputs(&[weak.clone(), weak]), 121).unwrap();
        assert_eq!(linked.matches(".weak").count(), MANY);
        // Without an end.
        let sections = format!("{HEAD}.section .weak {{}}{}", ".section .a{}".repeat(MANY));
        link(&inputs(&[sections]), 121).unwrap();
        // In one statement.
        let calls = format!("{HEAD}.entry k() {{ f {}; }}", [LAUNCH; MANY].join(","));
        link(&inputs(&[calls]), 121).unwrap();
        // One name again and again, whose other names are taken.
        let same = format!("{HEAD}{}", ".global .b8 v;".repeat(MANY));
        let taken = of(".visible .global .b8 v$of0_#;");
        let texts = [same, format!("{taken}.visible .global .b8 v, v$of0;")];
        assert!(link(&inputs(&texts), 121).is_err());
    }

    #[test]
    fn what_an_input_has_for_itself_stays_its_own() {
        let of = |value: u32| {
            format!(
                ".global .align 4 .u32 $str = {value};\n.shared .b8 part[4];\n\
                .func (.param .b32 r) own(.param .b32 x) {{ ret; }}\n\
                .visible .entry run{value}() {{ .reg .b32 %r; .param .b32 in; .param .b32 out;\n\
                ld.global.u32 %r, [$str]; // $str\n\
                st.shared.u32 [part], %r; call (out), own, (in); ret; }}\n"
            )
        };
        let third = ".visible .global .u32 $str = 9;\n.visible .global .u32 $str$of1 = 8;\n";
        let texts = with_head(&[&of(1), &of(2), third]);
        let linked = link(&inputs(&texts), 121).unwrap();
        let module = parser::parse(&linked).unwrap();
        let mut names: Vec<&str> = module.variables.iter().map(|v| v.name).collect();
        names.extend(module.functions.iter().map(|function| function.name));
        let expected = [
            "$str$of0",
            "part$of0",
            "$str$of1_1",
            "part$of1",
            "$str",
            "$str$of1",
            "own$of0",
            "run1",
            "own$of1",
            "run2",
        ];
        assert_eq!(names, expected);
        for (number, kernel) in [("$of0", "run1"), ("$of1_1", "run2")] {
            let body = linked.split(kernel).nth(1).unwrap();
            assert!(body.contains(&format!("[$str{number}]")), "{linked}");
        }
        // Linked alone, it keeps its names.
        let alone = link(&inputs(&texts[..1]), 121).unwrap();
        assert_eq!(alone, texts[0]);
    }

    #[test]
    fn new_names_stay_short_and_texts_too() {
        let taken: String = (1..200)
            .map(|n| format!(".visible .global .u32 v$of1_{n};\n"))
            .collect();
        let texts = with_head(&[
            &format!(".global .u32 v;\n.visible .global .u32 v$of1;\n{taken}"),
            ".global .u32 v;\n",
        ]);
        let linked = link(&inputs(&texts), 121).unwrap();
        assert!(linked.contains(" v$of1_200;"), "{linked}");
        let long = HashMap::from([("v".to_owned(), "w".repeat(1 << 20))]);
        let refused = with_other_names(&"v,".repeat(49), &long).unwrap_err();
        assert_eq!(refused.status, Status::OUT_OF_MEMORY);
        assert!(with_other_names(&"v,".repeat(3), &long).is_ok());
    }

    #[test]
    fn a_shared_array_has_one_place_where_it_is_defined() {
        let of = |kernel: &str, declaration: &str| {
            format!(
                "{declaration}\n.visible .entry {kernel}() {{ .reg .b32 %r;\n\
                ld.shared.u32 %r, [part]; ret; }}\n"
            )
        };
        let declared = of("a", ".extern .shared .align 4 .b8 part[64];");
        for defining in [
            ".visible .shared .align 4 .b8 part[64];",
            ".extern .shared .b8 part[];",
        ] {
            let texts = with_head(&[&declared, &of("b", defining)]);
            let linked = link(&inputs(&texts), 121).unwrap();
            let module = parser::parse(&linked).unwrap();
            let program = crate::decode::decode(&module, &HashMap::new()).unwrap();
            let shared: Vec<u32> = program.funcs.iter().map(|func| func.shared).collect();
            assert_eq!(shared, [64, 64], "{linked}");
        }
    }

    #[test]
    fn the_device_runtime_is_known_by_what_it_defines() {
        let declared = ".extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 a);";
        assert!(!defines(declared, LAUNCH));
        let called = "{ call (r), __cudaCDP2LaunchDeviceV2, (a); }";
        assert!(!defines(called, LAUNCH));
        let defined = ".visible .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 a) {}";
        assert!(defines(defined, LAUNCH));
    }

    #[test]
    fn the_device_runtime_has_the_words_of_errors_that_a_program_calls() {
        let texts = with_head(&[
            ".extern .func (.param .b64 w) __cudaCDP2GetErrorString(.param .b32 e);\n\
            .visible .entry k() { .param .b32 e; .param .b64 w;\n\
            call (w), __cudaCDP2GetErrorString, (e); ret; }\n",
            "",
        ]);
        let mut inputs = inputs(&texts);
        inputs[1].kind = CU_JIT_INPUT_LIBRARY;
        inputs[1].name = "libcudadevrt.a";
        let linked = link(&inputs, 121).unwrap();
        let module = parser::parse(&linked).unwrap();
        let has = |name| {
            module
                .functions
                .iter()
                .any(|f| f.name == name && f.body.is_some())
        };
        assert!(has("__cudaCDP2GetErrorString") && !has("__cudaCDP2GetErrorName"));
    }

    #[test]
    fn kernels_that_launch_graphs_leave_the_others() {
        let texts = with_head(&[
            ".extern .func (.param .b32 e) cudaGraphLaunch(.param .b64 g, .param .b64 s);\n\
            .visible .entry launches() { .param .b64 g; .param .b64 s; .param .b32 e;\n\
            call (e), cudaGraphLaunch, (g, s); ret; }\n.visible .entry fine() { ret; }\n",
            ".visible .entry other() { ret; }\n",
        ]);
        let linked = link(&inputs(&texts), 121).unwrap();
        let module = parser::parse(&linked).unwrap();
        let program = crate::decode::decode(&module, &HashMap::new()).unwrap();
        let why = |name: &str| program.funcs[program.by_name[name]].refused.clone();
        assert_eq!((why("fine"), why("other")), (None, None));
        let refusal = ptx_error(&why("launches").unwrap());
        assert_eq!(refusal.status, Status::NOT_SUPPORTED);
        assert!(refusal.to_string().contains("cudaGraphLaunch"), "{refusal}");
    }

    #[test]
    fn what_is_missing_or_there_twice_is_named() {
        let missing = link(&inputs(&with_head(&[CALLER])), 121).unwrap_err();
        assert_eq!(missing.status, Status::UNKNOWN);
        assert!(missing.to_string().contains("twice"), "{missing}");
        let unused = link(&inputs(&with_head(&[".extern .func nobody();\n"])), 121);
        assert!(unused.is_ok(), "an unused declaration needs no definition");
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
        with_runtime[1].kind = CU_JIT_INPUT_LIBRARY;
        assert!(
            link(&with_runtime, 121).is_err(),
            "a library of another name"
        );
        with_runtime[1].name = "libcudadevrt.a";
        link(&with_runtime, 121).unwrap();
        let mut rank = with_head(&[
            ".extern .func (.param .b32 r) cudaCGGetRank(.param .b64 h);\n\
            .visible .entry k() { .param .b64 h; .param .b32 r;\n\
            call (r), cudaCGGetRank, (h); ret; }\n",
        ]);
        assert!(link(&inputs(&rank), 121).is_err());
        rank.push("machine code".into());
        let mut with_runtime = inputs(&rank);
        with_runtime[1].kind = CU_JIT_INPUT_LIBRARY;
        with_runtime[1].name = "libcudadevrt.a";
        link(&with_runtime, 121).expect("refused with the kernel");
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
