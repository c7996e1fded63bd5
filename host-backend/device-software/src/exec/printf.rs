//! Output of kernels: `vprintf`, formatted on the host.

use crate::error::Fault;
use parking_lot::Mutex;
use std::io::Write;

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

#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

impl Spec {
    /// Pads a number or text; zeros go between sign or prefix and digits.
    fn pad(&self, sign: &str, body: &str, zeros: bool, out: &mut Vec<u8>) {
        let length = sign.len() + body.len();
        let fill = self.width.saturating_sub(length);
        let spaces = |out: &mut Vec<u8>, n: usize| out.extend(std::iter::repeat_n(b' ', n));
        if self.left {
            let _ = write!(out, "{sign}{body}");
            spaces(out, fill);
        } else if zeros {
            let _ = write!(out, "{sign}{}{body}", "0".repeat(fill));
        } else {
            spaces(out, fill);
            let _ = write!(out, "{sign}{body}");
        }
    }

    fn sign(&self, negative: bool) -> &'static str {
        match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            _ => "",
        }
    }

    fn integer(&self, sign: &str, digits: String, out: &mut Vec<u8>) {
        let mut digits = digits;
        if let Some(precision) = self.precision {
            if precision == 0 && digits == "0" {
                digits.clear();
            }
            digits = "0".repeat(precision.saturating_sub(digits.len())) + &digits;
        }
        self.pad(sign, &digits, self.zero && self.precision.is_none(), out);
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
    let mut out = Vec::new();
    let mut offset = 0u64;
    let mut count = 0u32;
    let mut at = 0;
    let mut argument = |width: u8, read: &mut Reader<'_>| {
        offset = offset.next_multiple_of(u64::from(width));
        let value = read(arguments.wrapping_add(offset), width);
        offset += u64::from(width);
        count += 1;
        value
    };
    while let Some(&c) = text.get(at) {
        at += 1;
        if c != b'%' {
            out.push(c);
            continue;
        }
        let start = at - 1;
        let mut spec = Spec::default();
        while let Some(&flag) = text.get(at) {
            match flag {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            at += 1;
        }
        let mut number = |at: &mut usize, read: &mut Reader<'_>| -> Result<Option<i64>, Fault> {
            if text.get(*at) == Some(&b'*') {
                *at += 1;
                return Ok(Some(i64::from(argument(4, read)? as i32)));
            }
            let mut value = None;
            while let Some(d) = text.get(*at).filter(|d| d.is_ascii_digit()) {
                value =
                    Some((value.unwrap_or(0) * 10 + i64::from(d - b'0')).min(MAX_STRING as i64));
                *at += 1;
            }
            Ok(value)
        };
        if let Some(width) = number(&mut at, read)? {
            spec.left |= width < 0;
            spec.width = width.unsigned_abs().min(MAX_STRING) as usize;
        }
        if text.get(at) == Some(&b'.') {
            at += 1;
            let precision = number(&mut at, read)?.unwrap_or(0);
            spec.precision = usize::try_from(precision)
                .ok()
                .map(|p| p.min(MAX_STRING as usize));
        }
        let mut wide = false;
        let mut narrow = 0;
        while let Some(&m) = text.get(at) {
            match m {
                b'l' | b'j' | b'z' | b't' | b'L' => wide = true,
                b'h' => narrow += 1,
                _ => break,
            }
            at += 1;
        }
        let conversion = text.get(at).copied().unwrap_or(0);
        at += 1;
        match conversion {
            b'%' => out.push(b'%'),
            b'd' | b'i' => {
                let raw = argument(if wide { 8 } else { 4 }, read)?;
                let value = match (wide, narrow) {
                    (true, _) => raw as i64,
                    (_, 0) => i64::from(raw as i32),
                    (_, 1) => i64::from(raw as i16),
                    _ => i64::from(raw as i8),
                };
                spec.integer(
                    spec.sign(value < 0),
                    value.unsigned_abs().to_string(),
                    &mut out,
                );
            }
            b'u' | b'x' | b'X' | b'o' => {
                let raw = argument(if wide { 8 } else { 4 }, read)?;
                let value = match (wide, narrow) {
                    (true, _) | (_, 0) => raw,
                    (_, 1) => raw & 0xffff,
                    _ => raw & 0xff,
                };
                let prefix = match conversion {
                    b'x' if spec.alternate && value != 0 => "0x",
                    b'X' if spec.alternate && value != 0 => "0X",
                    _ => "",
                };
                if conversion == b'o' && spec.alternate {
                    spec.precision = spec.precision.map(|precision| precision.max(1));
                }
                let digits = match conversion {
                    b'x' => format!("{value:x}"),
                    b'X' => format!("{value:X}"),
                    // The first digit is zero, which counts for the precision.
                    b'o' if spec.alternate && value != 0 => format!("0{value:o}"),
                    b'o' => format!("{value:o}"),
                    _ => value.to_string(),
                };
                spec.integer(prefix, digits, &mut out);
            }
            b'c' => {
                let value = argument(4, read)? as u8;
                let fill = spec.width.saturating_sub(1);
                if !spec.left {
                    out.extend(std::iter::repeat_n(b' ', fill));
                }
                out.push(value);
                if spec.left {
                    out.extend(std::iter::repeat_n(b' ', fill));
                }
            }
            b's' => {
                let address = argument(8, read)?;
                let mut bytes = if address == 0 {
                    b"(null)".to_vec()
                } else {
                    string(address, read)?
                };
                bytes.truncate(spec.precision.unwrap_or(usize::MAX));
                let fill = spec.width.saturating_sub(bytes.len());
                if !spec.left {
                    out.extend(std::iter::repeat_n(b' ', fill));
                }
                out.extend_from_slice(&bytes);
                if spec.left {
                    out.extend(std::iter::repeat_n(b' ', fill));
                }
            }
            b'p' => {
                let value = argument(8, read)?;
                let body = if value == 0 {
                    "(nil)".to_owned()
                } else {
                    format!("{value:#x}")
                };
                spec.pad("", &body, false, &mut out);
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(argument(8, read)?);
                let upper = conversion.is_ascii_uppercase();
                let sign = spec.sign(value.is_sign_negative());
                let v = value.abs();
                if !v.is_finite() {
                    let body = if v.is_nan() { "nan" } else { "inf" };
                    let body = if upper {
                        body.to_uppercase()
                    } else {
                        body.to_owned()
                    };
                    spec.pad(sign, &body, false, &mut out);
                    continue;
                }
                let precision = spec.precision.unwrap_or(6);
                let body = match conversion.to_ascii_lowercase() {
                    b'f' => fixed(v, precision, spec.alternate),
                    b'e' => exponential(v, precision, spec.alternate, upper),
                    b'g' => general(v, precision, spec.alternate, upper),
                    _ => hexadecimal(v, spec.precision, spec.alternate, upper),
                };
                let sign = match conversion {
                    b'a' => format!("{sign}0x"),
                    b'A' => format!("{sign}0X"),
                    _ => sign.to_owned(),
                };
                spec.pad(&sign, &body, spec.zero, &mut out);
            }
            // Not a conversion: as written.
            _ => out.extend_from_slice(text.get(start..at.min(text.len())).unwrap_or_default()),
        }
    }
    Ok((out, count))
}
