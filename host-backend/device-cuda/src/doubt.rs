//! Whether an answer of the driver that work is complete is asked for once more.
//!
//! While the driver takes down the channel of a kernel that failed, work of that channel may look
//! complete to a query that began before the driver knew of the failure: some queries in a
//! thousand that wait for such kernels (seen on an H200). The next query knows. A failure is known
//! a hundred microseconds or more after it happened, so only answers after many that the
//! work is not complete are doubted.

use std::sync::atomic::{AtomicU32, Ordering};

use paragpu_device::Result;

/// Answers that work is not complete, after which the next other answer is doubted: a query takes
/// about half a microsecond.
const MANY: u32 = 64;

/// The answers of a context's queries that work is not complete, since one was doubted.
#[derive(Debug, Default)]
pub struct Doubt(AtomicU32);

impl Doubt {
    /// Whether work is complete, as the driver says when asked by `ask`.
    ///
    /// # Errors
    /// Those of `ask`.
    pub fn resolve(&self, ask: impl Fn() -> Result<bool>) -> Result<bool> {
        let unfinished = self.0.load(Ordering::Relaxed);
        if !ask()? {
            self.0
                .store(unfinished.saturating_add(1), Ordering::Relaxed);
            return Ok(false);
        }
        if unfinished < MANY {
            return Ok(true);
        }
        self.0.store(0, Ordering::Relaxed);
        ask()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paragpu_device::Error;
    use paragpu_protocol::status::Status;
    use std::cell::Cell;

    /// Answers in turn, the last one again and again; how many were asked for.
    fn asked(doubt: &Doubt, answers: &[Result<bool>]) -> (Result<bool>, usize) {
        let count = Cell::new(0);
        let answer = doubt.resolve(|| {
            let at = count.replace(count.get() + 1);
            answers[at.min(answers.len() - 1)].clone()
        });
        (answer, count.get())
    }

    #[test]
    fn short_waits_ask_once() {
        let doubt = Doubt::default();
        for _ in 0..MANY - 1 {
            assert!(matches!(asked(&doubt, &[Ok(false)]), (Ok(false), 1)));
            assert!(matches!(asked(&doubt, &[Ok(true)]), (Ok(true), 1)));
        }
    }

    #[test]
    fn the_second_answer_after_a_long_wait_counts() {
        let doubt = Doubt::default();
        let failed = || Err(Error::from(Status::LAUNCH_FAILED));
        for end in [Ok(true), failed(), Ok(false)] {
            for _ in 0..MANY {
                assert!(matches!(asked(&doubt, &[Ok(false)]), (Ok(false), 1)));
            }
            let (answer, count) = asked(&doubt, &[Ok(true), end.clone()]);
            assert_eq!(
                (answer.is_ok(), answer.ok(), count),
                (end.is_ok(), end.ok(), 2)
            );
            assert!(matches!(asked(&doubt, &[Ok(true)]), (Ok(true), 1)));
        }
        assert!(asked(&doubt, &[failed()]).0.is_err());
    }
}
