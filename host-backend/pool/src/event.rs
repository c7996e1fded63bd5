//! One queue for all events that agent and holder wait for.

use std::io::{BufReader, Read};
use std::sync::mpsc::Sender;
use std::thread;

use paragpu_control::frame::Message;
use paragpu_control::json_lines;
use signal_hook::iterator::Signals;

/// Sends the messages of `from` to the queue, then `None`.
pub(crate) fn lines<M: Message + Send + 'static, E: Send + 'static>(
    from: impl Read + Send + 'static,
    to: Sender<E>,
    as_event: impl Fn(Option<M>) -> E + Send + 'static,
) {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        // A malformed message also ends it: the peer is probably of another release.
        while let Ok(Some(message)) = json_lines::read::<M>(&mut from) {
            if to.send(as_event(Some(message))).is_err() {
                return;
            }
        }
        let _ = to.send(as_event(None));
    });
}

/// Sends signals to the queue.
pub(crate) fn signals<E: Send + 'static>(
    numbers: &[i32],
    to: Sender<E>,
    as_event: impl Fn(i32) -> E + Send + 'static,
) -> std::io::Result<()> {
    let mut signals = Signals::new(numbers)?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if to.send(as_event(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}
