//! Entry points of the fuzz targets, which return for any input.

use crate::{decode, ptx::parser};
use paragpu_fatbin as fatbin;
use std::collections::HashMap;

/// Walks a fat binary, and unpacks and decodes the PTX in it.
pub fn fuzz_fatbin(data: &[u8]) {
    let _ = fatbin::entries(data);
    let _ = fatbin::callers(data, "vprintf", Some(90), 1 << 20);
    let _ = fatbin::search(data, &["malloc"], Some(90), 1 << 20);
    if let Ok(text) = fatbin::ptx_of(data, 90) {
        fuzz_ptx(text.as_bytes());
    }
}

/// Parses and decodes PTX text.
pub fn fuzz_ptx(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(module) = parser::parse(text) else {
        return;
    };
    let addresses: HashMap<&str, u64> = module
        .variables
        .iter()
        .enumerate()
        .map(|(n, v)| (v.name, 0x1000_0000_0000 + 16 * n as u64))
        .collect();
    let functions = HashMap::new();
    for var in &module.variables {
        let _ = decode::image(var, &addresses, &functions);
    }
    let _ = decode::decode(&module, &addresses);
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_of_fatbin() {
        paragpu_corpora::each("fatbin", |_, data| super::fuzz_fatbin(data));
    }

    #[test]
    fn seeds_of_ptx() {
        paragpu_corpora::each("ptx", |_, data| super::fuzz_ptx(data));
    }
}
