//! The destination's answers, received as they arrive. The thread that serves the session
//! never waits for the rest of one while the program runs: a hostile destination would send
//! it slowly.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use paragpu_communicator::Error;
use paragpu_communicator_stream::handshake::header_of;
use paragpu_protocol::frame::{FrameHeader, HEADER_LEN};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::transfer::state::{HEADER, MAX_PAYLOAD};

/// Maximum payload of the answer to the first frame, in bytes.
const MAX_ANSWER: usize = 64 * 1024;
/// Maximum number of bytes received at once.
const AT_ONCE: usize = 64 * 1024;

/// What the destination sends next.
#[derive(Debug)]
enum Form {
    /// The answer to the first frame, from its daemon.
    Frame,
    /// A record, from its worker.
    Record,
}

/// The bytes of the next answer, and never of a later one.
#[derive(Debug)]
pub(super) struct Answers {
    socket: UnixStream,
    form: Form,
    bytes: Vec<u8>,
    /// The destination sends nothing more.
    ended: bool,
}

impl Answers {
    /// The answers that arrive at this socket, a frame first.
    pub(super) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            form: Form::Frame,
            bytes: Vec::new(),
            ended: false,
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether some of the answer has arrived.
    pub(super) fn has_begun(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Size of the answer in bytes: at first that of its header. A length that its reader
    /// refuses does not count.
    fn size(&self) -> usize {
        let (header, offset, most) = match self.form {
            Form::Frame => (HEADER_LEN, 0, MAX_ANSWER),
            Form::Record => (HEADER, 4, MAX_PAYLOAD),
        };
        let field = self.bytes.get(offset..header);
        let length = field.and_then(<[u8]>::first_chunk);
        let length = length.map_or(0, |length| u32::from_le_bytes(*length) as usize);
        match length > most {
            true => header,
            false => header + length,
        }
    }

    /// Receives what has arrived of the answer. Returns whether it is complete, or never will
    /// be.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) fn collect(&mut self) -> io::Result<bool> {
        let most = self.bytes.len() + AT_ONCE;
        loop {
            let (start, size) = (self.bytes.len(), self.size());
            if self.ended || start >= size {
                return Ok(true);
            }
            if start >= most {
                return Ok(false);
            }
            self.bytes.resize(size.min(most), 0);
            let room = self.bytes.get_mut(start..).unwrap_or_default();
            let received = recv(&self.socket, room, RecvFlags::DONTWAIT).map(|(_, count)| count);
            self.bytes.truncate(start + received.unwrap_or(0));
            match received {
                Ok(0) => self.ended = true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes the answer to the first frame, which is complete. Records follow.
    ///
    /// # Errors
    /// [`Error::Closed`] if the link ended before it, [`Error::Protocol`] if it ended inside or
    /// the frame is too large.
    pub(super) fn take_frame(&mut self) -> Result<(FrameHeader, Vec<u8>), Error> {
        self.form = Form::Record;
        let bytes = std::mem::take(&mut self.bytes);
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(match bytes.is_empty() {
                true => Error::Closed,
                false => Error::protocol("the connection ended inside a frame"),
            });
        };
        let header = header_of(header, MAX_ANSWER)?;
        if header.payload_len() != payload.len() {
            return Err(Error::protocol("the connection ended inside a frame"));
        }
        Ok((header, payload.to_vec()))
    }
}

/// Reads what has been collected.
impl Read for Answers {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.as_slice().read(to)?;
        self.bytes.drain(..count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use paragpu_communicator_stream::handshake::send_frame;
    use paragpu_protocol::frame::Control;

    use super::*;
    use crate::transfer::state::{Kind, Scanner, StateError, Writer};

    fn record(kind: Kind, payload: &[u8]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        writer.put(kind, &[payload]).unwrap();
        writer.into_inner()
    }

    /// Answers after the first, and the end that sends them.
    fn records() -> (Scanner<Answers>, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        let mut answers = Answers::new(here);
        answers.form = Form::Record;
        (Scanner::new(answers), there)
    }

    #[test]
    fn an_answer_that_arrives_slowly_is_awaited_by_nobody() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let (from, mut to) = UnixStream::pair().unwrap();
        send_frame(&from, Control::Welcome.kind(), 0, 0, b"here", None).unwrap();
        drop(from);
        let mut frame = Vec::new();
        to.read_to_end(&mut frame).unwrap();
        let mut answers = Answers::new(here);
        let mut send = |answers: &mut Answers, bytes: &[u8]| {
            for byte in bytes {
                assert!(!answers.collect().unwrap());
                there.write_all(&[*byte]).unwrap();
            }
            assert!(answers.collect().unwrap());
        };
        send(&mut answers, &frame);
        assert_eq!(answers.take_frame().unwrap().1, b"here");
        let mut scanner = Scanner::new(answers);
        for payload in [&b""[..], &[7; 100]] {
            send(scanner.get_mut(), &record(Kind::Missing, payload));
            assert_eq!(scanner.record().unwrap(), (Kind::Missing, payload));
            assert!(!scanner.get_ref().has_begun());
        }
    }

    #[test]
    fn long_answers_arrive_in_parts_and_one_at_a_time() {
        let (mut scanner, mut there) = records();
        let long = vec![9; 3 * AT_ONCE];
        let sent = [record(Kind::Hashes, &long), record(Kind::Ready, &[])].concat();
        let sender = std::thread::spawn(move || there.write_all(&sent).map(|()| there));
        let mut steps = 0;
        while !scanner.get_mut().collect().unwrap() {
            steps += 1;
            assert!(scanner.get_ref().bytes.len() <= steps * AT_ONCE);
            std::thread::yield_now();
        }
        assert_eq!(scanner.record().unwrap(), (Kind::Hashes, &long[..]));
        let _there = sender.join().unwrap().unwrap();
        assert!(scanner.get_mut().collect().unwrap());
        assert_eq!(scanner.record().unwrap().0, Kind::Ready);
    }

    #[test]
    fn answers_that_never_will_be_complete_are_refused() {
        let (mut scanner, mut there) = records();
        there.write_all(&record(Kind::Ready, b"x")[..20]).unwrap();
        assert!(!scanner.get_mut().collect().unwrap());
        drop(there);
        assert!(scanner.get_mut().collect().unwrap());
        assert!(matches!(scanner.record(), Err(StateError::Incomplete)));

        let (mut scanner, mut there) = records();
        let mut endless = record(Kind::Ready, &[]);
        endless[4..8].fill(0xff);
        there.write_all(&endless).unwrap();
        assert!(scanner.get_mut().collect().unwrap());
        assert!(matches!(scanner.record(), Err(StateError::TooLong(_))));

        let (here, mut there) = UnixStream::pair().unwrap();
        let mut answers = Answers::new(here);
        there.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
        assert!(answers.collect().unwrap());
        assert!(matches!(answers.take_frame(), Err(Error::Protocol(_))));
    }
}
