//! Constant expressions (PTX ISA 4.5.5). Values are 64 bits wide; literals too large for a
//! signed one, and casts, make an operation unsigned.

use super::{MAX_DEPTH, Parser, Result};
use crate::ptx::ast::Operand;
use crate::ptx::lexer::Token;

/// Threads of a warp.
const WARP_SIZE: u64 = 32;

/// A value and whether it is unsigned.
#[derive(Clone, Copy)]
struct Value {
    bits: u64,
    unsigned: bool,
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self {
            bits: u64::from(value),
            unsigned: false,
        }
    }
}

/// Binary operators, those that bind less first.
const OPERATORS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

fn apply(operator: &str, a: Value, b: Value) -> Option<Value> {
    let unsigned = a.unsigned || b.unsigned;
    let (x, y) = (a.bits, b.bits);
    let (s, t) = (x as i64, y as i64);
    let ordered = match unsigned {
        true => x.cmp(&y),
        false => s.cmp(&t),
    };
    // A shift by the width or more leaves nothing, or the sign.
    let amount = u32::try_from(y).unwrap_or(u32::MAX);
    let bits = match operator {
        "||" => return Some(Value::from(x != 0 || y != 0)),
        "&&" => return Some(Value::from(x != 0 && y != 0)),
        "==" => return Some(Value::from(x == y)),
        "!=" => return Some(Value::from(x != y)),
        "<" => return Some(Value::from(ordered.is_lt())),
        "<=" => return Some(Value::from(ordered.is_le())),
        ">" => return Some(Value::from(ordered.is_gt())),
        ">=" => return Some(Value::from(ordered.is_ge())),
        "<<" => {
            let bits = x.checked_shl(amount).unwrap_or(0);
            return Some(Value { bits, ..a });
        }
        ">>" => {
            let bits = match a.unsigned {
                true => x.checked_shr(amount).unwrap_or(0),
                false => (s >> amount.min(63)) as u64,
            };
            return Some(Value { bits, ..a });
        }
        "|" => x | y,
        "^" => x ^ y,
        "&" => x & y,
        "+" => x.wrapping_add(y),
        "-" => x.wrapping_sub(y),
        "*" => x.wrapping_mul(y),
        "/" if unsigned => x.checked_div(y)?,
        "/" if y != 0 => s.wrapping_div(t) as u64,
        "%" if unsigned => x.checked_rem(y)?,
        "%" if y != 0 => s.wrapping_rem(t) as u64,
        _ => return None,
    };
    Some(Value { bits, unsigned })
}

impl<'a> Parser<'a> {
    /// Whether a constant expression begins here, and not a register or symbol.
    pub(super) fn at_constant(&self) -> bool {
        match self.peek() {
            Some(Token::Int(_) | Token::F32(_) | Token::F64(_)) => true,
            Some(Token::Punct(c)) => matches!(c, b'-' | b'+' | b'~' | b'!' | b'('),
            Some(Token::Word("WARP_SZ")) => {
                let next = self.peek_at(1);
                matches!(next, Some(Token::Punct(c)) if !matches!(c, b',' | b';' | b')' | b'}' | b']'))
            }
            _ => false,
        }
    }

    /// An integer or floating-point constant.
    pub(super) fn constant(&mut self) -> Result<Operand<'a>> {
        let at = self.at;
        let mut negative = false;
        while self.eat(b'-') {
            negative = !negative;
        }
        match self.next() {
            Some(Token::F32(v)) => {
                return Ok(Operand::F32(v ^ (u32::from(negative) << 31)));
            }
            Some(Token::F64(v)) => {
                return Ok(Operand::F64(v ^ (u64::from(negative) << 63)));
            }
            _ => self.at = at,
        }
        Ok(Operand::Int(self.expression()?))
    }

    /// A constant expression of integers.
    pub(super) fn expression(&mut self) -> Result<u64> {
        // Nearly always it is a lone literal. Large modules have millions of them.
        if let (Some(Token::Int(bits)), Some(Token::Punct(b',' | b';' | b'}' | b']'))) =
            (self.peek(), self.peek_at(1))
        {
            self.at += 1;
            return Ok(bits);
        }
        Ok(self.conditional()?.bits)
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail("nested too deeply");
        }
        let value = inner(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn conditional(&mut self) -> Result<Value> {
        let condition = self.binary(0)?;
        if !self.eat(b'?') {
            return Ok(condition);
        }
        let yes = self.nested(Self::conditional)?;
        self.expect(b':')?;
        let no = self.nested(Self::conditional)?;
        let bits = if condition.bits != 0 {
            yes.bits
        } else {
            no.bits
        };
        Ok(Value {
            bits,
            unsigned: yes.unsigned || no.unsigned,
        })
    }

    /// Takes one of `operators`.
    fn eat_operator(&mut self, operators: &[&'static str]) -> Option<&'static str> {
        let found = operators.iter().copied().find(|operator| {
            let mut bytes = operator.bytes().enumerate();
            bytes.all(|(n, byte)| self.peek_at(n) == Some(Token::Punct(byte)))
        })?;
        // `a | b` and `a || b`, `a < b` and `a << b`.
        let after = self.peek_at(found.len());
        let doubled = matches!(found, "|" | "&" | "<" | ">")
            && after == found.bytes().next().map(Token::Punct);
        if doubled {
            return None;
        }
        self.at += found.len();
        Some(found)
    }

    fn binary(&mut self, level: usize) -> Result<Value> {
        let Some(operators) = OPERATORS.get(level) else {
            return self.unary();
        };
        let mut value = self.binary(level + 1)?;
        while let Some(operator) = self.eat_operator(operators) {
            let right = self.binary(level + 1)?;
            value = match apply(operator, value, right) {
                Some(value) => value,
                None => return self.fail("division by zero"),
            };
        }
        Ok(value)
    }

    fn unary(&mut self) -> Result<Value> {
        for operator in [b'-', b'+', b'~', b'!'] {
            if !self.eat(operator) {
                continue;
            }
            let value = self.nested(Self::unary)?;
            let bits = match operator {
                b'-' => value.bits.wrapping_neg(),
                b'~' => !value.bits,
                b'!' => return Ok(Value::from(value.bits == 0)),
                _ => value.bits,
            };
            return Ok(Value { bits, ..value });
        }
        if self.eat(b'(') {
            for (cast, unsigned) in [(".s64", false), (".u64", true)] {
                if self.eat_word(cast) {
                    self.expect(b')')?;
                    let value = self.nested(Self::unary)?;
                    return Ok(Value { unsigned, ..value });
                }
            }
            let value = self.nested(Self::conditional)?;
            self.expect(b')')?;
            return Ok(value);
        }
        match self.next() {
            Some(Token::Int(bits)) => Ok(Value {
                bits,
                unsigned: bits > i64::MAX as u64,
            }),
            Some(Token::Word("WARP_SZ")) => Ok(Value {
                bits: WARP_SIZE,
                unsigned: false,
            }),
            _ => {
                self.at -= 1;
                self.fail("expected a constant")
            }
        }
    }

    /// The sum of the constants behind a name, which may be absent.
    pub(super) fn offset(&mut self) -> Result<i64> {
        let mut sum = 0i64;
        loop {
            let subtract = match self.peek() {
                Some(Token::Punct(b'+')) => false,
                Some(Token::Punct(b'-')) => true,
                _ => return Ok(sum),
            };
            self.at += 1;
            // Products bind before the sum.
            let term = self.binary(OPERATORS.len() - 1)?.bits as i64;
            sum = match subtract {
                true => sum.wrapping_sub(term),
                false => sum.wrapping_add(term),
            };
        }
    }
}
