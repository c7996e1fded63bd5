//! Waits for a word of the window to change.
//!
//! A thread that waits for a stream posts a [`StreamSignal`] and polls its word,
//! which the host clears. That is cheaper than a reply. If it takes long, or if the
//! word says so, the thread sends a synchronous call, in which it can sleep.
//!
//! The device could clear the word itself, behind the work; `tests/bench/waits.cu`
//! measures what that costs.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use paragpu_communicator::{Spin, Wait, Window};
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::layout::{LAUNCH_WORDS, STAGING_TOKENS, THREAD_TOKENS, launch_word};
use paragpu_protocol::table::StreamSignal;

use super::Link;
use super::reply_slots::with_slot;
use crate::error::Result;
use crate::sys::memory::{load_token, store_token};

/// A word is polled for so many times as long as a reply. The device ends the wait itself: a
/// thread that polls sees the end at once, and the host's thread may sleep. A wait that ends by a
/// reply was seen 14 µs later than natively after a kernel of 1 ms.
const PATIENCE: u32 = 4;
/// Polls of the word between two polls of the connection.
const POLLS_PER_RECEIVE: u32 = 8;

/// Polls of a launch word before the first that yields the processor, and for each after it:
/// some launches of the driver.
const EAGER_POLLS: u32 = 512;
const POLLS_PER_YIELD: u32 = 32;
/// Maximum wait for a launch's submission. It takes some microseconds; when the host begins to
/// ask for these waits, it takes as long as all that is queued.
const SUBMISSION: Duration = Duration::from_millis(20);

impl Link {
    /// Waits for the stream's work. Returns false if the thread must ask the host.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn await_signal(&self, words: &Window, stream: StreamHandle) -> Result<bool> {
        if self.spin().is_zero() {
            return Ok(false);
        }
        with_slot(&self.slots, |slot, _| {
            // Slots count from 1.
            let token = STAGING_TOKENS + u32::from(slot);
            let index = token as usize - 1;
            // If the word is set, an earlier wait was abandoned.
            if token > THREAD_TOKENS || load_token(words, index) != 0 {
                return Ok(false);
            }
            store_token(words, index, 1);
            let sent = self.post(&StreamSignal { stream, token });
            if let Err(status) = sent.and_then(|_| self.flush()) {
                store_token(words, index, 0);
                return Err(status);
            }
            Ok(self.poll_word(words, index))
        })
        .unwrap_or(Ok(false))
    }

    /// Whether the word was cleared in time.
    fn poll_word(&self, words: &Window, index: usize) -> bool {
        let mut spin = Spin::new(self.patience.spin * PATIENCE, None);
        loop {
            for _ in 0..POLLS_PER_RECEIVE {
                match load_token(words, index) {
                    1 => std::hint::spin_loop(),
                    0 => return true,
                    _ => {
                        store_token(words, index, 0);
                        return false;
                    }
                }
            }
            // A host function may have to run before the work is complete.
            self.drain(Wait::Poll);
            if self.state.is_ended() || !spin.again() {
                return false;
            }
        }
    }

    /// The number of the calling thread's launch word, if the host asks threads to wait for
    /// their launches and the thread has one; otherwise 0.
    #[inline]
    pub(crate) fn launch_word(&self, words: &Window) -> u32 {
        match load_token(words, launch_word(0) as usize) {
            0 => 0,
            _ => self.own_launch_word(),
        }
    }

    #[cold]
    fn own_launch_word(&self) -> u32 {
        let slot = with_slot(&self.slots, |slot, _| u32::from(slot));
        slot.filter(|slot| *slot < LAUNCH_WORDS).unwrap_or(0)
    }

    /// Waits until the host has submitted the launch at `position`, which named the calling
    /// thread's launch word. If that takes too long, all later launches follow this one.
    pub(crate) fn await_submission(&self, words: &Window, number: u32, position: u64) {
        let word = launch_word(number) as usize;
        let mut polls = 0;
        let mut began = None;
        // The word holds the lower half of a position.
        while load_token(words, word) != position as u32 {
            polls += 1;
            if polls < EAGER_POLLS || !polls.is_multiple_of(POLLS_PER_YIELD) {
                std::hint::spin_loop();
                continue;
            }
            let began = began.get_or_insert_with(Instant::now);
            if began.elapsed() > SUBMISSION || self.state.is_ended() {
                self.positions.sent.fetch_max(position, Ordering::Relaxed);
                // The host may be another one, which does not know these words. If it does, it
                // asks again.
                store_token(words, launch_word(0) as usize, 0);
                return;
            }
            std::thread::yield_now();
        }
    }
}
