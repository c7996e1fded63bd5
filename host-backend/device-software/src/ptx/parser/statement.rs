//! Bodies of functions: statements, instructions, operands.

use super::{Linkage, MAX_DEPTH, Parser, Result, TypePart};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand, Space, Statement};
use crate::ptx::lexer::Token;

impl<'a> Parser<'a> {
    /// Statements up to the closing brace, which is consumed.
    pub(super) fn block(&mut self) -> Result<Vec<Statement<'a>>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail("blocks nested too deeply");
        }
        let mut out = Vec::new();
        loop {
            if self.eat(b'}') {
                self.depth -= 1;
                return Ok(out);
            }
            if self.eat(b';') {
                continue;
            }
            if self.eat(b'{') {
                out.push(Statement::Block(self.block()?));
                continue;
            }
            match self.peek() {
                Some(Token::Punct(b'@')) => out.push(self.instruction()?),
                Some(Token::Word(word)) => self.worded(word, &mut out)?,
                _ => return self.fail("expected a statement"),
            }
        }
    }

    fn worded(&mut self, word: &'a str, out: &mut Vec<Statement<'a>>) -> Result<()> {
        if !word.starts_with('.') {
            if self.peek_at(1) == Some(Token::Punct(b':')) {
                self.at += 2;
                return self.labelled(word, out);
            }
            out.push(self.instruction()?);
            return Ok(());
        }
        let line = self.line();
        self.at += 1;
        match word {
            ".reg" => {
                let TypePart { ty, width, .. } = self.type_part()?;
                if width != 1 {
                    return Err(PtxError::unsupported(line, "vector registers"));
                }
                loop {
                    let name = self.word()?;
                    let mut family = None;
                    if self.eat(b'<') {
                        let n = self.integer()?;
                        family =
                            Some(u32::try_from(n).or_else(|_| self.fail("too many registers"))?);
                        self.expect(b'>')?;
                    }
                    out.push(Statement::Register(ty, name, family));
                    if !self.eat(b',') {
                        break;
                    }
                }
                self.expect(b';')
            }
            ".local" | ".shared" | ".param" | ".global" | ".const" => {
                let space = match word {
                    ".local" => Space::Local,
                    ".shared" => Space::Shared,
                    ".param" => Space::Param,
                    ".global" => Space::Global,
                    _ => Space::Const,
                };
                let mut vars = Vec::new();
                self.variables(space, Linkage::default(), &mut vars)?;
                out.extend(vars.into_iter().map(Statement::Variable));
                Ok(())
            }
            ".loc" => {
                // `.loc file line column [, function_name label [+ offset], inlined_at file
                // line column]`
                self.integer()?;
                self.integer()?;
                self.integer()?;
                while self.eat(b',') {
                    match self.word()? {
                        "function_name" => {
                            self.word()?;
                            self.offset()?;
                        }
                        "inlined_at" => {
                            self.integer()?;
                            self.integer()?;
                            self.integer()?;
                        }
                        _ => return self.fail("malformed .loc"),
                    }
                }
                Ok(())
            }
            ".pragma" => self.skip_to_semicolon(),
            other => Err(PtxError::unsupported(line, format!("directive {other}"))),
        }
    }

    fn labelled(&mut self, name: &'a str, out: &mut Vec<Statement<'a>>) -> Result<()> {
        if self.eat_word(".branchtargets") || self.eat_word(".calltargets") {
            let mut targets = vec![self.word()?];
            while self.eat(b',') {
                targets.push(self.word()?);
            }
            self.expect(b';')?;
            out.push(Statement::Targets(name, targets));
        } else if self.eat_word(".callprototype") {
            let returns = self.params()?;
            self.word()?;
            let params = self.params()?;
            while self.eat_word(".noreturn") {}
            self.expect(b';')?;
            out.push(Statement::Prototype(name, returns, params));
        } else {
            out.push(Statement::Label(name));
        }
        Ok(())
    }

    fn instruction(&mut self) -> Result<Statement<'a>> {
        let mut guard = None;
        if self.eat(b'@') {
            let negated = self.eat(b'!');
            guard = Some((self.word()?, negated));
        }
        let line = self.line();
        let opcode = self.word()?;
        let mut operands = Vec::new();
        if !self.eat(b';') {
            loop {
                operands.push(self.operand()?);
                if self.eat(b',') {
                    continue;
                }
                self.expect(b';')?;
                break;
            }
        }
        Ok(Statement::Instruction(Instruction {
            guard,
            opcode,
            operands,
            line,
        }))
    }

    fn list(&mut self, close: u8) -> Result<Vec<Operand<'a>>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail("operands nested too deeply");
        }
        let mut out = Vec::new();
        if !self.eat(close) {
            loop {
                out.push(self.operand()?);
                if self.eat(b',') {
                    continue;
                }
                self.expect(close)?;
                break;
            }
        }
        self.depth -= 1;
        Ok(out)
    }

    fn operand(&mut self) -> Result<Operand<'a>> {
        if self.eat(b'{') {
            return Ok(Operand::Vector(self.list(b'}')?));
        }
        if self.eat(b'(') {
            return Ok(Operand::List(self.list(b')')?));
        }
        if self.eat(b'[') {
            return self.address();
        }
        if self.eat(b'!') {
            return Ok(Operand::Not(self.word()?));
        }
        let negative = self.eat(b'-');
        match self.next() {
            Some(Token::Int(v)) => Ok(Operand::Int(if negative { v.wrapping_neg() } else { v })),
            Some(Token::F32(v)) => Ok(Operand::F32(if negative { v ^ 0x8000_0000 } else { v })),
            Some(Token::F64(v)) => Ok(Operand::F64(if negative { v ^ (1 << 63) } else { v })),
            Some(Token::Word(name)) if !negative => {
                if self.eat(b'|') {
                    return Ok(Operand::Pair(name, self.word()?));
                }
                if matches!(self.peek(), Some(Token::Punct(b'+' | b'-'))) {
                    return Ok(Operand::NameOffset(name, self.offset()?));
                }
                Ok(Operand::Name(name))
            }
            _ => {
                self.at -= 1;
                self.fail("malformed operand")
            }
        }
    }

    fn address(&mut self) -> Result<Operand<'a>> {
        let (base, offset) = match self.peek() {
            Some(Token::Word(name)) => {
                self.at += 1;
                (Some(name), self.offset()?)
            }
            _ => (None, self.integer()? as i64),
        };
        let mut more = Vec::new();
        while self.eat(b',') {
            more.push(self.operand()?);
        }
        self.expect(b']')?;
        Ok(Operand::Address { base, offset, more })
    }
}
