//! Large zeroed buffers, whose allocation may fail.

use std::alloc::{Layout, alloc_zeroed};

/// `length` zeros. Untouched pages take no memory. `None` if the process may not have so much.
pub(crate) fn zeros(length: usize) -> Option<Vec<u8>> {
    if length == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<u8>(length).ok()?;
    // SAFETY: the layout has a size other than 0.
    let bytes = unsafe { alloc_zeroed(layout) };
    if bytes.is_null() {
        return None;
    }
    // SAFETY: the global allocator returned it for this layout, that of a vector of `length`
    // bytes, and each byte is initialized.
    Some(unsafe { Vec::from_raw_parts(bytes, length, length) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_fails() {
        assert_eq!(zeros(0), Some(Vec::new()));
        assert_eq!(zeros(5000), Some(vec![0; 5000]));
        // More than an address space has.
        assert_eq!(zeros(1 << 62), None);
        assert_eq!(zeros(usize::MAX), None);
    }
}
