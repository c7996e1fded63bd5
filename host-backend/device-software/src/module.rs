//! Loads modules: from image to PTX to program, and places their variables in device
//! memory.

use crate::decode::{self, ALIGNED_MALLOC};
use crate::error::PtxError;
use crate::heap::Heap;
use crate::memory_unsafe::{Memory, MemoryError};
use crate::program::{Func, Program, RuntimeCall};
use crate::ptx::ast::{Function, Space, Var};
use crate::ptx::parser;
use paragpu_device::{Error, HEAP};
use paragpu_protocol::layout::{CHUNK, DEVICE_STRIDE};
use paragpu_protocol::status::Status;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Offset of the variables of modules: the last eighth of the arena, which the guest does
/// not use.
pub const GLOBALS_OFFSET: u64 = DEVICE_STRIDE / 8 * 7;

/// A log gets no further lines after this number of bytes.
const MAX_LOG: usize = 64 << 10;

/// Maximum number of bytes of PTX, also after a link. Decoding takes about 20 times as much
/// memory, 100 times at worst (`tests/footprint.rs`). The largest module of NVIDIA's libraries
/// for CUDA 13.0 (in cuDNN) has 38 MiB.
const MAX_TEXT: usize = 48 << 20;

/// Checks the length of a module's PTX.
///
/// # Errors
/// `OUT_OF_MEMORY` for more than [`MAX_TEXT`] bytes.
pub fn check_text(bytes: usize) -> Result<(), Error> {
    if bytes > MAX_TEXT {
        let why = format!(
            "a module with {bytes} bytes of PTX: the software GPU accepts at most {MAX_TEXT}"
        );
        return Err(Error::new(Status::OUT_OF_MEMORY, why));
    }
    Ok(())
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    /// Code.
    pub program: Arc<Program>,
    /// Address and bytes of each variable.
    pub globals: HashMap<String, (u64, u64)>,
    /// Names of the variables in managed memory.
    pub managed: HashSet<String>,
    /// The heap of its kernels' `malloc`, if they call it.
    pub heap: Option<Arc<Heap>>,
    /// Address at which its variables are mapped, if it has any.
    pub mapping: Option<u64>,
}

/// The CUDA status for a refused image.
#[must_use]
pub fn image_error(error: &paragpu_fatbin::ImageError) -> Error {
    let status = match error {
        paragpu_fatbin::ImageError::NoBinary => Status::NO_BINARY_FOR_GPU,
        paragpu_fatbin::ImageError::NotText => Status::INVALID_PTX,
        _ => Status::INVALID_IMAGE,
    };
    Error::new(status, error.to_string())
}

/// Describes the contents of an image without suitable PTX.
fn held(image: &[u8]) -> String {
    /// Bytes of the wrapper that may precede a fat binary.
    const WRAPPER: usize = 24;
    let inner = image.get(WRAPPER..).unwrap_or_default();
    let Ok(entries) = paragpu_fatbin::entries(image).or_else(|_| paragpu_fatbin::entries(inner))
    else {
        return "only machine code".to_owned();
    };
    let forms: BTreeSet<(u16, u32)> = entries.iter().map(|e| (e.kind, e.sm)).collect();
    let name = |&(kind, sm): &(u16, u32)| match kind {
        1 => format!("PTX for compute_{sm}"),
        2 => format!("machine code for sm_{sm}"),
        _ => format!("other code for sm_{sm}"),
    };
    let names: Vec<String> = forms.iter().map(name).collect();
    match names.is_empty() {
        true => "nothing".to_owned(),
        false => names.join(", "),
    }
}

/// The CUDA status for refused PTX.
#[must_use]
pub fn ptx_error(error: &PtxError) -> Error {
    let status = match error {
        PtxError::Unsupported { .. } => Status::NOT_SUPPORTED,
        PtxError::Invalid { .. } | PtxError::Unresolved { .. } => Status::INVALID_PTX,
    };
    Error::new(status, error.to_string())
}

/// The CUDA status of a memory error.
#[must_use]
pub fn memory_error(error: &MemoryError) -> Error {
    let status = match error {
        MemoryError::OutOfMemory => Status::OUT_OF_MEMORY,
        MemoryError::Registered(..) => Status::HOST_MEMORY_ALREADY_REGISTERED,
        MemoryError::Reserved(..) => Status::OPERATING_SYSTEM,
        MemoryError::Private(_) => Status::NOT_SUPPORTED,
        MemoryError::Range(..) | MemoryError::NotMapped(_) | MemoryError::Descriptor(..) => {
            Status::INVALID_VALUE
        }
    };
    Error::new(status, error.to_string())
}

/// Maps `size` bytes, rounded up to chunks, at the first free place of the modules' region.
///
/// # Errors
/// [`MemoryError::OutOfMemory`] and others of the mapping.
pub fn place(memory: &Memory, used: &[(u64, u64)], size: u64) -> Result<(u64, u64), MemoryError> {
    place_at(memory, used, size, None)
}

/// As [`place`], but at `preferred` if that is free and in the region.
///
/// # Errors
/// As [`place`].
pub fn place_at(
    memory: &Memory,
    used: &[(u64, u64)],
    size: u64,
    preferred: Option<u64>,
) -> Result<(u64, u64), MemoryError> {
    let size = size.next_multiple_of(CHUNK);
    if let Some(at) = preferred
        && at.is_multiple_of(CHUNK)
        && at >= memory.base() + GLOBALS_OFFSET
        && used
            .iter()
            .all(|(start, length)| at.saturating_add(size) <= *start || start + length <= at)
        && memory.map(at, size).is_ok()
    {
        return Ok((at, size));
    }
    let mut at = memory.base() + GLOBALS_OFFSET;
    let mut sorted = used.to_vec();
    sorted.sort_unstable();
    for (start, length) in sorted {
        if at + size <= start {
            break;
        }
        at = at.max(start + length);
    }
    memory.map(at, size)?;
    Ok((at, size))
}

impl Module {
    /// Bytes of memory of the host that it takes, apart from its variables.
    #[must_use]
    pub fn host_memory(&self) -> usize {
        // An entry of a hash table, and a name, which the list of managed ones may repeat.
        let names = self.globals.keys().map(|name| 2 * (name.len() + 128));
        self.program.footprint() + names.sum::<usize>()
    }

    /// The loader's log: functions that cannot run, and why.
    #[must_use]
    pub fn log(&self) -> String {
        let refused = |f: &Func| {
            let reason = f.refused.as_ref()?;
            Some(format!("{}: {reason}\n", f.name))
        };
        let mut log = String::new();
        for line in self.program.funcs.iter().filter_map(refused) {
            if log.len() > MAX_LOG {
                break;
            }
            log.push_str(&line);
        }
        log
    }

    /// Refuses kernel `func` if it contains something unsupported.
    ///
    /// # Errors
    /// `NOT_SUPPORTED`, or `INVALID_PTX` for an unresolved external; both name the kernel,
    /// the line and the reason.
    pub fn runs(&self, func: usize) -> Result<(), Error> {
        let Some(func) = self.program.funcs.get(func) else {
            return Err(Status::NOT_FOUND.into());
        };
        match &func.refused {
            None => Ok(()),
            Some(refusal) => {
                let error = ptx_error(refusal);
                tracing::debug!(kernel = %func.name, "{refusal}");
                Err(Error::new(
                    error.status,
                    format!("kernel {}: {refusal}", func.name),
                ))
            }
        }
    }

    /// Loads `image` for a device of compute capability `arch` (times ten). `used` are the
    /// ranges that other modules occupy. Its variables begin at `preferred` if that is
    /// free. If its kernels call `malloc`, a heap of `heap_bytes` follows them.
    ///
    /// # Errors
    /// `INVALID_IMAGE`, `NO_BINARY_FOR_GPU`, `INVALID_PTX`, `NOT_SUPPORTED`, `OUT_OF_MEMORY`.
    pub fn load(
        image: &[u8],
        arch: u32,
        memory: &Memory,
        used: &[(u64, u64)],
        preferred: Option<u64>,
        heap_bytes: u64,
    ) -> Result<(Self, u64), Error> {
        let text = paragpu_fatbin::ptx_of(image, arch).map_err(|e| match e {
            paragpu_fatbin::ImageError::NoBinary => {
                let why = format!(
                    "{e}: it contains {}. The software GPU runs PTX, which nvcc adds with \
                     -gencode arch=compute_XY,code=compute_XY",
                    held(image)
                );
                Error::new(Status::NO_BINARY_FOR_GPU, why)
            }
            other => image_error(&other),
        })?;
        check_text(text.len())?;
        let syntax = parser::parse(&text).map_err(|e| ptx_error(&e))?;
        if syntax.target > arch {
            return Err(Error::new(
                Status::NO_BINARY_FOR_GPU,
                format!(
                    "the PTX is for sm_{}, the device is sm_{arch}",
                    syntax.target
                ),
            ));
        }
        let in_memory = |v: &&Var<'_>| {
            matches!(v.space, Space::Global | Space::Const) && !v.external && v.unserved.is_none()
        };
        let too_large = || {
            Error::new(
                Status::OUT_OF_MEMORY,
                "the module's variables are too large",
            )
        };
        let mut offsets = Vec::new();
        let (mut end, mut constant_bytes) = (0u64, 0u64);
        for var in syntax.variables.iter().filter(in_memory) {
            // Aligned to at least 16 bytes, regardless of the declaration, as a linker
            // places variables.
            let offset = end.next_multiple_of(var.align.max(16));
            end = offset
                .checked_add(var.size().max(1))
                .filter(|&e| e < DEVICE_STRIDE / 16)
                .ok_or_else(too_large)?;
            offsets.push((var, offset));
            if var.space == Space::Const {
                constant_bytes += var.size();
            }
        }
        let heap_at = end.next_multiple_of(256);
        let of_runtime =
            |name: &str| RuntimeCall::of(name).is_some_and(|(call, ..)| call.uses_heap());
        let calls = |f: &Function<'_>| {
            f.body.is_none()
                && (matches!(f.name, "malloc" | ALIGNED_MALLOC | "free") || of_runtime(f.name))
        };
        if syntax.functions.iter().any(calls) {
            end = heap_at
                .checked_add(heap_bytes)
                .filter(|&e| e < DEVICE_STRIDE / 16)
                .ok_or_else(too_large)?;
        }
        let (base, mapped) = match end {
            0 => (0, 0),
            _ => place_at(memory, used, end, preferred).map_err(|e| memory_error(&e))?,
        };
        // Programs load thousands of modules with a few bytes of variables each.
        if mapped == CHUNK {
            memory.use_small_pages(base, mapped);
        }
        let mapping = (mapped != 0).then_some(base);
        let built = Self::build(&syntax, memory, base, &offsets);
        match built {
            Ok((mut program, mut globals)) => {
                program.constant_bytes = constant_bytes;
                let heap = program.uses_heap.then(|| {
                    globals.insert(HEAP.to_owned(), (base + heap_at, heap_bytes));
                    Arc::new(Heap::new(base + heap_at, heap_bytes))
                });
                let managed = offsets.iter().filter(|(var, _)| var.managed);
                let module = Self {
                    program: Arc::new(program),
                    globals,
                    managed: managed.map(|(var, _)| var.name.to_owned()).collect(),
                    heap,
                    mapping,
                };
                Ok((module, mapped))
            }
            Err(error) => {
                if let Some(generation) = mapping.and_then(|at| memory.retire(at).ok()) {
                    memory.release(generation);
                }
                Err(error)
            }
        }
    }

    #[allow(clippy::type_complexity)]
    fn build(
        syntax: &crate::ptx::ast::Module<'_>,
        memory: &Memory,
        base: u64,
        offsets: &[(&Var<'_>, u64)],
    ) -> Result<(Program, HashMap<String, (u64, u64)>), Error> {
        let addresses: HashMap<&str, u64> =
            offsets.iter().map(|(v, o)| (v.name, base + o)).collect();
        let functions: HashMap<&str, usize> = syntax
            .functions
            .iter()
            .filter(|f| f.body.is_some())
            .enumerate()
            .map(|(n, f)| (f.name, n))
            .collect();
        let program = decode::decode(syntax, &addresses).map_err(|e| ptx_error(&e))?;
        let mut globals = HashMap::new();
        for (var, offset) in offsets {
            let bytes = decode::image(var, &addresses, &functions).map_err(|e| ptx_error(&e))?;
            if !memory.write(base + offset, &bytes) {
                return Err(Error::new(
                    Status::INVALID_PTX,
                    format!("initial value of {} is too long", var.name),
                ));
            }
            globals.insert(var.name.to_owned(), (base + offset, var.size()));
        }
        Ok((program, globals))
    }
}
