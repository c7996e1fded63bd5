//! CUDA's device runtime: the functions with which kernels launch others.

use super::block::Env;
use super::runtime_query;
use super::warp::Warp;
use crate::error::Fault;
use crate::launched::{
    Child, INVALID_CONFIGURATION, INVALID_FUNCTION, INVALID_VALUE, OUT_OF_MEMORY, Rows,
};
use crate::program::{Call, FUNCTION_BASE, FUNCTION_STRIDE, MemSpace, RuntimeCall};

/// Size of the header before the parameters in a buffer of `GetParameterBufferV2`, which
/// describes the launch. The kernel can overwrite it, so all of it is checked at the launch.
const HEADER: u64 = 48;
const GRID: u64 = 8;
const BLOCK: u64 = 20;
const SHARED: u64 = 32;
/// cudaStreamTailLaunch.
const TAIL_LAUNCH: u64 = 3;

/// The result of a call: an address or nothing, or a cudaError.
type Answer = Result<u64, u32>;

/// A launch, apart from its parameters.
struct Shape {
    /// Address of the kernel.
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    /// Bytes of dynamic shared memory.
    shared: u32,
}

impl Warp {
    /// Calls a function of the device runtime, lane by lane.
    pub(super) fn runtime_call(
        &mut self,
        env: &mut Env<'_>,
        function: RuntimeCall,
        call: &Call,
    ) -> Result<(), (Fault, u32)> {
        let mask = self.run.mask;
        let base = self.run.bases.local;
        for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
            let answer = self.runtime_lane(env, function, call, lane);
            let answer = answer.map_err(|fault| (fault, lane))?;
            env.grid.launched.note(answer.err().unwrap_or(0));
            let Some(&(offset, size)) = call.returns.first() else {
                continue;
            };
            let value = match (function, answer) {
                (RuntimeCall::GetParameterBuffer | RuntimeCall::GetParameterBufferV2, answer) => {
                    answer.unwrap_or(0)
                }
                (_, answer) => answer.unwrap_or_else(u64::from),
            };
            self.local_store(lane, base + offset, if size == 8 { 8 } else { 4 }, value);
        }
        Ok(())
    }

    fn runtime_lane(
        &mut self,
        env: &mut Env<'_>,
        function: RuntimeCall,
        call: &Call,
        lane: u32,
    ) -> Result<Answer, Fault> {
        let base = self.run.bases.local;
        let argument = |warp: &Self, number: usize, width: u8| {
            let place = call.args.get(number).map_or(0, |&(offset, _)| offset);
            warp.local_load(lane, base + place, width).unwrap_or(0)
        };
        let first = argument(self, 0, 8);
        Ok(match function {
            RuntimeCall::GetParameterBuffer => {
                let heap = env.grid.heap.as_ref().filter(|_| first.is_power_of_two());
                let taken =
                    heap.and_then(|heap| heap.take(env.memory, argument(self, 1, 8), first));
                taken.ok_or(OUT_OF_MEMORY)
            }
            RuntimeCall::LaunchDevice => {
                let buffer = argument(self, 1, 8);
                let shape = self.shape(call, lane, 2, first);
                return launch(env, &shape, buffer, buffer, argument(self, 5, 8));
            }
            RuntimeCall::GetParameterBufferV2 => {
                described_buffer(env, &self.shape(call, lane, 1, first))
            }
            RuntimeCall::LaunchDeviceV2 => {
                return launch_described(env, first, argument(self, 1, 8));
            }
            RuntimeCall::Copy => {
                let (to, from) = (row(first), row(argument(self, 1, 8)));
                let extent = [argument(self, 2, 8), 1];
                copy(env, argument(self, 4, 8), to, from, extent)
            }
            RuntimeCall::CopyRows => {
                let [to, from] = [(first, 1), (argument(self, 2, 8), 3)].map(|(address, pitch)| {
                    let pitch = argument(self, pitch, 8);
                    Rows { address, pitch }
                });
                let extent = [argument(self, 4, 8), argument(self, 5, 8)];
                copy(env, argument(self, 7, 8), to, from, extent)
            }
            RuntimeCall::Fill => {
                let (value, extent) = (argument(self, 1, 4), [argument(self, 2, 8), 1]);
                fill(env, argument(self, 3, 8), row(first), value as u8, extent)
            }
            RuntimeCall::FillRows => {
                let to = Rows {
                    address: first,
                    pitch: argument(self, 1, 8),
                };
                let extent = [argument(self, 3, 8), argument(self, 4, 8)];
                fill(
                    env,
                    argument(self, 5, 8),
                    to,
                    argument(self, 2, 4) as u8,
                    extent,
                )
            }
            RuntimeCall::GetLastError => Ok(env.grid.launched.last_error(true).into()),
            RuntimeCall::PeekAtLastError => Ok(env.grid.launched.last_error(false).into()),
            RuntimeCall::Malloc => {
                let heap = env.grid.heap.as_ref();
                let taken = heap.and_then(|heap| heap.take(env.memory, argument(self, 1, 8), 1));
                self.lane_store(
                    env,
                    MemSpace::Generic,
                    lane as usize,
                    first,
                    8,
                    taken.unwrap_or(0),
                )?;
                taken.map(|_| 0).ok_or(OUT_OF_MEMORY)
            }
            RuntimeCall::Free
                if first == 0 || env.grid.device.heaps.give_back(env.memory, first) =>
            {
                Ok(0)
            }
            RuntimeCall::Free => Err(INVALID_VALUE),
            RuntimeCall::GetDevice
            | RuntimeCall::GetDeviceCount
            | RuntimeCall::DeviceGetAttribute
            | RuntimeCall::DeviceGetLimit
            | RuntimeCall::DeviceGetCacheConfig
            | RuntimeCall::DeviceGetSharedMemConfig
            | RuntimeCall::FuncGetAttributes
            | RuntimeCall::Occupancy
            | RuntimeCall::RuntimeGetVersion => {
                let given = [1, 2, 3].map(|number| {
                    let size = call.args.get(number).map_or(4, |&(_, size)| size);
                    argument(self, number, if size == 8 { 8 } else { 4 })
                });
                match runtime_query::answer(env, function, given) {
                    Ok(_) if first == 0 => Err(INVALID_VALUE),
                    Ok(words) => {
                        let lane = lane as usize;
                        for (address, word) in (first..).step_by(4).zip(words) {
                            self.lane_store(env, MemSpace::Generic, lane, address, 4, word.into())?;
                        }
                        Ok(0)
                    }
                    Err(error) => Err(error),
                }
            }
            RuntimeCall::Create => {
                // A number that is not a special stream.
                self.lane_store(env, MemSpace::Generic, lane as usize, first, 8, 1 << 8)?;
                Ok(0)
            }
            RuntimeCall::Nothing => Ok(0),
        })
    }

    /// The launch of a kernel, whose grid, block and shared memory are the arguments from
    /// `number` on.
    fn shape(&self, call: &Call, lane: u32, number: usize, function: u64) -> Shape {
        let word = |number: usize, at: u32| {
            let place = call.args.get(number).map_or(0, |&(offset, _)| offset);
            let word = self.local_load(lane, self.run.bases.local + place + at, 4);
            word.unwrap_or(0) as u32
        };
        let sides = |number| [0, 4, 8].map(|at| word(number, at));
        Shape {
            function,
            grid: sides(number),
            block: sides(number + 1),
            shared: word(number + 2, 0),
        }
    }
}

/// Memory for a launch's parameters, behind a description of the launch.
fn described_buffer(env: &Env<'_>, shape: &Shape) -> Answer {
    let func = kernel_at(env, shape.function).ok_or(INVALID_FUNCTION)?;
    let bytes = env.program.funcs.get(func).map_or(0, |f| f.param_bytes);
    let heap = env.grid.heap.as_ref();
    let taken = heap.and_then(|heap| heap.take(env.memory, HEADER + u64::from(bytes), 1));
    let buffer = taken.ok_or(OUT_OF_MEMORY)?;
    let mut written = env.memory.store(buffer, 8, shape.function);
    let words = [(GRID, shape.grid), (BLOCK, shape.block)];
    for (at, sides) in words {
        for (at, side) in (buffer + at..).step_by(4).zip(sides) {
            written &= env.memory.store(at, 4, side.into());
        }
    }
    written &= env.memory.store(buffer + SHARED, 4, shape.shared.into());
    if written {
        Ok(buffer + HEADER)
    } else {
        Err(OUT_OF_MEMORY)
    }
}

/// Index of the kernel with this address.
pub(super) fn kernel_at(env: &Env<'_>, address: u64) -> Option<usize> {
    let offset = address.checked_sub(FUNCTION_BASE)?;
    let func = usize::try_from(offset / FUNCTION_STRIDE).ok()?;
    let found = env.program.funcs.get(func)?;
    (offset.is_multiple_of(FUNCTION_STRIDE) && found.entry).then_some(func)
}

/// Launches the kernel that a buffer of [`described_buffer`] describes.
fn launch_described(env: &Env<'_>, parameters: u64, stream: u64) -> Result<Answer, Fault> {
    let Some(buffer) = parameters.checked_sub(HEADER) else {
        return Ok(Err(INVALID_VALUE));
    };
    let word = |at: u64| env.memory.load(buffer + at, 4).map(|word| word as u32);
    let sides = |at: u64| Some([word(at)?, word(at + 4)?, word(at + 8)?]);
    let read = || {
        Some(Shape {
            function: env.memory.load(buffer, 8)?,
            grid: sides(GRID)?,
            block: sides(BLOCK)?,
            shared: word(SHARED)?,
        })
    };
    match read() {
        Some(shape) => launch(env, &shape, buffer, parameters, stream),
        None => Ok(Err(INVALID_VALUE)),
    }
}

/// Launches a kernel, and frees the buffer in which its parameters lie.
fn launch(
    env: &Env<'_>,
    shape: &Shape,
    buffer: u64,
    parameters: u64,
    stream: u64,
) -> Result<Answer, Fault> {
    let Some(index) = kernel_at(env, shape.function) else {
        return Ok(Err(INVALID_FUNCTION));
    };
    let func = env
        .program
        .funcs
        .get(index)
        .ok_or(Fault::InvalidTarget(shape.function))?;
    if let Some(refusal) = func.refused.as_deref() {
        return Err(Fault::Refused(refusal.clone()));
    }
    let mut bytes = vec![0; func.param_bytes as usize];
    // A kernel without parameters needs no buffer.
    if buffer != 0 || !bytes.is_empty() {
        let read = env.memory.read(parameters, &mut bytes);
        if !env.grid.device.heaps.give_back(env.memory, buffer) || !read {
            return Ok(Err(INVALID_VALUE));
        }
    }
    if func.threads(shape.grid, shape.block).is_none() {
        return Ok(Err(INVALID_CONFIGURATION));
    }
    let child = Child::Kernel {
        func: index,
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        parameters: bytes,
    };
    Ok(add(env, stream == TAIL_LAUNCH, true, child))
}

/// One row.
fn row(address: u64) -> Rows {
    Rows { address, pitch: 0 }
}

fn copy(env: &Env<'_>, stream: u64, to: Rows, from: Rows, extent: [u64; 2]) -> Answer {
    let valid = reachable(env, to, extent) && reachable(env, from, extent);
    let child = Child::Copy {
        destination: to,
        source: from,
        extent,
    };
    add(env, stream == TAIL_LAUNCH, valid, child)
}

fn fill(env: &Env<'_>, stream: u64, to: Rows, value: u8, extent: [u64; 2]) -> Answer {
    let child = Child::Fill {
        destination: to,
        value,
        extent,
    };
    add(
        env,
        stream == TAIL_LAUNCH,
        reachable(env, to, extent),
        child,
    )
}

fn reachable(env: &Env<'_>, rows: Rows, extent: [u64; 2]) -> bool {
    rows.span(extent)
        .is_some_and(|span| span == 0 || env.memory.reachable(rows.address, span))
}

fn add(env: &Env<'_>, tail: bool, valid: bool, child: Child) -> Answer {
    if !valid {
        return Err(INVALID_VALUE);
    }
    if let Child::Copy { extent, .. } | Child::Fill { extent, .. } = &child
        && extent.contains(&0)
    {
        return Ok(0);
    }
    let [width, height, _] = env.grid.grid.map(u64::from);
    let [x, y, z] = env.ctaid.map(u64::from);
    match env
        .grid
        .launched
        .add(x + width * (y + height * z), tail, child)
    {
        0 => Ok(0),
        error => Err(error),
    }
}
