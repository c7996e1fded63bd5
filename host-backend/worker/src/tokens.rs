//! Bulk tokens: words in the window that tell the guest, without a frame, that a
//! transfer is complete.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use paragpu_communicator::Window;
use paragpu_device::{Error, MemoryOperation, StreamId, Word, Work};
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::layout::{BULK_TOKEN_BYTES, BULK_TOKEN_FAILED, BULK_TOKENS};
use paragpu_protocol::status::Status;

use crate::error::{Outcome, fail};
use crate::session::errors::Deferred;
use crate::session::gpu::Gpu;
use crate::session::stream::{StreamWait, Streams};
use crate::sys::words;

/// A transfer that is under way in a stream.
#[derive(Debug)]
struct Transfer {
    wait: StreamWait,
    token: u32,
    /// The call that named the token.
    call: u16,
}

/// Can the device clear words itself?
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
    /// There was a window, where the guest looks no more.
    asked_for: bool,
    /// In order of each stream; streams that have none are dropped.
    queues: Vec<(StreamId, VecDeque<Transfer>)>,
    /// Empty queues, for reuse.
    spare: Vec<VecDeque<Transfer>>,
    /// Transfers under way for each token.
    counts: Vec<u32>,
    failed: HashMap<u32, Deferred>,
    completed: u64,
}

impl Tokens {
    pub(crate) fn new(window: Option<Arc<Window>>) -> Self {
        Self {
            window,
            reach: Reach::Untried,
            asked_for: false,
            queues: Vec::new(),
            spare: Vec::new(),
            counts: vec![0; BULK_TOKENS as usize],
            failed: HashMap::new(),
            completed: 0,
        }
    }

    /// The session has a window from now on.
    pub(crate) fn adopt(&mut self, window: &Arc<Window>) {
        self.window = Some(Arc::clone(window));
    }

    /// The session has no window any more: the guest asks for the tokens of
    /// the copies that it had posted.
    pub(crate) fn leave_window(&mut self) {
        self.window = None;
        self.asked_for = true;
    }

    /// Checks a token that a call names; 0 is none.
    pub(crate) fn check(&self, token: u32) -> Outcome<()> {
        let known = self.window.is_some() || self.asked_for;
        if token == 0 || (token <= BULK_TOKENS && known) {
            Ok(())
        } else {
            fail(Status::INVALID_VALUE, format!("bulk token {token}"))
        }
    }

    /// Is nothing under way?
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// A stream with a transfer under way.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.queues.first().map(|(stream, _)| *stream)
    }

    /// The transfer that was just given to `stream` clears the token.
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

    /// The transfer that named the token will not be: tells the guest.
    pub(crate) fn fail(&mut self, token: u32, error: Deferred) {
        if token == 0 || token > BULK_TOKENS {
            return;
        }
        self.failed.entry(token).or_insert(error);
        self.set(token, BULK_TOKEN_FAILED);
    }

    /// The transfers that failed and were not asked about.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (u32, &Deferred)> {
        self.failed.iter().map(|(token, error)| (*token, error))
    }

    fn set(&self, token: u32, value: u32) {
        if let Some(window) = &self.window {
            words::store(window, u64::from(token - 1) * 4, value);
        }
    }

    /// Tells the thread that waits with a checked token: its work is complete, or
    /// it must ask.
    pub(crate) fn signal(&self, token: u32, over: bool) {
        self.set(token, if over { 0 } else { BULK_TOKEN_FAILED });
    }

    /// Lets the device clear a checked token's word behind what the stream was
    /// given; false if it does not reach the word. Work that fails leaves
    /// the word as it is.
    pub(crate) fn clear_behind(
        &mut self,
        gpu: &mut Gpu,
        stream: StreamId,
        token: u32,
    ) -> Result<bool, Error> {
        let Some(window) = &self.window else {
            return Ok(false);
        };
        let words = window.address();
        if self.reach == Reach::Untried {
            // A device that computes here is asked as soon.
            let reached =
                !gpu.computes_on_host() && gpu.host_register(words, BULK_TOKEN_BYTES).is_ok();
            self.reach = if reached { Reach::Yes } else { Reach::No };
        }
        if self.reach == Reach::No {
            return Ok(false);
        }
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

    /// Why the token's transfer failed, told once; its word is cleared.
    pub(crate) fn take_failure(&mut self, token: u32) -> Option<Deferred> {
        let error = self.failed.remove(&token)?;
        self.set(token, 0);
        Some(error)
    }

    /// Is a transfer under way that clears the token?
    pub(crate) fn is_under_way(&self, token: u32) -> bool {
        (token as usize)
            .checked_sub(1)
            .and_then(|index| self.counts.get(index))
            .is_some_and(|count| *count > 0)
    }

    /// Clears the tokens of transfers that are over; true where any was.
    /// Work that failed fails all tokens after it; the error is returned once.
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
