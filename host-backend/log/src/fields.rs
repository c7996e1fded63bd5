//! Formats the fields of an event: short, and without control characters.

use std::fmt::{self, Debug, Write};

use paragpu_control::terminal::plain_line;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Maximum number of bytes of a field, before its control characters are escaped.
const MOST: usize = 1024;

/// The first bytes of a text.
#[derive(Debug, Default)]
struct Beginning {
    text: String,
    is_cut: bool,
}

impl Write for Beginning {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let mut end = more.len().min(MOST.saturating_sub(self.text.len()));
        while !more.is_char_boundary(end) {
            end -= 1;
        }
        self.text.push_str(more.get(..end).unwrap_or_default());
        self.is_cut |= end < more.len();
        // The rest need not be formatted.
        if self.is_cut { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The first bytes of what `text` formats.
fn beginning(text: fmt::Arguments<'_>) -> String {
    let mut beginning = Beginning::default();
    // Fails if it is cut.
    let _ = beginning.write_fmt(text);
    if beginning.is_cut {
        beginning.text.push('…');
    }
    beginning.text
}

/// The first 1 KiB of a text of others.
#[must_use]
pub fn cut(text: &str) -> String {
    beginning(format_args!("{text}"))
}

/// Formats the fields of an event: the message, and `name=value` for each other one. Each has
/// at most 1 KiB, and its control characters are escaped.
#[must_use]
pub fn fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    debug_fn(write_field).delimited(" ")
}

fn write_field(to: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let value = plain_line(&beginning(format_args!("{value:?}")));
    match field.name() {
        "message" => to.write_str(&value),
        name => write!(to, "{}={value}", name.trim_start_matches("r#")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// What events print.
    #[derive(Debug, Clone, Default)]
    struct Printed(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Printed {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn printed(log: impl FnOnce()) -> String {
        let printed = Printed::default();
        let to = printed.clone();
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(fields())
            .with_writer(move || to.clone())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        String::from_utf8(std::mem::take(&mut *printed.0.lock())).unwrap()
    }

    #[test]
    fn an_event_is_a_message_and_its_fields() {
        let error = std::io::Error::other("no disk");
        let absent = None::<u32>;
        let line = printed(|| {
            tracing::info!(session = 7, vm = "demo", gpu = %"cuda:0", absent, %error, "it {}", "ends");
        });
        let expected = " INFO it ends session=7 vm=\"demo\" gpu=cuda:0 error=no disk\n";
        assert_eq!(line, expected);
    }

    #[test]
    fn an_event_is_one_short_line_whatever_it_says() {
        let hostile = "\n2026-01-01 ERROR forged\r\u{1b}[2J\u{9b}31m\u{202e}";
        let long = "ä".repeat(50_000);
        let line = printed(|| {
            let (raw, list) = (hostile, [&long]);
            tracing::warn!(raw, %hostile, %long, ?list, "{hostile}{long}");
        });
        let line = line.strip_suffix('\n').unwrap();
        let obeyed = |letter: char| letter.is_control() || letter == '\u{202e}';
        assert!(!line.contains(obeyed), "{line}");
        assert!(line.contains("forged\\r\\u{1b}[2J"), "{line}");
        assert_eq!(line.matches('…').count(), 3, "{line}");
        assert!(line.len() < 5 * MOST, "{} bytes", line.len());
    }

    #[test]
    fn a_text_is_cut_between_letters() {
        assert_eq!(cut("it fails"), "it fails");
        let whole = "a".repeat(MOST);
        assert_eq!(cut(&whole), whole);
        let text = cut(&format!("a{}", "ä".repeat(MOST)));
        assert_eq!(text.strip_suffix('…').unwrap().len(), MOST - 1);
    }
}
