//! Messages on standard error, without an allocation.

use core::fmt::{self, Write as _};

/// Maximum length of a message; longer ones are truncated.
const LONGEST: usize = 1024;

struct Line {
    bytes: [u8; LONGEST],
    length: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The last byte is the newline.
        let room = LONGEST - 1 - self.length;
        let part = text
            .as_bytes()
            .get(..text.len().min(room))
            .unwrap_or_default();
        let place = self.length..self.length + part.len();
        if let Some(place) = self.bytes.get_mut(place) {
            place.copy_from_slice(part);
            self.length += part.len();
        }
        Ok(())
    }
}

/// Writes one line to standard error.
#[cold]
pub fn say(text: fmt::Arguments<'_>) {
    let mut line = Line {
        bytes: [0; LONGEST],
        length: 0,
    };
    let _ = write!(line, "paragpu: {text}");
    if let Some(end) = line.bytes.get_mut(line.length) {
        *end = b'\n';
    }
    // SAFETY: the bytes are the line's. A failure cannot be reported.
    unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.length + 1) };
}

/// Displays bytes as text, with question marks for invalid UTF-8.
pub struct LossyText<'a>(pub &'a [u8]);

impl fmt::Display for LossyText<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.utf8_chunks() {
            formatter.write_str(part.valid())?;
            if !part.invalid().is_empty() {
                formatter.write_char('?')?;
            }
        }
        Ok(())
    }
}
