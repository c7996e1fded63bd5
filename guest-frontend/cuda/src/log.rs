//! The log of errors: the newest messages about failed calls.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of bytes kept (cuLogsDumpToMemory).
const MAX_BYTES: usize = 25_600;
/// Replaces dropped messages.
const CUT: &str = "earlier messages were left out\n";

/// Messages of one line each.
#[derive(Debug, Default)]
pub struct Messages {
    lines: VecDeque<String>,
    /// Number of messages so far; message numbers are its low 32 bits.
    pushed: u64,
    bytes: usize,
}

impl Messages {
    const fn new() -> Self {
        Self {
            lines: VecDeque::new(),
            pushed: 0,
            bytes: 0,
        }
    }

    fn push(&mut self, message: &str) {
        let line = format!("{}\n", message.replace('\n', "; "));
        self.bytes += line.len();
        self.pushed += 1;
        self.lines.push_back(line);
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.lines.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }

    /// The number of the next message.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "numbers may wrap")]
    pub fn next(&self) -> u32 {
        self.pushed as u32
    }

    /// The messages from number `from` on, or all, in at most `room` bytes. If they do
    /// not all fit, the newest ones, after a line that says so. `None` if not even the
    /// newest fits, or the number is unknown.
    #[must_use]
    pub fn since(&self, from: Option<u32>, room: usize) -> Option<String> {
        let kept = self.lines.len();
        // Numbers may wrap, so compare their distance from the next.
        let requested = from.map_or(kept, |from| self.next().wrapping_sub(from) as usize);
        if requested as u64 > self.pushed {
            return None;
        }
        let lost = requested > kept;
        let wanted = requested.min(kept);
        let all: usize = self.newest(wanted).map(String::len).sum();
        if !lost && all <= room {
            return Some(self.newest(wanted).map(String::as_str).collect());
        }
        let mut left = room.checked_sub(CUT.len())?;
        let fits = |line: &&String| match left.checked_sub(line.len()) {
            Some(less) => {
                left = less;
                true
            }
            None => false,
        };
        let count = self
            .lines
            .iter()
            .rev()
            .take(wanted)
            .take_while(fits)
            .count();
        if count == 0 && wanted > 0 {
            return None;
        }
        let newest = self.newest(count).map(String::as_str);
        Some(std::iter::once(CUT).chain(newest).collect())
    }

    fn newest(&self, count: usize) -> impl Iterator<Item = &String> {
        self.lines.iter().skip(self.lines.len() - count)
    }
}

/// The program's callbacks for messages.
pub type Listener = Arc<dyn Fn(&str) + Send + Sync>;

static MESSAGES: Mutex<Messages> = Mutex::new(Messages::new());
static LISTENERS: Mutex<(usize, Vec<(usize, Listener)>)> = Mutex::new((0, Vec::new()));

/// Calls a function with the messages.
pub fn with<R>(look: impl FnOnce(&Messages) -> R) -> R {
    look(&MESSAGES.lock())
}

/// Adds a message and passes it to the listeners.
#[cold]
pub fn add(message: &str) {
    MESSAGES.lock().push(message);
    // Not under the lock: a listener may remove itself.
    let listeners: Vec<Listener> = {
        let all = LISTENERS.lock();
        all.1
            .iter()
            .map(|(_, listener)| Arc::clone(listener))
            .collect()
    };
    for listener in listeners {
        listener(message);
    }
}

/// Adds a listener for later messages. Returns its number.
pub fn listen(listener: Listener) -> usize {
    let mut all = LISTENERS.lock();
    all.0 += 1;
    let number = all.0;
    all.1.push((number, listener));
    number
}

/// Removes a listener. Returns false if none has this number.
pub fn end(number: usize) -> bool {
    let mut all = LISTENERS.lock();
    let before = all.1.len();
    all.1.retain(|(known, _)| *known != number);
    all.1.len() < before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_messages_are_kept() {
        let mut messages = Messages::default();
        assert_eq!(messages.since(None, 0).as_deref(), Some(""));
        assert_eq!(messages.since(Some(7), 100), None, "no such message");
        messages.push("one");
        let second = messages.next();
        messages.push("two\nlines");
        assert_eq!(
            messages.since(None, 100).as_deref(),
            Some("one\ntwo; lines\n")
        );
        assert_eq!(
            messages.since(Some(second), 100).as_deref(),
            Some("two; lines\n")
        );
        assert_eq!(
            messages.since(Some(messages.next()), 100).as_deref(),
            Some("")
        );
        for _ in 0..MAX_BYTES {
            messages.push("again");
        }
        assert!(messages.bytes <= MAX_BYTES);
        let all = messages.since(Some(second), usize::MAX).unwrap();
        assert!(all.starts_with(CUT), "says that some are gone");
        assert_eq!(all.len(), messages.bytes + CUT.len());
    }

    #[test]
    fn the_oldest_messages_are_dropped() {
        let mut messages = Messages::default();
        let third = "third ".repeat(9);
        for line in ["first ".repeat(9), "second ".repeat(9), third.clone()] {
            messages.push(&line);
        }
        let room = CUT.len() + third.len() + 1;
        let cut = format!("{CUT}{third}\n");
        assert_eq!(messages.since(None, room), Some(cut.clone()));
        assert_eq!(messages.since(None, room + 6), Some(cut));
        assert_eq!(messages.since(None, room - 1), None);
        assert_eq!(messages.since(None, 3), None);
    }

    #[test]
    fn numbers_may_wrap() {
        let mut messages = Messages {
            pushed: u32::MAX.into(),
            ..Messages::default()
        };
        messages.push("last of the old");
        let place = messages.next();
        assert_eq!(place, 0);
        messages.push("first of the new");
        assert_eq!(
            messages.since(Some(place), 99).as_deref(),
            Some("first of the new\n")
        );
    }
}
