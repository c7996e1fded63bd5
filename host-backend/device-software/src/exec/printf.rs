//! Output of kernels: `vprintf`, formatted on the host.

use crate::error::Fault;
use parking_lot::Mutex;
use std::iter::repeat_n;

/// Maximum number of bytes of one string or one line.
const MAX_STRING: u64 = 4096;
/// Maximum number of bytes kept until the host takes them. Further output is lost, as with
/// CUDA's buffer.
const MAX_OUTPUT: usize = 16 << 20;

/// Text of kernels that the host has not taken yet.
#[derive(Debug, Default)]
pub struct Output {
    text: Mutex<Vec<u8>>,
}

impl Output {
    /// Appends text.
    pub fn push(&self, bytes: &[u8]) {
        let mut text = self.text.lock();
        if text.len() + bytes.len() <= MAX_OUTPUT {
            text.extend_from_slice(bytes);
        }
    }

    /// Takes all text.
    #[must_use]
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.text.lock())
    }
}

/// Reads from a generic address. Arguments: address and width.
pub type Reader<'a> = dyn FnMut(u64, u8) -> Result<u64, Fault> + 'a;

/// A NUL-ended string.
///
/// # Errors
/// Errors of the reader.
pub fn string(address: u64, read: &mut Reader<'_>) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::new();
    for n in 0..MAX_STRING {
        match read(address.wrapping_add(n), 1)? {
            0 => break,
            byte => out.push(byte as u8),
        }
    }
    Ok(out)
}

/// The arguments of one `printf` call, packed with their natural alignment.
struct Arguments {
    first: u64,
    offset: u64,
    /// How many were read.
    count: u32,
}

impl Arguments {
    fn next(&mut self, width: u8, read: &mut Reader<'_>) -> Result<u64, Fault> {
        self.offset = self.offset.next_multiple_of(u64::from(width));
        let value = read(self.first.wrapping_add(self.offset), width);
        self.offset += u64::from(width);
        self.count += 1;
        value
    }

    /// A width or precision: digits, or `*` for an argument.
    fn number(&mut self, text: &mut &[u8], read: &mut Reader<'_>) -> Result<Option<i64>, Fault> {
        if let [b'*', rest @ ..] = *text {
            *text = rest;
            return Ok(Some(i64::from(self.next(4, read)? as i32)));
        }
        let mut value = None;
        while let [digit @ b'0'..=b'9', rest @ ..] = *text {
            let more = value.unwrap_or(0) * 10 + i64::from(digit - b'0');
            value = Some(more.min(MAX_STRING as i64));
            *text = rest;
        }
        Ok(value)
    }
}

/// A conversion specification.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// An integer of 64 bits.
    wide: bool,
    /// How often `h` precedes the conversion.
    narrow: u32,
    /// The conversion's letter; 0 if the text ends before.
    conversion: u8,
}

impl Spec {
    /// Parses what follows `%`. Also returns the text after it.
    fn parse<'t>(
        mut text: &'t [u8],
        arguments: &mut Arguments,
        read: &mut Reader<'_>,
    ) -> Result<(Self, &'t [u8]), Fault> {
        let mut spec = Self::default();
        while let [flag, rest @ ..] = text {
            match flag {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            text = rest;
        }
        if let Some(width) = arguments.number(&mut text, read)? {
            spec.left |= width < 0;
            spec.width = width.unsigned_abs().min(MAX_STRING) as usize;
        }
        if let [b'.', rest @ ..] = text {
            text = rest;
            let precision = arguments.number(&mut text, read)?.unwrap_or(0);
            let precision = usize::try_from(precision).ok();
            spec.precision = precision.map(|precision| precision.min(MAX_STRING as usize));
        }
        while let [length, rest @ ..] = text {
            match length {
                b'l' | b'j' | b'z' | b't' | b'L' => spec.wide = true,
                b'h' => spec.narrow += 1,
                _ => break,
            }
            text = rest;
        }
        if let [conversion, rest @ ..] = text {
            (spec.conversion, text) = (*conversion, rest);
        }
        Ok((spec, text))
    }

    /// Converts the next argument; `false` if this is no conversion.
    fn convert(
        &self,
        arguments: &mut Arguments,
        read: &mut Reader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Fault> {
        let integer = if self.wide { 8 } else { 4 };
        match self.conversion {
            b'%' => out.push(b'%'),
            b'd' | b'i' => {
                let raw = arguments.next(integer, read)?;
                let value = match (self.wide, self.narrow) {
                    (true, _) => raw as i64,
                    (_, 0) => i64::from(raw as i32),
                    (_, 1) => i64::from(raw as i16),
                    _ => i64::from(raw as i8),
                };
                let digits = value.unsigned_abs().to_string();
                self.integer(self.sign(value < 0), digits, out);
            }
            b'u' | b'x' | b'X' | b'o' => {
                let raw = arguments.next(integer, read)?;
                let value = match (self.wide, self.narrow) {
                    (true, _) | (_, 0) => raw,
                    (_, 1) => raw & 0xffff,
                    _ => raw & 0xff,
                };
                self.unsigned(value, out);
            }
            b'c' => self.pad("", &[arguments.next(4, read)? as u8], false, out),
            b's' => {
                let mut bytes = match arguments.next(8, read)? {
                    0 => b"(null)".to_vec(),
                    address => string(address, read)?,
                };
                bytes.truncate(self.precision.unwrap_or(usize::MAX));
                self.pad("", &bytes, false, out);
            }
            b'p' => match arguments.next(8, read)? {
                0 => self.pad("", b"(nil)", false, out),
                value => self.pad("", format!("{value:#x}").as_bytes(), false, out),
            },
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                self.real(f64::from_bits(arguments.next(8, read)?), out);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Pads a number or text; zeros go between sign or prefix and digits.
    fn pad(&self, sign: &str, body: &[u8], zeros: bool, out: &mut Vec<u8>) {
        let fill = self.width.saturating_sub(sign.len() + body.len());
        let (before, zeros, after) = match (self.left, zeros) {
            (true, _) => (0, 0, fill),
            (false, true) => (0, fill, 0),
            (false, false) => (fill, 0, 0),
        };
        out.extend(repeat_n(b' ', before));
        out.extend_from_slice(sign.as_bytes());
        out.extend(repeat_n(b'0', zeros));
        out.extend_from_slice(body);
        out.extend(repeat_n(b' ', after));
    }

    fn sign(&self, negative: bool) -> &'static str {
        match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            _ => "",
        }
    }

    fn integer(&self, sign: &str, mut digits: String, out: &mut Vec<u8>) {
        if let Some(precision) = self.precision {
            // The zero of `%#o` stays.
            let keeps_zero = self.alternate && self.conversion == b'o';
            if precision == 0 && digits == "0" && !keeps_zero {
                digits.clear();
            }
            digits = "0".repeat(precision.saturating_sub(digits.len())) + &digits;
        }
        let zeros = self.zero && self.precision.is_none();
        self.pad(sign, digits.as_bytes(), zeros, out);
    }

    fn unsigned(&self, value: u64, out: &mut Vec<u8>) {
        let is_marked = self.alternate && value != 0;
        let (prefix, digits) = match self.conversion {
            b'x' => ("0x", format!("{value:x}")),
            b'X' => ("0X", format!("{value:X}")),
            // The first digit is zero, which counts for the precision.
            b'o' if is_marked => ("", format!("0{value:o}")),
            b'o' => ("", format!("{value:o}")),
            _ => ("", value.to_string()),
        };
        self.integer(if is_marked { prefix } else { "" }, digits, out);
    }

    fn real(&self, value: f64, out: &mut Vec<u8>) {
        let (v, upper) = (value.abs(), self.conversion.is_ascii_uppercase());
        let sign = self.sign(value.is_sign_negative());
        if !v.is_finite() {
            let body = match (v.is_nan(), upper) {
                (true, false) => "nan",
                (true, true) => "NAN",
                (false, false) => "inf",
                (false, true) => "INF",
            };
            return self.pad(sign, body.as_bytes(), false, out);
        }
        let precision = self.precision.unwrap_or(6);
        let (prefix, body) = match self.conversion.to_ascii_lowercase() {
            b'f' => ("", fixed(v, precision, self.alternate)),
            b'e' => ("", exponential(v, precision, self.alternate, upper)),
            b'g' => ("", general(v, precision, self.alternate, upper)),
            _ => (
                if upper { "0X" } else { "0x" },
                hexadecimal(v, self.precision, self.alternate, upper),
            ),
        };
        self.pad(&format!("{sign}{prefix}"), body.as_bytes(), self.zero, out);
    }
}

/// The point that `#` keeps if no digits follow it.
fn point(alternate: bool, precision: usize) -> &'static str {
    if alternate && precision == 0 { "." } else { "" }
}

/// `%f` of a magnitude.
fn fixed(v: f64, precision: usize, alternate: bool) -> String {
    format!("{v:.precision$}{}", point(alternate, precision))
}

/// `%e` of a magnitude.
fn exponential(v: f64, precision: usize, alternate: bool, upper: bool) -> String {
    let text = format!("{v:.precision$e}");
    let point = point(alternate, precision);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(d) => ('-', d),
        None => ('+', exponent),
    };
    format!(
        "{mantissa}{point}{}{sign}{digits:0>2}",
        if upper { 'E' } else { 'e' }
    )
}

/// `%g` of a magnitude.
fn general(v: f64, precision: usize, alternate: bool, upper: bool) -> String {
    let precision = precision.max(1);
    if v == 0.0 {
        return if alternate {
            fixed(v, precision - 1, alternate)
        } else {
            "0".to_owned()
        };
    }
    let rounded = format!("{v:.*e}", precision - 1);
    let exponent: i32 = rounded
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    let trim = |text: String| {
        if alternate || !text.contains('.') {
            return text;
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= precision as i32 {
        let text = exponential(v, precision - 1, alternate, upper);
        let at = text.find(['e', 'E']).unwrap_or(text.len());
        trim(text[..at].to_owned()) + &text[at..]
    } else {
        let precision = (precision as i32 - 1 - exponent).max(0) as usize;
        trim(fixed(v, precision, alternate))
    }
}

/// `%a` of a magnitude, without `0x`.
fn hexadecimal(v: f64, precision: Option<usize>, alternate: bool, upper: bool) -> String {
    let bits = v.to_bits();
    let (mut exponent, mut fraction) = ((bits >> 52 & 0x7ff) as i64 - 1023, bits & ((1 << 52) - 1));
    let mut lead = 1u64;
    if bits >> 52 & 0x7ff == 0 {
        (lead, exponent) = (0, if fraction == 0 { 0 } else { -1022 });
    }
    let mut digits = format!("{fraction:013x}");
    match precision {
        Some(p) if p < 13 => {
            let drop = 4 * (13 - p as u32);
            let whole = lead << 52 | fraction;
            let (mut kept, rest, half) =
                (whole >> drop, whole & ((1 << drop) - 1), 1u64 << (drop - 1));
            kept += u64::from(rest > half || rest == half && kept & 1 != 0);
            lead = kept >> (4 * p);
            fraction = kept & ((1u64 << (4 * p)) - 1);
            digits = if p == 0 {
                String::new()
            } else {
                format!("{fraction:0p$x}")
            };
        }
        Some(p) => digits += &"0".repeat(p - 13),
        None => digits = digits.trim_end_matches('0').to_owned(),
    }
    let dot = point(alternate || !digits.is_empty(), 0);
    let text = format!("{lead}{dot}{digits}p{exponent:+}");
    if upper { text.to_uppercase() } else { text }
}

/// Formats one `printf` call. Also returns the number of arguments used, which is the
/// result of `printf` in a kernel (CUDA C++ Programming Guide, "Formatted Output").
/// Arguments are packed at `arguments`, each with its natural alignment.
///
/// # Errors
/// Errors of the reader.
pub fn format(format: u64, arguments: u64, read: &mut Reader<'_>) -> Result<(Vec<u8>, u32), Fault> {
    let text = string(format, read)?;
    let mut arguments = Arguments {
        first: arguments,
        offset: 0,
        count: 0,
    };
    let mut out = Vec::new();
    let mut rest = text.as_slice();
    while let [c, after @ ..] = rest {
        if *c != b'%' {
            out.push(*c);
            rest = after;
            continue;
        }
        let (spec, after) = Spec::parse(after, &mut arguments, read)?;
        if !spec.convert(&mut arguments, read, &mut out)? {
            // As written.
            out.extend_from_slice(rest.strip_suffix(after).unwrap_or_default());
        }
        rest = after;
    }
    Ok((out, arguments.count))
}
