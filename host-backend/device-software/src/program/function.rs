//! A decoded function: its frame, its parameters, and the limits of its launches.

use crate::attributes::MAX_THREADS;
use crate::error::PtxError;
use std::ops::Range;
use std::sync::Arc;

/// Rows of a frame and the constants in them.
#[derive(Debug, Clone, Default)]
pub struct Constants {
    /// Of 32 bits.
    pub rows32: Vec<(u32, u32)>,
    /// Of 64 bits.
    pub rows64: Vec<(u32, u64)>,
}

/// The limits of a kernel's launches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// `.maxntid` or `.reqntid`: maximum number of threads of a block.
    pub max_threads: Option<u32>,
    /// `.reqnctapercluster`: blocks of a cluster.
    pub cluster: Option<[u32; 3]>,
    /// `.explicitcluster`: whether the kernel or its launch must specify the cluster size.
    pub explicit_cluster: bool,
    /// `.maxclusterrank`: maximum number of blocks of a cluster.
    pub max_cluster: Option<u32>,
}

/// The greatest alignments of a program's variables, in bytes: powers of two from 16 to 4096.
#[derive(Debug, Clone, Copy)]
pub struct Alignment {
    /// Of local memory: frames begin at multiples of it.
    pub local: u32,
    /// Of dynamic shared memory, which begins at a multiple of it.
    pub dynamic_shared: u32,
}

impl Default for Alignment {
    fn default() -> Self {
        Self {
            local: 16,
            dynamic_shared: 16,
        }
    }
}

impl Alignment {
    /// Includes a variable's alignment.
    pub(crate) fn raise(of: &mut u32, align: u64) {
        *of = u32::try_from(align).map_or(*of, |align| align.max(*of));
    }
}

/// A decoded function.
#[derive(Debug, Clone, Default)]
pub struct Func {
    /// Mangled name.
    pub name: Arc<str>,
    /// Whether it is a kernel.
    pub entry: bool,
    /// Its instructions.
    pub code: Range<u32>,
    /// Rows of the frame.
    pub rows32: u32,
    /// Rows of the frame.
    pub rows64: u32,
    /// Predicates of the frame.
    pub preds: u32,
    /// Rows that hold constants.
    pub constants: Constants,
    /// Bytes of local memory of the frame.
    pub local: u32,
    /// Bytes of static shared memory (kernels).
    pub shared: u32,
    /// Offset and size of each parameter: in the parameter buffer (kernels) or in the frame
    /// (functions).
    pub params: Vec<(u32, u32)>,
    /// Whether the last parameter holds the variable arguments of a call. Its size is that of
    /// the most that a call may pass.
    pub variadic: bool,
    /// Offset and size of each returned value in the frame.
    pub returns: Vec<(u32, u32)>,
    /// Bytes of all parameters (kernels).
    pub param_bytes: u32,
    /// The limits of its launches.
    pub bounds: Bounds,
    /// Why it cannot run, if it or a function that it calls is refused. Callers share it.
    pub refused: Option<Arc<PtxError>>,
}

impl Func {
    /// Whether a call with `args`, offsets and sizes in the caller's frame, fits the
    /// parameters. A call without variable arguments may leave their parameter out.
    #[must_use]
    pub fn takes(&self, args: &[(u32, u32)]) -> bool {
        let same = |a: &[(u32, u32)], b: &[(u32, u32)]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.1 == b.1)
        };
        match self.params.split_last() {
            Some((&(_, room), fixed)) if self.variadic => {
                let (args, variable) = args.split_at(args.len().min(fixed.len()));
                let fits = match variable {
                    [] => true,
                    [(_, size)] => *size <= room,
                    _ => false,
                };
                same(args, fixed) && fits
            }
            _ => same(args, &self.params),
        }
    }

    /// The number of threads of a block, if the kernel can be launched with such a grid.
    #[must_use]
    pub fn threads(&self, grid: [u32; 3], block: [u32; 3]) -> Option<u32> {
        let [gx, gy, gz] = grid;
        let [bx, by, bz] = block;
        let blocks = (1..=i32::MAX as u32).contains(&gx)
            && [gy, gz].iter().all(|side| (1..=65535).contains(side));
        let sides = bx <= 1024 && by <= 1024 && bz <= 64;
        let most = self.bounds.max_threads;
        let most = most.unwrap_or(MAX_THREADS).min(MAX_THREADS);
        let threads = block
            .iter()
            .try_fold(1u32, |n, &side| n.checked_mul(side))?;
        (blocks && sides && (1..=most).contains(&threads)).then_some(threads)
    }
}
