//! Any bytes decode or are refused. The cases are payloads of the table's own
//! calls, whole and damaged: bytes drawn at random hardly ever name a call.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::call::CallInfo;
use crate::table::{CALLS, recode};

/// Bytes of a valid value of a parameter's type, by the type's name.
fn value(kind: &str) -> BoxedStrategy<Vec<u8>> {
    let kind: String = kind.chars().filter(|c| !c.is_whitespace()).collect();
    if let Some((element, count)) = kind
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .and_then(|array| array.split_once(';'))
    {
        return values(&vec![element; count.parse().unwrap()]);
    }
    match kind.split('<').next().unwrap_or_default() {
        "()" => Just(Vec::new()).boxed(),
        "bool" => select(vec![vec![0], vec![1]]).boxed(),
        "u8" => number(1),
        "u16" => number(2),
        "u32" | "i32" | "f32" => number(4),
        "u64" | "i64" => number(8),
        name if ["Handle", "Address", "Offset"]
            .iter()
            .any(|end| name.ends_with(end)) =>
        {
            number(8)
        }
        "Bytes" => vec(any::<u8>(), 0..40).prop_map(counted).boxed(),
        "Text" => ".{0,20}"
            .prop_map(|text| counted(text.into_bytes()))
            .boxed(),
        "ArrayShape" => values(&["u64", "u64", "u64", "u32", "u32", "u32", "u32"]),
        "CopyEnd" => prop_oneof![
            tagged(0, &["u64", "u64", "u64"]),
            tagged(1, &["ArrayHandle", "u32", "[u64;3]"]),
        ]
        .boxed(),
        "GraphNode" => values(&["u16", "Bytes", "Bytes"]),
        "TextureSpec" => {
            let resource = prop_oneof![
                tagged(0, &["ArrayHandle"]),
                tagged(1, &["u64", "u32", "u32", "u64", "u64", "u64"]),
            ];
            let sampling = [
                "[u32;3]", "u32", "u32", "u32", "u32", "f32", "f32", "f32", "[u8;16]",
            ];
            let view = ["u32", "[u64;3]", "u32", "u32", "u32", "u32"];
            (resource, values(&sampling), values(&view))
                .prop_map(|(resource, sampling, view)| [resource, sampling, view].concat())
                .boxed()
        }
        "TensorMap" => values(&[
            "u32", "u32", "u64", "[u64;5]", "[u64;4]", "[u64;5]", "u32", "[u64;5]", "[u64;3]",
            "[u64;3]", "u32", "u32", "u32", "u32", "u32", "u32", "u32",
        ]),
        other => panic!("say here how a {other} is drawn"),
    }
}

/// Bytes of the limits of a number as often as of others.
fn number(width: usize) -> BoxedStrategy<Vec<u8>> {
    prop_oneof![
        select(vec![vec![0; width], vec![0xff; width]]),
        vec(any::<u8>(), width),
    ]
    .boxed()
}

/// A run of bytes behind its count.
fn counted(bytes: Vec<u8>) -> Vec<u8> {
    let count = u32::try_from(bytes.len()).unwrap();
    [count.to_le_bytes().to_vec(), bytes].concat()
}

/// One value after the other.
fn values(kinds: &[&str]) -> BoxedStrategy<Vec<u8>> {
    let each: Vec<_> = kinds.iter().map(|kind| value(kind)).collect();
    each.prop_map(|parts| parts.concat()).boxed()
}

/// The values of one case of an enumeration behind its tag.
fn tagged(tag: u8, kinds: &[&str]) -> BoxedStrategy<Vec<u8>> {
    values(kinds)
        .prop_map(move |bytes| [vec![tag], bytes].concat())
        .boxed()
}

/// A call of the table with a valid payload.
fn call() -> impl Strategy<Value = (&'static CallInfo, Vec<u8>)> {
    select(CALLS).prop_flat_map(|info| {
        let kinds: Vec<&str> = info.parameters.iter().map(|(_, kind)| *kind).collect();
        (Just(info), values(&kinds))
    })
}

/// What may become of a payload on its way.
#[derive(Debug, Clone)]
enum Damage {
    Cut(Index),
    Longer(Vec<u8>),
    Changed(Index, u8),
    /// A length or a tag that says too much.
    Most(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<Index>().prop_map(Damage::Cut),
        vec(any::<u8>(), 1..9).prop_map(Damage::Longer),
        (any::<Index>(), 1u8..).prop_map(|(at, bits)| Damage::Changed(at, bits)),
        any::<Index>().prop_map(Damage::Most),
    ]
}

fn damaged(mut payload: Vec<u8>, damage: &Damage) -> Vec<u8> {
    match damage {
        Damage::Longer(more) => payload.extend_from_slice(more),
        _ if payload.is_empty() => {}
        Damage::Cut(at) => payload.truncate(at.index(payload.len())),
        Damage::Changed(at, bits) => {
            let at = at.index(payload.len());
            payload[at] ^= bits;
        }
        Damage::Most(at) => {
            let at = at.index(payload.len());
            let end = payload.len().min(at + 4);
            payload[at..end].fill(0xff);
        }
    }
    payload
}

fn fuzzed(number: u16, payload: &[u8]) {
    crate::fuzz_protocol(&[&number.to_le_bytes(), payload].concat());
}

proptest! {
    // Some four cases of each call.
    #![proptest_config(ProptestConfig { cases: 4 * CALLS.len() as u32, ..ProptestConfig::default() })]

    #[test]
    fn valid_payloads_decode((info, payload) in call()) {
        let decoded = recode(info.number, &payload);
        prop_assert!(decoded.is_ok(), "{} of {payload:?}: {decoded:?}", info.name);
        fuzzed(info.number, &payload);
    }

    #[test]
    fn decoders_are_total((info, payload) in call(), damages in vec(damage(), 1..4)) {
        fuzzed(info.number, &damages.iter().fold(payload, damaged));
    }

    #[test]
    fn payloads_of_other_calls_are_decoded_or_refused((_, payload) in call(), number in any::<u16>(), info in select(CALLS)) {
        fuzzed(info.number, &payload);
        fuzzed(number, &payload);
    }
}

/// Each call is drawn in a way that its decoder takes.
#[test]
fn every_call_of_the_table_can_be_drawn() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for info in CALLS {
        let kinds: Vec<&str> = info.parameters.iter().map(|(_, kind)| *kind).collect();
        let payload = values(&kinds).new_tree(&mut runner).unwrap().current();
        let decoded = recode(info.number, &payload);
        assert!(decoded.is_ok(), "{}: {decoded:?}", info.name);
    }
}

#[test]
fn seeds_of_the_fuzz_target_are_decoded_or_refused() {
    paragpu_corpora::each("protocol", |_, data| crate::fuzz_protocol(data));
}
