//! Bodies of functions: statements, instructions, operands.

use super::{Linkage, MAX_DEPTH, Parser, Result, TypePart};
use crate::error::PtxError;
use crate::ptx::ast::{Instruction, Operand, Space, Statement, Type};
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
                // A module has many short lists: none takes more room than its entries.
                out.shrink_to_fit();
                return Ok(out);
            }
            if self.eat(b';') {
                continue;
            }
            if self.eat(b'{') {
                let block = self.block()?;
                if !block.is_empty() {
                    out.push(Statement::Block(block));
                }
                continue;
            }
            match self.peek() {
                Some(Token::Punct(b'@')) => out.extend(self.known_instruction()?),
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
            out.extend(self.known_instruction()?);
            return Ok(());
        }
        let line = self.line();
        self.at += 1;
        match word {
            ".reg" => {
                let TypePart {
                    ty,
                    width,
                    unserved,
                    ..
                } = self.type_part()?;
                if let Some(unserved) = unserved {
                    self.note(line, format!("registers of type {unserved}"));
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
                    out.push(match (width, family) {
                        (2 | 4, None) if !matches!(ty, Type::Pred | Type::B128) => {
                            Statement::Vector(ty, width as usize, name)
                        }
                        _ => {
                            if width != 1 {
                                self.note(line, "these vector registers");
                            }
                            Statement::Register(ty, name, family)
                        }
                    });
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
                out.extend(
                    vars.into_iter()
                        .map(|var| Statement::Variable(Box::new(var))),
                );
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
            other => {
                self.note(line, format!("directive {other}"));
                self.skip_to_semicolon()
            }
        }
    }

    /// An instruction. If this parser does not know its syntax, it notes the instruction
    /// and skips it.
    fn known_instruction(&mut self) -> Result<Option<Statement<'a>>> {
        let (at, depth) = (self.at, self.depth);
        match self.instruction() {
            Ok(instruction) => Ok(Some(instruction)),
            Err(error) => {
                (self.at, self.depth) = (at, depth);
                self.skip_instruction(error)?;
                Ok(None)
            }
        }
    }

    /// Skips an instruction that failed to parse. If it is no instruction at all, because
    /// two names or numbers follow each other or a brace ends it, `error` stands.
    fn skip_instruction(&mut self, error: PtxError) -> Result<()> {
        if self.eat(b'@') {
            self.eat(b'!');
            self.word()?;
        }
        let line = self.line();
        let opcode = self.word()?;
        let (mut was_value, mut open) = (false, 0_u32);
        loop {
            let is_value = match self.next() {
                Some(Token::Punct(b';')) if open == 0 => {
                    self.note(line, format!("the operands of {opcode}"));
                    return Ok(());
                }
                Some(Token::Punct(b'{' | b'[' | b'(')) => {
                    open += 1;
                    false
                }
                Some(Token::Punct(b'}' | b']' | b')')) if open > 0 => {
                    open -= 1;
                    false
                }
                Some(Token::Punct(b';' | b'}' | b']' | b')') | Token::Str(_)) | None => {
                    return Err(error);
                }
                Some(Token::Word(word)) if word.starts_with('.') => false,
                Some(Token::Punct(_)) => false,
                Some(_) => true,
            };
            if was_value && is_value {
                return Err(error);
            }
            was_value = is_value;
        }
    }

    fn labelled(&mut self, name: &'a str, out: &mut Vec<Statement<'a>>) -> Result<()> {
        if self.eat_word(".calltargets") {
            // Functions, which a call through a register does not need.
            self.skip_to_semicolon()?;
            out.push(Statement::Prototype(name));
        } else if self.eat_word(".branchtargets") {
            let mut targets = vec![self.word()?];
            while self.eat(b',') {
                targets.push(self.word()?);
            }
            self.expect(b';')?;
            targets.shrink_to_fit();
            out.push(Statement::Targets(name, targets));
        } else if self.eat_word(".callprototype") {
            // A call has its own parameters.
            self.params()?;
            self.word()?;
            self.params()?;
            // `.noreturn`, `.abi_preserve n`.
            self.skip_to_semicolon()?;
            out.push(Statement::Prototype(name));
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
        self.in_call = opcode.split('.').next() == Some("call");
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
            operands: operands.into_boxed_slice(),
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
        out.shrink_to_fit();
        Ok(out)
    }

    fn operand(&mut self) -> Result<Operand<'a>> {
        if self.eat(b'{') {
            let list = self.list(b'}')?;
            return Ok(match self.eat(b'|') {
                true => Operand::VectorPair(list, self.word()?),
                false => Operand::Vector(list),
            });
        }
        if self.in_call && self.eat(b'(') {
            return Ok(Operand::List(self.list(b')')?));
        }
        if self.eat(b'[') {
            return self.address();
        }
        if self.eat(b'!') {
            return match self.peek() {
                Some(Token::Word(_)) => Ok(Operand::Not(self.word()?)),
                _ => {
                    self.at -= 1;
                    self.constant()
                }
            };
        }
        let Some(Token::Word(name)) = self.peek().filter(|_| !self.at_constant()) else {
            return self.constant();
        };
        self.at += 1;
        if self.eat(b'|') {
            return Ok(Operand::Pair(name, self.word()?));
        }
        if self.eat(b'[') {
            let (register, offset) = self.place()?;
            self.expect(b']')?;
            return Ok(Operand::Element {
                array: name,
                register,
                offset,
            });
        }
        if matches!(self.peek(), Some(Token::Punct(b'+' | b'-'))) {
            return Ok(Operand::NameOffset(name, self.offset()?));
        }
        Ok(Operand::Name(name))
    }

    fn address(&mut self) -> Result<Operand<'a>> {
        let (base, offset) = self.place()?;
        let mut more = Vec::new();
        while self.eat(b',') {
            more.push(self.operand()?);
        }
        self.expect(b']')?;
        more.shrink_to_fit();
        // Unified memory needs no other access.
        self.eat_word(".unified");
        Ok(Operand::Address { base, offset, more })
    }

    /// A name with an offset, or a constant.
    fn place(&mut self) -> Result<(Option<&'a str>, i64)> {
        Ok(match self.peek() {
            Some(Token::Word(name)) => {
                self.at += 1;
                (Some(name), self.offset()?)
            }
            _ => (None, self.expression()? as i64),
        })
    }
}
