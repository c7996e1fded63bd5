//! Searches the code of a session's modules, on several threads.

use parking_lot::Mutex;

use paragpu_device::Survey;

use crate::session::gpu::Gpu;
use crate::session::objects::Objects;

/// Maximum number of threads: the program needs processors, too.
const THREADS: usize = 8;

impl Objects {
    /// The searches that the device needs to locate the variables of these modules.
    pub(crate) fn surveys(&self, gpu: &mut Gpu, modules: &[u64]) -> Vec<Survey> {
        let ids = modules
            .iter()
            .filter_map(|module| self.modules.id(*module).ok());
        let ids: Vec<_> = ids.collect();
        ids.into_iter()
            .filter_map(|module| gpu.module_survey(module))
            .collect()
    }
}

/// Runs all searches.
pub(crate) fn run(surveys: Vec<Survey>) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = surveys.len().min(cores).min(THREADS);
    let left = Mutex::new(surveys);
    let work = || {
        loop {
            let next = left.lock().pop();
            match next {
                Some(survey) => survey(),
                None => return,
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // If no thread can be created, the others do the work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn each_is_done_once() {
        let done = Arc::new(AtomicU32::new(0));
        let surveys = (0..100).map(|_| {
            let done = Arc::clone(&done);
            Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            }) as Survey
        });
        run(surveys.collect());
        assert_eq!(done.load(Ordering::Relaxed), 100);
        run(Vec::new());
    }
}
