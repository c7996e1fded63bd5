//! Syntax tree of a PTX module. Names borrow from the text.

use crate::program::Bounds;

/// Fundamental types (PTX ISA 5.2) that this device knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Type {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    BF16,
    B32,
    U32,
    S32,
    F32,
    F16x2,
    BF16x2,
    S16x2,
    U16x2,
    F32x2,
    B64,
    U64,
    S64,
    F64,
    B128,
}

impl Type {
    /// The type written as `name`, without its dot.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::B8,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "b16" => Self::B16,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "f16" => Self::F16,
            "bf16" => Self::BF16,
            "b32" => Self::B32,
            "u32" => Self::U32,
            "s32" => Self::S32,
            "f32" => Self::F32,
            "f16x2" => Self::F16x2,
            "bf16x2" => Self::BF16x2,
            "s16x2" => Self::S16x2,
            "u16x2" => Self::U16x2,
            "f32x2" => Self::F32x2,
            "b64" => Self::B64,
            "u64" => Self::U64,
            "s64" => Self::S64,
            "f64" => Self::F64,
            "b128" => Self::B128,
            _ => return None,
        })
    }

    /// Size in bytes; predicates count as one.
    #[must_use]
    pub fn size(self) -> u32 {
        match self {
            Self::Pred | Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::BF16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 => 4,
            Self::F16x2 | Self::BF16x2 | Self::S16x2 | Self::U16x2 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 | Self::F32x2 => 8,
            Self::B128 => 16,
        }
    }

    /// Whether it is a signed integer.
    #[must_use]
    pub fn signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// Whether it is a floating-point type.
    #[must_use]
    pub fn float(self) -> bool {
        matches!(
            self,
            Self::F16 | Self::BF16 | Self::F32 | Self::F16x2 | Self::BF16x2 | Self::F64
        )
    }
}

/// State spaces (PTX ISA 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Space {
    Global,
    Const,
    Shared,
    Local,
    Param,
    /// Registers: parameters of functions may be some.
    Register,
}

/// One element of an initialiser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init<'a> {
    /// Integer, two's complement.
    Int(u64),
    /// Single-precision bits.
    F32(u32),
    /// Double-precision bits.
    F64(u64),
    /// Address of a symbol plus an offset; with a mask, the bits that it selects.
    Symbol(&'a str, i64, Option<u64>),
}

/// A variable or parameter.
#[derive(Debug, Clone)]
pub struct Var<'a> {
    /// Name.
    pub name: &'a str,
    /// State space.
    pub space: Space,
    /// Element type.
    pub ty: Type,
    /// Number of elements (vector width times array length); `None` for an unsized extern array.
    pub count: Option<u64>,
    /// Bytes of an element of the array; vectors are elements as a whole.
    pub stride: u32,
    /// Alignment in bytes.
    pub align: u64,
    /// Initial values, element by element.
    pub init: Vec<Init<'a>>,
    /// Declared `.extern`.
    pub external: bool,
    /// In managed memory (`.attribute(.managed)`).
    pub managed: bool,
    /// A type that this device does not have: its user is refused.
    pub unserved: Option<&'a str>,
    /// Line.
    pub line: u32,
}

impl Var<'_> {
    /// Size in bytes; an unsized array has none.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.count
            .unwrap_or(0)
            .saturating_mul(u64::from(self.ty.size()))
    }
}

/// An operand of an instruction.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand<'a> {
    /// Register, label, function or variable.
    Name(&'a str),
    /// Variable plus offset.
    NameOffset(&'a str, i64),
    /// `array[register+offset]` or `array[offset]`, in elements.
    Element {
        /// Variable.
        array: &'a str,
        /// Register, unsigned.
        register: Option<&'a str>,
        /// Added to the register.
        offset: i64,
    },
    /// Negated predicate.
    Not(&'a str),
    /// Integer literal.
    Int(u64),
    /// Single-precision literal.
    F32(u32),
    /// Double-precision literal.
    F64(u64),
    /// `[base+offset]`, `[base, {coordinates}]`: base may be missing (absolute address).
    Address {
        /// Register or variable.
        base: Option<&'a str>,
        /// Byte offset.
        offset: i64,
        /// Further operands inside the brackets.
        more: Vec<Operand<'a>>,
    },
    /// `{a, b, ...}`.
    Vector(Vec<Operand<'a>>),
    /// `{a, b, ...}|p`.
    VectorPair(Vec<Operand<'a>>, &'a str),
    /// `(a, b, ...)` of a call.
    List(Vec<Operand<'a>>),
    /// `p|q`.
    Pair(&'a str, &'a str),
}

/// An instruction.
#[derive(Debug, Clone)]
pub struct Instruction<'a> {
    /// Guard predicate and whether it is negated.
    pub guard: Option<(&'a str, bool)>,
    /// Opcode with its modifiers, as written.
    pub opcode: &'a str,
    /// Operands in order.
    pub operands: Box<[Operand<'a>]>,
    /// Line.
    pub line: u32,
}

/// A statement of a function body.
#[derive(Debug, Clone)]
pub enum Statement<'a> {
    /// `{ ... }`, a scope of its own.
    Block(Vec<Statement<'a>>),
    /// `.reg`: type, name, count of a `%r<n>` family.
    Register(Type, &'a str, Option<u32>),
    /// `.reg .v2` or `.v4`: element type, number of elements, name.
    Vector(Type, usize, &'a str),
    /// A variable of the body.
    Variable(Box<Var<'a>>),
    /// `name:`.
    Label(&'a str),
    /// An instruction.
    Instruction(Instruction<'a>),
    /// `name: .branchtargets a, b;`.
    Targets(&'a str, Vec<&'a str>),
    /// `name: .callprototype ...;` or `.calltargets`.
    Prototype(&'a str),
}

/// A function or kernel.
#[derive(Debug, Clone)]
pub struct Function<'a> {
    /// Name.
    pub name: &'a str,
    /// Whether it is a kernel.
    pub entry: bool,
    /// Return parameters.
    pub returns: Vec<Var<'a>>,
    /// Parameters.
    pub params: Vec<Var<'a>>,
    /// Body; `None` for a declaration.
    pub body: Option<Vec<Statement<'a>>>,
    /// The limits of its launches.
    pub bounds: Bounds,
    /// The first construct that the parser does not know, and its line: the function is
    /// refused.
    pub unserved: Option<(u32, String)>,
    /// Line.
    pub line: u32,
}

/// A module.
#[derive(Debug, Clone, Default)]
pub struct Module<'a> {
    /// PTX version times ten.
    pub version: u32,
    /// Target architecture times ten (75 for sm_75).
    pub target: u32,
    /// Module-scope variables in order.
    pub variables: Vec<Var<'a>>,
    /// Functions in order.
    pub functions: Vec<Function<'a>>,
    /// Names of functions and variables that other modules do not see.
    pub own: Vec<&'a str>,
    /// `.alias`: further names of functions.
    pub aliases: Vec<(&'a str, &'a str)>,
}
