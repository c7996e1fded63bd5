//! Determines which of a module's kernels can print. Searching the code takes milliseconds
//! per megabyte, so other threads do it, except for short code.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use paragpu_fatbin::Callers;
use parking_lot::Mutex;

/// The function that printing code calls. A failed assert prints too; that output is
/// read when the device has failed.
const PRINTING: &str = "vprintf";
/// Maximum number of bytes of decompressed code to search; a larger module counts
/// as printing.
const MAX_BYTES: u64 = 16 << 20;
/// Images up to this size are searched without a thread.
const SHORT: usize = 16 << 10;
/// Maximum number of unfinished searches that are remembered; with more, a kernel counts as
/// printing.
const MAX_SOUGHT: usize = 256;
/// Maximum number of threads that search.
const MAX_THREADS: usize = 4;
/// Maximum number of images that wait for them, and stay in memory; with more, a module counts
/// as printing.
const MAX_QUEUED: usize = 256;

/// The searches of the process.
static SEARCHES: Mutex<Searches> = Mutex::new(Searches {
    threads: 0,
    queue: VecDeque::new(),
});

#[derive(Debug)]
struct Searches {
    threads: usize,
    queue: VecDeque<Job>,
}

/// A search that waits for a thread.
#[derive(Debug)]
struct Job {
    search: Arc<CodeSearch>,
    image: Arc<Vec<u8>>,
    arch: Option<u32>,
}

impl Job {
    fn run(self) {
        self.search.look(&self.image, self.arch);
    }
}

/// Searches until the queue is empty.
fn search() {
    loop {
        let mut searches = SEARCHES.lock();
        let Some(job) = searches.queue.pop_front() else {
            searches.threads -= 1;
            return;
        };
        drop(searches);
        job.run();
    }
}

/// The result for a module's code.
#[derive(Debug, Default)]
pub(crate) struct CodeSearch(OnceLock<Callers>);

impl CodeSearch {
    /// Begins to search an image loaded by a device of compute capability `arch`, times
    /// ten.
    pub(crate) fn begin(image: Arc<Vec<u8>>, arch: Option<u32>) -> Arc<Self> {
        let found = Arc::new(Self::default());
        let is_short = image.len() <= SHORT;
        let job = Job {
            search: Arc::clone(&found),
            image,
            arch,
        };
        let mut searches = SEARCHES.lock();
        if is_short {
            drop(searches);
            job.run();
        } else if searches.queue.len() >= MAX_QUEUED {
            let _ = found.0.set(Callers::Any);
        } else {
            searches.queue.push_back(job);
            if searches.threads < MAX_THREADS {
                let thread = std::thread::Builder::new().name("code search".into());
                if thread.spawn(search).is_ok() {
                    searches.threads += 1;
                }
            }
            if searches.threads == 0 {
                searches.threads = 1;
                drop(searches);
                search();
            }
        }
        found
    }

    fn look(&self, image: &[u8], arch: Option<u32>) {
        let printing = paragpu_fatbin::callers(image, PRINTING, arch, MAX_BYTES);
        let _ = self.0.set(printing);
    }
}

/// The result for a kernel.
#[derive(Debug)]
pub(crate) struct KernelSearch {
    /// Its name in the module.
    name: Box<str>,
    of_module: Arc<CodeSearch>,
    prints: OnceLock<bool>,
}

impl KernelSearch {
    /// For the module's kernel with this name.
    pub(crate) fn new(of_module: &Arc<CodeSearch>, name: &str) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            of_module: Arc::clone(of_module),
            prints: OnceLock::new(),
        })
    }

    /// Whether it may print; `None` while the search is in progress.
    fn prints(&self) -> Option<bool> {
        if let Some(known) = self.prints.get() {
            return Some(*known);
        }
        let prints = self.of_module.0.get()?.may_include(&self.name);
        Some(*self.prints.get_or_init(|| prints))
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
    Sought(Arc<KernelSearch>),
}

impl Prints {
    /// The result so far.
    pub(crate) fn of(search: &Arc<KernelSearch>) -> Self {
        match search.prints() {
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
    sought: Vec<Arc<KernelSearch>>,
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
    fn more_code_than_threads_is_searched() {
        let image = |number: usize| format!("{}{number} call vprintf", " ".repeat(SHORT));
        let searches: Vec<_> = (0..4 * MAX_THREADS)
            .map(|number| CodeSearch::begin(Arc::new(image(number).into_bytes()), Some(90)))
            .map(|module| KernelSearch::new(&module, "kernel"))
            .collect();
        let mut all = MayPrint::default();
        for search in searches.iter().chain(&searches) {
            all.add(Prints::of(search));
            assert!(all.now());
        }
        for search in &searches {
            assert!(search.of_module.0.wait().may_include("kernel"));
        }
        assert!(all.now());
    }

    #[test]
    fn short_and_long_code_is_searched() {
        for (code, prints) in [("call vprintf", true), ("ret", false)] {
            for spaces in [0, SHORT + 1] {
                let image = format!("{}{code}", " ".repeat(spaces)).into_bytes();
                let search = CodeSearch::begin(Arc::new(image), Some(90));
                assert_eq!(search.0.wait().may_include("kernel"), prints);
                let known = Prints::of(&KernelSearch::new(&search, "kernel"));
                assert!(matches!(
                    (known, prints),
                    (Prints::Yes, true) | (Prints::No, false)
                ));
            }
        }
        let huge = vec![b' '; MAX_BYTES as usize + 1];
        let search = CodeSearch::begin(Arc::new(huge), None);
        assert_eq!(*search.0.wait(), Callers::Any);
    }

    #[test]
    fn kernels_of_a_module_differ() {
        let search = CodeSearch(Callers::Only(["says".to_owned()].into()).into());
        let search = Arc::new(search);
        let [says, keeps] = ["says", "keeps"].map(|name| KernelSearch::new(&search, name));
        assert!(matches!(Prints::of(&says), Prints::Yes));
        assert!(matches!(Prints::of(&keeps), Prints::No));
    }
}
