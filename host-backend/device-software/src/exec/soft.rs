//! Exact binary floating point with every rounding mode, for operations that the host
//! lacks.
//!
//! IEEE 754-2019: a finite value is `mantissa * 2^exponent`; operations are computed
//! exactly in 128 bits (with a sticky bit) and rounded once.

/// Formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Format {
    F16,
    Bf16,
    F32,
    F64,
    /// Single precision with a mantissa of 11 bits, in the upper 19 bits of a register.
    Tf32,
}

/// Rounding modes: `.rn`, `.rz`, `.rm`, `.rp`, `.rna`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
    NearestAway,
}

/// Operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    Rcp,
    Sqrt,
}

/// Source of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum From {
    S64,
    U64,
    F32,
    F64,
}

fn pick<T: Copy, const N: usize>(list: [T; N], bits: u64) -> T {
    list[(bits & 0xff) as usize % N]
}

const FORMATS: [Format; 5] = [
    Format::F16,
    Format::Bf16,
    Format::F32,
    Format::F64,
    Format::Tf32,
];
const MODES: [Rounding; 5] = [
    Rounding::Nearest,
    Rounding::Zero,
    Rounding::Down,
    Rounding::Up,
    Rounding::NearestAway,
];

impl Rounding {
    /// Inverse of `as u64`.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        pick(MODES, bits)
    }
}

/// An operation as an instruction's immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    /// Operation.
    pub kind: Kind,
    /// Format of sources and result.
    pub format: Format,
    /// Rounding.
    pub mode: Rounding,
    /// Flush subnormal sources and results.
    pub ftz: bool,
}

impl Recipe {
    /// As an immediate.
    #[must_use]
    pub fn pack(self) -> u64 {
        self.kind as u64
            | (self.format as u64) << 8
            | (self.mode as u64) << 16
            | u64::from(self.ftz) << 24
    }

    /// From an immediate.
    #[must_use]
    pub fn unpack(bits: u64) -> Self {
        let kinds = [
            Kind::Add,
            Kind::Sub,
            Kind::Mul,
            Kind::Fma,
            Kind::Div,
            Kind::Rcp,
            Kind::Sqrt,
        ];
        Self {
            kind: pick(kinds, bits),
            format: pick(FORMATS, bits >> 8),
            mode: pick(MODES, bits >> 16),
            ftz: bits >> 24 & 1 != 0,
        }
    }

    /// Executes it on bit patterns.
    #[must_use]
    pub fn run(self, a: u64, b: u64, c: u64) -> u64 {
        let f = self.format;
        let [a, b, c] = if self.ftz {
            [a, b, c].map(|v| flush(f, v))
        } else {
            [a, b, c]
        };
        let sign = 1u64 << (f.bits() - 1);
        let result = match self.kind {
            Kind::Add => fma(f, a, f.one(), b, self.mode),
            Kind::Sub if is_nan(f, b) => fma(f, a, f.one(), b, self.mode),
            Kind::Sub => fma(f, a, f.one(), b ^ sign, self.mode),
            // A zero addend with the product's sign preserves the sign.
            Kind::Mul => fma(f, a, b, (a ^ b) & sign, self.mode),
            // The order in which NVIDIA's devices select a NaN.
            Kind::Fma => first_nan(f, &[b, c, a]).unwrap_or_else(|| fma(f, a, b, c, self.mode)),
            Kind::Div => div(f, a, b, self.mode),
            Kind::Rcp => div(f, f.one(), a, self.mode),
            Kind::Sqrt => sqrt(f, a, self.mode),
        };
        if self.ftz { flush(f, result) } else { result }
    }
}

/// A conversion to a floating format as an instruction's immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conversion {
    /// Source type.
    pub from: From,
    /// Result format.
    pub to: Format,
    /// Rounding.
    pub mode: Rounding,
    /// Flush subnormal results of single precision.
    pub ftz: bool,
}

impl Conversion {
    /// As an immediate.
    #[must_use]
    pub fn pack(self) -> u64 {
        self.from as u64
            | (self.to as u64) << 8
            | (self.mode as u64) << 16
            | u64::from(self.ftz) << 24
    }

    /// From an immediate.
    #[must_use]
    pub fn unpack(bits: u64) -> Self {
        Self {
            from: pick([From::S64, From::U64, From::F32, From::F64], bits),
            to: pick(FORMATS, bits >> 8),
            mode: pick(MODES, bits >> 16),
            ftz: bits >> 24 & 1 != 0,
        }
    }

    /// Executes it on a bit pattern.
    #[must_use]
    pub fn run(self, a: u64) -> u64 {
        let result = match self.from {
            From::U64 | From::S64 => {
                let negative = self.from == From::S64 && (a as i64) < 0;
                let magnitude = if negative { a.wrapping_neg() } else { a };
                if magnitude == 0 {
                    0
                } else {
                    pack(
                        self.to,
                        negative,
                        0,
                        u128::from(magnitude),
                        false,
                        self.mode,
                    )
                }
            }
            From::F32 | From::F64 => {
                let source = if self.from == From::F32 {
                    Format::F32
                } else {
                    Format::F64
                };
                match parts(source, a) {
                    Parts::Nan if self.from == From::F64 && self.to == Format::F32 => {
                        u64::from(super::lanes::narrowed(a))
                    }
                    Parts::Nan if self.from == From::F64 && self.to == Format::F16 => {
                        a >> 63 << 15 | self.to.nan()
                    }
                    // Only the oldest rounding to tf32 truncates a NaN instead of replacing
                    // it.
                    Parts::Nan if self.to == Format::Tf32 && self.mode == Rounding::NearestAway => {
                        a >> 13
                    }
                    Parts::Nan => self.to.nan(),
                    Parts::Infinite(s) => self.to.infinity(s),
                    Parts::Zero(s) => self.to.zero(s),
                    Parts::Finite(s, e, m) => pack(self.to, s, e, u128::from(m), false, self.mode),
                }
            }
        };
        match self.to {
            Format::F32 if self.ftz => flush(self.to, result),
            Format::Tf32 => result << 13,
            _ => result,
        }
    }
}

impl Format {
    /// Width in bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 16,
            Self::Tf32 => 19,
            Self::F32 => 32,
            Self::F64 => 64,
        }
    }

    /// Bits of the mantissa with the hidden one.
    fn precision(self) -> u32 {
        match self {
            Self::F16 | Self::Tf32 => 11,
            Self::Bf16 => 8,
            Self::F32 => 24,
            Self::F64 => 53,
        }
    }

    /// Exponent of the least significant bit of subnormals.
    fn least(self) -> i32 {
        match self {
            Self::F16 => -24,
            Self::Bf16 => -133,
            Self::Tf32 => -136,
            Self::F32 => -149,
            Self::F64 => -1074,
        }
    }

    /// All-ones exponent field.
    fn top(self) -> u64 {
        (1 << (self.bits() - self.precision())) - 1
    }

    fn zero(self, sign: bool) -> u64 {
        u64::from(sign) << (self.bits() - 1)
    }

    fn infinity(self, sign: bool) -> u64 {
        self.zero(sign) | self.top() << (self.precision() - 1)
    }

    fn one(self) -> u64 {
        (self.top() >> 1) << (self.precision() - 1)
    }

    /// The greatest finite value as a single, if it is less than that of singles.
    #[must_use]
    pub fn greatest(self) -> Option<u32> {
        match self {
            Self::F16 => Some(65504f32.to_bits()),
            Self::Bf16 => Some(0x7f7f_0000),
            Self::Tf32 => Some(0x7f7f_e000),
            Self::F32 | Self::F64 => None,
        }
    }

    /// The NaN that invalid operations return.
    #[must_use]
    pub fn nan(self) -> u64 {
        match self {
            Self::F16 | Self::Bf16 => 0x7fff,
            Self::Tf32 => 0x3ffff,
            Self::F32 => 0x7fff_ffff,
            Self::F64 => 0xfff8_0000_0000_0000,
        }
    }
}

enum Parts {
    Nan,
    Infinite(bool),
    Zero(bool),
    Finite(bool, i32, u64),
}

fn parts(f: Format, bits: u64) -> Parts {
    let fraction_bits = f.precision() - 1;
    let sign = bits >> (f.bits() - 1) & 1 != 0;
    let exponent = bits >> fraction_bits & f.top();
    let fraction = bits & ((1 << fraction_bits) - 1);
    if exponent == f.top() {
        return if fraction == 0 {
            Parts::Infinite(sign)
        } else {
            Parts::Nan
        };
    }
    match (exponent, fraction) {
        (0, 0) => Parts::Zero(sign),
        (0, m) => Parts::Finite(sign, f.least(), m),
        (e, m) => Parts::Finite(sign, f.least() + e as i32 - 1, m | 1 << fraction_bits),
    }
}

fn is_nan(f: Format, bits: u64) -> bool {
    matches!(parts(f, bits), Parts::Nan)
}

/// Subnormals become zero of the same sign.
#[must_use]
pub fn flush(f: Format, bits: u64) -> u64 {
    let fraction_bits = f.precision() - 1;
    if bits >> fraction_bits & f.top() == 0 {
        bits & (1 << (f.bits() - 1))
    } else {
        bits
    }
}

/// Rounds `mantissa * 2^exponent`; with `sticky`, the exact magnitude is slightly larger.
/// `mantissa` is not zero; with `sticky`, it has at least two more bits than the format.
fn pack(f: Format, sign: bool, exponent: i32, mantissa: u128, sticky: bool, mode: Rounding) -> u64 {
    let p = f.precision();
    let length = 128 - mantissa.leading_zeros();
    let mut last = (exponent + length as i32 - p as i32).max(f.least());
    let shift = last - exponent;
    let (mut q, rest, half) = if shift <= 0 {
        (mantissa << shift.unsigned_abs(), 0, 1)
    } else if shift < 128 {
        (
            mantissa >> shift,
            mantissa & ((1 << shift) - 1),
            1u128 << (shift - 1),
        )
    } else {
        (0, 1, 2)
    };
    let inexact = rest != 0 || sticky;
    let up = match mode {
        Rounding::Nearest => rest > half || rest == half && shift > 0 && (sticky || q & 1 != 0),
        Rounding::NearestAway => shift > 0 && rest >= half,
        Rounding::Zero => false,
        Rounding::Down => sign && inexact,
        Rounding::Up => !sign && inexact,
    };
    q += u128::from(up);
    if q >> p != 0 {
        q >>= 1;
        last += 1;
    }
    let normal = q >> (p - 1) != 0;
    let field = if normal {
        (last - f.least() + 1) as u64
    } else {
        0
    };
    if field >= f.top() {
        let to_infinity = match mode {
            Rounding::Nearest | Rounding::NearestAway => true,
            Rounding::Zero => false,
            Rounding::Down => sign,
            Rounding::Up => !sign,
        };
        return f.infinity(sign) - u64::from(!to_infinity);
    }
    f.zero(sign) | field << (p - 1) | (q as u64 & ((1 << (p - 1)) - 1))
}

fn first_nan(f: Format, operands: &[u64]) -> Option<u64> {
    let nan = operands.iter().copied().find(|&v| is_nan(f, v))?;
    Some(if f == Format::F64 {
        nan | 1 << 51
    } else {
        f.nan()
    })
}

fn fma(f: Format, a: u64, b: u64, c: u64, mode: Rounding) -> u64 {
    if let Some(nan) = first_nan(f, &[a, b, c]) {
        return nan;
    }
    let (pa, pb, pc) = (parts(f, a), parts(f, b), parts(f, c));
    let sign_of = |p: &Parts| match *p {
        Parts::Infinite(s) | Parts::Zero(s) | Parts::Finite(s, ..) => s,
        Parts::Nan => false,
    };
    let product_sign = sign_of(&pa) != sign_of(&pb);
    let infinite = matches!(pa, Parts::Infinite(_)) || matches!(pb, Parts::Infinite(_));
    let zero = matches!(pa, Parts::Zero(_)) || matches!(pb, Parts::Zero(_));
    if infinite {
        return match pc {
            _ if zero => f.nan(),
            Parts::Infinite(s) if s != product_sign => f.nan(),
            _ => f.infinity(product_sign),
        };
    }
    if let Parts::Infinite(s) = pc {
        return f.infinity(s);
    }
    let exact_zero = |x: bool, y: bool| f.zero(if x == y { x } else { mode == Rounding::Down });
    let (Parts::Finite(_, ea, ma), Parts::Finite(_, eb, mb)) = (&pa, &pb) else {
        return match pc {
            Parts::Zero(s) => exact_zero(product_sign, s),
            _ => c,
        };
    };
    let product = u128::from(*ma) * u128::from(*mb);
    let product_exponent = ea + eb;
    let Parts::Finite(sc, ec, mc) = pc else {
        return pack(f, product_sign, product_exponent, product, false, mode);
    };
    // Both with their first bit at 125, so that a sum fits and few bits are lost.
    let normal = |m: u128, e: i32| {
        let left = m.leading_zeros() - 2;
        (m << left, e - left as i32)
    };
    let (p, pe) = normal(product, product_exponent);
    let (q, qe) = normal(u128::from(mc), ec);
    let jam = |m: u128, by: u32| {
        if by >= 128 {
            u128::from(m != 0)
        } else {
            m >> by | u128::from(m & ((1 << by) - 1) != 0)
        }
    };
    let (p, q, e) = if pe >= qe {
        (p, jam(q, (pe - qe) as u32), pe)
    } else {
        (jam(p, (qe - pe) as u32), q, qe)
    };
    if product_sign == sc {
        return pack(f, sc, e, p + q, false, mode);
    }
    match p.cmp(&q) {
        std::cmp::Ordering::Equal => exact_zero(product_sign, sc),
        std::cmp::Ordering::Greater => pack(f, product_sign, e, p - q, false, mode),
        std::cmp::Ordering::Less => pack(f, sc, e, q - p, false, mode),
    }
}

fn div(f: Format, a: u64, b: u64, mode: Rounding) -> u64 {
    if let Some(nan) = first_nan(f, &[a, b]) {
        return nan;
    }
    let sign = (a ^ b) >> (f.bits() - 1) & 1 != 0;
    match (parts(f, a), parts(f, b)) {
        (Parts::Finite(_, ea, ma), Parts::Finite(_, eb, mb)) => {
            let left = 116 - (64 - ma.leading_zeros());
            let (dividend, divisor) = (u128::from(ma) << left, u128::from(mb));
            let quotient = dividend / divisor;
            pack(
                f,
                sign,
                ea - eb - left as i32,
                quotient,
                dividend % divisor != 0,
                mode,
            )
        }
        (Parts::Infinite(_), Parts::Infinite(_)) | (Parts::Zero(_), Parts::Zero(_)) => f.nan(),
        (Parts::Infinite(_), _) | (_, Parts::Zero(_)) => f.infinity(sign),
        _ => f.zero(sign),
    }
}

fn sqrt(f: Format, a: u64, mode: Rounding) -> u64 {
    if let Some(nan) = first_nan(f, &[a]) {
        return nan;
    }
    match parts(f, a) {
        Parts::Zero(_) | Parts::Infinite(false) => a,
        Parts::Finite(false, e, m) => {
            let mut left = m.leading_zeros() as i32 + 60;
            left += (e - left) & 1;
            let wide = u128::from(m) << left;
            let root = wide.isqrt();
            pack(f, false, (e - left) / 2, root, root * root != wide, mode)
        }
        _ => f.nan(),
    }
}

/// Half precision to single; exact.
#[must_use]
#[inline(always)]
pub fn f16_to_f32(bits: u32) -> f32 {
    let magnitude = bits & 0x7fff;
    // The exponent's bias is 15 instead of 127; scaling also handles subnormals.
    let finite = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    let value = match magnitude {
        0..0x7c00 => finite.to_bits(),
        0x7c00 => f32::INFINITY.to_bits(),
        _ => 0x7fff_ffff,
    };
    // NaN has no sign.
    let sign = match magnitude {
        0..=0x7c00 => (bits & 0x8000) << 16,
        _ => 0,
    };
    f32::from_bits(value | sign)
}

/// Single precision to a 16-bit format, to nearest.
#[must_use]
pub fn f32_to_half(format: Format, value: f32) -> u32 {
    let conversion = Conversion {
        from: From::F32,
        to: format,
        mode: Rounding::Nearest,
        ftz: false,
    };
    conversion.run(u64::from(value.to_bits())) as u32
}
