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
use paragpu_protocol::layout::{
    LAUNCHING_THREADS, STAGING_TOKENS, THREAD_TOKENS, THREADS_WORD, launch_word,
};
use paragpu_protocol::table::StreamSignal;

use super::Link;
use super::pace::Pace;
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
/// Maximum wait for a submission. The driver may block until kernels end; the host may be
/// another one, which tells nothing.
const SUBMISSION: Duration = Duration::from_secs(1);

/// How a wait for a word ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The work is complete.
    Seen,
    /// The thread must ask the host, which has not cleared the word.
    Pending,
    /// The thread must ask the host.
    Impossible,
}

impl Link {
    /// Waits for the stream's work.
    pub(crate) fn await_signal(&self, words: &Window, stream: StreamHandle) -> Result<Signal> {
        if self.spin().is_zero() {
            return Ok(Signal::Impossible);
        }
        with_slot(&self.slots, |slot, _| {
            // Slots count from 1.
            let token = STAGING_TOKENS + u32::from(slot);
            let index = token as usize - 1;
            // If the word is set, an earlier wait was abandoned. If it is another value, the host
            // has answered a call of a thread that waited for a word of an earlier window.
            if token > THREAD_TOKENS || load_token(words, index) == 1 {
                return Ok(Signal::Impossible);
            }
            store_token(words, index, 1);
            let sent = self.post(&StreamSignal { stream, token });
            if let Err(status) = sent.and_then(|_| self.flush()) {
                store_token(words, index, 0);
                return Err(status);
            }
            Ok(match self.poll_word(words, index) {
                true => Signal::Seen,
                false => Signal::Pending,
            })
        })
        .unwrap_or(Ok(Signal::Impossible))
    }

    /// Takes back the calling thread's word in a window that the session has left: no host clears
    /// it. The work for which the thread waited is complete.
    pub(crate) fn forget_signal(&self, words: &Window) {
        with_slot(&self.slots, |slot, _| {
            let index = STAGING_TOKENS as usize + usize::from(slot) - 1;
            store_token(words, index, 0);
        });
    }

    /// Whether the word was cleared in time.
    fn poll_word(&self, words: &Window, index: usize) -> bool {
        // Interruptions of the processor are no reason to give up.
        let mut spin = Spin::until(Instant::now() + self.patience.spin * PATIENCE, None);
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

    /// The number of the calling thread, if the host asks threads that launch to say who they
    /// are, and the thread has one; otherwise 0.
    #[inline]
    pub(crate) fn launching_thread(&self, words: &Window) -> u32 {
        match load_token(words, THREADS_WORD as usize) {
            0 => 0,
            _ => self.own_number(),
        }
    }

    #[cold]
    fn own_number(&self) -> u32 {
        let slot = with_slot(&self.slots, |slot, _| u32::from(slot));
        slot.filter(|slot| *slot < LAUNCHING_THREADS).unwrap_or(0)
    }

    /// Notes a launch of the calling thread `number` at `position`, and waits while the thread is
    /// [too far ahead](super::pace) of what the host has submitted. If that takes too long, all
    /// later launches follow this one.
    pub(crate) fn await_submission(&self, words: &Window, number: u32, position: u64) {
        with_slot(&self.slots, |_, slot| {
            let mut pace = slot.pace().lock();
            // Lower halves of positions.
            pace.note(position as u32);
            self.hold_back(&mut pace, words, number, position);
            pace.returns(Instant::now());
        });
    }

    fn hold_back(&self, pace: &mut Pace, words: &Window, number: u32, position: u64) {
        let word = launch_word(number) as usize;
        let began = Instant::now();
        let mut now = began;
        let mut polls = 0;
        while pace.holds(load_token(words, word), now) {
            polls += 1;
            now = Instant::now();
            if polls < EAGER_POLLS || !polls.is_multiple_of(POLLS_PER_YIELD) {
                std::hint::spin_loop();
                continue;
            }
            if load_token(words, THREADS_WORD as usize) == 0 {
                // The host no longer asks, and another one may not tell.
                return;
            }
            if now - began > SUBMISSION || self.state.is_ended() {
                self.positions.sent.fetch_max(position, Ordering::Relaxed);
                // If the host knows these words, it asks again.
                store_token(words, THREADS_WORD as usize, 0);
                return;
            }
            std::thread::yield_now();
        }
    }
}
