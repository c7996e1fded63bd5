//! Words by which a GPU announces host functions, without the host's help, and waits for
//! their end.
//!
//! Streams with outstanding functions have a pair of words each: the GPU counts the functions
//! that the stream has reached in the first, the guest those that have run in the second
//! ([`HostFuncSignal`](paragpu_protocol::table::HostFuncSignal)).

use std::collections::VecDeque;

use paragpu_communicator::Window;
use paragpu_protocol::handle::StreamHandle;
use paragpu_protocol::layout::{HOST_FUNCTION_PAIRS, host_function_word};

use crate::sys::memory::{load_token, store_token};

/// A function that the GPU will announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Expected {
    id: u64,
    value: u32,
}

/// The place of a function among those of its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) pair: u32,
    pub(crate) value: u32,
}

impl Place {
    /// Whether the GPU has reached the function. The words count around.
    pub(crate) fn is_reached(self, window: &Window) -> bool {
        let reached = load_token(window, host_function_word(self.pair) as usize);
        reached.wrapping_sub(self.value).cast_signed() >= 0
    }

    /// Lets the stream continue behind the function.
    pub(crate) fn finish(self, window: &Window) {
        let index = host_function_word(self.pair) as usize + 1;
        store_token(window, index, self.value);
    }
}

/// A pair of words, and the functions of its stream.
#[derive(Debug, Default)]
struct Pair {
    /// The stream, while it has functions.
    stream: StreamHandle,
    expected: VecDeque<Expected>,
    /// Number of the last function.
    last: u32,
}

/// The pairs of a session.
#[derive(Debug)]
pub(crate) struct HostWords {
    pairs: [Pair; HOST_FUNCTION_PAIRS as usize],
}

impl Default for HostWords {
    fn default() -> Self {
        Self {
            pairs: std::array::from_fn(|_| Pair::default()),
        }
    }
}

impl HostWords {
    /// A place for the next function of a stream, which must be posted next. `None` if too many
    /// streams have functions.
    pub(crate) fn place(&mut self, stream: StreamHandle, id: u64) -> Option<Place> {
        let is_of_stream = |pair: &Pair| !pair.expected.is_empty() && pair.stream == stream;
        let index = self
            .pairs
            .iter()
            .position(is_of_stream)
            .or_else(|| self.pairs.iter().position(|pair| pair.expected.is_empty()))?;
        let pair = self.pairs.get_mut(index)?;
        pair.stream = stream;
        pair.last = pair.last.wrapping_add(1);
        let value = pair.last;
        pair.expected.push_back(Expected { id, value });
        Some(Place {
            pair: u32::try_from(index).ok()?,
            value,
        })
    }

    /// Removes a function that was not posted, or that the host asked for.
    pub(crate) fn forget(&mut self, id: u64) {
        for pair in &mut self.pairs {
            pair.expected.retain(|expected| expected.id != id);
        }
    }

    /// The next function of each stream.
    pub(crate) fn next(&self) -> impl Iterator<Item = Place> {
        (0..).zip(&self.pairs).filter_map(|(pair, of)| {
            let value = of.expected.front()?.value;
            Some(Place { pair, value })
        })
    }

    /// Takes the next function of a stream, if it is this one.
    pub(crate) fn take(&mut self, place: Place) -> Option<u64> {
        let expected = &mut self.pairs.get_mut(place.pair as usize)?.expected;
        let next = *expected.front().filter(|next| next.value == place.value)?;
        expected.pop_front();
        Some(next.id)
    }
}
