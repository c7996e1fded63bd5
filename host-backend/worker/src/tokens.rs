//! Bulk tokens: words in the window by which the guest learns, without a frame, that a
//! transfer is complete.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use paragpu_communicator::Window;
use paragpu_device::{Error, MemoryOperation, StreamId, Word, Work};
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::layout::{
    BULK_TOKEN_BYTES, BULK_TOKEN_FAILED, BULK_TOKENS, HOST_FUNCTION_PAIRS, host_function_word,
};
use paragpu_protocol::status::Status;

use crate::error::{Outcome, fail};
use crate::session::errors::Deferred;
use crate::session::gpu::Gpu;
use crate::session::host_function::Pair;
use crate::session::stream::{StreamWait, Streams};
use crate::sys::words;

/// A transfer in flight in a stream.
#[derive(Debug)]
struct Transfer {
    wait: StreamWait,
    token: u32,
    /// The call that contained the token.
    call: u16,
}

/// Whether the device can clear words itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Untried,
    Yes,
    No,
}

/// The tokens that the guest waits for.
#[derive(Debug)]
pub(crate) struct Tokens {
    window: Option<Arc<Window>>,
    reach: Reach,
    /// By stream, in order; streams without transfers are dropped.
    queues: Vec<(StreamId, VecDeque<Transfer>)>,
    /// Empty queues, for reuse.
    spare: Vec<VecDeque<Transfer>>,
    /// Transfers in flight for each token.
    counts: Vec<u32>,
    failed: HashMap<u32, Deferred>,
    completed: u64,
}

impl Tokens {
    pub(crate) fn new(window: Option<Arc<Window>>) -> Self {
        Self {
            window,
            reach: Reach::Untried,
            queues: Vec::new(),
            spare: Vec::new(),
            counts: vec![0; BULK_TOKENS as usize],
            failed: HashMap::new(),
            completed: 0,
        }
    }

    /// The window with the words.
    pub(crate) fn window(&self) -> Option<&Arc<Window>> {
        self.window.as_ref()
    }

    /// Adopts a window.
    pub(crate) fn adopt(&mut self, window: &Arc<Window>) {
        self.window = Some(Arc::clone(window));
    }

    /// Forgets a window that was never used.
    pub(crate) fn forget(&mut self) {
        self.window = None;
    }

    /// Checks the token of a call; 0 for none. Also without a window: for tokens of copies that
    /// it posted while it shared one with another host, the guest asks.
    pub(crate) fn check(&self, token: u32) -> Outcome<()> {
        match token <= BULK_TOKENS {
            true => Ok(()),
            false => fail(Status::INVALID_VALUE, format!("bulk token {token}")),
        }
    }

    /// Whether no transfer is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// A stream with a transfer in flight.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.queues.first().map(|(stream, _)| *stream)
    }

    /// Makes the transfer just submitted to `stream` clear the token.
    pub(crate) fn add(
        &mut self,
        streams: &mut Streams,
        token: u32,
        call: u16,
        stream: StreamHandle,
    ) -> Outcome<()> {
        if token == 0 {
            return Ok(());
        }
        let wait = streams.begin_wait(stream)?;
        let stream = wait.id();
        let transfer = Transfer { wait, token, call };
        if let Some(count) = self.counts.get_mut(token as usize - 1) {
            *count += 1;
        }
        match self.queues.iter_mut().find(|(of, _)| *of == stream) {
            Some((_, queue)) => queue.push_back(transfer),
            None => {
                let mut queue = self.spare.pop().unwrap_or_default();
                queue.push_back(transfer);
                self.queues.push((stream, queue));
            }
        }
        Ok(())
    }

    /// Signals to the guest that the transfer of a token failed.
    pub(crate) fn fail(&mut self, token: u32, error: Deferred) {
        if token == 0 || token > BULK_TOKENS {
            return;
        }
        self.failed.entry(token).or_insert(error);
        self.set(token, BULK_TOKEN_FAILED);
    }

    /// Failed transfers that the guest has not asked about.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (u32, &Deferred)> {
        self.failed.iter().map(|(token, error)| (*token, error))
    }

    fn set(&self, token: u32, value: u32) {
        if let Some(window) = &self.window {
            words::store(window, u64::from(token - 1) * 4, value);
        }
    }

    /// Signals to the thread that waits for a checked token that its work is complete, or
    /// that it must ask.
    pub(crate) fn signal(&self, token: u32, over: bool) {
        self.set(token, if over { 0 } else { BULK_TOKEN_FAILED });
    }

    /// Has the device clear a checked token's word behind the stream's work. Returns
    /// false if the device cannot access the word. Failed work leaves the word set.
    pub(crate) fn clear_behind(
        &mut self,
        gpu: &mut Gpu,
        stream: StreamId,
        token: u32,
    ) -> Result<bool, Error> {
        let Some(window) = self.reached(gpu) else {
            return Ok(false);
        };
        let words = window.address();
        let clear = [MemoryOperation::Write {
            word: Word {
                address: words + u64::from(token - 1) * 4,
                is_wide: false,
            },
            value: 0,
            is_relaxed: false,
        }];
        gpu.submit(&Work::Memory(clear[..].into()), stream)?;
        Ok(true)
    }

    /// The window, if the device can access its words.
    fn reached(&mut self, gpu: &mut Gpu) -> Option<&Arc<Window>> {
        let window = self.window.as_ref()?;
        if self.reach == Reach::Untried {
            let words = window.address();
            // A device that computes here is polled just as early.
            let reached =
                !gpu.computes_on_host() && gpu.host_register(words, BULK_TOKEN_BYTES).is_ok();
            self.reach = if reached { Reach::Yes } else { Reach::No };
        }
        (self.reach == Reach::Yes).then_some(window)
    }

    /// A pair of words by which device and guest agree on host functions, if the device can
    /// access them.
    pub(crate) fn pair(&mut self, gpu: &mut Gpu, pair: u32) -> Option<Pair> {
        if pair >= HOST_FUNCTION_PAIRS {
            return None;
        }
        let window = Arc::clone(self.reached(gpu)?);
        Some(Pair::new(window, host_function_word(pair)))
    }

    /// Takes the error of the token's failed transfer. Its word is cleared.
    pub(crate) fn take_failure(&mut self, token: u32) -> Option<Deferred> {
        let error = self.failed.remove(&token)?;
        self.set(token, 0);
        Some(error)
    }

    /// Whether a transfer that clears the token is in flight.
    pub(crate) fn is_in_flight(&self, token: u32) -> bool {
        (token as usize)
            .checked_sub(1)
            .and_then(|index| self.counts.get(index))
            .is_some_and(|count| *count > 0)
    }

    /// Clears the tokens of completed transfers, and returns whether there were any. A
    /// failure fails all later tokens of the stream. The error is returned once.
    pub(crate) fn poll(
        &mut self,
        gpu: &mut Gpu,
        streams: &mut Streams,
    ) -> (bool, Option<(u16, Error)>) {
        let mut progress = false;
        let mut error: Option<(u16, Error)> = None;
        let mut index = 0;
        while let Some((_, queue)) = self.queues.get_mut(index) {
            let Some(transfer) = queue.front() else {
                let (_, queue) = self.queues.swap_remove(index);
                self.spare.push(queue);
                continue;
            };
            match streams.passed(gpu, &transfer.wait) {
                Ok(false) => {
                    index += 1;
                    continue;
                }
                Ok(true) => {}
                Err(reason) => error = Some((transfer.call, reason)),
            }
            progress = true;
            if let Some(transfer) = queue.pop_front() {
                streams.end_wait(gpu, &transfer.wait);
                let failed = error.as_ref().map(|(call, why)| Deferred::new(*call, why));
                self.finish(transfer.token, failed);
            }
        }
        if progress && let Some(window) = &self.window {
            window.set_progress(self.completed);
        }
        (progress, error)
    }

    fn finish(&mut self, token: u32, failed: Option<Deferred>) {
        self.completed += 1;
        let Some(count) = self.counts.get_mut(token as usize - 1) else {
            return;
        };
        *count -= 1;
        match failed {
            Some(error) => self.fail(token, error),
            None if *count == 0 && !self.failed.contains_key(&token) => self.set(token, 0),
            None => {}
        }
    }
}
