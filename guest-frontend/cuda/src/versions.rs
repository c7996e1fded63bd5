//! Resolves a function's name for a version of CUDA (cuGetProcAddress).

/// The newest version of CUDA whose functions are known. NVIDIA's driver refuses versions newer
/// than itself; functions of a few that are newer than the host's are served here as well.
pub const NEWEST: i32 = 13_050;

/// An exported symbol.
#[derive(Debug, Clone, Copy)]
pub struct Symbol {
    /// The exported name.
    pub symbol: &'static str,
    /// The name by which programs look it up.
    pub name: &'static str,
    /// The version of CUDA that introduced it: 1000·major + 10·minor.
    pub version: i32,
    /// Whether its null stream is the thread's own default stream.
    pub own: bool,
    /// Whether it is served.
    pub served: bool,
    /// Its address.
    pub address: unsafe extern "C" fn(),
}

/// The symbol of `name`, without a suffix, for a program built for `version`; with `own`, the one for
/// per-thread default streams, if the function has one in any version.
///
/// # Errors
/// `None` if the name is unknown or its symbol is not served, so that a program that
/// looks it up does not rely on it. (dlsym does find it.) `Some` with the version that
/// introduced it, if that is later.
pub fn resolve<'a>(
    symbols: &'a [Symbol],
    name: &str,
    version: i32,
    own: bool,
) -> Result<&'a Symbol, Option<i32>> {
    let named = || symbols.iter().filter(move |symbol| symbol.name == name);
    let first = named().map(|symbol| symbol.version).min().ok_or(None)?;
    let best = |own: bool| {
        named()
            .filter(|symbol| symbol.own == own && symbol.version <= version)
            .max_by_key(|symbol| symbol.version)
    };
    let has_own = || named().any(|symbol| symbol.own);
    let found = match own {
        true if has_own() => best(true),
        true => best(false),
        false => best(false).or_else(|| best(true)),
    };
    match found {
        Some(symbol) if !symbol.served => Err(None),
        found => found.ok_or(Some(first)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing() {}

    const fn symbol(symbol: &'static str, version: i32, own: bool) -> Symbol {
        Symbol {
            symbol,
            name: "cuX",
            version,
            own,
            served: true,
            address: nothing,
        }
    }

    const SYMBOLS: &[Symbol] = &[
        symbol("cuX", 2000, false),
        symbol("cuX_v2", 3020, false),
        symbol("cuX_v2_ptsz", 7000, true),
        symbol("cuX_v3", 12_000, false),
    ];

    fn found(version: i32, own: bool) -> &'static str {
        resolve(SYMBOLS, "cuX", version, own).unwrap().symbol
    }

    #[test]
    fn the_newest_that_the_program_knows() {
        assert_eq!(found(2000, false), "cuX");
        assert_eq!(found(11_080, false), "cuX_v2");
        assert_eq!(found(13_000, false), "cuX_v3");
        assert_eq!(found(13_000, true), "cuX_v2_ptsz");
        // As natively.
        let early = resolve(SYMBOLS, "cuX", 4000, true);
        assert_eq!(early.err(), Some(Some(2000)));
        let legacy_only = resolve(&SYMBOLS[..2], "cuX", 4000, true);
        assert_eq!(legacy_only.unwrap().symbol, "cuX_v2");
    }

    #[test]
    fn an_unserved_function_is_not_found() {
        let mut symbols = SYMBOLS.to_vec();
        symbols.last_mut().unwrap().served = false;
        assert_eq!(resolve(&symbols, "cuX", 13_000, false).err(), Some(None));
        // Nor an earlier version of it, whose parameters may differ.
        assert_eq!(resolve(&symbols, "cuX", 12_000, false).err(), Some(None));
        assert_eq!(
            resolve(&symbols, "cuX", 11_080, false).unwrap().symbol,
            "cuX_v2"
        );
    }

    #[test]
    fn unknown_and_too_new_differ() {
        assert_eq!(resolve(SYMBOLS, "cuY", 13_000, false).err(), Some(None));
        assert_eq!(resolve(SYMBOLS, "cuX", 1000, false).err(), Some(Some(2000)));
    }
}
