//! Which functions of an image may call one that the driver provides.

use std::collections::{BTreeSet, HashSet};

use object::elf::STT_FUNC;

use super::{ELF_MAGIC, code, machine_code, names, u32_at};

/// Functions that the driver provides and that start no kernel (PTX Writer's Guide to
/// Interoperability, System Calls).
const PASSIVE: [&str; 3] = ["__assertfail", "malloc", "free"];
/// The section with the calls of a form of machine code: pairs of words, in parts that begin with
/// the pairs (0, -1), (0, -2), … [`Calls`] has the parts. Learnt from the compiler's output for
/// programs of known calls.
const CALL_GRAPH: &[u8] = b".nv.callgraph";

/// The functions of an image that may call a symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Callers {
    /// Those with these names, mangled as in the image.
    Only(BTreeSet<String>),
    /// Which they are is unknown.
    Any,
}

impl Callers {
    /// Whether a function may be one.
    #[must_use]
    pub fn may_include(&self, function: &str) -> bool {
        match self {
            Self::Only(callers) => callers.contains(function),
            Self::Any => true,
        }
    }
}

/// The functions of the image that may call `symbol`, directly or through others. `arch` is the
/// compute capability, times ten, of the device that loads it: code that it cannot run is left
/// out. `None` searches all.
///
/// Machine code lists its calls. A function that calls one of the driver's that may start kernels
/// counts, if any calls the symbol. Of PTX, which names the functions that it calls, all do or
/// none. [`Callers::Any`] also if the image is corrupt, or larger than `most` bytes when
/// decompressed.
#[must_use]
pub fn callers(image: &[u8], symbol: &str, arch: Option<u32>, most: u64) -> Callers {
    let Ok(forms) = code(image, arch, most) else {
        return Callers::Any;
    };
    let mut all = BTreeSet::new();
    for form in forms {
        let found = form.ok().and_then(|form| in_form(&form, symbol));
        let Some(found) = found else {
            return Callers::Any;
        };
        all.extend(found);
    }
    Callers::Only(all)
}

/// `None` if they are unknown.
fn in_form(form: &[u8], symbol: &str) -> Option<BTreeSet<String>> {
    if !names(form, &[symbol]) {
        return Some(BTreeSet::new());
    }
    let is_machine_code = u32_at(form, 0) == Ok(ELF_MAGIC);
    is_machine_code.then(|| in_machine_code(form, symbol))?
}

fn in_machine_code(file: &[u8], symbol: &str) -> Option<BTreeSet<String>> {
    let code = machine_code::read(file, Some(CALL_GRAPH)).ok()?;
    let calls = Calls::read(code.section?)?;
    let mut reached = BTreeSet::new();
    for (index, function) in (0..).zip(&code.symbols) {
        let is_external = function.kind == STT_FUNC && !function.is_defined;
        if is_external
            && !PASSIVE
                .iter()
                .any(|passive| passive.as_bytes() == function.name)
        {
            reached.insert(index);
        }
        // Otherwise it is named in a way that is not known here.
        if function.name == symbol.as_bytes() && !(is_external && calls.mentions(index)) {
            return None;
        }
    }
    calls.spread(&mut reached);
    let named = reached.iter().map(|index| {
        let function = code.symbols.get(usize::try_from(*index).ok()?)?;
        Some(String::from_utf8_lossy(function.name).into_owned())
    });
    named.collect()
}

/// The calls of a form. Functions are numbers of symbols.
#[derive(Debug, Default)]
struct Calls {
    /// Callee and caller, or a kernel and one that launches it, sorted.
    direct: Vec<(u32, u32)>,
    /// Functions whose address is taken.
    pointed_to: HashSet<u32>,
    /// Functions that call by address.
    by_address: Vec<u32>,
}

impl Calls {
    /// `None` if the section has other parts than those known.
    fn read(section: &[u8]) -> Option<Self> {
        let (words, rest) = section.as_chunks::<4>();
        let (pairs, odd) = words.as_chunks::<2>();
        if !rest.is_empty() || !odd.is_empty() {
            return None;
        }
        let mut parts: [Vec<(u32, u32)>; 4] = Default::default();
        let mut part = 0_usize;
        for pair in pairs {
            let [first, second] = pair.map(u32::from_le_bytes);
            // The next part's head: (0, -1), (0, -2), …
            let next = u32::try_from(part).ok()?;
            if first == 0 && second == !next {
                part += 1;
            } else {
                parts.get_mut(part.checked_sub(1)?)?.push((first, second));
            }
        }
        if part != parts.len() {
            return None;
        }
        // Of the second and third part, the other word is a number for the function's type. The
        // last has kernels and those that they launch.
        let [direct, pointed_to, by_address, launches] = parts;
        let calls = direct.into_iter().chain(launches);
        let mut direct: Vec<_> = calls.map(|(caller, callee)| (callee, caller)).collect();
        direct.sort_unstable();
        Some(Self {
            direct,
            pointed_to: pointed_to.iter().map(|(function, _)| *function).collect(),
            by_address: by_address.iter().map(|(function, _)| *function).collect(),
        })
    }

    /// The direct callers of a function.
    fn callers(&self, function: u32) -> impl Iterator<Item = u32> {
        let first = self
            .direct
            .partition_point(|(callee, _)| *callee < function);
        let from = self.direct.iter().skip(first);
        from.take_while(move |(callee, _)| *callee == function)
            .map(|(_, caller)| *caller)
    }

    /// Whether a function is called, or its address taken.
    fn mentions(&self, function: u32) -> bool {
        self.callers(function).next().is_some() || self.pointed_to.contains(&function)
    }

    /// Adds all functions that may call one of `reached`.
    fn spread(&self, reached: &mut BTreeSet<u32>) {
        let mut next: Vec<u32> = reached.iter().copied().collect();
        let mut by_address = self.by_address.as_slice();
        while let Some(function) = next.pop() {
            let mut callers: Vec<u32> = self.callers(function).collect();
            if self.pointed_to.contains(&function) {
                callers.extend(std::mem::take(&mut by_address));
            }
            next.extend(callers.into_iter().filter(|caller| reached.insert(*caller)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(parts: &[&[(u32, u32)]]) -> Vec<u8> {
        let heads = (0_u32..).map(|part| (0, !part));
        let pairs = heads
            .zip(parts)
            .flat_map(|(head, pairs)| [&[head], *pairs].concat());
        let words = pairs.flat_map(|(first, second)| [first, second]);
        words.flat_map(u32::to_le_bytes).collect()
    }

    fn reached(parts: &[&[(u32, u32)]], from: u32) -> Vec<u32> {
        let mut reached = BTreeSet::from([from]);
        Calls::read(&section(parts)).unwrap().spread(&mut reached);
        reached.into_iter().collect()
    }

    #[test]
    fn callers_of_callers_are_found() {
        let direct = [(1, 2), (2, 9), (3, 4), (4, 3), (5, 1)];
        assert_eq!(reached(&[&direct, &[], &[], &[]], 9), [1, 2, 5, 9]);
        let by_address: [&[(u32, u32)]; 4] = [&[(2, 9), (6, 5)], &[(2, 1)], &[(5, 1)], &[]];
        assert_eq!(reached(&by_address, 9), [2, 5, 6, 9]);
        assert_eq!(reached(&[&[(2, 9)], &[], &[], &[(3, 2)]], 9), [2, 3, 9]);
        let unrelated: [&[(u32, u32)]; 4] = [&[(2, 9)], &[(3, 1)], &[(5, 1)], &[]];
        assert_eq!(reached(&unrelated, 9), [2, 9]);
    }

    #[test]
    fn other_sections_are_not_guessed_at() {
        let whole = section(&[&[(1, 2)], &[], &[], &[]]);
        assert!(Calls::read(&whole).is_some());
        assert!(Calls::read(&whole[..whole.len() - 8]).is_none());
        assert!(Calls::read(&whole[8..]).is_none());
        assert!(Calls::read(&whole[..whole.len() - 1]).is_none());
        assert!(Calls::read(&section(&[&[], &[], &[], &[], &[]])).is_none());
    }

    proptest::proptest! {
        #[test]
        fn any_calls_are_survived(words: Vec<u32>) {
            let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
            if let Some(calls) = Calls::read(&bytes) {
                calls.spread(&mut BTreeSet::from([1]));
            }
        }
    }
}
