//! A thread that reads images, hashes, and sends to the other worker, so that the
//! session's thread neither hashes nor waits for the link.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;

use super::state::{Kind, StateError, Writer};

/// Maximum number of queued records.
const WAITING: usize = 4;

/// The thread's work with the writer.
type Work<W> = Box<dyn FnOnce(&mut Writer<W>) -> Result<(), StateError> + Send>;

/// The thread's input.
enum Job<W> {
    /// A record of contents.
    Contents(Vec<u8>),
    Work(Work<W>),
}

/// A writer on a separate thread.
#[derive(Debug)]
pub(crate) struct SendStage<W> {
    /// `None` after the last job.
    queue: Option<SyncSender<Job<W>>>,
    /// Written payload buffers, for reuse.
    spare: Receiver<Vec<u8>>,
    thread: JoinHandle<Result<Box<Writer<W>>, StateError>>,
    /// A payload for which the queue had no room.
    held: Option<Vec<u8>>,
}

impl<W: Write + Send + 'static> SendStage<W> {
    /// Moves the writer to a new thread.
    pub(crate) fn new(mut writer: Box<Writer<W>>) -> Self {
        let (queue, waiting) = sync_channel::<Job<W>>(WAITING);
        let (empty, spare) = channel();
        let thread = std::thread::spawn(move || {
            for job in waiting {
                match job {
                    Job::Contents(mut payload) => {
                        writer.put(Kind::Contents, &[&payload])?;
                        payload.clear();
                        let _ = empty.send(payload);
                    }
                    Job::Work(work) => work(&mut writer)?,
                }
            }
            writer.flush()?;
            Ok(writer)
        });
        Self {
            queue: Some(queue),
            spare,
            thread,
            held: None,
        }
    }

    /// A buffer for a payload.
    pub(crate) fn payload(&self) -> Vec<u8> {
        self.spare.try_recv().unwrap_or_default()
    }

    /// Queues a payload, or holds it if the queue is full. Must not be called while one
    /// is [held](Self::holds). After the link is lost it accepts everything, and
    /// [`finish`](Self::finish) reports the loss.
    pub(crate) fn offer(&mut self, payload: Vec<u8>) {
        let Some(queue) = &self.queue else { return };
        self.held = match queue.try_send(Job::Contents(payload)) {
            Err(TrySendError::Full(Job::Contents(payload))) => Some(payload),
            _ => None,
        };
    }

    /// Tries to queue the held payload.
    pub(crate) fn retry(&mut self) {
        if let Some(payload) = self.held.take() {
            self.offer(payload);
        }
    }

    /// Whether a payload is held because the queue is full.
    pub(crate) fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Queues a payload. Waits for room.
    pub(crate) fn give(&self, payload: Vec<u8>) {
        self.put(Job::Contents(payload));
    }

    /// Queues other work with the writer. There is never much of it, so this does not
    /// block.
    pub(crate) fn run(
        &self,
        work: impl FnOnce(&mut Writer<W>) -> Result<(), StateError> + Send + 'static,
    ) {
        self.put(Job::Work(Box::new(work)));
    }

    fn put(&self, job: Job<W>) {
        if let Some(queue) = &self.queue {
            // If the thread has ended, `finish` reports the reason.
            let _ = queue.send(job);
        }
    }

    /// Closes the queue. The thread ends once it has written everything.
    pub(crate) fn close(&mut self) {
        self.queue = None;
    }

    /// Whether the thread has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until everything is written, and returns the writer.
    pub(crate) fn finish(mut self) -> Result<Box<Writer<W>>, StateError> {
        self.close();
        let ended = self.thread.join();
        ended.unwrap_or(Err(StateError::Order("the thread that writes is gone")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::state::Scanner;

    #[test]
    fn records_arrive_in_order_and_the_writer_is_returned() {
        let mut writer = Writer::new(Vec::new());
        writer.put(Kind::Head, &[b"head"]).unwrap();
        let stage = SendStage::new(Box::new(writer));
        for number in 0..20_u8 {
            let mut payload = stage.payload();
            payload.push(number);
            stage.give(payload);
        }
        let mut writer = stage.finish().unwrap();
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
    fn work_runs_in_order_and_the_end_need_not_be_awaited() {
        let mut stage = SendStage::new(Box::new(Writer::new(Vec::new())));
        stage.give(vec![1]);
        stage.run(|writer| writer.put(Kind::Objects, &[b"two"]));
        stage.give(vec![3]);
        assert!(!stage.is_over(), "more may come");
        stage.close();
        while !stage.is_over() {
            std::thread::yield_now();
        }
        let bytes = stage.finish().unwrap().into_inner();
        let mut scanner = Scanner::new(bytes.as_slice());
        assert_eq!(scanner.record().unwrap(), (Kind::Contents, &[1][..]));
        assert_eq!(scanner.record().unwrap(), (Kind::Objects, &b"two"[..]));
        assert_eq!(scanner.record().unwrap(), (Kind::Contents, &[3][..]));
    }

    #[test]
    fn a_lost_link_is_reported_at_the_end() {
        struct Lost;
        impl Write for Lost {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let stage = SendStage::new(Box::new(Writer::new(Lost)));
        for _ in 0..100 {
            stage.give(vec![1]);
        }
        assert!(matches!(stage.finish(), Err(StateError::Io(_))));
    }
}
