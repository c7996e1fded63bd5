//! Texts whose decoding took time in proportion to the square of their length: hours.

use crate::common::module;
use paragpu_device_software::{decode, ptx::parser};
use std::collections::HashMap;

const MANY: usize = 100_000;

/// A pattern for each number, which takes the place of `#`.
fn many(pattern: &str) -> String {
    let all = (0..MANY).map(|n| pattern.replace('#', &n.to_string()));
    all.collect()
}

/// Bytes of shared memory of the last function.
fn shared(text: &str) -> u32 {
    let text = module(text);
    let module = parser::parse(&text).unwrap();
    let program = decode::decode(&module, &HashMap::new()).unwrap();
    program.funcs.last().unwrap().shared
}

#[test]
fn functions_beside_shared_variables() {
    let variables = many(".shared .b8 s#;");
    let mentions = "() { .reg .b32 r; mov.b32 r, s7; mov.b32 r, s3; }";
    for kind in [".func", ".entry"] {
        let functions = many(&format!("{kind} f#() {{ ret; }}"));
        let last = format!(".entry k{mentions}");
        assert_eq!(shared(&format!("{variables}{functions}{last}")), 2);
    }
}

#[test]
fn kernels_that_call_functions_that_call_others() {
    let chain = many(".func f#() { call g#; } .func g#() { call h#; }");
    let calls: String = (0..MANY)
        .map(|n| format!(".func h{n}() {{ call f{}; }}", n + 1))
        .collect();
    let own = ".shared .b8 s[5]; .func own() { .reg .b32 r; mov.b32 r, s; }";
    for (end, expected) in [("ret;", 0), ("call own;", 5)] {
        let end = format!(".func f{MANY}() {{ {end} }}");
        let kernels = many(".entry k#() { call f0; }");
        assert_eq!(
            shared(&format!("{own}{chain}{calls}{end}{kernels}")),
            expected
        );
    }
}

#[test]
fn a_name_of_many_digits() {
    let name = "1".repeat(10 * MANY);
    let text = format!(".entry k() {{ .reg .b32 %r<3>; add.u32 %r{name}, %r1, %r2; }}");
    let text = module(&text);
    let module = parser::parse(&text).unwrap();
    let program = decode::decode(&module, &HashMap::new()).unwrap();
    assert!(program.funcs[0].refused.is_some());
}
