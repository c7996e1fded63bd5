//! Waits for a word of the window to change.
//!
//! A thread that waits for a stream posts a [`StreamSignal`] and polls its word,
//! which the host clears. That is cheaper than a reply. If it takes long, or if the
//! word says so, the thread sends a synchronous call, in which it can sleep.
//!
//! The device could clear the word itself, behind the work; `tests/bench/waits.cu`
//! measures what that costs.

use paragpu_communicator::{Spin, Wait, Window};
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::layout::{BULK_TOKENS, STAGING_TOKENS};
use paragpu_protocol::table::StreamSignal;

use super::Link;
use super::reply_slots::with_slot;
use crate::error::Result;
use crate::sys::memory::{load_token, store_token};

/// Polls of the word between two polls of the connection.
const POLLS_PER_RECEIVE: u32 = 8;

impl Link {
    /// Waits for the stream's work. Returns false if the thread must ask the host.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn await_signal(&self, words: &Window, stream: StreamHandle) -> Result<bool> {
        if self.spin.is_zero() {
            return Ok(false);
        }
        with_slot(&self.slots, |slot, _| {
            // Slots count from 1.
            let token = STAGING_TOKENS + u32::from(slot);
            let index = token as usize - 1;
            // If the word is set, an earlier wait was abandoned.
            if token > BULK_TOKENS || load_token(words, index) != 0 {
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
        let mut spin = Spin::new(self.spin, None);
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
}
