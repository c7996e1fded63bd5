//! What the program's user has been told.

use paragpu_protocol::status::Status;
use parking_lot::Mutex;
use std::collections::HashSet;

/// Most texts, after which nothing more is said: the host writes them.
const MAX_MESSAGES: usize = 100;

static REPORTED: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Says once, on standard error, why the host does not do something. Many programs ignore the status of a launch, and
/// would show the reason nowhere.
pub fn report_once(status: Status, detail: &str) {
    if is_new(detail) {
        eprintln!("paragpu: {status}: {detail}");
    }
}

fn is_new(detail: &str) -> bool {
    if detail.is_empty() {
        return false;
    }
    let mut told = REPORTED.lock();
    let told = told.get_or_insert_default();
    told.len() < MAX_MESSAGES && told.insert(detail.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_new_once() {
        assert!(is_new("a kernel of this test"));
        assert!(!is_new("a kernel of this test"));
        assert!(is_new("another kernel of this test"));
        assert!(!is_new(""));
    }
}
