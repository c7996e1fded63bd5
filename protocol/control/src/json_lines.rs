//! Encodes a message as a line: one JSON value and a newline.
//!
//! The control socket uses lines so that a script or a scheduler needs only JSON. Decoding is
//! total; a line has at most [`Message::MAX_LEN`] bytes.

use std::io::{BufRead, Write};

use crate::frame::{FrameError, Message};

const END: u8 = b'\n';

/// A message as a whole line.
///
/// # Errors
/// [`FrameError::TooLong`]; [`FrameError::Content`] for what JSON cannot hold,
/// such as a path that is not UTF-8.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, FrameError> {
    let mut line = serde_json::to_vec(message)?;
    if line.len() > M::MAX_LEN {
        return Err(FrameError::TooLong(line.len()));
    }
    line.push(END);
    Ok(line)
}

/// Writes one line to a stream.
///
/// # Errors
/// As [`encode`]; [`FrameError::Io`].
pub fn write<M: Message>(mut stream: impl Write, message: &M) -> Result<(), FrameError> {
    Ok(stream.write_all(&encode(message)?)?)
}

/// Reads one line from a stream; `None` if the stream ends between two
/// lines.
pub fn read<M: Message>(stream: impl BufRead) -> Result<Option<M>, FrameError> {
    let mut line = Vec::new();
    // One byte more than the longest line, and its end.
    let most = M::MAX_LEN.saturating_add(2) as u64;
    stream.take(most).read_until(END, &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.pop_if(|last| *last == END).is_none() {
        return Err(match line.len() > M::MAX_LEN {
            true => FrameError::TooLong(line.len()),
            false => FrameError::Length,
        });
    }
    parse(&line).map(Some)
}

fn parse<M: Message>(line: &[u8]) -> Result<M, FrameError> {
    if line.len() > M::MAX_LEN {
        return Err(FrameError::TooLong(line.len()));
    }
    Ok(serde_json::from_slice(line)?)
}

/// Takes messages out of bytes that come bit by bit, for a reader that must not
/// wait.
#[derive(Debug, Default)]
pub struct Assembler {
    bytes: Vec<u8>,
}

impl Assembler {
    /// Appends what came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes that no message was made of yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.bytes.len()
    }

    /// The next message; `None` while it is incomplete.
    ///
    /// # Errors
    /// [`FrameError::Content`]: the line is taken, and the next one may be
    /// good. After any other error the stream is of no use.
    pub fn take<M: Message>(&mut self) -> Result<Option<M>, FrameError> {
        // No JSON has this byte, but every frame of other protocols.
        let end = self.bytes.iter().position(|byte| [END, 0].contains(byte));
        if end.is_some_and(|end| self.bytes.get(end) == Some(&0)) {
            return Err(FrameError::Foreign);
        }
        let Some(end) = end else {
            return match self.bytes.len() > M::MAX_LEN {
                true => Err(FrameError::TooLong(self.bytes.len())),
                false => Ok(None),
            };
        };
        let message = self.bytes.get(..end).map(parse);
        self.bytes.drain(..=end);
        message.transpose()
    }
}
