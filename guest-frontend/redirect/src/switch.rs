//! The off switch in `guest.toml`: `redirect = false`.
//!
//! This runs in the loader of programs that carry a runtime, where a TOML
//! parser has no place. It looks for that one line among the keys before the
//! first table; `paragpu config check` reads the file in full.

/// Editors of other systems begin a file with it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What a configuration file says; nothing if it does not say.
#[must_use]
pub fn configured(text: &[u8]) -> Option<bool> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    text.split(|&byte| byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .take_while(|line| !line.starts_with(b"["))
        .filter_map(key)
        .last()
}

fn key(line: &[u8]) -> Option<bool> {
    let quoted = [&b"redirect"[..], b"\"redirect\"", b"'redirect'"];
    let rest = quoted
        .into_iter()
        .find_map(|name| line.strip_prefix(name))?
        .trim_ascii_start()
        .strip_prefix(b"=")?;
    let value = rest.split(|&byte| byte == b'#').next()?;
    match value.trim_ascii() {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// The value of the variable `PARAGPU_REDIRECT`; nothing if it is invalid.
#[must_use]
pub fn commanded(value: &[u8]) -> Option<bool> {
    match value {
        b"1" | b"true" => Some(true),
        b"0" | b"false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_found_before_the_first_table_only() {
        assert_eq!(configured(b""), None);
        assert_eq!(configured(b"# redirect = false\n"), None);
        assert_eq!(configured(b"redirect = false"), Some(false));
        assert_eq!(
            configured(b"spin = 1\n  redirect=true # yes\n[log]\n"),
            Some(true)
        );
        assert_eq!(configured(b"[log]\nredirect = false\n"), None);
        assert_eq!(configured(b"redirected = false\n"), None);
        assert_eq!(configured(b"\"redirect\" = false"), Some(false));
        assert_eq!(configured(b"'redirect'=true"), Some(true));
        assert_eq!(configured(b"\"redirect = false"), None);
        assert_eq!(configured(b"\xef\xbb\xbfredirect = false"), Some(false));
        assert_eq!(configured(b"redirect = \"false\"\n"), None);
        assert_eq!(commanded(b"0"), Some(false));
        assert_eq!(commanded(b"true"), Some(true));
        assert_eq!(commanded(b"perhaps"), None);
    }
}
