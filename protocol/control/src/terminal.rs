//! Text of others for a terminal. Names and reasons come from guests, workers and other hosts,
//! which may be compromised, so that their control characters are shown instead of obeyed.
#![forbid(unsafe_code)]

/// A number and its noun: "1 session", "2 sessions".
#[must_use]
pub fn counted(count: impl Into<u64>, one: &str) -> String {
    match count.into() {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    }
}

/// The text with its control characters shown, except for ends of lines and tabs.
#[must_use]
pub fn plain(text: &str) -> String {
    shown(text, |letter| letter == '\n' || letter == '\t')
}

/// The text with all its control characters shown, for one line or a cell of a table.
#[must_use]
pub fn plain_line(text: &str) -> String {
    shown(text, |_| false)
}

fn shown(text: &str, keeps: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_obeyed(letter) && !keeps(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// Whether a terminal obeys the character: also those that change the direction of text.
fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown() {
        assert_eq!(plain("it fails:\n\tμ"), "it fails:\n\tμ");
        assert_eq!(plain_line("it fails:\n\tμ"), "it fails:\\n\\tμ");
        let hostile = "\u{1b}]52;c;cm0=\u{7}\r\u{9b}2J\u{202e}";
        let harmless = "\\u{1b}]52;c;cm0=\\u{7}\\r\\u{9b}2J\\u{202e}";
        assert_eq!(
            (plain(hostile), plain_line(hostile)),
            (harmless.into(), harmless.into())
        );
    }
}
