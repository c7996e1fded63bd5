//! Reports by the host, each printed once.

use paragpu_protocol::status::Status;
use parking_lot::Mutex;
use std::collections::HashSet;

use crate::notice::notice;

/// Maximum number of reports. They come from the host, which is not trusted to be brief.
const MAX_MESSAGES: usize = 100;

static REPORTED: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Prints the host's reason for a failure on standard error, once. Many programs ignore the
/// status of a launch and would never show it.
pub fn report_once(status: Status, detail: &str) {
    if is_new(detail) {
        notice(format_args!("{status}: {detail}"));
    }
}

fn is_new(detail: &str) -> bool {
    if detail.is_empty() {
        return false;
    }
    let mut reported = REPORTED.lock();
    let reported = reported.get_or_insert_default();
    reported.len() < MAX_MESSAGES && reported.insert(detail.to_owned())
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
