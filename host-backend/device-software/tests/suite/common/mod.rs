//! Shared code of this crate's tests: a device, PTX for it, and copies of its memory.
#![allow(dead_code, reason = "examples use a part")]

pub mod table;

use paragpu_device::conformance::settle;
use paragpu_device::{Device, Error, Function, Launch, ModuleId, Platform, StreamId};
use paragpu_device_software::{Options, SoftwarePlatform};
use paragpu_protocol::layout::MAX_DEVICES;
use paragpu_protocol::layout::{CHUNK, Regions};
use std::sync::{Condvar, Mutex};

static TAKEN: Mutex<u32> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// The place of one device in this process's address space.
pub struct DeviceSlot(u32);

impl DeviceSlot {
    pub fn take() -> Self {
        let mut taken = TAKEN.lock().unwrap();
        loop {
            let free = taken.trailing_ones();
            if free < MAX_DEVICES.min(8) {
                *taken |= 1 << free;
                return Self(free);
            }
            taken = FREED.wait(taken).unwrap();
        }
    }

    pub fn regions(&self) -> Regions {
        Regions::of(self.0).expect("a free ordinal")
    }
}

impl Drop for DeviceSlot {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(|e| e.into_inner()) &= !(1 << self.0);
        FREED.notify_one();
    }
}

/// A device whose arena no other test of this process uses.
pub struct Gpu {
    pub device: Box<dyn Device>,
    pub arena: u64,
    // Declared last, so that it is released after the device.
    pub place: DeviceSlot,
}

pub const STREAM: StreamId = StreamId::LEGACY;

impl Gpu {
    pub fn new() -> Self {
        Self::with(Options {
            memory: 512 << 20,
            cores: 2,
            ..Options::default()
        })
    }

    pub fn with(options: Options) -> Self {
        let place = DeviceSlot::take();
        let regions = place.regions();
        let device = SoftwarePlatform::with_options(options)
            .open(0, regions)
            .expect("device opens");
        let mut gpu = Self {
            device,
            arena: regions.arena,
            place,
        };
        gpu.device.memory_map(gpu.arena, 16 * CHUNK).expect("map");
        gpu
    }

    pub fn load(&mut self, ptx: &str) -> Result<ModuleId, Error> {
        self.device.module_load(&ptx.into(), &[]).map(|(id, _)| id)
    }

    pub fn kernel(&mut self, ptx: &str, name: &str) -> Function {
        let module = self
            .load(ptx)
            .unwrap_or_else(|e| panic!("load: {e}\n{ptx}"));
        self.device.module_function(module, name).expect("kernel")
    }

    pub fn launch(
        &mut self,
        f: &Function,
        grid: [u32; 3],
        block: [u32; 3],
        args: &[Arg],
    ) -> Result<(), Error> {
        self.start(f, grid, block, 0, false, args)?;
        settle(self.device.as_mut(), STREAM)
    }

    pub fn start(
        &mut self,
        f: &Function,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        cooperative: bool,
        args: &[Arg],
    ) -> Result<(), Error> {
        self.start_on(STREAM, f, grid, block, dynamic_shared, cooperative, args)
    }

    #[allow(clippy::too_many_arguments)]
    pub fn start_on(
        &mut self,
        stream: StreamId,
        f: &Function,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        cooperative: bool,
        args: &[Arg],
    ) -> Result<(), Error> {
        let parameters = pack(f, args);
        let launch = Launch {
            function: f.id,
            grid,
            block,
            dynamic_shared,
            cooperative,
            programmatic: false,
            cluster: [0; 3],
            preferences: Vec::new(),
            parameters: parameters.into(),
        };
        self.device.launch(launch, stream)
    }

    /// Copies words in at `offset` of the arena through a registered buffer.
    pub fn put<T: Copy + Into<u64>>(&mut self, offset: u64, values: &[T], width: usize) {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|&v| v.into().to_le_bytes()[..width].to_vec())
            .collect();
        self.transfer(offset, &mut bytes.clone(), true);
    }

    pub fn put32(&mut self, offset: u64, values: &[u32]) {
        self.put(offset, values, 4);
    }

    pub fn put64(&mut self, offset: u64, values: &[u64]) {
        self.put(offset, values, 8);
    }

    pub fn get32(&mut self, offset: u64, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; count * 4];
        self.transfer(offset, &mut bytes, false);
        bytes
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    pub fn get64(&mut self, offset: u64, count: usize) -> Vec<u64> {
        let mut bytes = vec![0; count * 8];
        self.transfer(offset, &mut bytes, false);
        bytes
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    pub fn transfer(&mut self, offset: u64, bytes: &mut [u8], to_device: bool) {
        if bytes.is_empty() {
            return;
        }
        let pages = bytes.len().div_ceil(4096) + 1;
        let mut buffer = vec![0u8; pages * 4096];
        let start = (buffer.as_ptr() as u64).next_multiple_of(4096);
        let skip = (start - buffer.as_ptr() as u64) as usize;
        let size = bytes.len().next_multiple_of(4096) as u64;
        if to_device {
            buffer[skip..skip + bytes.len()].copy_from_slice(bytes);
        }
        self.device.host_register(start, size).expect("register");
        let at = self.arena + offset;
        let (to, from) = if to_device { (at, start) } else { (start, at) };
        self.device
            .copy(to, from, bytes.len() as u64, STREAM)
            .expect("copy");
        settle(self.device.as_mut(), STREAM).expect("settle");
        self.device.host_unregister(start).expect("unregister");
        if !to_device {
            bytes.copy_from_slice(&buffer[skip..skip + bytes.len()]);
        }
    }
}

/// A kernel argument.
#[derive(Clone, Copy)]
pub enum Arg {
    P(u64),
    W(u32),
}

/// Packs arguments by the layout of the kernel's parameters.
pub fn pack(f: &Function, args: &[Arg]) -> Vec<u8> {
    assert_eq!(f.parameters.len(), args.len());
    let size = f.parameters.last().map_or(0, |&(o, s)| o + s) as usize;
    let mut bytes = vec![0; size];
    for (&(offset, size), arg) in f.parameters.iter().zip(args) {
        let value = match *arg {
            Arg::P(v) => v,
            Arg::W(v) => u64::from(v),
        };
        let (offset, size) = (offset as usize, size as usize);
        bytes[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
    bytes
}

/// A module around the text of kernels.
pub fn module(body: &str) -> String {
    format!(".version 9.0\n.target sm_75\n.address_size 64\n{body}\n")
}

/// A kernel `k(out, in...)` of one thread per element: `body` computes from `%rdin` (this
/// thread's row of the inputs, `inputs` words of `width` bytes) into `%rdout` (its row of
/// the results, `outputs` words).
pub fn elementwise(width: u32, inputs: u32, outputs: u32, body: &str) -> String {
    module(&format!(
        ".visible .entry k(.param .u64 o, .param .u64 i, .param .u32 n) {{
.reg .pred %p<16>; .reg .b16 %rs<32>; .reg .b32 %r<64>; .reg .b64 %rd<64>; .reg .f32 %f<32>; .reg .f64 %fd<32>;
.reg .b64 %rdin, %rdout; .reg .b32 %idx, %lim, %bd, %bi;
ld.param.u64 %rdout, [o]; ld.param.u64 %rdin, [i]; ld.param.u32 %lim, [n];
mov.u32 %idx, %tid.x; mov.u32 %bd, %ntid.x; mov.u32 %bi, %ctaid.x; mad.lo.u32 %idx, %bd, %bi, %idx;
setp.ge.u32 %p15, %idx, %lim; @%p15 bra DONE;
mad.wide.u32 %rdin, %idx, {}, %rdin; mad.wide.u32 %rdout, %idx, {}, %rdout;
{body}
DONE: ret; }}",
        width * inputs,
        width * outputs
    ))
}
