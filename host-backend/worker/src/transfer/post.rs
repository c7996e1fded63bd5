//! Writes contents to the other worker on a thread of its own, so that the
//! session's thread neither hashes nor waits for the link.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;

use super::state::{Kind, StateError, Writer};

/// Records that wait to be written.
const WAITING: usize = 4;

/// A writer that is away on its thread.
#[derive(Debug)]
pub(crate) struct Post<W> {
    queue: SyncSender<Vec<u8>>,
    /// Payloads that were written, to be filled again.
    spare: Receiver<Vec<u8>>,
    thread: JoinHandle<Result<Box<Writer<W>>, StateError>>,
}

impl<W: Write + Send + 'static> Post<W> {
    /// Takes the writer to a thread.
    pub(crate) fn new(mut writer: Box<Writer<W>>) -> Self {
        let (queue, waiting) = sync_channel::<Vec<u8>>(WAITING);
        let (empty, spare) = channel();
        let thread = std::thread::spawn(move || {
            for mut payload in waiting {
                writer.put(Kind::Contents, &[&payload])?;
                payload.clear();
                let _ = empty.send(payload);
            }
            writer.flush()?;
            Ok(writer)
        });
        Self {
            queue,
            spare,
            thread,
        }
    }

    /// Room for a payload.
    pub(crate) fn payload(&self) -> Vec<u8> {
        self.spare.try_recv().unwrap_or_default()
    }

    /// Gives a payload to the thread; gives it back where the queue is full.
    /// Where the link is lost it takes everything: [`finish`](Self::finish)
    /// says so.
    pub(crate) fn offer(&self, payload: Vec<u8>) -> Option<Vec<u8>> {
        match self.queue.try_send(payload) {
            Err(TrySendError::Full(payload)) => Some(payload),
            Ok(()) | Err(TrySendError::Disconnected(_)) => None,
        }
    }

    /// Gives a payload to the thread, waiting for room.
    pub(crate) fn give(&self, payload: Vec<u8>) {
        // A thread that is gone says why at the end.
        let _ = self.queue.send(payload);
    }

    /// Has the thread ended before its time?
    pub(crate) fn failed(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until everything is written; the writer is back.
    pub(crate) fn finish(self) -> Result<Box<Writer<W>>, StateError> {
        drop(self.queue);
        let ended = self.thread.join();
        ended.unwrap_or(Err(StateError::Order("the thread that writes is gone")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::state::Scanner;

    #[test]
    fn records_arrive_in_order_and_the_writer_comes_back() {
        let mut writer = Writer::new(Vec::new());
        writer.put(Kind::Head, &[b"head"]).unwrap();
        let post = Post::new(Box::new(writer));
        for number in 0..20_u8 {
            let mut payload = post.payload();
            payload.push(number);
            post.give(payload);
        }
        let mut writer = post.finish().unwrap();
        writer.end().unwrap();
        let bytes = writer.into_inner();
        let mut scanner = Scanner::new(bytes.as_slice());
        assert_eq!(scanner.record().unwrap().0, Kind::Head);
        for number in 0..20_u8 {
            assert_eq!(scanner.record().unwrap(), (Kind::Contents, &[number][..]));
        }
        assert_eq!(scanner.record().unwrap().0, Kind::End);
    }

    #[test]
    fn a_lost_link_is_told_at_the_end() {
        struct Lost;
        impl Write for Lost {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let post = Post::new(Box::new(Writer::new(Lost)));
        for _ in 0..100 {
            post.give(vec![1]);
        }
        assert!(matches!(post.finish(), Err(StateError::Io(_))));
    }
}
