//! Parser of PTX modules. It is total: any text results in a module or an error, in bounded
//! memory.

mod expression;
mod statement;

use super::ast::{Function, Init, Module, Operand, Space, Type, Var};
use super::lexer::{Spanned, Token, lex};
use crate::error::PtxError;
use crate::program::Bounds;

const MAX_DEPTH: u32 = 64;
/// Maximum number of elements of an array.
const MAX_COUNT: u64 = 1 << 36;

type Result<T> = std::result::Result<T, PtxError>;

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Spanned>,
    at: usize,
    depth: u32,
    /// The first construct of the function at hand that this parser does not know.
    unserved: Option<(u32, String)>,
    /// Whether the instruction at hand is a call, in which parentheses enclose lists.
    in_call: bool,
}

/// Parses a whole module.
///
/// # Errors
/// [`PtxError`] with the line of the first malformed or unsupported construct.
pub fn parse(text: &str) -> Result<Module<'_>> {
    let mut parser = Parser {
        text,
        tokens: lex(text)?,
        at: 0,
        depth: 0,
        unserved: None,
        in_call: false,
    };
    parser.module()
}

/// The modifiers before the name of a variable or register.
#[derive(Clone, Copy)]
struct TypePart<'a> {
    ty: Type,
    width: u32,
    align: Option<u64>,
    managed: bool,
    /// A type that this device does not have.
    unserved: Option<&'a str>,
}

#[derive(Default, Clone, Copy)]
struct Linkage {
    external: bool,
    /// Whether other modules see it.
    seen: bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|s| s.token(self.text))
    }

    fn peek_at(&self, n: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + n).map(|s| s.token(self.text))
    }

    fn line(&self) -> u32 {
        self.tokens
            .get(self.at)
            .or(self.tokens.last())
            .map_or(0, |s| s.line)
    }

    fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn fail<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(PtxError::invalid(self.line(), what))
    }

    fn eat(&mut self, c: u8) -> bool {
        let hit = self.peek() == Some(Token::Punct(c));
        if hit {
            self.at += 1;
        }
        hit
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let hit = self.peek() == Some(Token::Word(word));
        if hit {
            self.at += 1;
        }
        hit
    }

    fn expect(&mut self, c: u8) -> Result<()> {
        if self.eat(c) {
            Ok(())
        } else {
            self.fail(format!("expected '{}'", char::from(c)))
        }
    }

    fn word(&mut self) -> Result<&'a str> {
        match self.next() {
            Some(Token::Word(w)) => Ok(w),
            _ => {
                self.at -= 1;
                self.fail("expected a name")
            }
        }
    }

    fn integer(&mut self) -> Result<u64> {
        let negative = self.eat(b'-');
        match self.next() {
            Some(Token::Int(v)) => Ok(if negative { v.wrapping_neg() } else { v }),
            _ => {
                self.at -= 1;
                self.fail("expected an integer")
            }
        }
    }

    /// Notes that the function at hand needs something that this parser does not know.
    fn note(&mut self, line: u32, what: impl Into<String>) {
        self.unserved.get_or_insert_with(|| (line, what.into()));
    }

    fn skip_to_semicolon(&mut self) -> Result<()> {
        while let Some(token) = self.next() {
            if token == Token::Punct(b';') {
                return Ok(());
            }
        }
        self.fail("expected ';'")
    }

    fn module(&mut self) -> Result<Module<'a>> {
        let mut module = Module::default();
        let mut linkage = Linkage::default();
        while let Some(token) = self.peek() {
            let line = self.line();
            let Token::Word(word) = token else {
                if self.eat(b';') {
                    continue;
                }
                return self.fail("expected a directive");
            };
            match word {
                ".version" => {
                    self.at += 1;
                    module.version = match self.next() {
                        Some(Token::F64(bits)) => (f64::from_bits(bits) * 10.0).round() as u32,
                        Some(Token::Int(v)) => {
                            u32::try_from(v).unwrap_or(u32::MAX).saturating_mul(10)
                        }
                        _ => return self.fail("malformed .version"),
                    };
                }
                ".target" => {
                    self.at += 1;
                    loop {
                        let name = self.word()?;
                        if let Some(arch) = name.strip_prefix("sm_") {
                            let digits: String =
                                arch.chars().take_while(char::is_ascii_digit).collect();
                            module.target = digits.parse().unwrap_or(0);
                        }
                        if !self.eat(b',') {
                            break;
                        }
                    }
                }
                ".address_size" => {
                    self.at += 1;
                    if self.integer()? != 64 {
                        return Err(PtxError::unsupported(line, "32-bit addresses"));
                    }
                }
                ".extern" => {
                    self.at += 1;
                    linkage.external = true;
                }
                ".visible" | ".weak" | ".common" => {
                    self.at += 1;
                    linkage.seen = true;
                }
                ".file" => {
                    self.at += 1;
                    self.integer()?;
                    self.next();
                    while self.eat(b',') {
                        self.next();
                    }
                }
                ".section" => {
                    self.at += 1;
                    // The lexer splits a name with several dots.
                    while self.peek() != Some(Token::Punct(b'{')) {
                        self.word()?;
                    }
                    self.skip_braces()?;
                }
                ".pragma" => self.skip_to_semicolon()?,
                ".func" | ".entry" => {
                    self.at += 1;
                    let function = self.function(word == ".entry")?;
                    let is_own = !linkage.seen && !linkage.external && !function.entry;
                    if is_own && function.body.is_some() {
                        module.own.push(function.name);
                    }
                    module.functions.push(function);
                    linkage = Linkage::default();
                }
                ".global" | ".const" | ".shared" | ".local" | ".tex" => {
                    self.at += 1;
                    let space = match word {
                        ".const" => Space::Const,
                        ".shared" => Space::Shared,
                        _ => Space::Global,
                    };
                    let first = module.variables.len();
                    self.variables(space, linkage, &mut module.variables)?;
                    if matches!(word, ".local" | ".tex") {
                        let made = module.variables.iter_mut().skip(first);
                        made.for_each(|variable| variable.unserved = Some(word));
                    }
                    if !linkage.seen && !linkage.external {
                        let made = module.variables.iter().skip(first);
                        module.own.extend(made.map(|variable| variable.name));
                    }
                    linkage = Linkage::default();
                }
                ".alias" => {
                    self.at += 1;
                    let name = self.word()?;
                    self.expect(b',')?;
                    module.aliases.push((name, self.word()?));
                    self.expect(b';')?;
                }
                other => return Err(PtxError::unsupported(line, format!("directive {other}"))),
            }
        }
        if module.version == 0 {
            return self.fail("no .version");
        }
        Ok(module)
    }

    fn skip_braces(&mut self) -> Result<()> {
        self.expect(b'{')?;
        self.skip_nested(b'{', b'}')
    }

    /// Skips to the bracket that closes one already read.
    fn skip_nested(&mut self, open: u8, close: u8) -> Result<()> {
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Some(Token::Punct(c)) if c == open => depth += 1,
                Some(Token::Punct(c)) if c == close => depth -= 1,
                Some(_) => {}
                None => return self.fail(format!("expected '{}'", char::from(close))),
            }
        }
        Ok(())
    }

    /// One declaration up to its semicolon, possibly of several variables.
    fn variables(&mut self, space: Space, linkage: Linkage, out: &mut Vec<Var<'a>>) -> Result<()> {
        let part = self.type_part()?;
        loop {
            let var = self.declarator(space, part, linkage)?;
            out.push(var);
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b';')
    }

    /// `.align n .v2 .type` in any order; pointer attributes are skipped.
    fn type_part(&mut self) -> Result<TypePart<'a>> {
        let mut align = None;
        let mut managed = false;
        let mut width = 1;
        let mut unserved = None;
        loop {
            let word = self.word()?;
            match word {
                ".align" => {
                    let value = self.integer()?;
                    if !value.is_power_of_two() || value > 4096 {
                        return self.fail("alignment must be a power of two up to 4096");
                    }
                    align = Some(value);
                }
                ".v2" => width = 2,
                ".v4" => width = 4,
                ".v8" => width = 8,
                ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
                ".attribute" => {
                    self.expect(b'(')?;
                    let first = self.at;
                    self.skip_nested(b'(', b')')?;
                    let list = self.tokens.get(first..self.at).unwrap_or_default();
                    let is_managed = |s: &Spanned| s.token(self.text) == Token::Word(".managed");
                    managed |= list.iter().any(is_managed);
                }
                _ if !word.starts_with('.') => return self.fail("expected a type"),
                _ => {
                    let ty = match word.strip_prefix('.').and_then(Type::parse) {
                        Some(ty) => ty,
                        None => {
                            unserved = Some(word);
                            // A word before the type, or the type.
                            if matches!(self.peek(), Some(Token::Word(w)) if w.starts_with('.')) {
                                continue;
                            }
                            Type::B64
                        }
                    };
                    // `.param .u64 .ptr .global .align 8 name`: attributes may follow the type.
                    while let Some(Token::Word(w)) = self.peek() {
                        match w {
                            ".ptr" | ".global" | ".const" | ".shared" | ".local" => self.at += 1,
                            ".align" => {
                                self.at += 1;
                                self.integer()?;
                            }
                            _ => break,
                        }
                    }
                    return Ok(TypePart {
                        ty,
                        width,
                        align,
                        managed,
                        unserved,
                    });
                }
            }
        }
    }

    fn declarator(
        &mut self,
        space: Space,
        part: TypePart<'a>,
        linkage: Linkage,
    ) -> Result<Var<'a>> {
        let TypePart {
            ty,
            width,
            align,
            managed,
            unserved,
        } = part;
        let line = self.line();
        let name = self.word()?;
        let mut count = Some(u64::from(width));
        while self.eat(b'[') {
            if self.eat(b']') {
                count = None;
                continue;
            }
            let n = self.expression()?;
            self.expect(b']')?;
            count = match count.and_then(|c| c.checked_mul(n)) {
                Some(c) if c <= MAX_COUNT => Some(c),
                Some(_) => return self.fail("array too large"),
                None => None,
            };
        }
        let mut init = Vec::new();
        if self.eat(b'=') {
            if unserved.is_some() {
                // A sampler's settings, for example.
                while !matches!(self.peek(), Some(Token::Punct(b';')) | None) {
                    self.at += 1;
                }
            } else {
                self.initialiser(&mut init)?;
            }
            if count.is_none() {
                count = Some(init.len() as u64);
            }
            if init.len() as u64 > count.unwrap_or(0) {
                return self.fail("more initial values than elements");
            }
        }
        init.shrink_to_fit();
        let stride = ty.size() * width;
        let align = align.unwrap_or(stride.into());
        Ok(Var {
            name,
            space,
            ty,
            count,
            stride,
            align,
            init,
            external: linkage.external,
            managed,
            unserved,
            line,
        })
    }

    fn initialiser(&mut self, out: &mut Vec<Init<'a>>) -> Result<()> {
        if self.eat(b'{') {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return self.fail("nested too deeply");
            }
            loop {
                if self.eat(b'}') {
                    break;
                }
                self.initialiser(out)?;
                if !self.eat(b',') {
                    self.expect(b'}')?;
                    break;
                }
            }
            self.depth -= 1;
            return Ok(());
        }
        if let (Some(Token::Int(mask)), Some(Token::Punct(b'('))) = (self.peek(), self.peek_at(1)) {
            self.at += 2;
            let (name, offset) = self.symbol()?;
            self.expect(b')')?;
            out.push(Init::Symbol(name, offset, Some(mask)));
            return Ok(());
        }
        let value = match self.peek() {
            Some(Token::Word(name)) if !name.starts_with('.') && name != "WARP_SZ" => {
                let (name, offset) = self.symbol()?;
                Init::Symbol(name, offset, None)
            }
            _ => match self.constant()? {
                Operand::F32(bits) => Init::F32(bits),
                Operand::F64(bits) => Init::F64(bits),
                Operand::Int(value) => Init::Int(value),
                _ => return self.fail("malformed initialiser"),
            },
        };
        out.push(value);
        Ok(())
    }

    /// `name`, `generic(name)`, each with an offset.
    fn symbol(&mut self) -> Result<(&'a str, i64)> {
        let mut name = self.word()?;
        let mut inner = 0;
        if name == "generic" && self.eat(b'(') {
            name = self.word()?;
            inner = self.offset()?;
            self.expect(b')')?;
        }
        Ok((name, inner.wrapping_add(self.offset()?)))
    }

    fn params(&mut self) -> Result<Vec<Var<'a>>> {
        let mut out = Vec::new();
        if !self.eat(b'(') || self.eat(b')') {
            return Ok(out);
        }
        loop {
            let line = self.line();
            let space = match self.word()? {
                ".param" => Space::Param,
                ".reg" => Space::Register,
                other if other.starts_with('.') => {
                    self.note(line, format!("a parameter in {other}"));
                    self.skip_nested(b'(', b')')?;
                    return Ok(out);
                }
                _ => return self.fail("expected .param"),
            };
            let part = self.type_part()?;
            let var = self.declarator(space, part, Linkage::default())?;
            if let Some(ty) = var.unserved {
                self.note(line, format!("a parameter of type {ty}"));
            }
            let one = var.count == Some(1) && !matches!(var.ty, Type::Pred | Type::B128);
            if space == Space::Register && !one {
                self.note(line, "a parameter in a register of this type");
            }
            out.push(var);
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(b')')?;
        Ok(out)
    }

    fn function(&mut self, entry: bool) -> Result<Function<'a>> {
        let line = self.line();
        self.unserved = None;
        while self.eat_word(".attribute") {
            self.expect(b'(')?;
            self.skip_nested(b'(', b')')?;
        }
        let returns = if entry { Vec::new() } else { self.params()? };
        let name = self.word()?;
        let params = self.params()?;
        if entry && params.iter().any(|var| var.space == Space::Register) {
            self.note(line, "a kernel's parameter in a register");
        }
        let mut bounds = Bounds::default();
        loop {
            match self.peek() {
                Some(Token::Word(".maxntid" | ".reqntid")) => {
                    self.at += 1;
                    bounds.max_threads = u32::try_from(self.product()?).ok();
                }
                Some(Token::Word(".reqnctapercluster")) => {
                    self.at += 1;
                    bounds.cluster = Some(self.dimensions()?);
                }
                Some(Token::Word(".minnctapersm" | ".maxnreg" | ".maxnctapersm")) => {
                    self.at += 1;
                    self.product()?;
                }
                Some(Token::Word(".maxclusterrank")) => {
                    self.at += 1;
                    bounds.max_cluster = u32::try_from(self.integer()?).ok();
                }
                Some(Token::Word(".explicitcluster")) => {
                    self.at += 1;
                    bounds.explicit_cluster = true;
                }
                Some(Token::Word(".noreturn")) => self.at += 1,
                Some(Token::Word(".abi_preserve" | ".abi_preserve_control")) => {
                    self.at += 1;
                    self.integer()?;
                }
                Some(Token::Word(".pragma")) => self.skip_to_semicolon()?,
                Some(Token::Word(word)) if word.starts_with('.') => {
                    self.note(self.line(), format!("function directive {word}"));
                    self.at += 1;
                    while matches!(self.peek(), Some(Token::Int(_) | Token::Punct(b','))) {
                        self.at += 1;
                    }
                }
                _ => break,
            }
        }
        let body = if self.eat(b';') {
            None
        } else {
            self.expect(b'{')?;
            Some(self.block()?)
        };
        Ok(Function {
            name,
            entry,
            returns,
            params,
            body,
            bounds,
            unserved: self.unserved.take(),
            line,
        })
    }

    /// One to three dimensions; those left out are 1.
    fn dimensions(&mut self) -> Result<[u32; 3]> {
        let mut sides = [1; 3];
        for (n, side) in sides.iter_mut().enumerate() {
            if n > 0 && !self.eat(b',') {
                break;
            }
            *side = u32::try_from(self.integer()?).unwrap_or(u32::MAX);
        }
        Ok(sides)
    }

    /// The product of a list of integers.
    fn product(&mut self) -> Result<u64> {
        let mut product = 1u64;
        loop {
            product = product.saturating_mul(self.integer()?);
            if !self.eat(b',') {
                return Ok(product);
            }
        }
    }
}
