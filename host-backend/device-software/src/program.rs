//! A module after decoding: one flat instruction array with operands resolved to register rows.
//!
//! A register is a row of 32 lanes. There are three files of rows: 32-bit (which also hold
//! 8- and 16-bit registers, zero-extended), 64-bit, and predicates (one bit a lane).
//! Constants are rows as well, filled when a frame is entered, so that every operand of
//! every instruction is a row number.

mod access;
mod call;
mod footprint;
mod function;
mod register;

pub use access::{Access, Address, AtomOp, Atomic, Extend, MemSpace, Wide, WideOp};
pub use call::{Call, CallTarget, RuntimeCall};
pub use function::{Alignment, Bounds, Constants, Func};
pub use register::Reg;

use crate::exec::fragment::Matrix;
use crate::exec::video::Video;
use std::collections::HashMap;
use std::sync::Arc;

/// A row of a 32-bit register.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Row32(pub [u32; 32]);

/// A row of a 64-bit register.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub struct Row64(pub [u64; 32]);

/// Arithmetic operations: read rows, write one row, never fault. Everything else is [`Op::Ext`].
///
/// Suffixes: U unsigned, S signed, Z flushes subnormals; F is single, D double precision;
/// Soft takes a [`crate::exec::soft::Recipe`] packed into the immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs)]
#[rustfmt::skip]
pub enum Op {
    Ext,
    // 32-bit results
    Mov32, Add32, Sub32, MulLo32, MulHiU32, MulHiS32, MadLo32, DivU32, DivS32, RemU32, RemS32,
    And32, Or32, Xor32, Not32, Cnot32, Shl32, ShrU32, ShrS32, ShfLWrap, ShfRWrap, ShfLClamp, ShfRClamp,
    MinU32, MinS32, MaxU32, MaxS32, AbsS32, Neg32, SadU32, SadS32, Popc32, Popc64, Clz32, Clz64, Brev32,
    BfindU32, BfindS32, BfindU64, BfindS64, BfeU32, BfeS32, Bfi32, Szext, Fns, Prmt, Lop3, Dp4a, Dp2a,
    Selp32, Slct32, SlctF32, Sext8, Sext16, Zext8, Zext16, Low64, High64, Pack16, AddCc32, SubCc32,
    FAdd, FSub, FMul, FFma, FAddZ, FSubZ, FMulZ, FFmaZ, FDiv, FRcp, FSqrt, FRsqrt, FMin, FMax, FMinNan, FMaxNan,
    FNeg, FNegZ, FAbs, FFlush, FSat, FSin, FCos, FEx2, FLg2, FTanh, FCopysign, FXorsign, FSoft, FRound,
    F32ToS32, F32ToU32, F64ToS32, F64ToU32, S32ToF32, U32ToF32, S64ToF32, U64ToF32, F64ToF32, F16ToF32, Bf16ToF32,
    Half, HalfPair, CvtSoft32, F32ToFp8, Fp8ToF32,
    // 64-bit results
    Mov64, Add64, Sub64, MulLo64, MulHiU64, MulHiS64, MadLo64, MulWideU32, MulWideS32, MadWideU32, MadWideS32,
    DivU64, DivS64, RemU64, RemS64, And64, Or64, Xor64, Not64, Cnot64, Shl64, ShrU64, ShrS64,
    MinU64, MinS64, MaxU64, MaxS64, AbsS64, Neg64, SadU64, SadS64, Brev64, BfeU64, BfeS64, Bfi64,
    Selp64, Slct64, SlctF64, Sext32, Zext32, Pack32, AddCc64, SubCc64,
    DAdd, DSub, DMul, DFma, DDiv, DRcp, DSqrt, DRsqrt, DRcpApprox, DRsqrtApprox, DMin, DMax, DNeg, DAbs, DCopysign,
    DSoft, DRound, F32ToF64, S32ToF64, U32ToF64, S64ToF64, U64ToF64, F32ToS64, F32ToU64, F64ToS64, F64ToU64,
    CvtSoft64,
    // predicates; comparisons are xored with `c`
    Eq32, LtU32, LeU32, LtS32, LeS32, Eq64, LtU64, LeU64, LtS64, LeS64,
    FEq, FLt, FLe, FNe, FNan, DEq, DLt, DLe, DNe, DNan, TestF, TestD,
    PMov, PAnd, POr, PXor, PNot,
}

/// One decoded instruction.
#[derive(Debug, Clone, Copy)]
pub struct Inst {
    /// The operation.
    pub op: Op,
    /// 0: always; else predicate number + 1, shifted left by one, plus 1 if negated.
    pub guard: u32,
    /// Destination row.
    pub d: u32,
    /// First source row; of [`Op::Ext`] the index into [`Program::ext`].
    pub a: u32,
    /// Second source row.
    pub b: u32,
    /// Third source row, or the xor mask of a comparison.
    pub c: u32,
    /// Immediate.
    pub imm: u64,
}

/// Special registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    Clock,
    ClockHi,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    DynamicSharedSize,
    TotalSharedSize,
    /// With the reserved part.
    AllSharedSize,
    DynamicSharedBase,
    /// The address of a byte of the reserved shared memory.
    ReservedShared(u16),
    /// Halves of the address of a cooperative launch's workspace.
    WorkspaceHigh,
    WorkspaceLow,
    ClusterId(u8),
    NClusterId(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtaRank,
    ClusterNctaRank,
    IsExplicitCluster,
}

impl Special {
    /// Whether it changes with time.
    #[must_use]
    pub fn is_time(self) -> bool {
        matches!(
            self,
            Self::Clock
                | Self::ClockHi
                | Self::Clock64
                | Self::GlobalTimer
                | Self::GlobalTimerLo
                | Self::GlobalTimerHi
        )
    }
}

/// How a shuffle picks its source lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// Votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

/// Reductions over a warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ReduxOp {
    Add,
    MinU,
    MinS,
    MaxU,
    MaxS,
    And,
    Or,
    Xor,
}

/// The reduction of a block barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BarReduce {
    None,
    Popc { d: u32, p: u32, negate: bool },
    And { d: u32, p: u32, negate: bool },
    Or { d: u32, p: u32, negate: bool },
}

/// Geometry of a texture access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TexGeometry {
    D1,
    D2,
    D3,
    A1,
    A2,
    Cube,
    /// Array of cubes.
    ACube,
}

/// A texture read.
#[derive(Debug, Clone)]
pub struct TexRead {
    /// Shape.
    pub geometry: TexGeometry,
    /// Whether coordinates are floats; else signed integers.
    pub float_coords: bool,
    /// Texture object.
    pub texture: Reg,
    /// Coordinates; for arrays the layer comes first.
    pub coords: Vec<Reg>,
    /// Mipmap level, where given (float).
    pub level: Option<Reg>,
    /// Derivatives of the coordinates in two directions, which give the level.
    pub gradients: Option<[Vec<Reg>; 2]>,
    /// Results, up to four.
    pub d: Vec<Option<Reg>>,
    /// `tld4`: which component of the four texels is gathered.
    pub gather: Option<u8>,
}

/// What `txq` and `suq` ask of a texture or surface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ImageProperty {
    /// Elements of a row, rows, slices.
    Extent(u8),
    /// Layers, or cubes of layers.
    Layers,
    Levels,
    /// Whether coordinates are between 0 and 1.
    Normalized,
}

/// A question about a texture or surface.
#[derive(Debug, Clone)]
pub struct ImageQuery {
    /// What is asked.
    pub property: ImageProperty,
    /// Whether it is a surface.
    pub surface: bool,
    /// Texture or surface object.
    pub object: Reg,
    /// Row of the mipmap level, if one is named.
    pub level: Option<u32>,
    /// Row of the answer.
    pub d: u32,
}

/// A surface load or store.
#[derive(Debug, Clone)]
pub struct SurfAccess {
    /// Shape.
    pub geometry: TexGeometry,
    /// Whether it stores.
    pub store: bool,
    /// 0 trap, 1 clamp, 2 zero.
    pub mode: u8,
    /// Surface object.
    pub surface: Reg,
    /// Coordinates: byte in the row, row, slice; for arrays the layer comes first.
    pub coords: Vec<Reg>,
    /// Bytes of one element.
    pub width: u8,
    /// Element registers.
    pub regs: Vec<Reg>,
}

/// A copy that PTX allows to be asynchronous (`cp.async`). It completes with the
/// instruction.
#[derive(Debug, Clone)]
pub struct CopyAsync {
    /// To where.
    pub to: Address,
    /// From where.
    pub from: Address,
    /// Bytes written.
    pub size: CopySize,
    /// Bytes to read if fewer (a row); the rest is filled with zeros.
    pub source: Option<u32>,
    /// Predicate: read nothing.
    pub ignore: Option<u32>,
    /// The barrier whose transaction count it completes.
    pub barrier: Option<Address>,
    /// Row of a mask of 16 bits: which of each 16 bytes are copied; all if there is none.
    pub bytes: Option<u32>,
    /// Rows of how many bytes at the start and at the end are not copied.
    pub edges: Option<[u32; 2]>,
    /// Combines elements of so many bytes with those at the destination, each atomically.
    pub combine: Option<(AtomOp, u8)>,
    /// Row of a mask of the cluster's blocks: each gets the copy at the same address.
    pub blocks: Option<u32>,
}

impl CopyAsync {
    /// A copy of all bytes, without further effects.
    pub fn plain(to: Address, from: Address, size: CopySize) -> Self {
        Self {
            to,
            from,
            size,
            source: None,
            ignore: None,
            barrier: None,
            bytes: None,
            edges: None,
            combine: None,
            blocks: None,
        }
    }
}

/// A copy of a box of a tensor (`cp.async.bulk.tensor`).
#[derive(Debug, Clone)]
pub struct CopyTensor {
    /// Where the tensor map is.
    pub map: Address,
    /// Dimensions.
    pub rank: usize,
    /// Rows of the coordinates of the box; of its first column and each row if `rows`.
    pub coordinates: Vec<u32>,
    /// The box in shared memory.
    pub shared: Address,
    /// Whether four rows are copied that need not be adjacent.
    pub rows: bool,
    /// What is done.
    pub what: TensorCopy,
}

/// Directions of a copy of a box.
#[derive(Debug, Clone)]
pub enum TensorCopy {
    /// To shared memory.
    Load {
        /// The barrier whose transaction count it completes.
        barrier: Address,
        /// As in [`CopyAsync`].
        blocks: Option<u32>,
    },
    /// To global memory.
    Store,
    /// To global memory, combined with what is there.
    Reduce(AtomOp),
}

/// How much an asynchronous copy writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopySize {
    /// 4, 8 or 16 bytes.
    Fixed(u32),
    /// A multiple of 16 in a row.
    Bulk(u32),
    /// A row of two words: a multiple of 8.
    Fill(u32),
}

/// An operation on a barrier object in shared memory (`mbarrier`).
#[derive(Debug, Clone)]
pub struct Barrier64 {
    /// What.
    pub op: BarrierOp,
    /// The object.
    pub address: Address,
    /// State or predicate.
    pub d: Option<Reg>,
    /// Count, expected bytes, state or parity (a row).
    pub a: Option<Reg>,
}

/// Operations on a barrier object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BarrierOp {
    Init,
    Arrive,
    ArriveDrop,
    /// Expects more bytes, then arrives.
    ArriveExpect,
    Expect,
    Complete,
    /// Tests whether the phase of a state is complete.
    Test,
    /// Tests whether the phase of a parity is complete.
    TestParity,
    /// As [`Self::Test`]; if it is not, the warp's turn ends.
    Try,
    /// As [`Self::TestParity`]; if it is not, the warp's turn ends.
    TryParity,
}

/// Everything that is not plain arithmetic.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Ext {
    Bra {
        target: u32,
    },
    BrxIdx {
        index: u32,
        /// Number of the table of its targets in [`Program::tables`].
        table: u32,
    },
    Call(Call),
    Ret,
    Exit,
    Trap,
    Nop,
    Fence,
    /// Ends the warp's turn.
    Yield,
    Barrier {
        id: u32,
        count: Option<u32>,
        wait: bool,
        reduce: BarReduce,
    },
    BarWarp {
        mask: u32,
    },
    Load(Access),
    Store(Access),
    Atomic(Atomic),
    Wide(Wide),
    Shfl {
        mode: ShflMode,
        d: u32,
        p: Option<u32>,
        a: u32,
        b: u32,
        c: u32,
        mask: u32,
    },
    Vote {
        mode: VoteMode,
        d: Reg,
        p: u32,
        negate: bool,
        mask: u32,
    },
    Match {
        all: bool,
        d: u32,
        p: Option<u32>,
        a: Reg,
        mask: u32,
    },
    Redux {
        op: ReduxOp,
        d: u32,
        a: u32,
        mask: u32,
    },
    ActiveMask {
        d: u32,
    },
    Elect {
        d: u32,
        p: u32,
        mask: u32,
    },
    Special {
        what: Special,
        d: Reg,
    },
    /// Address of a variable in the frame's local memory.
    LocalAddress {
        d: Reg,
        offset: u32,
    },
    /// Allocates local memory until the function returns.
    Alloca {
        d: Reg,
        size: Reg,
        align: u32,
    },
    StackSave {
        d: Reg,
    },
    StackRestore {
        a: Reg,
    },
    IsSpace {
        p: u32,
        a: u32,
        space: MemSpace,
        /// Whether it also applies to the other blocks of the cluster.
        cluster: bool,
    },
    /// The shared address of the block with another rank.
    MapRank {
        d: Reg,
        a: Reg,
        rank: u32,
        generic: bool,
    },
    /// The rank of the block whose shared memory contains an address.
    RankOf {
        d: u32,
        a: Reg,
    },
    ClusterArrive,
    ClusterWait,
    Matrix(Box<Matrix>),
    CopyAsync(Box<CopyAsync>),
    CopyTensor(Box<CopyTensor>),
    Barrier64(Barrier64),
    Tex(Box<TexRead>),
    Surf(Box<SurfAccess>),
    ImageQuery(Box<ImageQuery>),
    Video {
        d: u32,
        sources: [u32; 3],
        video: Box<Video>,
    },
}

/// Address of function `index` as a function pointer.
pub const FUNCTION_BASE: u64 = 0x0004_0000_0000_0000;
/// Distance of two function pointers.
pub const FUNCTION_STRIDE: u64 = 16;
/// Generic addresses of shared memory.
pub const SHARED_WINDOW: u64 = 0x0001_0000_0000_0000;
/// Generic addresses of local memory.
pub const LOCAL_WINDOW: u64 = 0x0002_0000_0000_0000;
/// Generic addresses of kernel parameters.
pub const PARAM_WINDOW: u64 = 0x0003_0000_0000_0000;
/// The lowest bit of the window in a generic address.
pub const WINDOW_SHIFT: u32 = 48;

/// A decoded module.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// All instructions of all functions.
    pub code: Vec<Inst>,
    /// Source line of each instruction.
    pub lines: Vec<u32>,
    /// Operands of [`Op::Ext`].
    pub ext: Vec<Ext>,
    /// The targets of indexed branches. Any number of branches share a table.
    pub tables: Vec<Vec<u32>>,
    /// Functions.
    pub funcs: Vec<Func>,
    /// Alignments of their memory.
    pub alignment: Alignment,
    /// Function by name.
    pub by_name: HashMap<Arc<str>, usize>,
    /// Whether a kernel calls `malloc` or `free`.
    pub uses_heap: bool,
    /// Whether a kernel launches others.
    pub launches: bool,
    /// Whether a function uses the reserved shared memory.
    pub reserves_shared: bool,
    /// Bytes of the module's variables in constant memory.
    pub constant_bytes: u64,
    /// PTX version times ten.
    pub ptx_version: u32,
    /// Target times ten.
    pub target: u32,
}

/// The lengths of a program's lists, where the parts of a function begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub code: usize,
    pub ext: usize,
    pub tables: usize,
}

impl Program {
    /// Where the next function begins.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            code: self.code.len(),
            ext: self.ext.len(),
            tables: self.tables.len(),
        }
    }

    /// Removes the function that begins there.
    pub(crate) fn truncate(&mut self, mark: Mark) {
        self.code.truncate(mark.code);
        self.lines.truncate(mark.code);
        self.ext.truncate(mark.ext);
        self.tables.truncate(mark.tables);
    }

    /// The targets of the branches of the function that begins there.
    pub(crate) fn targets_from(&mut self, mark: Mark) -> impl Iterator<Item = &mut u32> {
        let branches = self.ext.iter_mut().skip(mark.ext);
        let branches = branches.filter_map(|ext| match ext {
            Ext::Bra { target } => Some(target),
            _ => None,
        });
        branches.chain(self.tables.iter_mut().skip(mark.tables).flatten())
    }

    /// The targets in a table.
    #[must_use]
    pub fn targets(&self, table: u32) -> &[u32] {
        self.tables.get(table as usize).map_or(&[], Vec::as_slice)
    }

    /// Refuses every function that calls a refused one, for the same reason.
    pub(crate) fn refuse_callers(&mut self) {
        let mut callers: HashMap<usize, Vec<usize>> = HashMap::new();
        for (caller, func) in self.funcs.iter().enumerate() {
            let body = self
                .code
                .get(func.code.start as usize..func.code.end as usize);
            for inst in body.unwrap_or_default() {
                if inst.op == Op::Ext
                    && let Some(Ext::Call(call)) = self.ext.get(inst.a as usize)
                    && let CallTarget::Function(callee) = call.target
                {
                    callers.entry(callee).or_default().push(caller);
                }
            }
        }
        let refused = |(n, f): (usize, &Func)| f.refused.is_some().then_some(n);
        let mut left: Vec<usize> = self.funcs.iter().enumerate().filter_map(refused).collect();
        while let Some(callee) = left.pop() {
            let reason = self.funcs.get(callee).and_then(|f| f.refused.clone());
            for caller in callers.remove(&callee).unwrap_or_default() {
                if let Some(func) = self.funcs.get_mut(caller)
                    && func.refused.is_none()
                {
                    func.refused.clone_from(&reason);
                    left.push(caller);
                }
            }
        }
    }
}
