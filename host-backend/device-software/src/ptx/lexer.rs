//! Tokens of PTX text.

use crate::error::PtxError;

/// One token. Words keep their dots, so that `ld.global.v4.f32` and `%tid.x` are one word each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'a> {
    /// Directive, opcode with modifiers, register, label or symbol.
    Word(&'a str),
    /// Integer literal, two's complement.
    Int(u64),
    /// Single-precision literal, its bits.
    F32(u32),
    /// Double-precision literal, its bits.
    F64(u64),
    /// String literal without its quotes.
    Str(&'a str),
    /// Any other character.
    Punct(u8),
}

/// A token and the line it stands on. A text has as many tokens as characters, or fewer, so
/// they take few bytes.
#[derive(Debug, Clone, Copy)]
pub struct Spanned {
    /// A number's bits, a character, or the start of a word in the text and, in the upper half,
    /// its length.
    value: u64,
    /// Line, from 1.
    pub line: u32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Word,
    Int,
    F32,
    F64,
    Str,
    Punct,
}

impl Spanned {
    /// A token of `text`, which has less than 4 GiB.
    fn new(token: Token<'_>, line: u32, text: &str) -> Self {
        let place = |word: &str| {
            let start = word.as_ptr().addr().saturating_sub(text.as_ptr().addr());
            start as u64 | (word.len() as u64) << 32
        };
        let (kind, value) = match token {
            Token::Word(word) => (Kind::Word, place(word)),
            Token::Int(value) => (Kind::Int, value),
            Token::F32(bits) => (Kind::F32, u64::from(bits)),
            Token::F64(bits) => (Kind::F64, bits),
            Token::Str(word) => (Kind::Str, place(word)),
            Token::Punct(character) => (Kind::Punct, u64::from(character)),
        };
        Self { value, line, kind }
    }

    /// The token, of the text that was split.
    #[must_use]
    pub fn token<'a>(&self, text: &'a str) -> Token<'a> {
        let start = self.value as u32 as usize;
        let word = || {
            let end = start + (self.value >> 32) as usize;
            text.get(start..end).unwrap_or_default()
        };
        match self.kind {
            Kind::Word => Token::Word(word()),
            Kind::Int => Token::Int(self.value),
            Kind::F32 => Token::F32(self.value as u32),
            Kind::F64 => Token::F64(self.value),
            Kind::Str => Token::Str(word()),
            Kind::Punct => Token::Punct(self.value as u8),
        }
    }
}

fn word_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

fn word_part(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

/// Splits `text` into tokens.
///
/// # Errors
/// [`PtxError::Invalid`] for a malformed literal, an open comment or a stray character, and for
/// 4 GiB or more of text.
pub fn lex(text: &str) -> Result<Vec<Spanned>, PtxError> {
    if u32::try_from(text.len()).is_err() {
        return Err(PtxError::invalid(0, "too long a text"));
    }
    let bytes = text.as_bytes();
    let at = |i: usize| bytes.get(i).copied().unwrap_or(0);
    let mut out = Vec::with_capacity(text.len() / 4);
    let mut i = 0;
    let mut line = 1u32;
    while i < bytes.len() {
        let c = at(i);
        match c {
            b'\n' => {
                line += 1;
                i += 1;
            }
            b' ' | b'\t' | b'\r' | 0x0b | 0x0c => i += 1,
            b'/' if at(i + 1) == b'/' => {
                while i < bytes.len() && at(i) != b'\n' {
                    i += 1;
                }
            }
            b'/' if at(i + 1) == b'*' => {
                i += 2;
                loop {
                    if i + 1 >= bytes.len() {
                        return Err(PtxError::invalid(line, "comment without end"));
                    }
                    if at(i) == b'*' && at(i + 1) == b'/' {
                        i += 2;
                        break;
                    }
                    if at(i) == b'\n' {
                        line += 1;
                    }
                    i += 1;
                }
            }
            b'"' => {
                let start = i + 1;
                i = start;
                while i < bytes.len() && at(i) != b'"' {
                    if at(i) == b'\n' {
                        line += 1;
                    }
                    i += if at(i) == b'\\' { 2 } else { 1 };
                }
                let body = text
                    .get(start..i)
                    .ok_or_else(|| PtxError::invalid(line, "string without end"))?;
                out.push(Spanned::new(Token::Str(body), line, text));
                i += 1;
            }
            _ if c.is_ascii_digit() || c == b'.' && at(i + 1).is_ascii_digit() => {
                let start = i;
                let hex_like = at(i) == b'0'
                    && matches!(
                        at(i + 1),
                        b'x' | b'X' | b'f' | b'F' | b'd' | b'D' | b'b' | b'B'
                    );
                while at(i).is_ascii_alphanumeric()
                    || (!hex_like && at(i) == b'.')
                    || (!hex_like
                        && matches!(at(i), b'+' | b'-')
                        && matches!(at(i - 1), b'e' | b'E'))
                {
                    i += 1;
                }
                let body = text.get(start..i).unwrap_or("");
                let token = number(body)
                    .ok_or_else(|| PtxError::invalid(line, format!("malformed number {body}")))?;
                out.push(Spanned::new(token, line, text));
            }
            _ if word_start(c) && (c != b'%' || word_part(at(i + 1))) => {
                let start = i;
                loop {
                    while word_part(at(i)) {
                        i += 1;
                    }
                    // `.L2::128B` and `.shared::cta` belong to the word.
                    if at(i) == b':' && at(i + 1) == b':' && word_part(at(i + 2)) {
                        i += 2;
                    } else {
                        break;
                    }
                }
                let mut word = text.get(start..i).unwrap_or("");
                // Directives may stand together: `.reg.b16`.
                while let Some(next) = word.get(1..).and_then(|rest| rest.find('.'))
                    && c == b'.'
                {
                    let (first, rest) = word.split_at(next + 1);
                    out.push(Spanned::new(Token::Word(first), line, text));
                    word = rest;
                }
                out.push(Spanned::new(Token::Word(word), line, text));
            }
            _ if c.is_ascii_graphic() => {
                out.push(Spanned::new(Token::Punct(c), line, text));
                i += 1;
            }
            _ => return Err(PtxError::invalid(line, format!("unexpected byte {c:#04x}"))),
        }
    }
    Ok(out)
}

fn number<'a>(body: &str) -> Option<Token<'a>> {
    let lower = body.to_ascii_lowercase();
    let unsigned = |s: &str| s.trim_end_matches('u').to_owned();
    if let Some(hex) = lower.strip_prefix("0x") {
        return u64::from_str_radix(&unsigned(hex), 16).ok().map(Token::Int);
    }
    if let Some(hex) = lower.strip_prefix("0f") {
        return (hex.len() == 8).then(|| u32::from_str_radix(hex, 16).ok().map(Token::F32))?;
    }
    if let Some(hex) = lower.strip_prefix("0d") {
        return (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok().map(Token::F64))?;
    }
    if let Some(bin) = lower.strip_prefix("0b") {
        return u64::from_str_radix(&unsigned(bin), 2).ok().map(Token::Int);
    }
    if lower.contains('.') || lower.contains('e') {
        return lower.parse::<f64>().ok().map(|v| Token::F64(v.to_bits()));
    }
    let digits = unsigned(&lower);
    if digits.len() > 1 && digits.starts_with('0') {
        return u64::from_str_radix(&digits, 8).ok().map(Token::Int);
    }
    digits.parse::<u64>().ok().map(Token::Int)
}
