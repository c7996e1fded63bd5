//! Determines whether a module's kernels can print. Searching the code takes milliseconds
//! per megabyte, so a separate thread does it, except for short code.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The functions that printing code calls. A failed assert prints too; that output is
/// read when the device has failed.
const PRINTING: [&str; 1] = ["vprintf"];
/// Maximum number of bytes of decompressed code to search; a larger module counts
/// as printing.
const MAX_BYTES: u64 = 16 << 20;
/// Images up to this size are searched without a thread.
const SHORT: usize = 16 << 10;
/// Maximum number of unfinished searches that are remembered; with more, a kernel counts as
/// printing.
const MAX_SOUGHT: usize = 256;
/// Maximum number of concurrent searches: each keeps an image in memory.
const MAX_SEARCHES: usize = 4;

/// Searches in progress.
static SEARCHES: AtomicUsize = AtomicUsize::new(0);

/// The result for a module's code.
#[derive(Debug, Default)]
pub(crate) struct CodeSearch(OnceLock<bool>);

impl CodeSearch {
    /// Begins to search an image loaded by a device of compute capability `arch`, times
    /// ten.
    pub(crate) fn begin(image: Arc<Vec<u8>>, arch: Option<u32>) -> Arc<Self> {
        let search = Arc::new(Self::default());
        let by_thread = image.len() > SHORT
            && SEARCHES
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                    (count < MAX_SEARCHES).then_some(count + 1)
                })
                .is_ok();
        if by_thread {
            let (found, looked) = (Arc::clone(&search), Arc::clone(&image));
            let thread = std::thread::Builder::new().name("code search".into());
            let begun = thread.spawn(move || {
                found.look(&looked, arch);
                drop(looked);
                SEARCHES.fetch_sub(1, Ordering::AcqRel);
            });
            if begun.is_ok() {
                return search;
            }
            SEARCHES.fetch_sub(1, Ordering::AcqRel);
        }
        search.look(&image, arch);
        search
    }

    fn look(&self, image: &[u8], arch: Option<u32>) {
        let prints = paragpu_fatbin::may_name(image, &PRINTING, arch, MAX_BYTES);
        let _ = self.0.set(prints);
    }
}

/// Whether a kernel may print.
#[derive(Debug, Clone, Default)]
pub(crate) enum Prints {
    /// It cannot.
    #[default]
    No,
    /// It may.
    Yes,
    /// The search is in progress.
    Sought(Arc<CodeSearch>),
}

impl Prints {
    /// The result so far.
    pub(crate) fn of(search: &Arc<CodeSearch>) -> Self {
        match search.0.get() {
            None => Self::Sought(Arc::clone(search)),
            Some(true) => Self::Yes,
            Some(false) => Self::No,
        }
    }
}

/// Whether any of several kernels may print.
#[derive(Debug, Clone, Default)]
pub(crate) struct MayPrint {
    known: bool,
    /// Searches in progress, each once.
    sought: Vec<Arc<CodeSearch>>,
}

impl MayPrint {
    /// Adds a kernel.
    pub(crate) fn add(&mut self, prints: Prints) {
        match prints {
            Prints::No => {}
            Prints::Sought(search) if !self.known && self.sought.len() < MAX_SOUGHT => {
                if !self.sought.iter().any(|other| Arc::ptr_eq(other, &search)) {
                    self.sought.push(search);
                }
            }
            Prints::Yes | Prints::Sought(_) => {
                self.known = true;
                self.sought.clear();
            }
        }
    }

    /// Adds the kernels of another.
    pub(crate) fn add_all(&mut self, other: &Self) {
        if other.known {
            self.add(Prints::Yes);
        }
        for search in &other.sought {
            self.add(Prints::of(search));
        }
    }

    /// The result so far: a kernel whose code is still being searched may print.
    pub(crate) fn now(&mut self) -> bool {
        for search in std::mem::take(&mut self.sought) {
            self.add(Prints::of(&search));
        }
        self.known || !self.sought.is_empty()
    }

    /// Whether no kernel was added that may print, without looking at searches.
    pub(crate) fn is_empty(&self) -> bool {
        !self.known && self.sought.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_code_is_searched() {
        for (code, prints) in [("call vprintf", true), ("ret", false)] {
            for spaces in [0, SHORT + 1] {
                let image = format!("{}{code}", " ".repeat(spaces)).into_bytes();
                let search = CodeSearch::begin(Arc::new(image), Some(90));
                assert_eq!(*search.0.wait(), prints);
                let known = Prints::of(&search);
                assert!(matches!(
                    (known, prints),
                    (Prints::Yes, true) | (Prints::No, false)
                ));
            }
        }
        let huge = vec![b' '; MAX_BYTES as usize + 1];
        assert!(*CodeSearch::begin(Arc::new(huge), None).0.wait());
    }
}
