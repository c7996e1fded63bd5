//! PTX text: lexer, syntax tree, parser (PTX ISA 9.0, chapters 3 to 5).

pub mod ast;
pub mod lexer;
pub mod parser;
